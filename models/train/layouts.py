"""Drafters as folders in the layouts in which they are published, written and read. Names and keys are other projects' facts:
  eagle3       SafeAILab, SpecForge, SGLang: midlayer.*; eagle_config.eagle_aux_hidden_state_layer_ids counts OUTPUTS of layers
  speculators  vLLM's library of that name: layers.0.*; eagle_aux_hidden_state_layer_ids counts INPUTS of layers (one more)
  eagle1       SafeAILab's EAGLE-1 and -2: fc.*, layers.0.*
  medusa       FasterDecoding: medusa_lm_head.safetensors, names {head}.{layer}.linear.*, {head}.{layers}.weight
  medusa-vllm  vLLM: blocks.{head}.layers.{layer}.*, lm_heads.{head}.weight
  mtp          DeepSeek: layer N of the target's own folder; mtp-qwen: mtp.* there
A draft model is an ordinary Hugging Face folder (`write_decoder`).
"""

import json
import os
import shutil

import safetensors.torch
import torch
from drafters import Eagle1, Eagle3, Medusa, Mtp
from layers import Shape
from target import Decoder, read_config, read_tensors
from torch import nn

DTYPE = torch.bfloat16  # as published


def write_folder(folder, config, tensors, file="model.safetensors"):
  os.makedirs(folder, exist_ok=True)
  with open(os.path.join(folder, "config.json"), "w") as f:
    json.dump(config, f, indent=1)
    f.write("\n")
  stored = {n: t.detach().cpu().to(DTYPE if t.is_floating_point() else t.dtype).contiguous() for n, t in tensors.items()}
  safetensors.torch.save_file(stored, os.path.join(folder, file), {"format": "pt"})


def llama_config(s, **more):
  return {
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": s.hidden,
      "intermediate_size": s.ffn, "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim,
      "num_hidden_layers": s.layers, "rms_norm_eps": s.eps, "rope_theta": s.theta, "rope_scaling": None,
      "max_position_embeddings": s.context, "vocab_size": s.vocab, "tie_word_embeddings": s.tied, "torch_dtype": "bfloat16",
  } | more  # fmt: skip


def renamed(tensors, pairs):
  """names that begin with the first of a pair begin with the second"""
  out = {}
  for name, t in tensors.items():
    for a, b in pairs:
      if name.startswith(a):
        name = b + name[len(a) :]
        break
    out[name] = t
  return out


# ---------------------------------------------------------------------------------------------------- EAGLE
def write_eagle3(drafter, folder, layout="eagle3", verifier=""):
  s, width, taps = drafter.s, drafter.lm_head.out_features, list(drafter.taps)
  tensors = dict(drafter.state_dict()) | {"t2d": torch.zeros(s.vocab, dtype=torch.bool)}
  tensors["t2d"][drafter.vocabulary().cpu()] = True
  tensors = renamed(tensors, [("own_embedding.", "embed_tokens.")])
  common = {"draft_vocab_size": width, "target_hidden_size": drafter.fc.in_features // len(taps)}
  if layout == "eagle3":
    if drafter.midlayer.norm_before_residual:
      raise ValueError("norm_before_residual has no key in this layout: write `speculators`")
    config = llama_config(s, architectures=["LlamaForCausalLMEagle3"], **common)
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": taps, "use_aux_hidden_state": True}
  else:
    tensors = renamed(tensors, [("midlayer.", "layers.0.")])
    proposal = {"proposal_type": "greedy", "speculative_tokens": 5, "accept_tolerance": 0.0, "verifier_accept_k": 1}
    config = common | {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "torch_dtype": "bfloat16",
        "norm_before_residual": drafter.midlayer.norm_before_residual, "fc_norm": hasattr(drafter, "fc_norm"),
        "eagle_aux_hidden_state_layer_ids": [t + 1 for t in taps], "transformer_layer_config": llama_config(s),
        "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [proposal],
        "verifier": {"name_or_path": verifier}},
    }  # fmt: skip
  write_folder(folder, config, tensors)


def read_eagle3(config, tensors, target):
  inner = config.get("transformer_layer_config", config)
  s = Shape.from_config(inner)
  tensors = renamed({n.removeprefix("model."): t for n, t in tensors.items()}, [("layers.0.", "midlayer.")])
  tensors = renamed(tensors, [("embed_tokens.", "own_embedding.")])
  outputs = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
  inputs = config.get("eagle_aux_hidden_state_layer_ids")
  n = target.s.layers
  taps = outputs or ([i - 1 for i in inputs] if inputs else [1, n // 2 - 1, n - 4])
  width = tensors["lm_head.weight"].shape[0]
  d2t = tensors.setdefault("d2t", torch.zeros(width, dtype=torch.int64))
  tensors.pop("t2d", None)
  drafter = Eagle3(
      s, taps, d2t + torch.arange(width), target.s.hidden, config.get("norm_before_residual", False),
      any(name.startswith("fc_norm.") for name in tensors), "own_embedding.weight" in tensors,
  )  # fmt: skip
  drafter.load_state_dict(tensors)
  return drafter


def write_eagle1(drafter, folder):
  write_folder(folder, llama_config(drafter.s, bias=drafter.fc.bias is not None), drafter.state_dict())


def read_eagle1(config, tensors):
  tensors = renamed({n.removeprefix("model."): t for n, t in tensors.items()}, [("embed_tokens.", "own_embedding.")])
  drafter = Eagle1(Shape.from_config(config), "fc.bias" in tensors)
  if "own_embedding.weight" in tensors:
    drafter.own_embedding = nn.Embedding(*tensors["own_embedding.weight"].shape)
  drafter.load_state_dict(tensors)
  return drafter


# ---------------------------------------------------------------------------------------------------- Medusa
def write_medusa(drafter, folder, layout="medusa", base=""):
  heads, layers, tensors = len(drafter.blocks), len(drafter.blocks[0]), {}
  hidden = drafter.blocks[0][0].linear.in_features
  if layout == "medusa":
    if len(drafter.lm_heads) != heads or drafter.token_map is not None:
      raise ValueError("this layout has a matrix of all tokens for every head: write `medusa-vllm`")
    for name, t in drafter.state_dict().items():
      kind, h, *rest = name.split(".")
      tensors[".".join([h, *rest] if kind == "blocks" else [h, str(layers), "weight"])] = t
    config = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": base}
    return write_folder(folder, config, tensors, "medusa_lm_head.safetensors")
  for name, t in drafter.state_dict().items():
    kind, *rest = name.split(".")
    if kind == "blocks":
      tensors[f"blocks.{rest[0]}.layers.{rest[1]}.{rest[3]}"] = t
    elif kind == "lm_heads":
      tensors["lm_head.weight" if len(drafter.lm_heads) == 1 else f"lm_heads.{rest[0]}.weight"] = t
    else:
      tensors[name] = t
  config = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": hidden, "num_heads": heads,
      "num_hidden_layers": layers, "medusa_fc_bias": drafter.blocks[0][0].linear.bias is not None,
      "original_lm_head": len(drafter.lm_heads) != heads, "torch_dtype": "bfloat16"}  # fmt: skip
  if drafter.lm_heads:
    width = drafter.lm_heads[0].out_features
    config |= {"vocab_size": width, "truncated_vocab_size": width}
  write_folder(folder, config, tensors)


def read_medusa(config, tensors, target):
  tensors = {n.removeprefix("medusa_head.").removeprefix("medusa_heads."): t for n, t in tensors.items()}
  heads = config.get("medusa_num_heads") or config["num_heads"]
  layers = config.get("medusa_num_layers") or config["num_hidden_layers"]
  own = {}
  for name, t in tensors.items():
    part = name.split(".")
    if part[0] == "blocks":
      own[f"blocks.{part[1]}.{part[3]}.linear.{part[4]}"] = t
    elif part[0] in ("lm_heads", "lm_head"):
      own[f"lm_heads.{part[1] if part[0] == 'lm_heads' else 0}.weight"] = t
    elif name == "token_map":
      own[name] = t
    else:
      own[f"blocks.{name}" if "linear" in part else f"lm_heads.{part[0]}.weight"] = t
  count = sum(name.startswith("lm_heads.") for name in own)
  output = "target" if count == 0 else "shared" if count < heads else "own"
  bias = "blocks.0.0.linear.bias" in own
  drafter = Medusa(target.s.hidden, target.s.vocab, heads, layers, output, bias, own.get("token_map"))
  drafter.load_state_dict(own)
  return drafter


# ---------------------------------------------------------------------------------------------------- multi-token prediction
def mtp_names(layout, layers):
  if layout == "mtp-qwen":
    return [("eh_proj.", "mtp.fc."), ("enorm.", "mtp.pre_fc_norm_embedding."), ("hnorm.", "mtp.pre_fc_norm_hidden."),
        ("norm.", "mtp.norm."), ("block.", "mtp.layers.0.")]  # fmt: skip
  own = f"model.layers.{layers}."
  return [("eh_proj.", own + "eh_proj."), ("enorm.", own + "enorm."), ("hnorm.", own + "hnorm."),
      ("norm.", own + "shared_head.norm."), ("block.", own)]  # fmt: skip


def write_mtp(drafter, folder, target_folder, layout="mtp"):
  """the target's folder over again, with the layer in it; embedding and head are the target's and not repeated"""
  config, tensors = read_config(target_folder), read_tensors(target_folder)
  tensors |= renamed(drafter.state_dict(), mtp_names(layout, config["num_hidden_layers"]))
  config["mtp_num_hidden_layers" if layout == "mtp-qwen" else "num_nextn_predict_layers"] = 1
  if (drafter.feed_norm, drafter.recycle_norm) != ("post", "post"):
    config["mtp"] = {"feed_norm": drafter.feed_norm, "recycle_norm": drafter.recycle_norm}
  write_folder(folder, config, tensors)
  for name in os.listdir(target_folder):
    if name.endswith((".json", ".jinja")) and name not in ("config.json", "model.safetensors.index.json"):
      shutil.copy(os.path.join(target_folder, name), folder)


def read_mtp(config, tensors, target):
  layout = "mtp-qwen" if any(n.startswith("mtp.") for n in tensors) else "mtp"
  names = [(theirs, ours) for ours, theirs in mtp_names(layout, target.s.layers)]
  own = {n: t for n, t in renamed(tensors, names).items() if n.startswith(tuple(ours for _, ours in names))}
  gated = own["block.self_attn.q_proj.weight"].shape[0] == 2 * target.s.heads * target.s.head_dim
  plus_one = config["model_type"] in ("qwen3_next", "qwen3_5")
  drafter = Mtp(target.s, target.s.layers, gated=gated, plus_one=plus_one, **config.get("mtp", {}))
  drafter.load_state_dict(own)
  return drafter


# ---------------------------------------------------------------------------------------------------- any
def write_decoder(decoder, folder, tokenizer_of):
  write_folder(folder, decoder.config, decoder.state_dict())
  for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json"):
    if os.path.exists(os.path.join(tokenizer_of, name)):
      shutil.copy(os.path.join(tokenizer_of, name), folder)


def read_drafter(folder, target):
  """a drafter of any layout, in fp32; a draft model is a Decoder"""
  config, tensors = read_config(folder), read_tensors(folder)
  tensors = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
  if "medusa_num_heads" in config or "num_heads" in config:
    drafter = read_medusa(config, tensors, target)
  elif any("hidden_norm." in n for n in tensors):
    drafter = read_eagle3(config, tensors, target)
  elif "fc.weight" in tensors or "model.fc.weight" in tensors:
    drafter = read_eagle1(config, tensors)
  elif "num_nextn_predict_layers" in config or "mtp_num_hidden_layers" in config:
    drafter = read_mtp(config, tensors, target)
  else:
    drafter = Decoder(config)
    drafter.load_state_dict(tensors)
  return drafter.eval()
