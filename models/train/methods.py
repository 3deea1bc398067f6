"""How each kind of drafter is made, what its guesses are in training, and how it is written: one class each. Guesses are aligned
to the position whose distribution they guess: states[s][k] is the guess at t_{k+1} made by the row at k - s (s steps after it).
Recurrent drafters rehearse inference (training-time test, Li et al. 2025): step s runs over its own features of step s - 1.
"""

import layouts
import torch
import torch.nn.functional as F
from data import label_counts
from drafters import Eagle1, Eagle3, Medusa, Mtp
from layers import Mask, Rehearsal, Shape, rope_tables
from target import Decoder


def shift(x, count):
  """x [batch][rows]...: row i gets row i + count's; zeros where there is none"""
  if count == 0:
    return x
  out = torch.zeros_like(x)
  if count > 0:
    out[:, :-count] = x[:, count:]
  else:
    out[:, -count:] = x[:, :count]
  return out


def begin(module, deviation=0.02):
  for p in module.parameters():
    if p.ndim == 2:
      torch.nn.init.normal_(p, std=deviation)
  return module


class Method:
  """steps: guesses in a row that are trained; soft: share of the target's distribution beside the label"""

  lr, steps, decay, soft, batch_tokens = 2e-3, 1, 0.8, 1.0, 32768
  taps = ()

  def __init__(self, target, options):
    self.target, self.options = target, options
    self.steps = options.steps or self.steps

  def features(self, ids, documents):
    """the target's normed hidden states, and its taps (None: it has none)"""
    with torch.no_grad():
      return self.target(ids, Mask.packed(documents), self.taps)

  def heads(self, drafter):
    return [self.target.head.detach()]

  def ids(self, drafter):
    return None

  def extra_loss(self, states, hidden, weights):
    return 0.0


class RecurrentMethod(Method):
  noise = 0.0  # width of the uniform noise on features

  def states(self, drafter, ids, documents, hidden, taps, training=True):
    """-> what heads multiply [steps][batch * rows][hidden], and the state itself of step 0, aligned"""
    s, order = drafter.s, torch.arange(ids.shape[1], device=ids.device)
    first = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    mask = Mask.packed(torch.where(first, -2 - order, documents))  # a document's first row has no feature: it stands alone
    feature = shift(hidden if taps is None else taps, -1)
    if self.noise and training:
      feature = feature + (torch.rand_like(feature) - 0.5) * self.noise
    feature, rehearsal, out, state0 = drafter.start(feature), Rehearsal(), [], None
    for step in range(self.steps):
      embedding = drafter.embed(self.target, shift(ids, step)).detach().to(feature.dtype)
      state = drafter.step(embedding, feature, rope_tables(order + step, s.head_dim, s.theta), mask, rehearsal)
      state0 = state if state0 is None else state0
      out.append(shift(drafter.readout(state), -step).flatten(0, 1))
      feature = drafter.recycle(state)
    return torch.stack(out), state0


class Eagle3Method(RecurrentMethod):
  lr, steps = 3e-3, 4

  def __init__(self, target, options):
    super().__init__(target, options)
    self.taps = tuple(options.taps)
    if not all(0 <= t < target.s.layers for t in self.taps):
      raise SystemExit(f"--taps {self.taps}: the target has layers 0 to {target.s.layers - 1}")

  def build(self, tokens, entries):
    counts = label_counts(tokens, entries, self.target.s.vocab)
    size = min(self.options.draft_vocab or self.target.s.vocab, self.target.s.vocab)
    ids = counts.argsort(descending=True, stable=True)[:size].sort().values
    print(
        f"draft vocabulary: {size} tokens, {100 * counts[ids].sum() / counts.sum():.2f} % of what is to be predicted",
        flush=True,
    )
    drafter = begin(Eagle3(layer_shape(self.target.s), self.taps, ids, self.target.s.hidden))
    with torch.no_grad():
      drafter.fc.weight[:, -self.target.s.hidden :] += torch.eye(self.target.s.hidden)
      drafter.lm_head.weight.copy_(self.target.head[ids.to(self.target.head.device)])
      drafter.norm.weight.copy_(self.target.model.norm.weight)
    return self.from_folder(drafter, self.options.init) if self.options.init else drafter

  def from_folder(self, drafter, folder):
    """goes on from another one; its draft vocabulary may differ: tokens that it lacks get the target's rows, turned as those
    were that it has (least squares)"""
    old = layouts.read_drafter(folder, self.target)
    kept, rows = old.vocabulary(), old.lm_head.weight.detach()
    whole = self.target.head.detach().float().cpu()
    whole = whole @ torch.linalg.lstsq(whole[kept], rows).solution
    whole[kept] = rows
    state = old.state_dict() | {"lm_head.weight": whole[drafter.vocabulary()], "d2t": drafter.d2t}
    drafter.load_state_dict(state)
    return drafter

  def heads(self, drafter):
    return [drafter.lm_head.weight]

  def ids(self, drafter):
    return None if len(drafter.d2t) == self.target.s.vocab else drafter.vocabulary()

  def write(self, drafter, folder):
    layouts.write_eagle3(drafter, folder, self.options.layout or "eagle3", self.options.target)


class EagleMethod(RecurrentMethod):
  steps = 3

  def __init__(self, target, options):
    super().__init__(target, options)
    self.noise = 0.2 * 512 / 2048  # as published, for their rows

  def build(self, tokens, entries):
    drafter = begin(Eagle1(layer_shape(self.target.s)))
    with torch.no_grad():
      drafter.fc.weight[:, self.target.s.hidden :] += torch.eye(self.target.s.hidden)
      drafter.fc.bias.zero_()
    return drafter

  def extra_loss(self, state, hidden, weights):
    """the feature itself, ten times as heavy as the guess"""
    off = F.smooth_l1_loss(state.flatten(0, 1).float(), hidden.flatten(0, 1).float(), reduction="none").mean(-1)
    return 10.0 * (weights[0] / weights[0].sum().clamp(min=1e-9) * off).sum()

  def write(self, drafter, folder):
    layouts.write_eagle1(drafter, folder)


class MtpMethod(RecurrentMethod):
  steps = 3

  def build(self, tokens, entries):
    t = self.target
    drafter = begin(Mtp(t.s, t.s.layers, gated=self.options.layout == "mtp-qwen"))
    with torch.no_grad():
      drafter.eh_proj.weight[:, t.s.hidden :] += torch.eye(t.s.hidden)
      if not drafter.block.self_attn.gated:
        drafter.block.load_state_dict(t.model.layers[-1].state_dict())
      drafter.norm.weight.copy_(t.model.norm.weight)
    return drafter

  def write(self, drafter, folder):
    layouts.write_mtp(drafter, folder, self.options.target, self.options.layout or "mtp")


class MedusaMethod(Method):
  steps = 4  # heads

  def build(self, tokens, entries):
    s = self.target.s
    drafter = Medusa(s.hidden, s.vocab, self.steps, self.options.res_blocks, "own" if self.options.own_heads else "target")
    with torch.no_grad():
      for head in drafter.lm_heads:
        head.weight.copy_(self.target.head)
    return drafter

  def states(self, drafter, ids, documents, hidden, taps, training=True):
    rows = drafter.states(shift(hidden, -1))  # [heads][batch][rows][hidden]
    return torch.stack([shift(x, -h).flatten(0, 1) for h, x in enumerate(rows)]), None

  def heads(self, drafter):
    return [head.weight for head in drafter.lm_heads] or super().heads(drafter)

  def write(self, drafter, folder):
    if not drafter.lm_heads:  # no layout leaves the matrices out: the target's, once
      s = self.target.s
      shared = Medusa(s.hidden, s.vocab, self.steps, self.options.res_blocks, "shared").to(self.target.head.device)
      shared.load_state_dict(drafter.state_dict() | {"lm_heads.0.weight": self.target.head.detach()})
      return layouts.write_medusa(shared, folder, "medusa-vllm", self.options.target)
    layouts.write_medusa(drafter, folder, self.options.layout or "medusa", self.options.target)


class DraftModelMethod(Method):
  lr, soft, batch_tokens = 3e-3, 0.9, 65536
  independent = True  # a chain's guesses are those of plain decoding: one step tells them all

  def build(self, tokens, entries):
    c, o = dict(self.target.config), self.options
    c |= {"hidden_size": o.draft_hidden, "num_hidden_layers": o.draft_layers, "intermediate_size": 3 * o.draft_hidden,
        "num_attention_heads": o.draft_heads, "num_key_value_heads": o.draft_heads,
        "head_dim": o.draft_hidden // o.draft_heads, "tie_word_embeddings": True,
        "max_window_layers": o.draft_layers}  # fmt: skip
    return begin(Decoder(c))

  def states(self, drafter, ids, documents, hidden, taps, training=True):
    return drafter(ids, Mask.packed(documents))[0].flatten(0, 1)[None], None

  def heads(self, drafter):
    return [drafter.head]

  def write(self, drafter, folder):
    layouts.write_decoder(drafter, folder, self.options.target)


def layer_shape(s):
  """a drafter's Llama layer for a target of that shape"""
  return Shape(s.hidden, 1, s.heads, s.kv_heads, s.head_dim, s.ffn, s.vocab, s.eps, s.theta, context=s.context)


METHODS = {
    "eagle3": Eagle3Method, "eagle": EagleMethod, "mtp": MtpMethod, "medusa": MedusaMethod, "draft_model": DraftModelMethod,
}  # fmt: skip
