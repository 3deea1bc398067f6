// Defaults are transformers'; GGUF's names are llama.cpp's.
#include "checkpoint/deepseek_config.h"

#include <cmath>

namespace hunch {
namespace {

constexpr int64_t kMost = 1 << 20;

// The cache sees one KV head of [latent | rotated key]. Yarn's mscale is squared: once for the query, once for the key.
void settle(ModelShape& s, double mscale) {
  LatentShape& l = s.latent;
  s.kv_heads = 1, s.head_dim = l.kv_rank + l.rope, s.rope_dim = l.rope;
  l.scale = mscale * mscale / std::sqrt(double(l.nope + l.rope));
}

double mscale_of(double factor, double all_dim) { return factor > 1 && all_dim != 0 ? 0.1 * all_dim * std::log(factor) + 1 : 1; }

void set_expert_layers(ModelShape& s, int dense, int frequency) {
  s.expert_layer.resize(s.layers + s.prediction_layers);
  for (int layer = 0; layer < int(s.expert_layer.size()); ++layer)
    s.expert_layer[layer] = layer >= dense && layer % frequency == 0;
  if (std::ranges::find(s.expert_layer, 1) == s.expert_layer.end())
    s.num_experts = s.experts_per_token = 0, s.expert_ffn = s.shared_ffn = 0, s.expert_layer.clear();
}

}

Status read_deepseek(const JsonConfig& config, ModelShape& s) {
  const bool v3 = s.family == "deepseek_v3";
  const auto count = [&](const char* key, int64_t least, int64_t otherwise) -> Result<int> {
    HUNCH_TRY(const auto value, config.integer(key, least, kMost));
    return int(value.value_or(otherwise));
  };
  const auto only = [&](const char* key, std::string_view first, std::string_view second) -> Result<bool> {
    HUNCH_TRY(const auto text, config.text(key));
    if (text && *text != first && *text != second)
      return config.wrong(key,

          "{} is not supported in {}; {}{}{} is", quote(*text), s.family, first, second.empty() ? "" : " or ", second);
    return text && !second.empty() && *text == second;
  };
  LatentShape& l = s.latent;
  HUNCH_TRY(l.kv_rank, count("kv_lora_rank", 1, 512));
  HUNCH_TRY(l.nope, count("qk_nope_head_dim", 1, 128));
  HUNCH_TRY(l.rope, count("qk_rope_head_dim", 2, 64));
  HUNCH_TRY(l.value, count("v_head_dim", 1, 128));
  HUNCH_TRY(const auto q_rank, config.integer("q_lora_rank", 1, kMost));  // null and absent: queries straight from the input
  l.q_rank = int(q_rank.value_or(0));
  HUNCH_TRY(const auto kv_heads, config.integer("num_key_value_heads"));
  if (kv_heads && *kv_heads != s.heads)
    return config.wrong("num_key_value_heads", "{}; latent attention has as many as query heads, {}", *kv_heads, s.heads);
  HUNCH_TRY(const auto bias, config.boolean("attention_bias"));
  if (bias.value_or(false)) return config.wrong("attention_bias", "biases are not supported in latent attention");
  HUNCH_TRY(const auto pairs, config.boolean("rope_interleave"));
  s.rope_pairs = pairs.value_or(true) ? RopePairs::Neighbours : RopePairs::Halves;
  HUNCH_TRY(auto all_dim, config.number("rope_parameters.mscale_all_dim"));
  if (!all_dim) { HUNCH_TRY(all_dim, config.number("rope_scaling.mscale_all_dim")); }
  const bool scaled = s.rope_scaling.kind != RopeScaling::Kind::None;
  settle(s, scaled ? mscale_of(s.rope_scaling.factor, all_dim.value_or(0)) : 1);

  HUNCH_TRY(s.num_experts, count("n_routed_experts", 0, v3 ? 256 : 64));
  HUNCH_TRY(s.experts_per_token, count("num_experts_per_tok", 1, 8));
  HUNCH_TRY(s.expert_ffn, count("moe_intermediate_size", 1, v3 ? 2048 : 1407));
  HUNCH_TRY(const int shared, count("n_shared_experts", 0, v3 ? 1 : 2));
  HUNCH_TRY(const int dense, count("first_k_dense_replace", 0, v3 ? 3 : 0));
  HUNCH_TRY(const int frequency, count("moe_layer_freq", 1, 1));
  HUNCH_TRY(const int groups, count("n_group", 1, v3 ? 8 : 1));
  HUNCH_TRY(const int kept, count("topk_group", 1, v3 ? 4 : 1));
  HUNCH_TRY(const auto scale, config.number("routed_scaling_factor"));
  HUNCH_TRY(const auto normalise, config.boolean("norm_topk_prob"));
  HUNCH_TRY(const bool limited, only("topk_method", v3 ? "noaux_tc" : "greedy", v3 ? "" : "group_limited_greedy"));
  HUNCH_OK(only("scoring_func", v3 ? "sigmoid" : "softmax", ""));
  // Implementations disagree on what it means beside a scaling factor.
  if (!v3 && normalise.value_or(false)) return config.wrong("norm_topk_prob", "true is not supported in deepseek_v2");
  s.norm_expert_shares = v3 && normalise.value_or(true);
  s.sigmoid_shares = v3;
  s.share_scale = scale.value_or(v3 ? 2.5 : 1);
  if (v3 || limited) s.expert_groups = groups, s.groups_per_token = kept;
  s.shared_ffn = shared * s.expert_ffn;
  set_expert_layers(s, s.num_experts > 0 ? dense : INT32_MAX, frequency);
  return {};
}

Status read_deepseek(const GgufFile& file, ModelShape& s) {
  const auto key = [](const char* name) { return fmt::format("deepseek2.{}", name); };
  const auto count = [&](const char* name, int64_t least, std::optional<int64_t> otherwise) -> Result<int> {
    HUNCH_TRY(const auto value, file.integer(key(name)));
    if (!value && !otherwise) return file.wrong(key(name), "missing");
    const int64_t n = value.value_or(otherwise.value_or(0));
    if (value && (n < least || n > kMost))
      return file.wrong(key(name), "{} is out of range, {} to {} are possible", n, least, kMost);
    return int(n);
  };
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(file.tensors(), [&](const TensorEntry& t) { return t.name == name; });
  };
  LatentShape& l = s.latent;
  HUNCH_TRY(l.kv_rank, count("attention.kv_lora_rank", 1, {}));
  HUNCH_TRY(l.q_rank, count("attention.q_lora_rank", 0, 0));
  if (!has("blk.0.attn_q_a.weight")) l.q_rank = 0;
  HUNCH_TRY(l.rope, count("rope.dimension_count", 2, {}));
  // Newer files give the cached row's widths under the plain names, a head's under these.
  HUNCH_TRY(const int plain_key, count("attention.key_length", 1, 0));
  HUNCH_TRY(const int plain_value, count("attention.value_length", 1, 0));
  HUNCH_TRY(const int head, count("attention.key_length_mla", 1, plain_key));
  HUNCH_TRY(l.value, count("attention.value_length_mla", 1, plain_value));
  l.nope = head - l.rope;
  if (l.nope < 1 || l.value < 1)
    return file.wrong(key("attention.key_length"), "heads of {} and {} elements, {} of them rotated: widths are missing", head,
        l.value, l.rope);
  l.split = has("blk.0.attn_k_b.weight");
  s.rope_pairs = RopePairs::Neighbours;
  HUNCH_TRY(const auto multiplier, file.number(key("rope.scaling.yarn_log_multiplier")));  // 0.1 mscale_all_dim
  const bool yarn = s.rope_scaling.kind == RopeScaling::Kind::Yarn;
  if (yarn) s.rope_scaling.attention_factor = 1;  // as llama.cpp has it for this architecture
  settle(s, yarn ? mscale_of(s.rope_scaling.factor, multiplier.value_or(0) / 0.1) : 1);

  HUNCH_TRY(s.num_experts, count("expert_count", 0, 0));
  HUNCH_TRY(s.experts_per_token, count("expert_used_count", 1, 0));
  HUNCH_TRY(s.expert_ffn, count("expert_feed_forward_length", 1, 0));
  HUNCH_TRY(const int shared, count("expert_shared_count", 0, 0));
  HUNCH_TRY(const int dense, count("leading_dense_block_count", 0, 0));
  HUNCH_TRY(const int gating, count("expert_gating_func", 0, 0));  // 1: softmax, which 0 (older files) means too; 2: sigmoid
  if (gating > 2) return file.wrong(key("expert_gating_func"), "{} is not supported; 1 and 2 are", gating);
  HUNCH_TRY(s.expert_groups, count("expert_group_count", 1, 1));
  HUNCH_TRY(s.groups_per_token, count("expert_group_used_count", 1, 1));
  HUNCH_TRY(const auto scale, file.number(key("expert_weights_scale")));
  HUNCH_TRY(const auto normalise, file.boolean(key("expert_weights_norm")));
  s.share_scale = scale.value_or(1) == 0 ? 1 : scale.value_or(1);
  s.norm_expert_shares = normalise.value_or(false);
  s.sigmoid_shares = gating == 2;
  s.family = s.sigmoid_shares ? "deepseek_v3" : "deepseek_v2";
  s.shared_ffn = shared * s.expert_ffn;
  set_expert_layers(s, s.num_experts > 0 ? dense : INT32_MAX, 1);
  return {};
}

Status check_latent(const ModelShape& s, std::string_view source) {
  const LatentShape& l = s.latent;
  const Failing wrong{[&] { return source; }};
  if (l.used() != is_deepseek(s.family)) return wrong("latent attention is part of the DeepSeek families only");
  if (l.used()) {
    if (l.rope % 2 != 0) return wrong("qk_rope_head_dim {} is odd", l.rope);
    if (l.kv_rank + l.rope > kMostLatentDim)
      return wrong("kv_lora_rank {} and qk_rope_head_dim {} make cached rows of {}, possible are up to {}", l.kv_rank, l.rope,
          l.kv_rank + l.rope, kMostLatentDim);
    if (!(l.scale > 0 && l.scale <= 1e3)) return wrong("the softmax scale comes to {}", l.scale);
  }
  if (s.num_experts == 0) return {};
  if (s.num_experts % s.expert_groups != 0)
    return wrong("n_routed_experts {} cannot be cut into {} groups (n_group) evenly", s.num_experts, s.expert_groups);
  const int size = s.num_experts / s.expert_groups;
  if (s.groups_per_token > s.expert_groups)
    return wrong("topk_group {} of only {} groups (n_group)", s.groups_per_token, s.expert_groups);
  if (s.expert_groups > 1 && s.sigmoid_shares && size < 2)
    return wrong(
        "groups of {} expert: a group is judged by its two best, give each at least 2 (n_group {})", size, s.expert_groups);
  if (s.expert_groups > 1 && s.experts_per_token > s.groups_per_token * size)
    return wrong("a token goes to {} experts, but its {} groups of {} (topk_group, n_group) hold only {}", s.experts_per_token,
        s.groups_per_token, size, s.groups_per_token * size);
  if (!(s.share_scale > 0 && s.share_scale <= 1e4)) return wrong("routed_scaling_factor is {}", s.share_scale);
  return {};
}

}
