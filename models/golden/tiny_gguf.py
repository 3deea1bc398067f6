"""Tiny models as GGUF files: names, row order and encodings as llama.cpp's converter leaves them. Used by make_golden.py."""
import math

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q

from tiny_tokenizer import CHAT_END, EOS, FIRST_SPECIAL, MERGE, SPECIALS, TOKENS, VOCAB


def q4_k(x):
  """[rows, 256 n] -> bytes: f16 d, f16 dmin, 8 six-bit scales and mins in 12 bytes, 4-bit codes; w = d sc q - dmin m"""
  x = x.reshape(-1, 8, 32).astype(np.float64)
  low = np.minimum(x.min(-1), 0)
  step = (x.max(-1) - low) / 15
  d, dmin = (step.max(-1, keepdims=True) / 63).astype(np.float16), (-low.min(-1, keepdims=True) / 63).astype(np.float16)
  sc = np.clip(np.rint(step / d.astype(np.float64)), 0, 63).astype(np.uint8)
  m = np.clip(np.rint(-low / dmin.astype(np.float64)), 0, 63).astype(np.uint8)
  scale, offset = d.astype(np.float64) * sc, dmin.astype(np.float64) * m
  codes = np.clip(np.rint((x + offset[..., None]) / np.maximum(scale, 1e-12)[..., None]), 0, 15).astype(np.uint8)
  with_high = lambda v: v[:, :4] | ((v[:, 4:] >> 4) << 6)  # four whole values, above them two bits of the other four
  packed = np.concatenate([with_high(sc), with_high(m), (sc[:, 4:] & 15) | ((m[:, 4:] & 15) << 4)], 1)
  pairs = codes.reshape(-1, 4, 2, 32)  # 64 values share 32 bytes: the first 32 in the low nibbles
  qs = (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(-1, 128)
  return np.concatenate([d.view(np.uint8), dmin.view(np.uint8), packed, qs], 1)


def q6_k(x):
  """[rows, 256 n] -> bytes: 128 bytes of low nibbles, 64 of two high bits, 16 int8 scales, f16 d; w = d sc (q - 32)"""
  x = x.reshape(-1, 16, 16).astype(np.float64)
  peak = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)[..., 0]
  step = -peak / 32  # the greatest value takes code 0, as its sign decides the scale's
  d = (np.abs(step).max(-1) / 127).astype(np.float16)
  sc = np.clip(np.rint(step / d[:, None].astype(np.float64)), -127, 127).astype(np.int8)
  scale = d[:, None].astype(np.float64) * sc
  scale = np.where(scale == 0, 1e-12, scale)
  codes = (np.clip(np.rint(x / scale[..., None]), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # [half][quarter][32]
  low, high = codes & 15, codes >> 4
  ql = np.concatenate([low[:, :, 0] | (low[:, :, 2] << 4), low[:, :, 1] | (low[:, :, 3] << 4)], -1).reshape(-1, 128)
  qh = (high[:, :, 0] | (high[:, :, 1] << 2) | (high[:, :, 2] << 4) | (high[:, :, 3] << 6)).reshape(-1, 64)
  return np.concatenate([ql, qh, sc.view(np.uint8), d[:, None].view(np.uint8)], 1)


def encode(x, kind):
  """fp32 [rows, cols] -> (bytes [rows, row bytes], what they decode to by the gguf package)"""
  if kind in (Q.Q4_K, Q.Q6_K):
    data = (q4_k if kind == Q.Q4_K else q6_k)(x).reshape(x.shape[0], -1)
  else:
    data = gguf.quants.quantize(x, kind)
  back = gguf.quants.dequantize(data, kind).astype(np.float32).reshape(x.shape)
  error = np.abs(back - x).max() / np.abs(x).max()
  limit = {Q.F32: 1e-9, Q.F16: 1e-3, Q.BF16: 5e-3, Q.Q8_0: 5e-3, Q.Q6_K: 0.03, Q.Q4_K: 0.08, Q.Q4_0: 0.13, Q.MXFP4: 0.3}[kind]
  assert error < limit, (kind, error)
  return data, back


def interleave(x, heads):
  """rows of a q or k projection from halves (i, i + D/2) to neighbours (2i, 2i + 1): the order llama GGUF files keep"""
  return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def halves(x, heads):
  """the inverse of interleave"""
  return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


GGUF_NAMES = {
    "model.embed_tokens.": "token_embd.", "model.norm.": "output_norm.", "lm_head.": "output.", "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.sinks": "attn_sinks.weight", "mlp.router": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


GGUF_NAMES |= {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.k_b": "attn_k_b",
    "self_attn.v_b": "attn_v_b", "mlp.gate.weight": "ffn_gate_inp.weight", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
} | {f"mlp.shared_experts.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down")}  # fmt: skip


def stacked(c, weights):
  """tensors of DeepSeek as its GGUF files keep them: all experts in one, each head's map of keys (transposed) and of values"""
  out, heads, nope = {}, c["num_attention_heads"], c["qk_nope_head_dim"]
  for n, t in weights.items():
    if n.endswith("kv_b_proj.weight"):
      x = t.reshape(heads, -1, t.shape[-1])
      out[n.replace("kv_b_proj", "k_b")] = x[:, :nope].transpose(1, 2).contiguous()
      out[n.replace("kv_b_proj", "v_b")] = x[:, nope:].contiguous()
    elif ".experts.0." in n:
      every = [weights[n.replace(".experts.0.", f".experts.{e}.")] for e in range(c["n_routed_experts"])]
      out[n.replace(".experts.0.", ".experts.").removesuffix(".weight")] = torch.stack(every)
    elif ".experts." not in n:
      out[n] = t
  return out


def unstacked(weights):
  """the inverse of stacked"""
  out = {}
  for n, t in weights.items():
    if n.endswith("self_attn.k_b.weight"):
      both = torch.cat([t.transpose(1, 2), weights[n.replace("k_b", "v_b")]], 1)
      out[n.replace("k_b", "kv_b_proj")] = both.reshape(-1, both.shape[-1]).contiguous()
    elif ".experts." in n:
      out |= {n.replace(".experts.", f".experts.{e}.") + ".weight": x.contiguous() for e, x in enumerate(t)}
    elif "self_attn.v_b" not in n:
      out[n] = t
  return out


def gguf_name(name):
  for a, b in sorted(GGUF_NAMES.items(), key=lambda p: -len(p[0])):
    name = name.replace(a, b)
  if "_exps" in name:
    name = name.replace("_exps_bias", "_exps.bias") if name.endswith("_bias") else name + ".weight"
  return name


def write_gguf(path, name, c, weights, kind, pre):
  """matrices in `kind`, norms and biases in F32; returns the decoded weights under their Hugging Face names and row order"""
  arch, heads, kv_heads = c["model_type"].replace("_", "-"), c["num_attention_heads"], c["num_key_value_heads"]
  deepseek = arch == "deepseek-v3"
  if deepseek:
    arch, kv_heads, weights = "deepseek2", 1, stacked(c, weights)
  head_dim = c.get("head_dim") or c["hidden_size"] // heads
  w = gguf.GGUFWriter(path, arch)
  w.add_name(name)
  w.add_file_type({Q.F32: 0, Q.F16: 1, Q.Q4_0: 2, Q.Q8_0: 7, Q.Q4_K: 15, Q.Q6_K: 18, Q.BF16: 32, Q.MXFP4: 38}[kind])
  w.add_quantization_version(2)
  w.add_context_length(c["max_position_embeddings"])
  w.add_embedding_length(c["hidden_size"])
  w.add_block_count(c["num_hidden_layers"])
  w.add_feed_forward_length(c["intermediate_size"])
  w.add_head_count(heads)
  w.add_head_count_kv(kv_heads)
  w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"] if deepseek else head_dim)
  w.add_value_length(c["kv_lora_rank"] if deepseek else head_dim)
  w.add_layer_norm_rms_eps(c["rms_norm_eps"])
  w.add_vocab_size(VOCAB)
  rope = c.get("rope_parameters") or {"rope_theta": c["rope_theta"], **(c["rope_scaling"] or {})}
  w.add_rope_freq_base(rope["rope_theta"])
  if arch == "llama":
    w.add_rope_dimension_count(head_dim)
  if arch == "gpt-oss":
    w.add_expert_count(c["num_local_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["intermediate_size"])
    w.add_sliding_window(c["sliding_window"])
    w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
  if deepseek:
    w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length_mla(c["v_head_dim"])
    w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(c["kv_lora_rank"])
    w.add_rope_dimension_count(c["qk_rope_head_dim"])
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_expert_group_count(c["n_group"])
    w.add_expert_group_used_count(c["topk_group"])
    w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
  if "yarn" in (rope.get("type"), rope.get("rope_type")):
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(rope["factor"])
    w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
  w.add_tokenizer_model("gpt2")
  w.add_tokenizer_pre(pre)
  w.add_token_list(TOKENS)
  w.add_token_types([gguf.TokenType.NORMAL] * FIRST_SPECIAL + [gguf.TokenType.CONTROL] * len(SPECIALS))
  w.add_token_merges([" ".join(MERGE)])
  w.add_bos_token_id(EOS)
  w.add_eos_token_id(CHAT_END)
  w.add_add_bos_token(False)
  if rope.get("rope_type") == "llama3":  # llama.cpp keeps this scaling as one divisor for each frequency
    w.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_dim))
  decoded = {}
  for n, t in weights.items():
    x = t.float().numpy()
    count = None if arch != "llama" else heads if "q_proj" in n else kv_heads if "k_proj" in n else None
    x = interleave(x, count) if count else x
    if x.ndim == 1 or n.endswith("_bias"):
      w.add_tensor(gguf_name(n).replace("ffn_norm", "post_attention_norm" if arch == "gpt-oss" else "ffn_norm"), x)
    else:
      own = Q.Q6_K if kind == Q.Q4_K and any(part in n for part in ("embed_tokens", "v_proj", "down_proj")) else kind
      if kind == Q.MXFP4 and ".experts." not in n:
        own = Q.F32 if "router" in n else Q.Q8_0
      own = Q.F32 if n.endswith("mlp.gate.weight") else own
      data, back = encode(np.ascontiguousarray(x).reshape(-1, x.shape[-1]), own)
      data, x = data.reshape(*x.shape[:-1], -1), back.reshape(x.shape)
      if own in (Q.F32, Q.F16):  # the writer takes these by their numpy type, the others as bytes
        w.add_tensor(gguf_name(n), data.view(np.float32 if own == Q.F32 else np.float16).reshape(x.shape))
      else:
        w.add_tensor(gguf_name(n), data, raw_dtype=own)
    decoded[n] = torch.from_numpy(np.ascontiguousarray(halves(x, count) if count else x))
  w.write_header_to_file()
  w.write_kv_data_to_file()
  w.write_tensors_to_file()
  w.close()
  return unstacked(decoded) if deepseek else decoded


def llama3_divisors(rope, head_dim):
  wavelength = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
  turns = rope["original_max_position_embeddings"] / wavelength
  low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
  smooth = np.clip((turns - low) / (high - low), 0, 1)  # 0: divide by factor, 1: leave alone
  return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
