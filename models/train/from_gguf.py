"""A target folder (config.json, model.safetensors in bf16) of what a GGUF file holds, so that drafters are trained for the weights
that run: python tools/train/from_gguf.py IN.gguf OUT. Reads F32, F16, BF16, Q8_0 and Q4_0 tensors of Qwen2 and Qwen3, and no
tokenizer: training sees ids only. Of hunch's own drafters too: train.py --init goes on from them.
"""

import json
import math
import os
import re
import struct
import sys

import numpy as np
import safetensors.torch
import torch

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
OTHERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class Reader:
  def __init__(self, path):
    self.bytes, self.at = np.memmap(path, dtype=np.uint8, mode="r"), 0

  def take(self, count):
    self.at += count
    return self.bytes[self.at - count : self.at].tobytes()

  def scalar(self, form):
    return struct.unpack(form, self.take(struct.calcsize(form)))[0]

  def value(self, kind):
    if kind == STRING:
      return self.take(self.scalar("<Q")).decode("utf-8", "replace")
    if kind == ARRAY:
      inner, count = self.scalar("<I"), self.scalar("<Q")
      return [self.value(inner) for _ in range(count)]
    return self.scalar(SCALARS[kind])


def dequantised(raw, kind, count):
  if kind == 0:
    return raw[: 4 * count].view("<f4")
  if kind == 1:
    return raw[: 2 * count].view("<f2").astype(np.float32)
  if kind == 30:
    return (raw[: 2 * count].view("<u2").astype(np.uint32) << 16).view(np.float32)
  if kind == 8:  # blocks of 32: a scale in fp16, 32 signed bytes
    blocks = raw[: 34 * count // 32].reshape(-1, 34)
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return (scales * blocks[:, 2:].view(np.int8)).reshape(-1)
  if kind == 2:  # 16 bytes: code i in the low half of byte i, code 16 + i in the high half
    blocks = raw[: 18 * count // 32].reshape(-1, 18)
    scales, codes = blocks[:, :2].copy().view("<f2").astype(np.float32), blocks[:, 2:]
    return (scales * (np.concatenate([codes & 15, codes >> 4], 1).astype(np.float32) - 8)).reshape(-1)
  if kind in (24, 27):
    return raw[: count * (8 if kind == 27 else 1)].view("<i8" if kind == 27 else "i1")
  raise SystemExit(f"from_gguf: tensors of GGML type {kind} are not read here: start from F32, F16, BF16, Q8_0 or Q4_0")


def read(path):
  """-> keys, {name: fp32 array}"""
  r = Reader(path)
  if r.take(4) != b"GGUF":
    raise SystemExit(f"from_gguf: {path} is no GGUF file")
  r.scalar("<I")
  tensors, keys = r.scalar("<Q"), r.scalar("<Q")
  fields = {}
  for _ in range(keys):
    name = r.value(STRING)
    fields[name] = r.value(r.scalar("<I"))
  infos = []
  for _ in range(tensors):
    name = r.value(STRING)
    shape = [r.scalar("<Q") for _ in range(r.scalar("<I"))][::-1]
    infos.append((name, shape, r.scalar("<I"), r.scalar("<Q")))
  unit = fields.get("general.alignment", 32)
  base = (r.at + unit - 1) // unit * unit
  return fields, {n: dequantised(r.bytes[base + at :], kind, math.prod(s)).reshape(s) for n, s, kind, at in infos}


def hugging_face(name):
  found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
  if found:
    return f"model.layers.{found[1]}.{LAYER[found[2]]}.{found[3]}"
  stem, kind = name.rsplit(".", 1)
  return f"{OTHERS[stem]}.{kind}"


def convert(path, folder):
  fields, tensors = read(path)
  kind = fields["general.architecture"]
  if kind == "hunch-drafter":
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
      f.write(fields["hunch.drafter.config"])
    stored = {n: torch.from_numpy(x.copy()) for n, x in tensors.items()}
    return safetensors.torch.save_file(stored, os.path.join(folder, "model.safetensors"), {"format": "pt"})
  if kind not in ("qwen2", "qwen3"):
    raise SystemExit(f"from_gguf: architecture {kind} is not read here (Llama's files hold turned rows): use its original folder")
  key = lambda name, *default: fields.get(f"{kind}.{name}", *default)
  heads = key("attention.head_count")
  config = {
      "architectures": [kind.capitalize() + "ForCausalLM"], "model_type": kind, "hidden_act": "silu", "torch_dtype": "bfloat16",
      "hidden_size": key("embedding_length"), "num_hidden_layers": key("block_count"), "num_attention_heads": heads,
      "num_key_value_heads": key("attention.head_count_kv", heads), "intermediate_size": key("feed_forward_length"),
      "head_dim": key("attention.key_length", key("embedding_length") // heads), "rope_scaling": None,
      "rms_norm_eps": key("attention.layer_norm_rms_epsilon"), "rope_theta": key("rope.freq_base", 10000.0),
      "max_position_embeddings": key("context_length"), "vocab_size": tensors["token_embd.weight"].shape[0],
      "tie_word_embeddings": "output.weight" not in tensors,
  }  # fmt: skip
  os.makedirs(folder, exist_ok=True)
  with open(os.path.join(folder, "config.json"), "w") as f:
    json.dump(config, f, indent=1)
  stored = {hugging_face(n): torch.from_numpy(x.copy()).bfloat16() for n, x in tensors.items() if n != "rope_freqs.weight"}
  safetensors.torch.save_file(stored, os.path.join(folder, "model.safetensors"), {"format": "pt"})


if __name__ == "__main__":
  if len(sys.argv) != 3:
    sys.exit(__doc__)
  convert(sys.argv[1], sys.argv[2])
