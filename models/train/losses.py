"""Cross-entropy of a drafter's guesses against the target's distribution, over vocabularies too wide to keep: logits are made in
chunks of rows, and their gradients with them, so that nothing of [rows][vocabulary] outlives its chunk.
"""

import torch
import torch.nn.functional as F


def _chunk(states, heads, teacher, teacher_head, ids, inside, labels, weights, soft, wanted):
  """states [steps][n][H] and heads: the guesses; teacher [n][Ht]: the hidden state whose distribution each of them guesses.
  -> loss, hits [steps], gradients of states and of heads. ids: the head's tokens; inside: truth by token (None: all);
  wanted: whether the heads' gradients are."""
  full = F.linear(teacher, teacher_head).float()
  top = full.argmax(-1)
  if ids is not None:
    weights = weights * inside[top]
    full = full[:, ids]
    top = torch.searchsorted(ids, top)
  p = full.softmax(-1)
  if soft < 1:
    p = soft * p
    p = p.scatter_add(1, labels[:, None], torch.full_like(p[:, :1], 1 - soft))
  loss, hits, d_states, d_heads = 0.0, [], [], [None] * len(heads)
  for s in range(states.shape[0]):
    h = s % len(heads)
    z = F.linear(states[s], heads[h]).float()
    logq = z.log_softmax(-1)
    loss = loss - (weights[s] * (p * logq).sum(-1)).sum()
    hits.append(((z.argmax(-1) == top) & (weights[s] > 0)).sum())
    g = (weights[s][:, None] * (logq.exp() - p)).to(states.dtype)
    d_states.append(g @ heads[h])
    if not wanted:
      continue
    d = (g.mT @ states[s]).float()
    d_heads[h] = d if d_heads[h] is None else d_heads[h] + d
  return loss, torch.stack(hits), torch.stack(d_states), d_heads


class _SoftCe(torch.autograd.Function):
  @staticmethod
  def forward(ctx, chunk_rows, run, states, teacher, teacher_head, ids, inside, labels, weights, soft, *heads):
    cast, wanted = [h.to(states.dtype) for h in heads], any(h.requires_grad for h in heads)
    d_states, d_heads = torch.empty_like(states), [None] * len(heads)
    loss, hits = torch.zeros((), device=states.device), torch.zeros(len(states), dtype=torch.int64, device=states.device)
    for a in range(0, states.shape[1], chunk_rows):
      b = a + chunk_rows
      rows = states[:, a:b], cast, teacher[a:b], teacher_head, ids, inside, labels[a:b], weights[:, a:b]
      part, hit, ds, dh = run(*rows, soft, wanted)
      loss, hits = loss + part, hits + hit
      d_states[:, a:b] = ds
      d_heads = [d if kept is None or d is None else kept + d for kept, d in zip(d_heads, dh)]
    ctx.save_for_backward(d_states, *d_heads)
    ctx.mark_non_differentiable(hits)
    return loss, hits

  @staticmethod
  def backward(ctx, d_loss, _):
    d_states, *d_heads = ctx.saved_tensors
    return (
        (None, None, d_states * d_loss.to(d_states.dtype))
        + (None,) * 7
        + tuple(None if d is None else d * d_loss for d in d_heads)
    )


class SoftCe:
  """sum over steps and rows of weight * cross-entropy(soft * the target's distribution + (1 - soft) * label, guess)"""

  def __init__(self, chunk_rows=4096, compiled=False):
    self.chunk_rows = chunk_rows
    self.run = torch.compile(_chunk, dynamic=False) if compiled else _chunk

  def __call__(self, states, heads, teacher, teacher_head, labels, weights, ids=None, soft=1.0):
    """-> loss, hits [steps]: guesses equal to the target's arg max where the weight is not 0"""
    inside = None
    if ids is not None:
      inside = torch.zeros(teacher_head.shape[0], device=states.device).index_fill_(0, ids, 1.0)
    with torch.autocast(states.device.type, enabled=False):
      return _SoftCe.apply(
          self.chunk_rows, self.run, states, teacher.to(states.dtype), teacher_head.to(states.dtype), ids, inside, labels,
          weights, soft, *heads,
      )  # fmt: skip


def step_weights(documents, labels, steps, decay):
  """[steps][batch * rows]: weight of the guess at what follows position k by the row at k - s, decay^s where it exists (its
  feature's position k - s - 1 lies in the same document) and its token is to be predicted; the sum is 1. And how many exist."""
  wanted = F.pad(labels[:, 1:] & (documents[:, 1:] == documents[:, :-1]), (0, 1))
  out = []
  for s in range(steps):
    same = documents[:, s + 1 :] == documents[:, : -s - 1]
    out.append((wanted & F.pad(same, (s + 1, 0))).flatten())
  exist = torch.stack(out)
  scale = decay ** torch.arange(steps, device=labels.device, dtype=torch.float32)
  weights = exist * scale[:, None]
  return weights / weights.sum().clamp(min=1e-9), exist.sum(-1)
