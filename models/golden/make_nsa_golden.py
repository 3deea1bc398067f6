"""Makes the tiny models with natively trained sparse attention (models/tiny/folders/nsa-*: recipes of weights, no weights) and
what they compute (models/golden/nsa-*.json), by a plain PyTorch forward of docs/nsa.md: every query on its own, every sum as the
paper writes it, nothing kept from query to query. tests/golden reads them.

    python models/golden/make_nsa_golden.py --out models

Made with (pip): torch==2.15.0 numpy==2.4.6 safetensors==0.8.0. Computed on the CPU in fp32 from the stored (rounded) weights.
"""
import argparse
import json
import math
import os
import tempfile

import numpy as np
import torch
from safetensors.torch import save_file

from tiny_weights import make_recipe, recipe_weights, write_recipe

VOCAB, EOS, CHAT_END = 260, 257, 259
LONG, NEW, MIN_MARGIN, MIN_DISTINCT = 200, 24, 0.02, 6
MIN_GAP = 3e-4  # of every choice of blocks: between the last that was taken and the first that was not, over the former
LLAMA, FLA, XUNHAO = "llama", "fla", "xunhao"

BASE = {
    "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "vocab_size": VOCAB, "torch_dtype": "bfloat16", "bos_token_id": EOS, "eos_token_id": EOS, "hidden_act": "silu",
}  # fmt: skip
STD = {"cmp_len": 8, "cmp_stride": 4, "sel_block": 16, "sel_count": 5, "init_blocks": 1, "local_blocks": 2, "window": 24}
# name -> config.json, names of the tensors, what the file means
MODELS = {
    "nsa-std": (
    BASE | {"model_type": "nsa", "nsa": {"variant": "std", "cmp_kind": "weighted", "cmp_rope": "after_at_block_start",
    "kv_sharing": "shared", **STD}},
    LLAMA, {"kind": "weighted", **STD}),
    "nsa-linear": (
    BASE | {"model_type": "nsa", "compress_type": "linear", "kernel_size": 16, "kernel_stride": 8, "block_size": 32, "topk": 4,
    "init_blocks": 1, "local_blocks": 1, "window_size": 20,
    "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64}},
    XUNHAO, {"kind": "linear", "cmp_len": 16, "cmp_stride": 8, "sel_block": 32, "sel_count": 4, "init_blocks": 1,
    "local_blocks": 1, "window": 20}),
    "nsa-fla": (
    BASE | {"model_type": "llama-nsa", "num_hidden_layers": 4, "block_size": 16, "block_counts": 4, "window_size": 20},
    FLA, {"kind": "mean", "cmp_len": 16, "cmp_stride": 16, "sel_block": 16, "sel_count": 4, "init_blocks": 0,
    "local_blocks": 1, "window": 20, "rope_before": True}),
}  # fmt: skip

NAMES = {  # of the parts of a layer, and of what stands outside
    LLAMA: ("model.layers.{}.", {"proj": "self_attn.{}_proj.weight", "gate": "self_attn.g_proj.weight", "own": "self_attn.{}",
    "norm1": "input_layernorm.weight", "norm2": "post_attention_layernorm.weight", "mlp": "mlp"},
    ("model.embed_tokens.weight", "model.norm.weight")),
    FLA: ("model.layers.{}.", {"proj": "attn.{}_proj.weight", "gate": "attn.g_proj.weight", "own": "attn.{}",
    "norm1": "attn_norm.weight", "norm2": "mlp_norm.weight", "mlp": "mlp"},
    ("model.embeddings.weight", "model.norm.weight")),
    XUNHAO: ("layers.{}.", {"proj": "nsa.proj_{}.weight", "gate": "nsa.gate.0.weight", "own": "nsa.{}",
    "norm1": "attn_norm.weight", "norm2": "ffn_norm.weight", "mlp": "ffn"},
    ("embedding.weight", "norm.weight")),
}  # fmt: skip


def tensors(c, style, form):
  """the file's name -> (shape, mean, deviation)"""
  hidden, dim, heads, kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
  matrix = lambda rows, cols, gain: ((rows, cols), 0.0, gain / math.sqrt(cols))
  norm = ((hidden,), 1.0, 0.2)
  prefix, part, (embedding, last) = NAMES[style]
  t = {embedding: matrix(VOCAB, hidden, 2.0), last: norm, "lm_head.weight": matrix(VOCAB, hidden, 2.0)}
  for i in range(c["num_hidden_layers"]):
    at = prefix.format(i)
    t[at + part["norm1"]], t[at + part["norm2"]] = norm, norm
    for name, rows, cols, gain in (("q", heads * dim, hidden, 1.5), ("k", kv * dim, hidden, 1.5), ("v", kv * dim, hidden, 1.0),
        ("o", hidden, heads * dim, 1.5)):  # fmt: skip
      t[at + part["proj"].format(name)] = matrix(rows, cols, gain)
    t[at + part["gate"]] = matrix(3 * heads, hidden, 1.5)
    length = form["cmp_len"]
    for name in ("compress_key", "compress_value"):
      if form["kind"] == "weighted":
        t[at + part["own"].format(name)] = ((kv, length), 1 / length, 0.6 / length)
      if form["kind"] == "linear":
        t[at + part["own"].format(name)] = ((kv, length * dim, dim), 0.0, 1 / math.sqrt(length * dim))
    if form["kind"] != "mean":
      t[at + part["own"].format("intra_block_pe")] = ((kv, length, dim), 0.0, 0.5)
    for name, rows, cols in (("gate", 64, hidden), ("up", 64, hidden), ("down", hidden, 64)):
      t[f"{at}{part['mlp']}.{name}_proj.weight"] = matrix(rows, cols, 1.5)
  return t


def frequencies(c):
  inv = 1.0 / c["rope_theta"] ** (torch.arange(0, c["head_dim"], 2, dtype=torch.float32) / c["head_dim"])
  r = c.get("rope_scaling")
  if not r:
    return inv
  wave = 2 * math.pi / inv
  smooth = (r["original_max_position_embeddings"] / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
  smooth = smooth.clamp(0, 1)
  return (1 - smooth) * inv / r["factor"] + smooth * inv


def rope(x, positions, inv):
  """[n, heads, dim], rotated in halves"""
  angle = positions[:, None].float() * inv
  cos, sin = angle.cos()[:, None], angle.sin()[:, None]
  a, b = x.chunk(2, -1)
  return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Model:
  def __init__(self, c, style, form, weights):
    self.c, self.form, self.inv = c, form, frequencies(c)
    self.prefix, self.part, self.outside = NAMES[style]
    self.w = {n: w.float() for n, w in weights.items()}
    self.gap = math.inf  # the least of any choice of blocks so far

  def get(self, layer, key, name=""):
    return self.w[self.prefix.format(layer) + self.part[key].format(name)]

  def norm(self, x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * weight

  def compress(self, layer, k, v, count):
    """rows [count, kv, dim] of k (unrotated, but in fla) and v"""
    f, inv = self.form, self.inv
    length, stride = f["cmp_len"], f["cmp_stride"]
    if f.get("rope_before"):
      k = rope(k, torch.arange(len(k)), inv)
    keys, values = [], []
    for i in range(count):
      rows_k, rows_v = (x[i * stride : i * stride + length].transpose(0, 1) for x in (k, v))  # [kv, length, dim]
      if f["kind"] == "mean":
        keys.append(rows_k.mean(1)), values.append(rows_v.mean(1))
        continue
      rows_k = rows_k + self.get(layer, "own", "intra_block_pe")
      by = [self.get(layer, "own", name) for name in ("compress_key", "compress_value")]
      if f["kind"] == "weighted":
        keys.append((by[0][:, :, None] * rows_k).sum(1)), values.append((by[1][:, :, None] * rows_v).sum(1))
      else:
        keys.append(torch.bmm(rows_k.flatten(1)[:, None], by[0])[:, 0])
        values.append(torch.bmm(rows_v.flatten(1)[:, None], by[1])[:, 0])
    if not keys:
      return None, None
    keys, values = torch.stack(keys), torch.stack(values)
    return (keys if f.get("rope_before") else rope(keys, torch.arange(count) * stride, inv)), values

  def choose(self, p, t):
    """p: weights of the visible compressed rows, summed over the heads of a group"""
    f = self.form
    l, d, block, n = f["cmp_len"], f["cmp_stride"], f["sel_block"], f["sel_count"]
    own = t // block
    scores = []
    for j in range(own + 1):
      terms = [block // d * j + m + u - (l // d - 1) for m in range(l // d) for u in range(block // d)]
      scores.append(sum(float(p[i]) for i in terms if 0 <= i < len(p)))
    forced = {j for j in range(own + 1) if j < f["init_blocks"] or own - j < f["local_blocks"]}
    free = sorted(set(range(own + 1)) - forced, key=lambda j: (-scores[j], j))
    taken = max(0, min(n, own + 1) - len(forced))
    if 0 < taken < len(free):
      self.gap = min(self.gap, (scores[free[taken - 1]] - scores[free[taken]]) / max(scores[free[taken - 1]], 1e-12))
    return sorted(forced | set(free[:taken]))

  def attention(self, layer, x):
    c, f, T = self.c, self.form, len(x)
    heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    group, scale, at = heads // kv, dim**-0.5, torch.arange(T)
    q, k, v = ((x @ self.get(layer, "proj", n).T).view(T, -1, dim) for n in "qkv")
    gates = torch.sigmoid(x @ self.get(layer, "gate").T).view(T, heads, 3)
    l, d, block = f["cmp_len"], f["cmp_stride"], f["sel_block"]
    ck, cv = self.compress(layer, k, v, 0 if T < l else (T - l) // d + 1)
    q, k = rope(q, at, self.inv), rope(k, at, self.inv)
    out = torch.zeros(T, heads, dim)
    for t in range(T):
      seen = 0 if t + 1 < l else (t + 1 - l) // d + 1
      for h in range(kv):
        p = torch.zeros(seen)
        for g in range(h * group, (h + 1) * group):
          if seen:
            weights = (scale * ck[:seen, h] @ q[t, g]).softmax(0)
            out[t, g] += gates[t, g, 0] * (weights @ cv[:seen, h])
            p += weights
        rows = [i for j in self.choose(p, t) for i in range(j * block, min((j + 1) * block, t + 1))]
        near = list(range(max(0, t + 1 - f["window"]), t + 1))
        for g in range(h * group, (h + 1) * group):
          for branch, entries in ((1, rows), (2, near)):
            weights = (scale * k[entries, h] @ q[t, g]).softmax(0)
            out[t, g] += gates[t, g, branch] * (weights @ v[entries, h])
    return out.flatten(1) @ self.get(layer, "proj", "o").T

  @torch.inference_mode()
  def logits(self, ids):
    x = self.w[self.outside[0]][torch.tensor(ids)]
    for i in range(self.c["num_hidden_layers"]):
      x = x + self.attention(i, self.norm(x, self.get(i, "norm1")))
      y, mlp = self.norm(x, self.get(i, "norm2")), self.prefix.format(i) + self.part["mlp"]
      gate, up, down = (self.w[f"{mlp}.{n}_proj.weight"] for n in ("gate", "up", "down"))
      x = x + (torch.nn.functional.silu(y @ gate.T) * (y @ up.T)) @ down.T
    return self.norm(x, self.w[self.outside[1]]) @ self.w["lm_head.weight"].T


def digits(values, n=7):
  return [float(f"{v:.{n}g}") for v in values]


def record(model, seed):
  """one case, or None where its greedy tokens or its choices of blocks are too close to call"""
  ids = np.random.default_rng(seed).integers(0, EOS, LONG).tolist()
  z = model.logits(ids)
  if model.gap < MIN_GAP:
    return None
  greedy, margins, all_ids, row = [], [], list(ids), z[-1]
  while len(greedy) < NEW:
    (best, second), (token, _) = (x.tolist() for x in row.topk(2))
    if best - second < MIN_MARGIN or token >= EOS:
      return None
    greedy.append(token), margins.append(best - second), all_ids.append(token)
    row = model.logits(all_ids)[-1]
  if model.gap < MIN_GAP or len(set(greedy)) < MIN_DISTINCT:
    return None
  tops = []
  for p in (0, 7, 15, 63, 64, 100, 143, LONG - 1):
    best = z[p].topk(12)
    tops.append({"pos": p, "ids": best.indices.tolist(), "logits": digits(best.values.tolist()),
        "logsumexp": digits([z[p].logsumexp(-1).item()])[0]})  # fmt: skip
  return {"name": "long", "ids": ids, "top": tops, "greedy": greedy, "greedy_margin": digits(margins, 4)}


def make(name, out):
  c, style, form = MODELS[name]
  folder = f"{out}/tiny/folders/{name}"
  os.makedirs(folder, exist_ok=True)
  for seed in range(1, 400):
    recipe = make_recipe(tensors(c, style, form), "BF16", 1, seed)
    weights = {n: torch.from_numpy(w).bfloat16() for n, w in recipe_weights(recipe).items()}
    case = record(Model(c, style, form, weights), seed)
    if case:
      break
  else:
    raise SystemExit(f"{name}: no seed makes a clear test")
  with open(folder + "/config.json", "w") as f:
    json.dump(c, f, indent=1)
    f.write("\n")
  recipe["rest"] = "qwen3-untied"  # tokenizer and sampling
  with tempfile.TemporaryDirectory() as d:
    save_file(weights, d + "/model.safetensors", {"format": "pt"})
    write_recipe(folder + "/weights.json", recipe, d)
  source = f"models/{name}"
  head = {"model": name, "source": source, "stored": "BF16", "computed": "float32, models/golden/make_nsa_golden.py, CPU"}
  with open(f"{out}/golden/{name}.json", "w") as f:
    json.dump(head | {"versions": {"torch": torch.__version__}, "cases": [case]}, f, separators=(",", ":"))
    f.write("\n")
  print(f"{name}: seed {seed}")


def main():
  ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  ap.add_argument("--out", default="models", help="folder that has tiny/ and golden/")
  args = ap.parse_args()
  torch.set_num_threads(1)
  for name in MODELS:
    make(name, args.out)


if __name__ == "__main__":
  main()
