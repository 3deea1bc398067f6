"""How many guesses a trained drafter's greedy chains get right: against the target's own greedy continuation of held-out text, by
depth and by length of the context. The rows of training's rehearsal are those of inference as long as guesses are right, so that
one pass tells the chains of all positions.
"""

import torch
import torch.nn.functional as F
from layers import Fast

CONTEXTS = (128, 512, 2048, 8192, 16384)  # length of prefix and continuation together
CONTINUED = 64
DEPTH = 5


def guesses(method, drafter, states):
    """[steps][rows][hidden] -> the target's ids of the best guesses [steps][rows]"""
    heads, out = method.heads(drafter), []
    for s, rows in enumerate(states):
        head = heads[s % len(heads)].to(rows.dtype)
        best = torch.cat([F.linear(part, head).argmax(-1) for part in rows.split(8192)])
        out.append(drafter.target_ids(best) if hasattr(drafter, "target_ids") else best)
    return torch.stack(out)


@torch.no_grad()
def chains(method, drafter, ids):
    """ids [batch][rows], of which the last CONTINUED are the target's greedy choice -> [depth] share of chains whose first depth
    guesses are all right"""
    batch, rows = ids.shape
    documents = torch.zeros_like(ids)
    hidden, taps = method.features(ids, documents)
    states, _ = method.states(drafter, ids, documents, hidden, taps, training=False)
    right = guesses(method, drafter, states).view(-1, batch, rows)[:, :, :-1] == ids[:, 1:]
    if len(right) == 1:  # a draft model: each guess is plain decoding's
        right = right.expand(DEPTH, -1, -1)
    depth, first = len(right), rows - CONTINUED
    # the chain of row j has its guess number s at position j + s
    runs = torch.stack([right[s, :, first + s : rows - depth + s] for s in range(depth)]).cumprod(0)
    return runs.float().mean((1, 2)).tolist()


@torch.no_grad()
def report(method, drafter, tokens, held, device, sequences=32, contexts=CONTEXTS):
    """-> [{context, sequences, acceptance (by depth, all before it right too), mean_acceptance_length}]"""
    flex, Fast.flex = Fast.flex, None  # few rows of many lengths: not worth compiling
    steps, method.steps = method.steps, method.steps if method.steps > 1 else DEPTH
    if getattr(method, "independent", False):
        method.steps = 1
    out = []
    for context in contexts:
        prefix = context - CONTINUED
        long_enough = [e for e in held if e[2] >= prefix][: max(1, min(sequences, 131072 // context))]
        if not long_enough:
            continue
        total = 0.0
        for a in range(0, len(long_enough), at_once := max(1, 32768 // context)):
            some = [tokens[e[0] : e[0] + prefix].astype("int64") for e in long_enough[a : a + at_once]]
            ids = torch.stack([torch.from_numpy(x) for x in some]).to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                ids = torch.cat([ids, method.target.greedy(ids, CONTINUED)], 1)
                total = total + len(ids) * torch.tensor(chains(method, drafter, ids))
        shares = (total / len(long_enough)).tolist()
        out.append({
            "context": context, "sequences": len(long_enough), "acceptance": [round(x, 4) for x in shares],
            "mean_acceptance_length": round(1 + sum(shares), 3),
        })  # fmt: skip
    Fast.flex, method.steps = flex, steps
    return out


def show(rows):
    for r in rows:
        shares = " ".join(f"{x:.3f}" for x in r["acceptance"])
        print(
            f"context {r['context']:6d} ({r['sequences']} texts): {r['mean_acceptance_length']:.3f} a round; by depth {shares}",
            flush=True,
        )
