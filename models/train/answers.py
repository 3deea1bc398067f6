"""A target's answers in PyTorch, in large batches: what generate.py takes where hunch is not at hand. Prompts of one length are
answered together, so that no mask is needed: with full batches a GPU writes about a million tokens a second of a small model.
"""

import json
import time

import torch
import torch.nn.functional as F
from layers import Mask
from torch.nn.attention import SDPBackend, sdpa_kernel

CACHE_BYTES = 24 << 30  # of a batch, on a GPU
MOST = 2048  # sequences of a batch
PREFILL = 262144  # prompt tokens read at once
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # cuDNN's makes a plan for every length


class Room:
  """One layer's cache of a fixed size, of which some sequences (a slice) are being read into"""

  def __init__(self, k, v, filled):
    self.k, self.v, self.length = k, v, filled

  def attend(self, q, k, v, mask):
    end = self.length + k.shape[2]
    self.k[:, :, self.length : end], self.v[:, :, self.length : end] = k, v
    keys, values, self.length = self.k[:, :, :end], self.v[:, :, :end], end
    if q.shape[2] == 1:  # the query heads of a KV head as its rows
      batch, heads, _, dim = q.shape
      rows = q.view(batch, keys.shape[1], heads // keys.shape[1], dim)
      return F.scaled_dot_product_attention(rows, keys, values).view(q.shape)
    return F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=q.shape[1] != keys.shape[1])


def chosen(logits, temperatures, generator):
  """the likeliest token of a row, or one drawn from the whole distribution (Gumbel's way)"""
  if temperatures is None:
    return logits.argmax(-1)
  noise = torch.empty_like(logits).exponential_(generator=generator).log_().neg_()
  return (logits + noise * temperatures).argmax(-1)


@torch.inference_mode()
def answer(target, prompts, count, temperatures, generator):
  """prompts [batch][rows] -> the next `count` tokens of each; end of text does not stop them"""
  s, (batch, rows), device = target.s, prompts.shape, prompts.device
  hot = torch.tensor(temperatures, device=device)[:, None] if any(temperatures) else None
  choice = lambda logits, some: chosen(logits, None if hot is None else hot[some], generator)
  if hasattr(target, "answer"):
    return target.answer(prompts, count, choice)
  shape = (batch, s.kv_heads, rows + count, s.head_dim)
  dtype = target.head.dtype
  kept = [[torch.empty(shape, dtype=dtype, device=device) for _ in "kv"] for _ in range(s.layers)]
  out = torch.empty(batch, count, dtype=torch.long, device=device)
  at_once = max(1, PREFILL // rows)
  for a in range(0, batch, at_once):
    some = slice(a, min(batch, a + at_once))
    hidden, _ = target(prompts[some], Mask(), caches=[Room(k[some], v[some], 0) for k, v in kept])
    out[some, 0] = choice(target.logits(hidden[:, -1]), some)
  rooms = [Room(k, v, rows) for k, v in kept]
  for i in range(1, count):
    hidden, _ = target(out[:, i - 1 : i], Mask(), caches=rooms)
    out[:, i] = choice(target.logits(hidden[:, -1]), slice(None))
  return out


def write_answers(target, requests, path, seconds, seed=1):
  """requests: lines of requests.jsonl; -> path in `hunch batch`'s form. Ends between two batches once `seconds` have passed:
  batches come in a random order, so that what is there then is a fair share of every kind."""
  generator = torch.Generator(target.head.device).manual_seed(seed)
  groups, bytes_a_token = {}, 4 * target.s.layers * target.s.kv_heads * target.s.head_dim
  for r in requests:
    groups.setdefault((len(r["prompt"]), r["max_tokens"]), []).append(r)
  batches = []
  for (rows, count), group in groups.items():
    size = min(MOST, max(1, CACHE_BYTES // bytes_a_token // (rows + count)))
    batches += [(count, group[a : a + size]) for a in range(0, len(group), size)]
  order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed)).tolist()
  # what is evaluated on comes first
  order.sort(key=lambda b: "held" not in batches[b][1][0])
  start, tokens = time.time(), 0
  with open(path, "w") as f:
    for done, b in enumerate(order):
      if done and time.time() - start > seconds:
        print(f"answers: {done} of {len(batches)} batches in the time given", flush=True)
        break
      count, group = batches[b]
      prompts = torch.tensor([r["prompt"] for r in group], device=target.head.device)
      half = torch.autocast(prompts.device.type, torch.bfloat16, enabled=prompts.is_cuda)
      with half, sdpa_kernel(KERNELS):
        written = answer(target, prompts, count, [float(r["temperature"]) for r in group], generator)
      for r, ids in zip(group, written.tolist()):
        f.write(json.dumps({"id": r["id"], "choices": [{"tokens": ids}]}, separators=(",", ":")) + "\n")
      tokens += written.numel()
  print(f"answers: {tokens} tokens in {time.time() - start:.1f} s", flush=True)
