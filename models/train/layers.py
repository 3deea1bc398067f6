"""What targets and drafters are made of: RMS norms, rotary attention, gated MLPs, a decoder block. Weights have the names of
Hugging Face's Llama family, so that a state dict is a checkpoint. Attention is told who sees whom by a Mask (documents packed
in a row of tokens) and may be asked for its log-sum-exp, with which keys that lie elsewhere are merged in (EAGLE-3's training).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


def q4(w):
  """w as Q4_0 stores it (blocks of 32: code 0..15, value d (code - 8)); gradients pass as if it were w. d is rounded to bf16 too:
  Q4_0 of a BF16 file of these values is these values."""
  b = w.detach().reshape(-1, 32)
  d = b.gather(1, b.abs().argmax(1, keepdim=True)) / -8
  codes = (b * torch.where(d == 0, 0.0, 1 / d) + 8.5).trunc().clamp(0, 15)
  return w + ((codes - 8) * d.bfloat16().half().float()).view_as(w) - w.detach()


@dataclass
class Shape:
  """The geometry of a Llama-like stack; `from_config` reads a Hugging Face config.json"""

  hidden: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  ffn: int
  vocab: int
  eps: float = 1e-6
  theta: float = 10000.0
  tied: bool = False
  qk_norm: bool = False  # Qwen3
  qkv_bias: bool = False  # Qwen2
  context: int = 32768

  @staticmethod
  def from_config(c):
    rope = c.get("rope_parameters") or {"rope_theta": c.get("rope_theta", 10000.0), **(c.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" or c.get("use_sliding_window") or (c["model_type"] == "mistral" and c.get("sliding_window")):
      raise ValueError(f"a target with rope scaling or sliding windows ({kind}) cannot be trained for: these layers are plain")
    heads = c["num_attention_heads"]
    return Shape(
        hidden=c["hidden_size"], layers=c["num_hidden_layers"], heads=heads, kv_heads=c.get("num_key_value_heads", heads),
        head_dim=c.get("head_dim") or c["hidden_size"] // heads, ffn=c["intermediate_size"], vocab=c["vocab_size"],
        eps=c["rms_norm_eps"], theta=rope["rope_theta"], tied=c.get("tie_word_embeddings", False),
        qk_norm=c["model_type"] == "qwen3", qkv_bias=c["model_type"] == "qwen2", context=c["max_position_embeddings"],
    )  # fmt: skip


class Fast:
  """What a GPU runs compiled: `use` once a process, before the first pass. Plain PyTorch otherwise."""

  flex = block_mask = None

  @staticmethod
  def use(attention="flex", pieces=True):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.config.cache_size_limit = 128
    if attention == "flex":
      Fast.flex = staticmethod(torch.compile(flex_attention, dynamic=False))
      Fast.block_mask = staticmethod(torch.compile(create_block_mask, dynamic=False))
    if pieces:
      for name in ("rms", "rotate", "swiglu"):
        globals()[name] = torch.compile(globals()[name], dynamic=True)
      globals()["merge_own_keys"] = torch.compile(merge_own_keys, dynamic=False)


def rms(x, weight, eps):
  y = x.float()
  return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def swiglu(gate, up):
  return F.silu(gate) * up


class Norm(nn.Module):
  """x / rms(x) * weight, or * (1 + weight) where the family stores weights less one (Qwen3-Next); in fp32"""

  def __init__(self, width, eps, plus_one=False):
    super().__init__()
    self.weight = nn.Parameter(torch.zeros(width) if plus_one else torch.ones(width))
    self.eps, self.plus_one = eps, plus_one

  def forward(self, x):
    return rms(x, 1.0 + self.weight if self.plus_one else self.weight, self.eps)


def rope_tables(positions, head_dim, theta):
  """positions [...] -> cos, sin [..., head_dim / 2] in fp32"""
  steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
  angles = positions.float()[..., None] * theta**-steps
  return angles.cos(), angles.sin()


def rotate(x, c, s):
  """x [batch][heads][rows][head_dim], c and s of rope_tables: elements i and i + head_dim / 2 turn together"""
  a, b = x.float().chunk(2, -1)
  return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)


class Mask:
  """Who sees whom, as `dense` [batch or 1][1][rows][keys] or as FlexAttention's `block`; neither: the last rows of the keys,
  each of which sees all keys up to its own."""

  def __init__(self, dense=None, block=None):
    self.dense, self.block = dense, block

  @staticmethod
  def packed(documents):
    """Row q sees key k if k <= q and both lie in the same document; documents [batch][rows]: a number for each."""
    batch, rows = documents.shape
    if documents.is_cuda and Fast.flex:
      sees = lambda b, h, q, k: (q >= k) & (documents[b, q] == documents[b, k])
      return Mask(block=Fast.block_mask(sees, batch, None, rows, rows, device=documents.device))
    order = torch.arange(rows, device=documents.device)
    same = documents[:, :, None] == documents[:, None, :]
    return Mask((same & (order[:, None] >= order))[:, None])

  @staticmethod
  def given(table):
    """from a table [rows][keys]: inference over trees"""
    return Mask(table[None, None])


def attend(q, k, v, mask, want_lse=False):
  """q [batch][heads][rows][d], k and v [batch][kv_heads][keys][d] -> [batch][heads][rows][d] (and fp32 log-sum-exp of a row)"""
  groups, rows, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
  if mask.block is not None:
    return Fast.flex(q, k, v, block_mask=mask.block, enable_gqa=groups > 1, return_lse=want_lse)
  if groups > 1:
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
  if mask.dense is None and not want_lse and rows in (1, keys):  # the forms for which there are kernels without a mask
    return F.scaled_dot_product_attention(q, k, v, is_causal=rows > 1)
  if mask.dense is None:
    order = torch.arange(keys, device=q.device)
    mask = Mask.given(order[keys - rows :, None] >= order)
  if not want_lse:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.dense)
  if not torch.is_grad_enabled() and rows > 1024:  # a long text's scores do not fit at once
    parts = [attend(q[:, :, a : a + 1024], k, v, Mask(mask.dense[:, :, a : a + 1024]), True) for a in range(0, rows, 1024)]
    return tuple(torch.cat(x, 2) for x in zip(*parts))
  scores = (q.float() @ k.float().mT * q.shape[-1] ** -0.5).masked_fill(~mask.dense, -torch.inf)
  lse = scores.logsumexp(-1)
  return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse


def merge_own_keys(out, lse, q, own):
  """Adds to rows that saw some keys further keys which a row has to itself: own [(k, v)], each [batch][kv_heads][rows][d]"""
  groups = q.shape[1] // own[0][0].shape[1]
  wide = lambda x: x.repeat_interleave(groups, 1) if groups > 1 else x
  scores = torch.stack([lse] + [(q.float() * wide(k).float()).sum(-1) * q.shape[-1] ** -0.5 for k, _ in own])
  weights = scores.softmax(0)
  total = weights[0, ..., None] * out.float()
  for w, (_, v) in zip(weights[1:], own):
    total = total + w[..., None] * wide(v).float()
  return total.to(out.dtype)


class Attention(nn.Module):
  """`width_in`: of its input (EAGLE-3: embedding and feature side by side); `gated`: q_proj has rows [q | gate] of each head"""

  def __init__(self, s, width_in=None, gated=False, plus_one=False):
    super().__init__()
    self.s, self.gated = s, gated
    width_in, q, kv = width_in or s.hidden, s.heads * s.head_dim, s.kv_heads * s.head_dim
    self.q_proj = nn.Linear(width_in, q * (2 if gated else 1), bias=s.qkv_bias)
    self.k_proj = nn.Linear(width_in, kv, bias=s.qkv_bias)
    self.v_proj = nn.Linear(width_in, kv, bias=s.qkv_bias)
    self.o_proj = nn.Linear(q, s.hidden, bias=False)
    if s.qk_norm:
      self.q_norm, self.k_norm = Norm(s.head_dim, s.eps, plus_one), Norm(s.head_dim, s.eps, plus_one)

  def project(self, x, tables):
    """-> q, k after rope, v [batch][heads][rows][d], gate [batch][rows][heads * d] or None"""
    s, (batch, rows) = self.s, x.shape[:2]
    q, gate = self.q_proj(x).view(batch, rows, s.heads, -1), None
    k, v = (p(x).view(batch, rows, s.kv_heads, s.head_dim) for p in (self.k_proj, self.v_proj))
    if self.gated:
      q, gate = q.chunk(2, -1)
      gate = gate.reshape(batch, rows, -1)
    if s.qk_norm:
      q, k = self.q_norm(q), self.k_norm(k)
    q, k = rotate(q.transpose(1, 2), *tables).to(v.dtype), rotate(k.transpose(1, 2), *tables).to(v.dtype)
    return q, k, v.transpose(1, 2), gate

  def finish(self, heads, gate):
    x = heads.transpose(1, 2).flatten(2)
    return self.o_proj(x if gate is None else x * torch.sigmoid(gate))

  def forward(self, x, tables, mask, cache=None):
    """cache: a Cache or a Rehearsal, which keeps the rows' keys and values; the mask counts a Cache's earlier rows too"""
    q, k, v, gate = self.project(x, tables)
    return self.finish(cache.attend(q, k, v, mask) if cache is not None else attend(q, k, v, mask), gate)


class Mlp(nn.Module):
  def __init__(self, hidden, ffn):
    super().__init__()
    self.gate_proj, self.up_proj = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
    self.down_proj = nn.Linear(ffn, hidden, bias=False)

  def forward(self, x):
    return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Block(nn.Module):
  """A decoder layer; `input_norm` False: EAGLE-1's, whose attention reads the residual stream as it is"""

  def __init__(self, s, input_norm=True, gated=False, plus_one=False):
    super().__init__()
    self.input_layernorm = Norm(s.hidden, s.eps, plus_one) if input_norm else nn.Identity()
    self.self_attn = Attention(s, gated=gated, plus_one=plus_one)
    self.post_attention_layernorm = Norm(s.hidden, s.eps, plus_one)
    self.mlp = Mlp(s.hidden, s.ffn)

  def forward(self, x, tables, mask, cache=None):
    x = x + self.self_attn(self.input_layernorm(x), tables, mask, cache)
    return x + self.mlp(self.post_attention_layernorm(x))


class Cache:
  """Keys and values of one layer at inference; `length` may be set back"""

  def __init__(self):
    self.k = self.v = None

  @property
  def length(self):
    return 0 if self.k is None else self.k.shape[2]

  def attend(self, q, k, v, mask):
    self.k = k if self.k is None else torch.cat([self.k, k], 2)
    self.v = v if self.v is None else torch.cat([self.v, v], 2)
    return attend(q, self.k, self.v, mask)

  def cut(self, length):
    self.k, self.v = (None, None) if length == 0 else (self.k[:, :, :length], self.v[:, :, :length])


class Rehearsal:
  """Keys and values of one layer while training walks through the steps of inference (EAGLE-3, training-time test): step 0
  has rows of true features; in step s row i stands for the s-th guess after it, and sees what row i saw in step 0 and its own
  keys of steps 1 to s."""

  def __init__(self):
    self.first, self.own = None, []

  def attend(self, q, k, v, mask):
    if self.first is None:
      self.first = k, v
      return attend(q, k, v, mask)
    self.own.append((k, v))
    out, lse = attend(q, *self.first, mask, want_lse=True)
    return merge_own_keys(out, lse, q, self.own)
