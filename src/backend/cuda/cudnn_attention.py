#!/usr/bin/env python3
"""Outputs of attention beside cuDNN's, which PyTorch calls, and both beside fp64's: cudnn_attention.py FILE...

A file: int32 entries, rows, KV heads, query heads of one, dimensions; fp32 keys and values [entry][KV head][dimension], queries
and outputs [row][head][dimension]. Row i stands at entry `entries - rows + i` and reads up to there. Exit
status 0 where outputs are at most 1.5 times as far from fp64's as cuDNN's are, 77 without cuDNN.
"""
import sys

try:
  import torch
  from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
  print(f"no PyTorch: {error}")
  sys.exit(77)
if not torch.cuda.is_available() or not torch.backends.cudnn.is_available():
  print("PyTorch has no device, or no cuDNN")
  sys.exit(77)


def errors(name):
  with open(name, "rb") as file:
    data = bytearray(file.read())
  entries, rows, kv_heads, group, dim = torch.frombuffer(data, dtype=torch.int32, count=5).tolist()
  heads = kv_heads * group
  values = torch.frombuffer(data, dtype=torch.float32, offset=20).cuda()
  sizes = [entries * kv_heads * dim] * 2 + [rows * heads * dim] * 2
  k, v, q, out = (part.view(1, -1, n, dim).transpose(1, 2) for part, n in zip(values.split(sizes), [kv_heads] * 2 + [heads] * 2))
  q, k, v = (x.repeat_interleave(times, 1).bfloat16().contiguous() for x, times in ((q, 1), (k, group), (v, group)))
  attend = torch.nn.functional.scaled_dot_product_attention
  # cuDNN's masks of PyTorch begin at the first entry: a prompt is one call, other rows have one each.
  parts = [(q, entries)] if rows == entries else [(q[:, :, i : i + 1], entries - rows + i + 1) for i in range(rows)]
  with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    theirs = torch.cat([attend(part, k[:, :, :end], v[:, :, :end], is_causal=part.shape[2] > 1) for part, end in parts], 2)
  reads = torch.ones(rows, entries, dtype=torch.bool, device="cuda").tril(entries - rows)
  with sdpa_kernel(SDPBackend.MATH):
    exact = attend(q.double(), k.double(), v.double(), attn_mask=reads)
  return (entries, rows, heads, kv_heads, dim), *(float((x.double() - exact).abs().max()) for x in (out, theirs))


far = 0
for name in sys.argv[1:]:
  shape, ours, theirs = errors(name)
  print(f"entries, rows, heads, KV heads, dimensions {shape}: {ours:.5f} from fp64, cuDNN's {theirs:.5f}")
  far += not ours <= 1.5 * theirs  # NaN is far too
sys.exit(far > 0)
