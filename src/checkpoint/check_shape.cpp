// What makes a ModelShape possible, and which tensors it calls for.
#include <fmt/ranges.h>

#include <cmath>
#include <unordered_set>

#include "checkpoint/config.h"
#include "checkpoint/deepseek_config.h"
#include "checkpoint/nsa_config.h"

namespace hunch {
namespace {

constexpr int64_t kMostHidden = 1 << 20, kMostVocab = 1 << 24, kMostExperts = 1024;

}

std::vector<TensorNeed> needs_of(const ModelShape& s, const std::function<bool(int layer)>& predicts) {
  const int64_t q_width = int64_t(s.heads) * s.head_dim, kv_width = int64_t(s.kv_heads) * s.head_dim;
  std::vector<TensorNeed> out;
  out.push_back({"token_embd.weight", {s.vocab_size, s.hidden}, true});
  for (int layer = 0; layer < s.layers + s.prediction_layers; ++layer) {
    if (layer >= s.layers && !predicts(layer)) continue;
    const auto add = [&](std::string_view name, std::vector<int64_t> shape, bool matrix = true) {
      out.push_back({fmt::format("blk.{}.{}", layer, name), std::move(shape), matrix});
    };
    const auto vector = [&](std::string_view name, int64_t size) { add(name, {size}, false); };
    vector("attn_norm.weight", s.hidden);
    if (s.latent.used()) {
      const LatentShape& l = s.latent;
      const int64_t queries = int64_t(s.heads) * (l.nope + l.rope);
      if (l.q_rank > 0) {
        add("attn_q_a.weight", {l.q_rank, s.hidden});
        vector("attn_q_a_norm.weight", l.q_rank);
        add("attn_q_b.weight", {queries, l.q_rank});
      } else {
        add("attn_q.weight", {queries, s.hidden});
      }
      add("attn_kv_a_mqa.weight", {l.kv_rank + l.rope, s.hidden});
      vector("attn_kv_a_norm.weight", l.kv_rank);
      if (l.split) {
        add("attn_k_b.weight", {s.heads, l.kv_rank, l.nope});
        add("attn_v_b.weight", {s.heads, l.value, l.kv_rank});
      } else {
        add("attn_kv_b.weight", {int64_t(s.heads) * (l.nope + l.value), l.kv_rank});
      }
    } else {
      add("attn_q.weight", {q_width, s.hidden});
      add("attn_k.weight", {kv_width, s.hidden});
      add("attn_v.weight", {kv_width, s.hidden});
    }
    if (s.qkv_bias) {
      vector("attn_q.bias", q_width);
      vector("attn_k.bias", kv_width);
      vector("attn_v.bias", kv_width);
    }
    if (s.qk_norm) {
      vector("attn_q_norm.weight", s.head_dim);
      vector("attn_k_norm.weight", s.head_dim);
    }
    add("attn_output.weight", {s.hidden, s.attended()});
    if (s.nsa.used()) {
      const NsaShape& n = s.nsa;
      add("nsa_gate.weight", {3 * s.heads, s.hidden});
      for (const char* name : {"nsa_cmp_k.weight", "nsa_cmp_v.weight"}) {
        if (n.kind == NsaShape::Kind::Weighted) add(name, {s.kv_heads, n.cmp_len}, false);
        if (n.kind == NsaShape::Kind::Linear) add(name, {s.kv_heads, int64_t(n.cmp_len) * s.head_dim, s.head_dim}, false);
      }
      if (n.block_positions) add("nsa_cmp_pe.weight", {s.kv_heads, n.cmp_len, s.head_dim}, false);
    }
    if (s.output_bias) vector("attn_output.bias", s.hidden);
    if (s.attention_sinks) vector("attn_sinks.weight", s.heads);
    vector("ffn_norm.weight", s.hidden);
    if (layer >= s.layers) {
      add("nextn.eh_proj.weight", {s.hidden, 2 * s.hidden});
      for (const char* norm : {"nextn.enorm.weight", "nextn.hnorm.weight", "nextn.shared_head_norm.weight"})
        vector(norm, s.hidden);
    }
    const auto add_ffn = [&](std::string_view of, int64_t width) {
      add(fmt::format("ffn_gate{}.weight", of), {width, s.hidden});
      add(fmt::format("ffn_up{}.weight", of), {width, s.hidden});
      add(fmt::format("ffn_down{}.weight", of), {s.hidden, width});
    };
    if (!s.has_experts(layer)) {
      add_ffn("", s.ffn);
      continue;
    }
    add("ffn_gate_inp.weight", {s.num_experts, s.hidden});
    if (s.expert_bias) {
      vector("ffn_gate_inp.bias", s.num_experts);
      add("ffn_gate_exps.bias", {s.num_experts, s.expert_ffn}, false);
      add("ffn_up_exps.bias", {s.num_experts, s.expert_ffn}, false);
      add("ffn_down_exps.bias", {s.num_experts, s.hidden}, false);
    }
    if (s.sigmoid_shares) vector("exp_probs_b.bias", s.num_experts);
    if (s.shared_ffn > 0) add_ffn("_shexp", s.shared_ffn);
    for (int expert = 0; expert < s.num_experts; ++expert) add_ffn(fmt::format(".{}", expert), s.expert_ffn);
  }
  out.push_back({"output_norm.weight", {s.hidden}, false});
  if (!s.tied_head) out.push_back({"output.weight", {s.vocab_size, s.hidden}, true});
  out.push_back({"rope_freqs.weight", {s.rope_dim / 2}, false, true});
  return out;
}

Status check_shape(const ModelShape& s, std::string_view source) {
  const Failing wrong{[&] { return source; }};
  const auto out_of_range = [&](std::string_view name, auto value, auto least, auto most) {
    return wrong("{} is {}, possible are {} to {}", name, value, least, most);
  };
  HUNCH_OK(check_latent(s, source));  // first: what follows from its keys has other names
  struct Range {
    std::string_view name;
    int64_t value, least, most;
  };
  const Range ranges[] = {{"vocabulary size", s.vocab_size, 1, kMostVocab}, {"hidden size", s.hidden, 1, kMostHidden},
      {"feed-forward size", s.ffn, 1, kMostHidden}, {"number of layers", s.layers, 1, 1024},
      {"number of heads", s.heads, 1, 1024}, {"number of KV heads", s.kv_heads, 1, 1024},
      {"head size", s.head_dim, 2, s.latent.used() ? kMostLatentDim : 512}, {"context length", s.context_len, 1, 1 << 27},
      {"sliding window", s.sliding_window, 0, 1 << 27}};
  for (const Range& r : ranges)
    if (r.value < r.least || r.value > r.most) return out_of_range(r.name, r.value, r.least, r.most);
  if (!s.expert_layer.empty()) {
    if (s.num_experts < 1 || s.num_experts > kMostExperts)
      return out_of_range("number of experts", s.num_experts, 1, kMostExperts);
    if (s.experts_per_token < 1 || s.experts_per_token > s.num_experts)
      return wrong("a token goes to {} experts, the model has {}", s.experts_per_token, s.num_experts);
    if (s.expert_ffn < 1 || s.expert_ffn > kMostHidden) return out_of_range("width of an expert", s.expert_ffn, 1, kMostHidden);
    if (!(s.gate_limit >= 0 && s.gate_limit <= 1e6)) return out_of_range("limit of the gates", s.gate_limit, 0, 1e6);
    if (!(s.gate_alpha > 0 && s.gate_alpha <= 1e3)) return out_of_range("alpha of the gates", s.gate_alpha, "above 0", 1e3);
    if (s.expert_layer.size() != size_t(s.layers + (s.latent.used() ? s.prediction_layers : 0)))
      return wrong("{} layers are said to have experts or not, the model has {}", s.expert_layer.size(), s.layers);
  }
  if (s.heads % s.kv_heads != 0) return wrong("{} heads cannot share {} KV heads evenly", s.heads, s.kv_heads);
  if (s.head_dim % 2 != 0) return wrong("head size {} is odd", s.head_dim);
  if (s.rope_dim != s.head_dim && !s.latent.used())
    return failure("{}: {} of {} elements of a head are rotated; only whole heads are supported", source, s.rope_dim, s.head_dim);
  // Negated comparisons also catch NaN.
  if (!(s.norm_eps > 0 && s.norm_eps < 1)) return out_of_range("norm epsilon", s.norm_eps, "above 0", "below 1");
  if (!(s.rope_theta >= 1 && s.rope_theta <= 1e12)) return out_of_range("rope theta", s.rope_theta, 1, 1e12);
  const RopeScaling& r = s.rope_scaling;
  if (!(r.factor >= 1e-3 && r.factor <= 1e6)) return out_of_range("rope scaling factor", r.factor, 1e-3, 1e6);
  if (r.kind == RopeScaling::Kind::Llama3 || r.kind == RopeScaling::Kind::Yarn) {
    if (!(r.original_context >= 1 && r.original_context <= (1 << 27)))
      return out_of_range("rope scaling original context", r.original_context, 1, 1 << 27);
  }
  if (r.kind == RopeScaling::Kind::Llama3 &&
      !(r.low_freq_factor > 0 && r.high_freq_factor > r.low_freq_factor && r.high_freq_factor <= 1e6))
    return wrong(
        "rope scaling needs 0 < low_freq_factor < high_freq_factor, found {} and {}", r.low_freq_factor, r.high_freq_factor);
  if (r.kind == RopeScaling::Kind::Yarn) {
    if (!(r.beta_slow > 0 && r.beta_fast >= r.beta_slow && r.beta_fast <= 1e6))
      return wrong("rope scaling needs 0 < beta_slow <= beta_fast, found {} and {}", r.beta_slow, r.beta_fast);
    if (!(r.attention_factor >= 0 && r.attention_factor <= 1e3))
      return out_of_range("rope scaling attention factor", r.attention_factor, 0, 1e3);
    if (!(s.rope_theta > 1)) return wrong("yarn needs a rope theta above 1");
  }
  if (!s.rope_factors.empty() && s.rope_factors.size() != size_t(s.rope_dim / 2))
    return wrong("rope_freqs.weight holds {} factors, {} are needed", s.rope_factors.size(), s.rope_dim / 2);
  for (const float factor : s.rope_factors)
    if (!(factor > 0 && std::isfinite(factor))) return wrong("rope_freqs.weight holds {}", factor);
  if (!s.window_layer.empty() && s.window_layer.size() != size_t(s.layers))
    return wrong("attention types of {} layers given, the model has {}", s.window_layer.size(), s.layers);
  HUNCH_OK(check_nsa(s, source));
  for (const int32_t id : s.eos_ids)
    if (id < 0 || id >= s.vocab_size) return out_of_range("end-of-text token id", id, 0, s.vocab_size - 1);
  return {};
}

Status check_tokenizer(const TokenizerSource& t, const ModelShape& shape, std::string_view source) {
  const auto check_id = [&](std::string_view name, std::optional<int32_t> id, int64_t count) -> Status {
    if (id && (*id < 0 || *id >= count)) return failure("{}: {} {} is outside the vocabulary of {}", source, name, *id, count);
    return {};
  };
  const int64_t count = t.tokens.empty() ? shape.vocab_size : std::ssize(t.tokens);
  HUNCH_OK(check_id("bos token id", t.bos_id, count));
  HUNCH_OK(check_id("eos token id", t.eos_id, count));
  if (!t.token_types.empty() && t.token_types.size() != t.tokens.size())
    return failure("{}: {} token types for {} tokens", source, t.token_types.size(), t.tokens.size());
  for (const int32_t type : t.token_types)
    if (type < 1 || type > 6) return failure("{}: token type {} is unknown (1 to 6)", source, type);
  return {};
}

Status check_tensors(const Checkpoint& checkpoint, std::string_view source) {
  const auto needs = needs_of(checkpoint.shape(), [&](int layer) {
    return checkpoint.shape().latent.used() && checkpoint.find(fmt::format("blk.{}.nextn.eh_proj.weight", layer));
  });
  const auto shape_text = [](const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); };
  std::unordered_set<std::string_view> known;
  for (const auto& [name, shape, matrix, optional] : needs) {
    known.insert(name);
    const Tensor* tensor = checkpoint.find(name);
    if (!tensor && optional) continue;
    if (!tensor) return failure("{}: missing tensor {} of shape {}", source, name, shape_text(shape));
    if (tensor->shape != shape)
      return failure("{}: tensor {} has shape {}, expected {}", source, name, shape_text(tensor->shape), shape_text(shape));
    if (!matrix && (dtype_info(tensor->dtype).block != 1 || tensor->dtype == DType::F8_E4M3))
      return failure("{}: tensor {} is {}; norms, biases and factors must be f32, f16 or bf16", source, name,
          dtype_info(tensor->dtype).name);
  }
  // A tensor that nothing would read (a bias, an adapter) means that results would differ from the model's.
  for (const Tensor& tensor : checkpoint.tensors())
    if (!known.contains(tensor.name))
      return failure("{}: tensor {} is not part of a {} model of {} layers as described", source, quote(tensor.name),
          checkpoint.shape().family, checkpoint.shape().layers);
  return {};
}

}
