#!/usr/bin/env python3
"""Checks hunch's GGUF files against the `gguf` package, both ways; needs `pip install gguf numpy`.

  models/train/check_gguf.py --model MODEL [--quantize 'build/release/hunch quantize {in} {out} --type {type}']

(a) What hunch writes reads back in the package: same keys, tensors and types, and for Q8_0 and Q4_0 the same bytes as the
    package's own quantiser makes of the same weights.
(b) What the package writes, in every encoding, opens in hunch, and hunch's dequantised values are the package's bit for bit.
"""
import argparse
import os
import shlex
import subprocess
import sys
import tempfile

import numpy as np
import gguf
from gguf.constants import GGMLQuantizationType as T

ENCODINGS = {"f32": T.F32, "f16": T.F16, "bf16": T.BF16, "q8_0": T.Q8_0, "q4_0": T.Q4_0, "q4_k": T.Q4_K, "q5_k": T.Q5_K, "q6_k": T.Q6_K}


def quantize(template, source, target, kind):
  command = [part.format(**{"in": source, "out": target, "type": kind}) for part in shlex.split(template)]
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode:
    sys.exit(f"failed: {shlex.join(command)}: {done.stderr or done.stdout}")


def tensors_of(path):
  return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def values_of(tensor):
  return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(-1)


def same_bits(a, b):
  return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def check_written(template, model, folder):
  """(a): every type that hunch writes, from one model; f32 serves as the reference values."""
  plain = os.path.join(folder, "f32.gguf")
  quantize(template, model, plain, "f32")
  reference = tensors_of(plain)
  keys = set(gguf.GGUFReader(plain).fields)
  for kind in ("f16", "bf16", "q8_0", "q4_0", "q4_k"):
    path = os.path.join(folder, f"{kind}.gguf")
    quantize(template, model, path, kind)
    found = tensors_of(path)
    assert list(found) == list(reference), f"{kind}: other tensors"
    assert set(gguf.GGUFReader(path).fields) == keys, f"{kind}: other keys"
    worst = 0.0
    for name, tensor in found.items():
      want = values_of(reference[name])
      if tensor.tensor_type == T.F32:
        assert same_bits(values_of(tensor), want), f"{kind}: {name} differs"
        continue
      assert tensor.tensor_type == ENCODINGS[kind], f"{kind}: {name} is {tensor.tensor_type.name}"
      if kind in ("f16", "bf16", "q8_0", "q4_0"):
        rows = want.reshape(tensor.shape[::-1])
        made = gguf.quants.quantize(rows, tensor.tensor_type)
        assert np.array_equal(made.view(np.uint8).reshape(-1), tensor.data.view(np.uint8).reshape(-1)), f"{kind}: {name} differs"
      error = values_of(tensor).astype(np.float64) - want
      worst = max(worst, float(np.sqrt((error**2).mean() / (want.astype(np.float64) ** 2).mean())))
    bytes_equal = "bytes equal the package's, " if kind != "q4_k" else ""
    print(f"(a) {kind}: {len(found)} tensors, {bytes_equal}worst relative RMS error {worst:.5f}")


def random_blocks(kind, rows, width, rng):
  """Any bit pattern is a legal block as long as its f16 scales are finite."""
  block, size = gguf.constants.GGML_QUANT_SIZES[kind]
  raw = rng.integers(0, 256, (rows * width // block, size), dtype=np.uint8)
  for at in {T.Q8_0: [0], T.Q4_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}[kind]:
    raw[:, at : at + 2] = rng.normal(0, 0.01, (len(raw), 1)).astype(np.float16).view(np.uint8)
  return raw.reshape(rows, -1)


def write_model(path, kind, rng):
  """A small qwen3 with random weights of one encoding, by the package's writer."""
  hidden, ffn, vocab, layers, heads, kv_heads, head = 256, 512, 288, 2, 4, 2, 64
  out = gguf.GGUFWriter(path, "qwen3")
  for key, value in dict(name="check", vocab_size=vocab, context_length=512, embedding_length=hidden, block_count=layers,
      feed_forward_length=ffn, head_count=heads, head_count_kv=kv_heads, key_length=head, value_length=head,
      layer_norm_rms_eps=1e-6, rope_freq_base=1e6, tokenizer_model="gpt2", tokenizer_pre="qwen2",
      token_list=[f"t{i}" for i in range(vocab)], token_types=[1] * vocab, token_merges=["t 1"],
      eos_token_id=vocab - 1).items():
    getattr(out, "add_" + key)(value)

  def matrix(name, rows, width):
    if kind in (T.F32, T.F16, T.BF16):
      values = rng.normal(0, 0.05, (rows, width)).astype(np.float32)
      out.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    else:
      out.add_tensor(name, random_blocks(kind, rows, width, rng), raw_dtype=kind)

  def vector(name, width):
    out.add_tensor(name, rng.normal(1, 0.1, width).astype(np.float32))

  matrix("token_embd.weight", vocab, hidden)
  for i in range(layers):
    for name, *shape in (("attn_norm", hidden), ("attn_q", heads * head, hidden), ("attn_k", kv_heads * head, hidden),
        ("attn_v", kv_heads * head, hidden), ("attn_q_norm", head), ("attn_k_norm", head),
        ("attn_output", hidden, heads * head), ("ffn_norm", hidden), ("ffn_gate", ffn, hidden),
        ("ffn_up", ffn, hidden), ("ffn_down", hidden, ffn)):
      (vector if len(shape) == 1 else matrix)(f"blk.{i}.{name}.weight", *shape)
  vector("output_norm.weight", hidden)
  out.write_header_to_file()
  out.write_kv_data_to_file()
  out.write_tensors_to_file()
  out.close()


def check_read(template, folder):
  """(b): hunch turns the package's file into f32; both files must hold the same values."""
  rng = np.random.default_rng(1)
  for kind, number in ENCODINGS.items():
    source, target = (os.path.join(folder, f"{side}_{kind}.gguf") for side in ("package", "hunch"))
    write_model(source, number, rng)
    quantize(template, source, target, "f32")
    found = tensors_of(target)
    for name, tensor in tensors_of(source).items():
      assert same_bits(values_of(tensor), values_of(found[name])), f"{kind}: {name} differs"
    print(f"(b) {kind}: {len(found)} tensors, values equal bit for bit")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--model", required=True)
  parser.add_argument("--quantize", default="build/release/hunch quantize {in} {out} --type {type}")
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    check_written(args.quantize, args.model, folder)
    check_read(args.quantize, folder)


if __name__ == "__main__":
  main()
