#!/usr/bin/env python3
"""Writes a GGUF file with the shape of a known model and random weights, for timings against other engines.

  pip install gguf numpy
  models/train/make_model.py .cache/llama-1b-q4_k_m.gguf --type q4_k_m
  models/train/make_model.py .cache/llama-1b-q8_0.gguf --type q8_0 [--layers 16]

The shape is that of Llama 3.2 1B (16 layers, hidden 2048, 32 heads, 8 KV heads, head 64, FFN 8192, vocabulary 128,256, tied), the
tokenizer that of --tokenizer (the shipped model) with unused tokens behind it. Weights are random bytes of the encoding, their scales
set so that a matrix has a standard deviation near 0.02: what the file says is noise, what a pass costs is real. q4_k_m mixes Q4_K
and Q6_K as llama.cpp does: Q6_K for the table, and for the value and down matrices of half of the layers.
"""
import argparse
import pathlib

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as T

HIDDEN, HEADS, KV_HEADS, HEAD, FFN, VOCAB = 2048, 32, 8, 64, 8192, 128256
SPREAD = 0.02
FILE_TYPES = {"q8_0": 7, "q4_0": 2, "q4_k": 14, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18, "bf16": 32}


def f16_at(blocks, at, value):
  blocks[:, at:at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)


def random_matrix(random, kind, rows, columns):
  """Bytes of [rows][columns] in `kind`. 64 rows are drawn and repeated: enough for timings, and quick."""
  block, size = gguf.GGML_QUANT_SIZES[kind]
  drawn = min(rows, 64)
  if kind == T.F32:
    raw = random.normal(0, SPREAD, (drawn, columns)).astype(np.float32).view(np.uint8)
  elif kind == T.BF16:
    raw = (random.normal(0, SPREAD, (drawn, columns)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
  else:
    raw = random.integers(0, 256, (drawn * columns // block, size), np.uint8)
    if kind == T.Q8_0:
      f16_at(raw, 0, SPREAD / 74)
    elif kind == T.Q4_0:
      f16_at(raw, 0, SPREAD / 4.6)
    elif kind in (T.Q4_K, T.Q5_K):  # w = d scale q - dmin min, with 6-bit scales and minima
      levels = 16 if kind == T.Q4_K else 32
      d = SPREAD / (18.5 * levels)
      f16_at(raw, 0, d)
      f16_at(raw, 2, d * levels / 2)
    elif kind == T.Q6_K:
      f16_at(raw, 208, SPREAD / (74 * 18.5))
    raw = raw.reshape(drawn, -1)
  repeated = np.tile(raw, (-(-rows // drawn), 1))[:rows]
  return np.ascontiguousarray(repeated)


def kind_of(name, layer, layers, choice):
  """llama.cpp's mix for the K_M files: better codes in the first and last eighth of the layers and in every third between."""
  if choice not in ("q4_k_m", "q5_k_m"):
    return T[choice.upper()]
  better = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
  if name == "token_embd" or (better and name in ("attn_v", "ffn_down")):
    return T.Q6_K
  return T.Q4_K if choice == "q4_k_m" else T.Q5_K


def add_tokenizer(writer, path):
  fields = gguf.GGUFReader(path).fields
  of = lambda key: fields[key].contents()
  tokens, types = of("tokenizer.ggml.tokens"), of("tokenizer.ggml.token_type")
  for i in range(len(tokens), VOCAB):
    tokens.append(f"<|unused_{i}|>")
    types.append(int(gguf.TokenType.UNUSED))
  writer.add_tokenizer_model(of("tokenizer.ggml.model"))
  writer.add_tokenizer_pre(of("tokenizer.ggml.pre"))
  writer.add_token_list(tokens)
  writer.add_token_types(types)
  writer.add_token_merges(of("tokenizer.ggml.merges"))
  for name in ("bos", "eos", "padding"):
    writer.add_uint32(f"tokenizer.ggml.{name}_token_id", of(f"tokenizer.ggml.{name}_token_id"))
  writer.add_add_bos_token(False)


def main():
  root = pathlib.Path(__file__).resolve().parents[2]
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("out")
  parser.add_argument("--type", required=True, choices=FILE_TYPES)
  parser.add_argument("--layers", type=int, default=16)
  parser.add_argument("--tokenizer", default=root / "models/wren-34m.gguf")
  args = parser.parse_args()
  pathlib.Path(args.out).parent.mkdir(parents=True, exist_ok=True)

  writer = gguf.GGUFWriter(args.out, "llama")
  writer.add_name(f"random 1B {args.type}")
  writer.add_vocab_size(VOCAB)
  writer.add_context_length(131072)
  writer.add_embedding_length(HIDDEN)
  writer.add_block_count(args.layers)
  writer.add_feed_forward_length(FFN)
  writer.add_head_count(HEADS)
  writer.add_head_count_kv(KV_HEADS)
  writer.add_key_length(HEAD)
  writer.add_value_length(HEAD)
  writer.add_layer_norm_rms_eps(1e-5)
  writer.add_rope_dimension_count(HEAD)
  writer.add_rope_freq_base(500000.0)
  writer.add_file_type(FILE_TYPES[args.type])
  writer.add_quantization_version(2)
  add_tokenizer(writer, args.tokenizer)

  random = np.random.default_rng(1)

  def matrix(name, rows, columns, prefix="", layer=0):
    kind = kind_of(name, layer, args.layers, args.type)
    writer.add_tensor(f"{prefix}{name}.weight", random_matrix(random, kind, rows, columns), raw_dtype=kind)

  matrix("token_embd", VOCAB, HIDDEN)
  writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
  for layer in range(args.layers):
    prefix = f"blk.{layer}."
    for name in ("attn_norm", "ffn_norm"):
      writer.add_tensor(f"{prefix}{name}.weight", np.ones(HIDDEN, np.float32))
    for name, rows, columns in (("attn_q", HEADS * HEAD, HIDDEN), ("attn_k", KV_HEADS * HEAD, HIDDEN),
        ("attn_v", KV_HEADS * HEAD, HIDDEN), ("attn_output", HIDDEN, HEADS * HEAD),
        ("ffn_gate", FFN, HIDDEN), ("ffn_up", FFN, HIDDEN), ("ffn_down", HIDDEN, FFN)):
      matrix(name, rows, columns, prefix, layer)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


if __name__ == "__main__":
  main()
