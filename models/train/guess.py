"""What a recurrent drafter guesses at inference: rows of true features, then a chain, or EAGLE-2's dynamic tree (Li et al. 2024).
The goldens of the C++ engine and the acceptance reports of training are made of it.
"""

import torch
from layers import Cache, Mask, rope_tables


class Guesser:
  """One sequence. `tokens`: committed ones and then the pending one; `features` [committed][width]: the target's, of the
  committed positions. A row is kept for each position from 1 on."""

  def __init__(self, drafter, target, tokens, features):
    self.drafter, self.target, self.cache = drafter, target, Cache()
    self.length = len(tokens)  # the first guess has this position
    self.device = target.head.device
    rows = torch.arange(1, len(tokens), device=self.device)
    mask = Mask.given(rows[:, None] >= rows)
    feature = drafter.start(features[None, : len(tokens) - 1])
    self.states = self._rows(torch.tensor(tokens[1:], device=self.device), feature, rows, mask)

  def _rows(self, tokens, feature, positions, mask):
    s = self.drafter.s
    tables = rope_tables(positions, s.head_dim, s.theta)
    embedding = self.drafter.embed(self.target, tokens)[None]
    return self.drafter.step(embedding, feature, tables, mask, self.cache)

  def logits(self, states):
    """[..., hidden] -> fp32 [..., draft vocabulary]"""
    return torch.nn.functional.linear(self.drafter.readout(states), self.drafter.head(self.target)).float()

  def chain(self, count):
    """-> `count` likeliest tokens one after the other (target ids), and the logits that each was taken from"""
    out, logits, state, base = [], [], self.states[:, -1:], self.cache.length
    for i in range(count):
      logits.append(self.logits(state[0, 0]))
      token = self.drafter.target_ids(logits[-1].argmax())
      out.append(int(token))
      if i + 1 < count:
        seen = torch.ones(1, self.cache.length + 1, dtype=torch.bool, device=self.device)
        position = torch.tensor([self.length + i], device=self.device)
        state = self._rows(token[None], self.drafter.recycle(state), position, Mask.given(seen))
    self.cache.cut(base)
    return out, logits

  def tree(self, total, depth, top_k):
    """-> (candidates, kept): candidates [(token, parent or -1 for the root, score)] in the order in which they are made,
    kept their indices that stay: the total - 1 best, a parent before its children where they tie. Scores are sums of
    log-probabilities over the draft vocabulary. The next frontier is in descending order of score."""
    base, made, gaps = self.cache.length, [], []

    def expand(parents, states, scores):
      logp = self.logits(states).log_softmax(-1)
      best = logp.topk(top_k + 1)
      gaps.append(float((best.values[:, :-1] - best.values[:, 1:]).min()))
      for p, parent in enumerate(parents):
        for value, token in zip(
            best.values[p, :top_k].tolist(), self.drafter.target_ids(best.indices[p, :top_k]).tolist()
        ):
          made.append((token, parent, scores[p] + value))

    expand([-1], self.states[0, -1:], [0.0])
    frontier, state_of = list(range(top_k)), {-1: self.states[0, -1]}
    lineage = {-1: []}  # rows of the cache past the committed ones, the root's included among those
    for level in range(depth):
      tokens = torch.tensor([made[i][0] for i in frontier], device=self.device)
      feature = self.drafter.recycle(torch.stack([state_of[made[i][1]] for i in frontier]))[None]
      first = self.cache.length
      seen = torch.zeros(len(frontier), first + len(frontier), dtype=torch.bool, device=self.device)
      seen[:, :base] = True
      for r, i in enumerate(frontier):
        lineage[i] = lineage[made[i][1]] + [first + r]
        seen[r, lineage[i]] = True
      position = torch.full((len(frontier),), self.length + level, device=self.device)
      states = self._rows(tokens, feature, position, Mask.given(seen))[0]
      state_of.update(zip(frontier, states))
      begin = len(made)
      expand(frontier, states, [made[i][2] for i in frontier])
      ranked = sorted(range(begin, len(made)), key=lambda i: (-made[i][2], i))
      gaps.append(min(made[a][2] - made[b][2] for a, b in zip(ranked[:top_k], ranked[1 : top_k + 1])))
      frontier = ranked[:top_k]
    self.cache.cut(base)
    ranked = sorted(range(len(made)), key=lambda i: (-made[i][2], i))
    kept = sorted(ranked[: total - 1])
    gaps.append(made[ranked[total - 2]][2] - made[ranked[total - 1]][2])
    assert all(made[i][1] == -1 or made[i][1] in kept for i in kept)
    self.margin = min(gaps)  # no smaller rounding can change what was chosen, or its order
    return made, kept
