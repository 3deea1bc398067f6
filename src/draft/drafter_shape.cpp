#include "draft/drafter_shape.h"

#include <fmt/format.h>

namespace hunch {
namespace {

Status read_rope(const JsonConfig& config, const std::string& at, ModelShape& shape) {
  // Two spellings: rope_theta beside rope_scaling, or both inside rope_parameters.
  const bool joined = config.has(at + "rope_parameters");
  const std::string scaling = at + (joined ? "rope_parameters" : "rope_scaling");
  HUNCH_TRY(const auto theta, config.number(joined ? scaling + ".rope_theta" : at + "rope_theta"));
  shape.rope_theta = theta.value_or(10000);
  if (!config.has(scaling)) return {};
  HUNCH_TRY(auto kind, config.text(scaling + ".rope_type"));
  if (!kind) { HUNCH_TRY(kind, config.text(scaling + ".type")); }
  const auto number = [&](const char* key, double otherwise) -> Result<double> {
    HUNCH_TRY(const auto value, config.number(scaling + "." + key));
    return value.value_or(otherwise);
  };
  RopeScaling& rope = shape.rope_scaling;
  if (!kind || *kind == "default") return {};
  HUNCH_TRY(rope.factor, number("factor", 1));
  if (*kind == "linear") {
    rope.kind = RopeScaling::Kind::Linear;
  } else if (*kind == "llama3") {
    rope.kind = RopeScaling::Kind::Llama3;
    HUNCH_TRY(rope.low_freq_factor, number("low_freq_factor", 1));
    HUNCH_TRY(rope.high_freq_factor, number("high_freq_factor", 4));
    HUNCH_TRY(rope.original_context, number("original_max_position_embeddings", 8192));
  } else {
    return config.wrong(scaling, fmt::format("rope type '{}' is not known for drafters: default, linear or llama3", *kind));
  }
  return {};
}

}

Result<ModelShape> drafter_shape(const JsonConfig& config, std::string_view inside, const ModelShape& target) {
  const std::string at = inside.empty() ? "" : std::string(inside) + ".";
  ModelShape shape;
  shape.family = "drafter";
  const auto need = [&](const char* key, int64_t most) -> Result<int64_t> {
    HUNCH_TRY(const auto value, config.integer(at + key, 1, most));
    if (!value) return config.wrong(at + key, "the key is missing");
    return *value;
  };
  const auto maybe = [&](const char* key, int64_t most, int64_t otherwise) -> Result<int64_t> {
    HUNCH_TRY(const auto value, config.integer(at + key, 1, most));
    return value.value_or(otherwise);
  };
  HUNCH_TRY(shape.hidden, need("hidden_size", 1 << 20));
  HUNCH_TRY(shape.ffn, need("intermediate_size", 1 << 22));
  HUNCH_TRY(const int64_t heads, need("num_attention_heads", 4096));
  HUNCH_TRY(const int64_t kv_heads, maybe("num_key_value_heads", heads, heads));
  HUNCH_TRY(const int64_t head_dim, maybe("head_dim", 1024, shape.hidden / heads));
  HUNCH_TRY(const int64_t layers, maybe("num_hidden_layers", 1024, 1));
  HUNCH_TRY(const int64_t context, maybe("max_position_embeddings", int64_t(1) << 30, target.context_len));
  HUNCH_TRY(const int64_t vocab, maybe("vocab_size", 1 << 24, target.vocab_size));
  if (target.vocab_size > 0 && vocab != target.vocab_size)
    return config.wrong(at + "vocab_size",
        fmt::format("{}, but the target's is {}: this drafter was made for another model", vocab, target.vocab_size));
  HUNCH_TRY(const auto eps, config.number(at + "rms_norm_eps"));
  shape.heads = int(heads), shape.kv_heads = int(kv_heads), shape.head_dim = int(head_dim), shape.layers = int(layers);
  shape.context_len = int(context), shape.vocab_size = vocab, shape.norm_eps = eps.value_or(1e-6);
  if (heads % kv_heads != 0)
    return config.wrong(at + "num_key_value_heads", fmt::format("{} KV heads do not divide {} heads", kv_heads, heads));
  if (head_dim % 2 != 0) return config.wrong(at + "head_dim", fmt::format("{} is odd", head_dim));
  shape.rope_dim = shape.head_dim;
  HUNCH_OK(read_rope(config, at, shape));
  return shape;
}

}
