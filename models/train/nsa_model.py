"""Natively sparse attention (Yuan et al. 2025), as a target that is trained here and drafted for. A query attends to compressed
blocks of keys, to whole blocks that the compressed attention's probabilities choose, and to a window; gates mix the three.

    compressed  block i = rows i*d .. i*d+l-1; kc_i = sum_m w_k[h,m] (k + pe[h,m]) of keys before rope, then rope at i*d;
                vc_i = sum_m w_v[h,m] v; visible to t once i*d + l - 1 <= t; nothing visible: 0
    scores      P[i] = the group's probabilities added up; score[j] = sum_{m < l/d} sum_{u < l'/d} P[j l'/d + m + u - (l/d - 1)]
    selected    the best n of blocks 0 .. t/l' by (score, then lower j); the first `init_blocks` and last `local_blocks` always
    window      the last W rows, the query's own among them

On a GPU, where layers.Fast is in use, rows go through FlexAttention and compiled pieces; else through plain tensors.
"""

import copy
import math

import torch
import torch.nn.functional as F
from layers import Fast, Norm, Shape, q4, rms, rope_tables, rotate
from torch import nn

DENSE = 1 << 30  # a number of selected blocks that takes them all


class Sparse:
  """The key "nsa" of config.json"""

  def __init__(self, c):
    self.l, self.d, self.block, self.count = c["cmp_len"], c["cmp_stride"], c["sel_block"], c["sel_count"]
    self.init, self.local, self.window = c["init_blocks"], c["local_blocks"], c["window"]
    assert c["variant"] == "std" and c["cmp_kind"] == "weighted" and c["kv_sharing"] == "shared"
    assert self.l % self.d == 0 and self.block % self.d == 0 and self.count >= self.init + self.local


def compressed(x, weights, n):
  """x [batch][kv heads][rows][dim], weights [kv heads][l] -> one row for each block that is complete, in fp32"""
  strides, parts = x.shape[2] // n.d, n.l // n.d
  count = max(0, strides - parts + 1)
  y = x[:, :, : strides * n.d].float().unflatten(2, (strides, n.d))
  w = weights.float().unflatten(1, (parts, n.d))
  return sum((y[:, :, a : a + count] * w[None, :, a, None, :, None]).sum(3) for a in range(parts))


def compressed_keys(raw, weights, pe, n, tables):
  """tables: rope's at the first rows of the blocks"""
  bias = (weights.float()[..., None] * pe.float()).sum(1)
  return rotate(compressed(raw, weights, n) + bias[None, :, None], *tables).to(raw.dtype)


def visible(t, blocks, n):
  return torch.arange(blocks, device=t.device) * n.d + n.l - 1 <= t[:, None]


def block_scores(p, n, blocks):
  """p [...][rows][compressed], a group's probabilities added up -> [...][rows][blocks]"""
  lead, own = n.l // n.d - 1, n.block // n.d
  z = F.pad(p, (lead, max(0, blocks * own + lead - p.shape[-1])))
  z = sum(z[..., lead - m : lead - m + blocks * own] for m in range(lead + 1))
  return z.unflatten(-1, (blocks, own)).sum(-1)


def forced(t, blocks, n):
  """-> [rows][blocks]: always selected; may be selected"""
  j, own = torch.arange(blocks, device=t.device), t[:, None] // n.block
  return ((j < n.init) | (own - j < n.local)) & (j <= own), j <= own


def best(scores, t, n, count):
  """scores [...][rows][blocks] -> whether a block is one of the `count` best (equal scores: the lower one)"""
  always, allowed = forced(t, scores.shape[-1], n)
  if count >= scores.shape[-1]:
    return allowed.expand(scores.shape)
  if count <= n.init + n.local:
    return always.expand(scores.shape)
  s = scores.masked_fill(always, torch.inf).masked_fill(~allowed, -torch.inf)
  last = s.topk(count, -1).values[..., -1:]
  above, equal = s > last, s == last
  room = count - above.sum(-1, keepdim=True)
  return (above | (equal & (equal.cumsum(-1) <= room))) & allowed


def before(x, norm, wq, wk, wv, wg, wck, wcv, pe, tables, n, heads, kv_heads, dim, eps):
  """-> q, raw keys, keys, values [batch][heads][rows][dim]; gates [batch][rows][heads][3]; compressed keys and values"""
  h = rms(x, norm, eps)
  sizes = [heads * dim, kv_heads * dim, kv_heads * dim, 3 * heads]
  q, k, v, g = F.linear(h, torch.cat([wq, wk, wv, wg]).to(h.dtype)).split(sizes, -1)
  q, raw, v = (y.unflatten(-1, (-1, dim)).transpose(1, 2) for y in (q, k, v))
  made = max(0, raw.shape[2] // n.d - n.l // n.d + 1)
  at = [y[: made * n.d : n.d] for y in tables]
  kc, vc = compressed_keys(raw, wck, pe, n, at), compressed(v, wcv, n).to(v.dtype)
  g = g.float().sigmoid().unflatten(-1, (heads, 3))
  return rotate(q, *tables), raw, rotate(raw, *tables), v.contiguous(), g, kc, vc


def after(x, branches, g, wo, norm, wgate, wup, wdown, eps):
  mixed = sum(g[..., b, None] * o.transpose(1, 2).float() for b, o in enumerate(branches))
  x = x + F.linear(mixed.flatten(2).to(x.dtype), wo.to(x.dtype))
  gate, up = F.linear(rms(x, norm, eps), torch.cat([wgate, wup]).to(x.dtype)).chunk(2, -1)
  return x + F.linear(F.silu(gate) * up, wdown.to(x.dtype))


def choose(q, kc, lse, n, count, blocks):
  """for FlexAttention, whose probabilities are made again: -> bool [batch][kv heads][rows][blocks]"""
  t = torch.arange(q.shape[2], device=q.device)
  grouped = q.unflatten(1, (kc.shape[1], -1))
  s = (grouped @ kc[:, :, None].mT).float() * q.shape[-1] ** -0.5 - lse.unflatten(1, (kc.shape[1], -1))[..., None]
  p = (s.exp() * visible(t, kc.shape[2], n)).sum(2)
  return best(block_scores(p, n, blocks), t, n, count)


def probabilities(grouped, kc, t, n):
  """grouped [batch][kv heads][group][rows][dim] -> over compressed rows, zeros where none is visible"""
  see = visible(t, kc.shape[2], n)
  s = ((grouped @ kc[:, :, None].mT).float() * grouped.shape[-1] ** -0.5).masked_fill(~see, -torch.inf)
  return s.masked_fill(~see.any(-1, keepdim=True), 0.0).softmax(-1) * see


def guide(q, k, kc, t, n):
  """Selection has no gradient of its own: at the rows t of a sample, cross-entropy of the block scores against where dense
  attention of the same heads looks (which is not trained by it), weighted by how much that is outside the forced blocks"""
  blocks = -(-k.shape[2] // n.block)
  grouped = q[:, :, t].unflatten(1, (k.shape[1], -1))
  free = ~forced(t, blocks, n)[0]
  with torch.no_grad():
    s = (grouped @ k[:, :, None].mT).float() * q.shape[-1] ** -0.5
    a = s.masked_fill(torch.arange(k.shape[2], device=t.device) > t[:, None], -torch.inf).softmax(-1).mean(2)
    mass = F.pad(a, (0, blocks * n.block - k.shape[2])).unflatten(-1, (blocks, n.block)).sum(-1) * free
  scores = block_scores(probabilities(grouped, kc, t, n).sum(2), n, blocks) * free + 1e-6
  return -(mass * (scores / scores.sum(-1, keepdim=True)).log()).sum(-1).mean()


def plain(q, k, v, kc, vc, n, start, count):
  """rows start.. of q over all of the keys -> the three branches [batch][heads][rows][dim], and the selection"""
  rows, keys = q.shape[2], k.shape[2]
  t = torch.arange(start, start + rows, device=q.device)
  grouped, order = q.unflatten(1, (k.shape[1], -1)), torch.arange(keys, device=q.device)
  blocks = -(-keys // n.block)
  p = probabilities(grouped, kc, t, n)
  selected = best(block_scores(p.sum(2), n, blocks), t, n, count)
  s = (grouped @ k[:, :, None].mT).float() * q.shape[-1] ** -0.5
  causal = order <= t[:, None]
  chosen = selected.repeat_interleave(n.block, -1)[..., :keys][:, :, None] & causal
  window = causal & (t[:, None] - order < n.window)
  out = [p.to(v.dtype) @ vc[:, :, None]]
  out += [s.masked_fill(~m, -torch.inf).softmax(-1).to(v.dtype) @ v[:, :, None] for m in (chosen, window)]
  return [o.flatten(1, 2) for o in out], selected


class Flex:
  """The masks of one row length (a multiple of 128 and of l')"""

  made = {}

  def __init__(self, n, rows, device):
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask

    l, d, window = n.l, n.d, n.window  # a row that sees no block sees the first; what it reads there is multiplied by 0
    see = lambda b, h, q, i: (i * d + l - 1 <= q) | ((i == 0) & (q < l - 1))
    near = lambda b, h, q, k: (q >= k) & (q - k < window)
    tiles = rows // 128
    counts = torch.arange(1, tiles + 1, dtype=torch.int32, device=device)[None, None]
    order = torch.arange(tiles, dtype=torch.int32, device=device).expand(1, 1, tiles, tiles).contiguous()
    self.compressed = create_block_mask(see, None, None, rows, rows // d, device=device)
    self.window = create_block_mask(near, None, None, rows, rows, device=device)
    self.causal = BlockMask.from_kv_blocks(counts, order, BLOCK_SIZE=128, mask_mod=near)
    self.some = (torch.arange(rows, device=device) >= l - 1)[:, None]

  @staticmethod
  def of(n, rows, device):
    key = n.l, n.d, n.block, n.window, rows, str(device)
    if key not in Flex.made:
      Flex.made[key] = Flex(n, rows, device)
    return Flex.made[key]

  def selection(self, selected, group, size):
    mask = copy.copy(self.causal)  # all of its tiles ask the function, which is another one for every call
    mask.mask_mod = lambda b, h, q, k: (q >= k) & selected[b, h // group, q, k // size]
    return mask

  def run(self, q, k, v, kc, vc, n, count):
    flex, rows = Fast.flex or torch.nn.attention.flex_attention.flex_attention, q.shape[2]
    kc, vc = (F.pad(y, (0, 0, 0, rows // n.d - y.shape[2])) for y in (kc, vc))
    o_cmp, lse = flex(q, kc, vc, block_mask=self.compressed, enable_gqa=True, return_lse=True)
    with torch.no_grad():
      selected = piece(choose)(q.detach(), kc.detach(), lse.detach(), n, count, rows // n.block)
    mask = self.selection(selected, q.shape[1] // k.shape[1], n.block)
    o_slc = flex(q, k, v, block_mask=mask, enable_gqa=True)
    o_swa = flex(q, k, v, block_mask=self.window, enable_gqa=True)
    return [o_cmp * self.some.to(o_cmp.dtype), o_slc, o_swa], selected


def piece(f, kept={}):
  """f compiled, where Fast is in use"""
  if Fast.flex is None:
    return f
  if f not in kept:
    kept[f] = torch.compile(f, dynamic=False)
  return kept[f]


class Room:
  """One layer's cache of a fixed size for answers; `part`: of some sequences"""

  def __init__(self, s, n, batch, rows, dtype, device):
    shape = lambda r: (batch, s.kv_heads, r, s.head_dim)
    self.bufs = [torch.empty(shape(r), dtype=dtype, device=device) for r in (rows, rows, rows, rows // n.d, rows // n.d)]

  def part(self, some):
    out = copy.copy(self)
    out.bufs = [b[some] for b in self.bufs]
    return out

  def add(self, raw, k, v, start, n, layer, theta):
    """rows from `start` on -> keys, values, compressed keys and values of all"""
    end, a = start + raw.shape[2], layer.self_attn
    for buf, new in zip(self.bufs, (raw, k, v)):
      buf[:, :, start:end] = new
    nc = lambda length: max(0, (length - n.l) // n.d + 1)
    i, j = nc(start), nc(end)
    if j > i:
      rows = slice(i * n.d, (j - 1) * n.d + n.l)
      tables = rope_tables(torch.arange(i, j, device=raw.device) * n.d, raw.shape[-1], theta)
      new = compressed_keys(self.bufs[0][:, :, rows], a.compress_key, a.intra_block_pe, n, tables)
      self.bufs[3][:, :, i:j] = new
      self.bufs[4][:, :, i:j] = compressed(self.bufs[2][:, :, rows], a.compress_value, n)
    return [b[:, :, :m] for b, m in zip(self.bufs[1:], (end, end, j, j))]


class NsaAttention(nn.Module):
  def __init__(self, s, n):
    super().__init__()
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    for name, rows in (("q", q), ("k", kv), ("v", kv), ("g", 3 * s.heads)):
      setattr(self, name + "_proj", nn.Linear(s.hidden, rows, bias=False))
    self.o_proj = nn.Linear(q, s.hidden, bias=False)
    self.compress_key = nn.Parameter(torch.full((s.kv_heads, n.l), 1 / n.l))
    self.compress_value = nn.Parameter(torch.full((s.kv_heads, n.l), 1 / n.l))
    self.intra_block_pe = nn.Parameter(torch.zeros(s.kv_heads, n.l, s.head_dim))


class NsaLayer(nn.Module):
  def __init__(self, s, n):
    super().__init__()
    self.s, self.n = s, n
    self.input_layernorm, self.post_attention_layernorm = Norm(s.hidden, s.eps), Norm(s.hidden, s.eps)
    self.self_attn = NsaAttention(s, n)
    self.mlp = nn.Module()
    self.mlp.gate_proj, self.mlp.up_proj = (nn.Linear(s.hidden, s.ffn, bias=False) for _ in "gu")
    self.mlp.down_proj = nn.Linear(s.ffn, s.hidden, bias=False)

  def forward(self, x, tables, o, room=None, start=0):
    """o: the model, for how it runs at present"""
    s, n, a, m = self.s, self.n, self.self_attn, self.mlp
    w = [o.weight(y) for y in (a.q_proj, a.k_proj, a.v_proj, a.g_proj, a.o_proj, m.gate_proj, m.up_proj, m.down_proj)]
    fast = room is None and x.shape[1] % max(128, n.block) == 0 and (o.flex or (x.is_cuda and Fast.flex is not None))
    some = piece if fast else lambda f: f
    q, raw, k, v, g, kc, vc = some(before)(
        x, self.input_layernorm.weight, *w[:4], a.compress_key, a.compress_value, a.intra_block_pe, tables, n,
        s.heads, s.kv_heads, s.head_dim, s.eps,
    )  # fmt: skip
    if room is not None:
      k, v, kc, vc = room.add(raw, k, v, start, n, self, s.theta)
    if fast:
      out, selected = Flex.of(n, x.shape[1], x.device).run(q, k, v, kc, vc, n, o.count)
    else:
      out, selected = plain(q, k, v, kc, vc, n, start, o.count)
    if o.sample is not None:
      o.guided.append(some(guide)(q, k, kc, o.sample, n))
    if o.kept is not None:
      o.kept.append(selected)
    return some(after)(x, out, g, w[4], self.post_attention_layernorm.weight, *w[5:], s.eps)


class Nsa(nn.Module):
  """What target.Decoder is, with the same names. count: of selected blocks (DENSE; 0: forced ones only); rounding: weights as Q4_0
  has them; sample: rows at which selection is guided (`guided` then holds a loss of each layer); kept: a list for selections"""

  def __init__(self, config):
    super().__init__()
    self.config, self.s, self.n = config, Shape.from_config(config), Sparse(config["nsa"])
    self.model = nn.Module()
    self.model.embed_tokens = nn.Embedding(self.s.vocab, self.s.hidden)
    self.model.layers = nn.ModuleList(NsaLayer(self.s, self.n) for _ in range(self.s.layers))
    self.model.norm = Norm(self.s.hidden, self.s.eps)
    self.count, self.rounding, self.flex, self.sample, self.kept = self.n.count, False, False, None, None

  def begin(self, seed):
    dice = torch.Generator().manual_seed(seed)
    for name, p in self.named_parameters():
      if p.ndim == 2 and "compress" not in name:
        scale = 0.02 if "embed" in name else 0.5 * self.s.hidden**-0.5
        scale = 0.02 / math.sqrt(2 * self.s.layers) if "o_proj" in name or "down_proj" in name else scale
        p.data.copy_(torch.randn(p.shape, generator=dice) * (0.0 if "g_proj" in name else scale))
    return self

  def weight(self, module):
    return q4(module.weight) if self.rounding else module.weight

  @property
  def head(self):
    return self.model.embed_tokens.weight

  def forward(self, ids, mask=None, taps=(), caches=None, start=0, dtype=None):
    """As target.Decoder's; documents packed in a row see each other, as they did when this was trained: `mask` is not read"""
    tables = rope_tables(torch.arange(start, start + ids.shape[1], device=ids.device), self.s.head_dim, self.s.theta)
    x, kept, self.guided = F.embedding(ids, self.weight(self.model.embed_tokens)), {}, []
    x = x.to(dtype) if dtype else x
    for i, layer in enumerate(self.model.layers):
      x = layer(x, tables, self, caches[i] if caches else None, start)
      if i in taps:
        kept[i] = x
    return self.model.norm(x), torch.cat([kept[i] for i in taps], -1) if taps else None

  def logits(self, hidden):
    return F.linear(hidden, self.head.to(hidden.dtype)).float()

  @torch.inference_mode()
  def answer(self, prompts, count, choice, at_once=65536, step=256):
    """prompts [batch][rows] -> the next `count` tokens; choice(logits, sequences) -> a token each"""
    batch, rows = prompts.shape
    rooms = [Room(self.s, self.n, batch, rows + count, self.head.dtype, prompts.device) for _ in self.model.layers]
    out = torch.empty(batch, count, dtype=torch.long, device=prompts.device)
    many = max(1, at_once // rows)
    for a in range(0, batch, many):
      some = slice(a, min(batch, a + many))
      parts = [r.part(some) for r in rooms]
      for b in range(0, rows, step):
        hidden, _ = self(prompts[some, b : b + step], caches=parts, start=b)
      out[some, 0] = choice(self.logits(hidden[:, -1]), some)
    for i in range(1, count):
      hidden, _ = self(out[:, i - 1 : i], caches=rooms, start=rows + i - 1)
      out[:, i] = choice(self.logits(hidden[:, -1]), slice(0, batch))
    return out

  def greedy(self, ids, count):
    return self.answer(ids, count, lambda logits, some: logits.argmax(-1))
