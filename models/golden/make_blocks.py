#!/usr/bin/env python3
"""Writes models/golden/blocks.json: blocks of every quantised encoding with their values, and f32 rows with their codes, both by the `gguf`
package (made with gguf 0.19.0, numpy 2.4.6). All fields are hex of little-endian bytes."""
import json
import os

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as T

SCALES = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_K: [0, 2], T.Q6_K: [208], T.Q5_K: [0, 2]}

rng = np.random.default_rng(7)
out = {"decode": [], "encode": []}
for kind, scales in SCALES.items():
  _, size = gguf.constants.GGML_QUANT_SIZES[kind]
  raw = rng.integers(0, 256, (3, size), dtype=np.uint8)
  for at in scales:
    raw[:, at : at + 2] = np.array([[0.0123], [-0.5], [3e-7]], np.float16).view(np.uint8)
  values = gguf.quants.dequantize(raw, kind).astype(np.float32)
  out["decode"].append({"type": kind.name.lower(), "blocks": raw.tobytes().hex(), "values": values.tobytes().hex()})
for kind in (T.Q8_0, T.Q4_0):
  rows = rng.normal(0, 1, (6, 32)).astype(np.float32) * np.array([[1], [0], [1e-3], [100], [1e-6], [1]], np.float32)
  rows[5, :] = np.arange(32) / 2 - 8  # ties between codes
  out["encode"].append({"type": kind.name.lower(), "values": rows.tobytes().hex(),
      "blocks": gguf.quants.quantize(rows, kind).tobytes().hex()})
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "blocks.json"), "w") as file:
  json.dump(out, file, indent=1)
  file.write("\n")
