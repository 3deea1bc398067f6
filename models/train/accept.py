"""How many guesses a trained drafter's greedy chains get right: against greedy answers of the target that were kept from training,
by depth, by kind and by length of the context. The rows of training's rehearsal are those of inference as long as guesses are
right, so that one pass tells the chains of all positions.
"""

import math

import torch
import torch.nn.functional as F
from data import HELD
from layers import Fast

DEPTH = 5
MOST = 64  # sequences of a kind and length


def guesses(method, drafter, states):
  """[steps][rows][hidden] -> the target's ids of the best guesses [steps][rows]"""
  heads, out = method.heads(drafter), []
  for s, rows in enumerate(states):
    head = heads[s % len(heads)].to(rows.dtype)
    best = torch.cat([F.linear(part, head).argmax(-1) for part in rows.split(8192)])
    out.append(drafter.target_ids(best) if hasattr(drafter, "target_ids") else best)
  return torch.stack(out)


@torch.no_grad()
def chains(method, drafter, ids, prompt):
  """ids [1][rows], of which those from `prompt` on are the target's greedy choice -> [depth] share of chains whose first depth
  guesses are all right"""
  rows = ids.shape[1]
  hidden, taps = method.features(ids, torch.zeros_like(ids))
  states, _ = method.states(drafter, ids, torch.zeros_like(ids), hidden, taps, training=False)
  right = guesses(method, drafter, states).view(-1, rows)[:, :-1] == ids[:, 1:]
  if len(right) == 1:  # a draft model: each guess is plain decoding's
    right = right.expand(DEPTH, -1)
  depth, first = len(right), prompt - 1  # row k guesses token k + 1
  # the chain of row j has its guess number s at position j + s
  runs = torch.stack([right[s, first + s : rows - depth + s] for s in range(depth)]).cumprod(0)
  return runs.float().mean(1)


@torch.no_grad()
def report(method, drafter, tokens, held, device, most=MOST):
  """-> [{context, kind, sequences, acceptance (by depth, all before it right too), mean_acceptance_length}]; context: the power
  of two next to the prompt's length"""
  flex, Fast.flex = Fast.flex, None  # rows of many lengths: not worth compiling
  steps, method.steps = method.steps, method.steps if method.steps > 1 else DEPTH
  if getattr(method, "independent", False):
    method.steps = 1
  cells = {}
  for start, prompt, length, kind in held:
    if not (kind.startswith(HELD) or kind == "greedy") or not 2 < prompt < length - DEPTH:
      continue
    cell = cells.setdefault((2 ** round(math.log2(prompt)), kind.removeprefix(HELD)), [])
    if len(cell) >= most:
      continue
    ids = torch.from_numpy(tokens[start : start + length].astype("int64"))[None].to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
      cell.append(chains(method, drafter, ids, prompt))
  Fast.flex, method.steps = flex, steps
  out = []
  for (context, kind), cell in sorted(cells.items()):
    shares = torch.stack(cell).mean(0).tolist()
    out.append({
        "context": context, "kind": kind, "sequences": len(cell), "acceptance": [round(x, 4) for x in shares],
        "mean_acceptance_length": round(1 + sum(shares), 3),
    })  # fmt: skip
  return out


def show(rows):
  for r in rows:
    shares = " ".join(f"{x:.3f}" for x in r["acceptance"])
    print(
        f"context {r['context']:6d} {r['kind']:8s} ({r['sequences']} texts): {r['mean_acceptance_length']:.3f} a round; "
        f"by depth {shares}",
        flush=True,
    )
