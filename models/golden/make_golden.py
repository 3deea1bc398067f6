"""Makes models/tiny (tiny seeded random-weight models of every family, as folders and GGUF files) and models/golden
(what transformers computes for them), so that the C++ tests need neither torch nor transformers. A folder keeps no weights but
the recipe that they are drawn by (tiny_weights.py). GGUF files are kept whole, in models/tiny; their weights are torch's.
models/tiny/README.md says what the files mean; tests/golden reads them.

    python models/golden/make_golden.py --out models [--reference models/wren-34m/golden.json]

Made with (pip): torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 gguf==0.19.0 numpy==2.4.6
Everything is computed on the CPU in fp32 from the stored (rounded, for GGUF dequantised) weights with eager attention. A run
with other versions may move logits in their last digits; the files written here name the versions.
"""
import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from importlib.metadata import version

import numpy as np
import safetensors.torch
import torch
import transformers
from gguf import GGMLQuantizationType as Q

from tiny_gguf import write_gguf
from tiny_tokenizer import EOS, FIRST_SPECIAL, SAMPLING, TOKENIZER_CONFIG, VOCAB, tokenizer_json
from tiny_weights import make_recipe, recipe_weights, write_recipe

SHORT, LONG, BEYOND = 10, 80, 180  # prompt lengths; BEYOND only where rope scaling has an original context to pass
NEW = 24  # greedy tokens
MIN_MARGIN = 0.02  # every greedy choice of every prompt wins by at least this much, so that no rounding can turn it
MIN_DISTINCT = 6  # and does not fall into a short loop
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# ---------------------------------------------------------------------------------------------------- the models
def config(family, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=64, layers=2, theta=10000.0, tied=True, context=256, **more):
  c = {
      "architectures": [family.capitalize() + "ForCausalLM"], "model_type": family, "hidden_act": "silu", "hidden_size": hidden,
      "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "num_hidden_layers": layers,
      "head_dim": head_dim, "rms_norm_eps": 1e-5 if family in ("llama", "mistral", "gpt_oss") else 1e-6, "rope_theta": theta, "rope_scaling": None,
      "max_position_embeddings": context, "tie_word_embeddings": tied, "vocab_size": VOCAB, "torch_dtype": "bfloat16",
      "bos_token_id": EOS, "eos_token_id": EOS,
  }  # fmt: skip
  if family == "qwen2" or family.startswith("deepseek"):
    del c["head_dim"]  # their config.json has none
  c.update(more)
  return c


def new_style(c):
  """the spelling of config.json that transformers 5 writes: rope_parameters, dtype, layer_types"""
  c = dict(c)
  theta, scaling = c.pop("rope_theta"), c.pop("rope_scaling")
  c["rope_parameters"] = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
  c["dtype"] = c.pop("torch_dtype")
  if c["model_type"].startswith("qwen"):
    first = c["max_window_layers"] if c.get("use_sliding_window") else c["num_hidden_layers"]
    c["layer_types"] = ["sliding_attention" if i >= first else "full_attention" for i in range(c["num_hidden_layers"])]
  return c


FOURFOLD = {"factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **FOURFOLD}
YARN = {"rope_type": "yarn", "beta_fast": 4.0, "beta_slow": 1.0, **FOURFOLD}
YARN_QWEN = {"type": "yarn", **FOURFOLD}  # older key `type`, default betas
LINEAR = {"type": "linear", "factor": 4.0}
WINDOW = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
NO_WINDOW = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 2}

# name: (config, stored type, shards, GGUF pre-tokenizer name, seed, keys to change for "must differ clearly from"). The seed is
# where the search begins: with these, conformance_suite's drafts are kept and dropped under every policy, 3 and more of each.
PLAIN = {"rope_parameters": {"rope_theta": 300.0, "rope_type": "default"}}
QWEN3 = {"attention_bias": False, **NO_WINDOW}
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1],
}  # fmt: skip
YARN_WHOLE = {"rope_type": "yarn", "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False, **FOURFOLD}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 3, "experts_per_token": 3,
    "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "attention_bias": True, "swiglu_limit": 1.0,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
FEW_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_per_token": 2, "swiglu_limit": 7.0}
# Values narrower than keys; groups of experts that leave some out; mscale and mscale_all_dim differ, so that both are seen.
YARN_MSCALE = {"type": "yarn", "beta_fast": 4, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.7, **FOURFOLD}
LATENT = {
    "kv_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "moe_intermediate_size": 32,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "first_k_dense_replace": 1, "moe_layer_freq": 1, "attention_bias": False,
}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "q_lora_rank": 24, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
    "norm_topk_prob": True, "routed_scaling_factor": 1.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
}  # fmt: skip
DEEPSEEK_V2 = {
    "architectures": ["DeepseekV2ForCausalLM"], "q_lora_rank": None, "n_shared_experts": 2, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": False, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_method": "greedy",
}  # fmt: skip
ROWS_OF_32 = {"q_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 16, "num_nextn_predict_layers": 0}
MODELS = {
    "qwen3-tied": (config("qwen3", **QWEN3), "BF16", 1, "qwen2", 18, None),
    "qwen3-untied": (new_style(config("qwen3", head_dim=24, theta=1e6, tied=False, **QWEN3)), "F16", 1, "qwen2", 6, None),
    "qwen2-tied": (config("qwen2", theta=1e6, **NO_WINDOW), "BF16", 1, "qwen2", 13, None),
    "qwen2-window": (config("qwen2", ffn=32, layers=3, **WINDOW), "BF16", 1, "qwen2", 4, {"use_sliding_window": False}),
    "llama": (config("llama", kv_heads=4, ffn=32, tied=False), "BF16", 2, "llama-bpe", 63, None),
    "llama-llama3": (new_style(config("llama", ffn=32, theta=300.0, rope_scaling=LLAMA3)), "BF16", 1, "llama-bpe", 29, PLAIN),
    "llama-linear": (
    config("llama", kv_heads=1, ffn=32, rope_scaling=LINEAR, attention_bias=True), "F32", 1, "llama-bpe", 314,
    {"rope_scaling": None},
    ),
    "llama-yarn": (
    config("llama", head_dim=24, ffn=32, theta=500.0, rope_scaling=YARN), "BF16", 1, "llama-bpe", 15, {"rope_scaling": None},
    ),
    # Layer 1 is dense. Routers that favour few experts: where rounding swaps the last of them, logits move little.
    "qwen3-moe": (config("qwen3_moe", layers=3, tied=False, **MOE, **QWEN3), "BF16", 1, "qwen2", 3, {"num_experts_per_tok": 1}),
    "mistral": (config("mistral", ffn=32, tied=False, sliding_window=24), "BF16", 1, "llama-bpe", 1, {"sliding_window": None}),
    # Experts in MXFP4; limits of the gates that some of them reach.
    "gpt-oss": (config("gpt_oss", ffn=32, tied=False, theta=500.0, rope_scaling=YARN_WHOLE, **GPT_OSS), "BF16", 1, "qwen2", 13, {"swiglu_limit": 100.0}),
    "deepseek-v3": (config("deepseek_v3", layers=3, tied=False, theta=500.0, rope_scaling=YARN_MSCALE, **LATENT, **DEEPSEEK_V3), "BF16", 1, "llama-bpe", 3, {"topk_group": 4}),
    "deepseek-v2-lite": (config("deepseek_v2", layers=2, tied=False, **LATENT, **DEEPSEEK_V2), "BF16", 1, "llama-bpe", 1, {"num_experts_per_tok": 1}),
}  # fmt: skip
ATTENDED = 0.5  # gain of a folder's output projections: with more, next to no draft survives that reads a few entries only

# name: (folder whose config it takes or a config of its own, type of the matrices, changed config keys, seed if not searched; of a config of its
# own, where the search begins: with it `cpu`, which rounds rows to 8 bits, sends them to the same experts)
BIG = dict(hidden=256, heads=4, head_dim=64, kv_heads=1, ffn=256, layers=1)  # K-quants need rows of 256
GGUFS = {
    "llama-llama3-f16": ("llama-llama3", Q.F16, {}, 14),
    "qwen3-q8_0": ("qwen3-tied", Q.Q8_0, {}, 22),
    "qwen3-q4_0": ("qwen3-tied", Q.Q4_0, {}, 22),
    "qwen2-yarn-q4_0": ("qwen2-tied", Q.Q4_0, {"rope_scaling": YARN_QWEN, "rope_theta": 500.0}, 22),
    "llama-q4_k_m": (config("llama", **BIG), Q.Q4_K, {}, None),  # with Q6_K where llama.cpp's mix of that name has it
    # Q8_0 but for the experts; no key of the file says what the gates' limit is: the published models'
    "gpt-oss-mxfp4": (config("gpt_oss", hidden=32, heads=4, ffn=32, theta=500.0, rope_scaling=YARN_WHOLE, **GPT_OSS | FEW_EXPERTS), Q.MXFP4, {}, None),
    # Maps of keys and of values apart, as llama.cpp's converter writes them; one mscale, all that its keys can say.
    "deepseek2-q8_0": (config("deepseek_v3", layers=2, tied=False, theta=500.0, rope_scaling=YARN_MSCALE | {"mscale": 0.7},
    **LATENT | DEEPSEEK_V3 | ROWS_OF_32), Q.Q8_0, {}, 81),
}


def tensors(c, attended, whole=False):
  """Hugging Face name -> (shape, mean, deviation): logits spread over several units and attention is far from uniform. `whole`:
  experts of gpt-oss as numbers, not as codes and scales"""
  hidden, head_dim = c["hidden_size"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
  q, kv, ffn = c["num_attention_heads"] * head_dim, c["num_key_value_heads"] * head_dim, c["intermediate_size"]
  matrix = lambda rows, cols, gain: ((rows, cols), 0.0, gain / math.sqrt(cols))
  norm = lambda n, mean=1.0: ((n,), mean, 0.2)
  qkv_bias = c["model_type"] == "qwen2" or c.get("attention_bias")
  t = {"model.embed_tokens.weight": matrix(VOCAB, hidden, 2.0), "model.norm.weight": norm(hidden)}
  if not c["tie_word_embeddings"]:
    t["lm_head.weight"] = matrix(VOCAB, hidden, 2.0)
  for i in range(c["num_hidden_layers"] + c.get("num_nextn_predict_layers", 0)):
    if i == c["num_hidden_layers"]:  # a layer like the others, and what leads into it and out of it
      at = f"model.layers.{i}."
      t |= {at + n + ".weight": norm(hidden) for n in ("enorm", "hnorm", "shared_head.norm")}
      t[at + "eh_proj.weight"] = matrix(hidden, 2 * hidden, 1.5)
    a, m = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
    t[f"model.layers.{i}.input_layernorm.weight"] = norm(hidden)
    t[f"model.layers.{i}.post_attention_layernorm.weight"] = norm(hidden)
    latent = c.get("kv_lora_rank")
    if latent:
      rope, rank, per_head = c["qk_rope_head_dim"], c["q_lora_rank"], c["qk_nope_head_dim"] + c["v_head_dim"]
      q, heads = c["num_attention_heads"] * (c["qk_nope_head_dim"] + rope), c["num_attention_heads"]
      if rank:
        t[a + "q_a_proj.weight"], t[a + "q_a_layernorm.weight"] = matrix(rank, hidden, 1.0), norm(rank)
      t[a + ("q_b_proj" if rank else "q_proj") + ".weight"] = matrix(q, rank or hidden, 1.5)
      t[a + "kv_a_proj_with_mqa.weight"], t[a + "kv_a_layernorm.weight"] = matrix(latent + rope, hidden, 1.5), norm(latent)
      t[a + "kv_b_proj.weight"] = matrix(heads * per_head, latent, 1.2)
      t[a + "o_proj.weight"] = matrix(hidden, heads * c["v_head_dim"], attended ** (1.5 if rank else 1))
    for name, rows, cols in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)) if not latent else ():
      t[a + name + "_proj.weight"] = matrix(rows, cols, {"q": 1.5, "k": 1.5, "v": 1.0, "o": attended}[name])
      if qkv_bias and (name != "o" or c.get("attention_bias")):
        t[a + name + "_proj.bias"] = ((rows,), 0.0, 0.5)
    if c["model_type"].startswith("qwen3"):
      t[a + "q_norm.weight"], t[a + "k_norm.weight"] = norm(head_dim, 1.4), norm(head_dim, 1.4)
    if c["model_type"] == "gpt_oss":
      t[a + "sinks"] = ((c["num_attention_heads"],), 1.0, 1.0)
      experts = c["num_local_experts"]
      t[m + "router.weight"], t[m + "router.bias"] = matrix(experts, hidden, 3.0), ((experts,), 0.0, 0.5)
      parts = (("gate_up", 2 * ffn, hidden), ("down", hidden, ffn))
      for name, rows, cols in (("gate", ffn, hidden), ("up", ffn, hidden), parts[1]) if whole else parts:
        at = f"{m}experts.{name}_proj"
        t[at + "_bias"] = ((experts, rows), 0.0, 0.5)
        if whole:
          t[at] = ((experts, rows, cols), 0.0, 1.5 / math.sqrt(cols))
        else:  # codes are 2.9 on average
          t[at + "_blocks"] = ((experts, rows, cols // 32, 16), 0, 256, "U8")
          t[at + "_scales"] = ((experts, rows, cols // 32), 122, 3, "U8")
      continue
    blocks, width = [m], ffn
    if "num_experts" in c and i not in c["mlp_only_layers"]:
      t[m + "gate.weight"] = matrix(c["num_experts"], hidden, 3.0)
      blocks, width = [f"{m}experts.{e}." for e in range(c["num_experts"])], c["moe_intermediate_size"]
    if "n_routed_experts" in c and i >= c["first_k_dense_replace"]:
      experts, width = c["n_routed_experts"], c["moe_intermediate_size"]
      t[m + "gate.weight"] = matrix(experts, hidden, 3.0)
      if c["model_type"] == "deepseek_v3":
        t[m + "gate.e_score_correction_bias"] = ((experts,), 0.0, 0.3)
      blocks = [f"{m}experts.{e}." for e in range(experts)]
      for name in ("gate", "up", "down"):
        shared = (width * c["n_shared_experts"], hidden)[:: 1 if name != "down" else -1]
        t[f"{m}shared_experts.{name}_proj.weight"] = matrix(*shared, 1.5)
    for block in blocks:
      for name, rows, cols in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
        t[block + name + "_proj.weight"] = matrix(rows, cols, 1.5)
  return t


def gguf_weights(c, seed):
  """fp32 weights of a GGUF file, before they are encoded"""
  g = torch.Generator().manual_seed(seed)
  return {n: mean + std * torch.randn(shape, generator=g) for n, (shape, mean, std) in tensors(c, 1.0, True).items()}


def write_json(path, value, compact=True):
  with open(path, "w") as f:
    json.dump(value, f, ensure_ascii=False, **({"separators": (",", ":")} if compact else {"indent": 2}))
    f.write("\n")


def write_folder(folder, c, weights, pre, files=None):
  """a Hugging Face folder; `weights` are already of the stored type; `files`: file -> names, where there is more than one"""
  shutil.rmtree(folder, ignore_errors=True)
  os.makedirs(folder)
  write_json(folder + "/config.json", c, compact=False)
  write_json(folder + "/generation_config.json", SAMPLING)
  write_json(folder + "/tokenizer.json", tokenizer_json(pre))
  write_json(folder + "/tokenizer_config.json", TOKENIZER_CONFIG)
  files = files or {"model.safetensors": list(weights)}
  for file, names in files.items():
    safetensors.torch.save_file({n: weights[n] for n in names}, f"{folder}/{file}", {"format": "pt"})
  if len(files) > 1:
    size = sum(t.numel() * t.element_size() for t in weights.values())
    where = dict(sorted((n, file) for file, names in files.items() for n in names))
    write_json(folder + "/model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": where})


def load(folder):
  return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


MXFP4 = [s * v for s in (1, -1) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]


def widened(weights):
  """experts of gpt-oss as transformers keeps them in memory: numbers, [expert][in][out], rows of gate and up in turns"""
  out, turns = {}, lambda n: torch.stack([weights[n], weights[n.replace("gate_proj", "up_proj")]], 2).flatten(1, 2)
  for n, t in weights.items():
    if n.endswith("_blocks"):
      codes = torch.stack([t & 15, t >> 4], -1).long()
      exponents = weights[n[:-6] + "scales"].int() - 127
      scales = torch.ldexp(torch.ones(exponents.shape), exponents)
      values = torch.tensor(MXFP4)[codes].flatten(-2) * scales[..., None]
      out[n.removesuffix("_blocks")] = values.flatten(2).transpose(1, 2).contiguous()
    elif n.endswith("gate_proj") or n.endswith("gate_proj_bias"):
      both = turns(n)
      out[n.replace("gate_proj", "gate_up_proj")] = both.transpose(1, 2).contiguous() if both.ndim == 3 else both
    elif n.endswith(".down_proj"):
      out[n] = t.transpose(1, 2).contiguous()
    elif not n.endswith("_scales") and not n.endswith("up_proj") and not n.endswith(".up_proj_bias"):
      out[n] = t
  return out


def model_of(c, weights):
  """a transformers model from a config and fp32 weights, by way of a folder, so that the public loading path is what is used"""
  if c["model_type"] == "gpt_oss" and not any(n.endswith("gate_up_proj") for n in weights):
    weights = widened(weights)
  c = {k: v for k, v in c.items() if k != "quantization_config"}
  with tempfile.TemporaryDirectory() as d:
    write_folder(d, c | {"torch_dtype": "float32"}, weights, "qwen2")
    return load(d)


# ---------------------------------------------------------------------------------------------------- what is recorded
def prompts(c, seed):
  rng = np.random.default_rng(seed)
  beyond = c.get("rope_scaling") or c.get("rope_parameters", {}).get("rope_type", "default") != "default"
  lengths = {"short": SHORT, "long": LONG} | ({"beyond": BEYOND} if beyond else {})
  return {name: rng.integers(0, FIRST_SPECIAL, length).tolist() for name, length in lengths.items()}


@torch.inference_mode()
def logits_of(model, ids):
  return model(torch.tensor([ids]), use_cache=False).logits[0].float()


@torch.inference_mode()
def greedy_of(model, ids):
  """NEW arg max tokens, end-of-text ignored, recomputing everything each time: no cache is trusted; and their margins"""
  out, margins = [], []
  for _ in range(NEW):
    v, i = logits_of(model, ids + out)[-1].topk(2)
    out.append(int(i[0]))
    margins.append(float(v[0] - v[1]))
  return out, margins


@torch.inference_mode()
def mtp_chain(model, c, weights, ids, count=4):
  """what the prediction layer guesses behind ids, fed by the model's last hidden states and then by its own, both behind the last
  norm; and the margins. Row j stands at position j and sees rows from 1 on"""
  layers = sys.modules[type(model).__module__]
  at, n = f"model.layers.{c['num_hidden_layers']}.", c["n_routed_experts"]
  own = {name.removeprefix(at): t.float() for name, t in weights.items() if name.startswith(at)}
  block = layers.DeepseekV3DecoderLayer(model.config, c["num_hidden_layers"]).float().eval()
  state = {k: own[k] for k in block.state_dict() if ".experts." not in k}
  part = lambda name: torch.stack([own[f"mlp.experts.{e}.{name}_proj.weight"] for e in range(n)])
  state["mlp.experts.gate_up_proj"], state["mlp.experts.down_proj"] = torch.cat([part("gate"), part("up")], 1), part("down")
  block.load_state_dict(state)
  rms = lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]) * w
  features = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[:, :-1]
  tokens, margins = [], []
  for _ in range(count):
    embedded = model.model.embed_tokens(torch.tensor([ids[1:] + tokens]))
    x = torch.cat([rms(embedded, own["enorm.weight"]), rms(features, own["hnorm.weight"])], -1) @ own["eh_proj.weight"].T
    positions = torch.arange(1, x.shape[1] + 1)[None]
    mask = torch.full((x.shape[1],) * 2, float("-inf")).triu(1)[None, None]
    x = block(x, position_embeddings=model.model.rotary_emb(x, positions), attention_mask=mask)
    x = rms(x[0] if isinstance(x, tuple) else x, own["shared_head.norm.weight"])
    best = model.lm_head(x[0, -1]).topk(2)
    tokens.append(int(best.indices[0]))
    margins.append(float(best.values[0] - best.values[1]))
    features = torch.cat([features, x[:, -1:]], 1)
  return tokens, margins


def digits(values, n=6):
  return [float(f"{v:.{n}g}") for v in values]


def record(model, c, seed):
  """the cases of one golden file, one row of all logits in the first; None if the greedy tokens make a poor test"""
  cases = []
  for name, ids in prompts(c, seed).items():
    greedy, margins = greedy_of(model, ids)
    if min(margins) < MIN_MARGIN or max(greedy) >= FIRST_SPECIAL or len(set(greedy)) < MIN_DISTINCT:
      return None
    z, n = logits_of(model, ids), len(ids)
    rows = [n // 2] if name == "short" else []
    tops = []
    for p in sorted({1, n // 4, n // 2, 3 * n // 4, n - 2}):
      best = z[p].topk(20)
      lse = digits([z[p].logsumexp(-1).item()], 7)[0]
      tops.append({"pos": p, "ids": best.indices.tolist(), "logits": digits(best.values.tolist(), 7), "logsumexp": lse})
    cases.append({
        "name": name, "ids": ids, "logits": [{"pos": p, "values": digits(z[p].tolist())} for p in rows],
        "top": tops, "greedy": greedy, "greedy_margin": digits(margins, 4),
    })  # fmt: skip
  return cases


def golden(path, name, source, stored, cases):
  versions = {package: version(package) for package in ("torch", "transformers", "safetensors", "gguf", "numpy")}
  head = {"model": name, "source": source, "stored": stored, "computed": "float32, eager attention, CPU"}
  write_json(path, head | {"versions": versions, "cases": cases})


def check_model(name, model, c, without):
  """the recorded numbers must mean something: logits spread, attention peaked, the variant's own feature at work"""
  ids = prompts(c, 1)["long"]
  z = logits_of(model, ids)
  with torch.inference_mode():
    att = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
  top = sum(float(a[0, :, LONG // 2 :].amax(-1).mean()) for a in att) / len(att)
  spread = float((z.amax(-1) - z.amin(-1)).mean())
  assert spread > 4 and 0.15 < top < 0.95, (name, spread, top)
  options = dict(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True)
  cached = model.generate(torch.tensor([ids]), **options)[0, len(ids) :].tolist()
  greedy, margins = greedy_of(model, ids)
  assert cached == greedy or min(margins) < MIN_MARGIN, name
  moved = None
  if without:
    weights = {n: t for n, t in model.state_dict().items() if n != "lm_head.weight" or not c["tie_word_embeddings"]}
    plain = model_of(c | without, weights)
    ids = prompts(c, 1).get("beyond", ids)
    moved = float((logits_of(model, ids)[-1] - logits_of(plain, ids)[-1]).abs().max())
    assert moved > 0.5, (name, moved)
  print(f"{name}: logits spread {spread:.1f}, mean greatest attention weight {top:.2f}, feature moves a logit by {moved}")


# ---------------------------------------------------------------------------------------------------- the parts together
def config_of(name):
  """what stands in config.json"""
  c, stored = MODELS[name][:2]
  return c | {"dtype" if "dtype" in c else "torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[stored]}


def make_folder(name, out):
  _, stored, shards, pre, first_seed, without = MODELS[name]
  c = config_of(name)
  for seed in range(first_seed, first_seed + 400):
    recipe = make_recipe(tensors(c, ATTENDED), stored, shards, seed)
    weights = {n: torch.from_numpy(x) for n, x in recipe_weights(recipe).items()}
    weights = {n: t if t.dtype == torch.uint8 else t.to(DTYPES[stored]) for n, t in weights.items()}
    model = model_of(c, {n: t if t.dtype == torch.uint8 else t.float() for n, t in weights.items()})
    cases = record(model, c, 1)
    for case in cases if cases and c.get("num_nextn_predict_layers") else ():
      case["mtp"], margins = mtp_chain(model, c, weights, case["ids"] + case["greedy"][:1])
      cases = cases if min(margins) >= MIN_MARGIN and len(set(case["mtp"])) > 2 else None
    if cases:
      break
  assert cases, name
  with tempfile.TemporaryDirectory() as folder:
    write_folder(folder, c, weights, pre, {f["name"]: [row[0] for row in f["tensors"]] for f in recipe["files"]})
    check_model(name, load(folder), c, without)
    assert torch.equal(logits_of(load(folder), cases[0]["ids"]), logits_of(model, cases[0]["ids"])), name
    kept = f"{out}/tiny/folders/{name}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("*.safetensors"))
    write_recipe(kept + "/weights.json", recipe, folder)
  golden(f"{out}/golden/{name}.json", name, f"models/{name}", f"{stored}, seed {seed}", cases)


def make_gguf(name, out):
  source, kind, changes, given = GGUFS[name]
  path = f"{out}/tiny/{name}.gguf"
  named = isinstance(source, str)
  c, stored = (config_of(source), MODELS[source][1]) if named else (source, "F32")
  c = c | changes
  for seed in range(1 if named else given or 1, 200):
    weights = {n: t.to(DTYPES[stored]) for n, t in gguf_weights(c, given if named else seed).items()}
    decoded = write_gguf(path, name, c, weights, kind, "llama-bpe" if c["model_type"] == "llama" else "qwen2")
    model = model_of(c, decoded)
    cases = record(model, c, seed if named else 1)
    if cases:
      break
  assert cases, name
  check_model(name, model, c, {"rope_scaling": None} if "rope_scaling" in changes else None)
  stored = "Q4_K and Q6_K" if kind == Q.Q4_K else "Q8_0 and MXFP4" if kind == Q.MXFP4 else kind.name
  golden(f"{out}/golden/{name}.gguf.json", name, f"models/{name}.gguf", f"{stored} matrices, F32 vectors, decoded", cases)


def compact_reference(path, out):
  """the reference model's golden file without texts and running likelihoods"""
  g = json.load(open(path))
  keep = ("name", "ids", "top", "nll_sum", "greedy", "greedy_margin")
  cases = [{k: c[k] for k in keep} for c in g["cases"]]
  head = {"model": g["model"], "computed": g["dtype"], "made_by": g["made_by"]}
  write_json(f"{out}/golden/{g['model']}.json", head | {"cases": cases})


def main():
  ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  ap.add_argument("--out", default="models", help="folder that gets tiny/ and golden/")
  ap.add_argument("--only", help="one name of MODELS or GGUFS instead of all")
  ap.add_argument("--reference", help="golden.json of the reference model, compacted into golden/")
  args = ap.parse_args()
  transformers.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  torch.set_num_threads(1)
  os.makedirs(args.out + "/tiny/folders", exist_ok=True)
  os.makedirs(args.out + "/golden", exist_ok=True)
  for name in MODELS:
    if args.only not in (None, name):
      continue
    make_folder(name, args.out)
  for name in GGUFS:
    if args.only not in (None, name):
      continue
    make_gguf(name, args.out)
  if args.reference:
    compact_reference(args.reference, args.out)


if __name__ == "__main__":
  main()
