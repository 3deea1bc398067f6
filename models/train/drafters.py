"""The learned drafters (Medusa; EAGLE-1, -2 and -3; multi-token prediction; the draft model is target.py's Decoder).

One convention, the C++ engine's too: the row at position j consumes token t_j and what the target computed at position j - 1 (its
feature), and predicts t_{j+1}. Row 0 has no feature and does not exist. Rotary attention depends on differences of positions
only, so that rows may be numbered by their token or by their feature. A guess's row takes the drafter's own feature instead.
Cai et al. 2024 (Medusa), Li et al. 2024 and 2025 (EAGLE), DeepSeek-AI 2024 (multi-token prediction).
"""

import torch
import torch.nn.functional as F
from layers import Attention, Block, Mlp, Norm
from torch import nn


class Recurrent(nn.Module):
  """EAGLE and MTP: one layer over (token, feature) rows, which hands itself the feature of the next row.

  taps        outputs of the target's layers that it reads; none: the target's hidden state after its last norm
  start       what those become before the first step: [..., features] -> [..., hidden]
  step        a row's state from its token's embedding and its feature
  recycle     the feature that the next guess's row takes, from the state
  readout     what the head multiplies, from the state
  """

  taps = ()

  def __init__(self, s, ids=None):
    super().__init__()
    self.s = s
    self.own_embedding = None  # nn.Embedding where the drafter has its own; else the target's is read
    # target id less draft id, where the head is of a draft vocabulary
    self.register_buffer("d2t", None if ids is None else ids - torch.arange(len(ids)))

  def start(self, features):
    return features

  def recycle(self, state):
    return state

  def readout(self, state):
    return state

  def embed(self, target, tokens):
    return (self.own_embedding or target.model.embed_tokens)(tokens)

  def head(self, target):
    return target.head

  def target_ids(self, ids):
    return ids if self.d2t is None else ids + self.d2t[ids]


class Eagle1(Recurrent):
  """No norm before its attention and none after; reads and predicts the target's normed hidden state, for the target's head"""

  def __init__(self, s, bias=True):
    super().__init__(s)
    self.fc = nn.Linear(2 * s.hidden, s.hidden, bias=bias)
    self.layers = nn.ModuleList([Block(s, input_norm=False)])

  def step(self, embedding, feature, tables, mask, cache=None):
    return self.layers[0](self.fc(torch.cat([embedding, feature.to(embedding.dtype)], -1)), tables, mask, cache)


class Midlayer(nn.Module):
  """EAGLE-3's layer: attention reads normed embedding and normed feature side by side, the residual stream is the feature"""

  def __init__(self, s, norm_before_residual):
    super().__init__()
    self.norm_before_residual = norm_before_residual
    self.input_layernorm, self.hidden_norm = Norm(s.hidden, s.eps), Norm(s.hidden, s.eps)
    self.self_attn = Attention(s, width_in=2 * s.hidden)
    self.post_attention_layernorm = Norm(s.hidden, s.eps)
    self.mlp = Mlp(s.hidden, s.ffn)

  def forward(self, embedding, feature, tables, mask, cache=None):
    normed = self.hidden_norm(feature)
    x = normed if self.norm_before_residual else feature
    both = torch.cat([self.input_layernorm(embedding), normed.to(embedding.dtype)], -1)
    x = x + self.self_attn(both, tables, mask, cache)
    return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3(Recurrent):
  """Reads three taps; its own head over a draft vocabulary (`ids`: the target's ids in it, ascending; None: all)"""

  def __init__(self, s, taps, ids=None, target_hidden=None, norm_before_residual=False, fc_norm=False, own_embedding=False):
    ids = torch.arange(s.vocab) if ids is None else ids
    super().__init__(s, ids)
    self.taps, target_hidden = tuple(taps), target_hidden or s.hidden
    self.fc = nn.Linear(len(taps) * target_hidden, s.hidden, bias=False)
    if fc_norm:
      self.fc_norm = nn.ModuleList(Norm(target_hidden, s.eps) for _ in taps)
    self.midlayer = Midlayer(s, norm_before_residual)
    self.norm = Norm(s.hidden, s.eps)
    self.lm_head = nn.Linear(s.hidden, len(ids), bias=False)
    if own_embedding:
      self.own_embedding = nn.Embedding(s.vocab, s.hidden)

  def start(self, features):
    if hasattr(self, "fc_norm"):
      chunks = features.chunk(len(self.taps), -1)
      features = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks)], -1)
    return self.fc(features)

  def step(self, embedding, feature, tables, mask, cache=None):
    return self.midlayer(embedding, feature, tables, mask, cache)

  def readout(self, state):
    return self.norm(state)

  def head(self, target):
    return self.lm_head.weight

  def vocabulary(self):
    """the target's ids that the head speaks of, ascending"""
    return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)


class Mtp(Recurrent):
  """Multi-token prediction. feed_norm: the hidden state fed is from after the target's last norm ("post") or before ("pre");
  recycle_norm: likewise, of this layer's own norm. Engines differ; trained for the default."""

  def __init__(self, s, target_layers, feed_norm="post", recycle_norm="post", gated=False, plus_one=False):
    super().__init__(s)
    self.feed_norm, self.recycle_norm = feed_norm, recycle_norm
    self.taps = (target_layers - 1,) if feed_norm == "pre" else ()
    self.enorm, self.hnorm = Norm(s.hidden, s.eps, plus_one), Norm(s.hidden, s.eps, plus_one)
    self.eh_proj = nn.Linear(2 * s.hidden, s.hidden, bias=False)
    self.block = Block(s, gated=gated, plus_one=plus_one)
    self.norm = Norm(s.hidden, s.eps, plus_one)

  def step(self, embedding, feature, tables, mask, cache=None):
    both = torch.cat([self.enorm(embedding), self.hnorm(feature).to(embedding.dtype)], -1)
    return self.block(self.eh_proj(both), tables, mask, cache)

  def recycle(self, state):
    return self.norm(state) if self.recycle_norm == "post" else state

  def readout(self, state):
    return self.norm(state)


class ResBlock(nn.Module):
  def __init__(self, width, bias=True):
    super().__init__()
    self.linear = nn.Linear(width, width, bias=bias)
    nn.init.zeros_(self.linear.weight)
    if bias:
      nn.init.zeros_(self.linear.bias)

  def forward(self, x):
    return x + F.silu(self.linear(x))


class Medusa(nn.Module):
  """Head h reads the target's normed hidden state of position j - 1 and predicts t_{j+1+h}: row j's guesses, all at once.
  output: "own" matrix for each head, one "shared" by them, or the "target"'s. ids: the target's ids that own or shared
  matrices speak of (None: all)."""

  taps = ()

  def __init__(self, hidden, vocab, heads, layers=1, output="own", bias=True, ids=None):
    super().__init__()
    self.blocks = nn.ModuleList(nn.Sequential(*(ResBlock(hidden, bias) for _ in range(layers))) for _ in range(heads))
    count = {"own": heads, "shared": 1, "target": 0}[output]
    self.lm_heads = nn.ModuleList(nn.Linear(hidden, vocab if ids is None else len(ids), bias=False) for _ in range(count))
    self.register_buffer("token_map", ids)

  def states(self, hidden):
    """[..., hidden] -> [heads, ..., hidden]: what the output matrices multiply"""
    return torch.stack([block(hidden) for block in self.blocks])

  def head(self, target, h):
    return self.lm_heads[h % len(self.lm_heads)].weight if self.lm_heads else target.head

  def logits(self, target, hidden):
    """[..., hidden] -> fp32 [heads, ..., vocabulary]"""
    states = self.states(hidden)
    return torch.stack([F.linear(states[h], self.head(target, h)).float() for h in range(len(self.blocks))])

  def target_ids(self, ids):
    return ids if self.token_map is None else self.token_map[ids]
