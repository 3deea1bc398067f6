// The keys of a GGUF file: architecture, tokenizer, sampling defaults. Names and defaults are llama.cpp's.
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/config.h"
#include "checkpoint/deepseek_config.h"
#include "checkpoint/nsa_config.h"

namespace hunch {
namespace {

constexpr size_t kMostTemplateBytes = 1 << 20;
constexpr std::string_view kGgufQwen3Moe = "qwen3moe", kGgufGptOss = "gpt-oss", kGgufDeepSeek = "deepseek2";

// Accessors for "{arch}.name".
class ArchKeys {
 public:
  ArchKeys(const GgufFile& file, std::string arch) : file_(file), arch_(std::move(arch)) {}
  std::string key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }
  template <class... T>
  Error wrong(std::string_view name, fmt::format_string<T...> what, T&&... values) const {
    return file_.wrong(key(name), what, std::forward<T>(values)...);
  }

  Result<int64_t> integer(std::string_view name, std::optional<int64_t> otherwise = {}) const {
    HUNCH_TRY(const auto value, file_.integer(key(name)));
    if (!value && !otherwise) return wrong(name, "missing");
    return value.value_or(otherwise.value_or(0));
  }
  // For values that become an int or divide something.
  Result<int> count(std::string_view name, int64_t least, std::optional<int64_t> otherwise = {}) const {
    HUNCH_TRY(const int64_t value, integer(name, otherwise));
    if (value < least || value > INT32_MAX) return wrong(name, "{} is out of range", value);
    return int(value);
  }
  Result<std::optional<double>> number(std::string_view name) const { return file_.number(key(name)); }
  Result<double> number(std::string_view name, double otherwise) const {
    HUNCH_TRY(const auto value, file_.number(key(name)));
    return value.value_or(otherwise);
  }
  const GgufValue* find(std::string_view name) const { return file_.find(key(name)); }
  const GgufFile& file() const { return file_; }

 private:
  const GgufFile& file_;
  std::string arch_;
};

// Qwen3-MoE files have experts in every layer, and shares that are normalised: no key says otherwise.
Status read_experts(const ArchKeys& keys, ModelShape& s) {
  HUNCH_TRY(s.num_experts, keys.count("expert_count", 1));
  HUNCH_TRY(s.experts_per_token, keys.count("expert_used_count", 1));
  HUNCH_TRY(s.expert_ffn, keys.count("expert_feed_forward_length", 1));
  s.norm_expert_shares = true;
  s.expert_layer.assign(s.layers, 1);
  for (const auto& [name, most] :
      {std::pair("expert_gating_func", 1), {"expert_shared_count", 0}, {"leading_dense_block_count", 0}}) {
    HUNCH_TRY(const int64_t value, keys.integer(name, 0));
    if (value != 0 && value != most) return keys.wrong(name, "{} is not supported", value);
  }
  HUNCH_TRY(const double scale, keys.number("expert_weights_scale", 1));
  if (scale != 0 && scale != 1) return keys.wrong("expert_weights_scale", "{} is not supported", scale);
  return {};
}

// gpt-oss: what no key says is what the models were published with.
Status read_gpt_oss(const ArchKeys& keys, ModelShape& s) {
  HUNCH_OK(read_experts(keys, s));
  s.norm_expert_shares = false;
  s.gate_limit = 7, s.gate_alpha = 1.702;
  s.attention_sinks = s.shares_of_chosen = s.expert_bias = true;
  s.rope_scaling.truncate = false;
  if (s.sliding_window == 0) return keys.wrong("attention.sliding_window", "missing");
  if (!s.window_layer.empty()) return {};
  s.window_layer.resize(s.layers);
  for (int layer = 0; layer < s.layers; ++layer) s.window_layer[layer] = layer % 2 == 0;
  return {};
}

Status refuse_unsupported(const ArchKeys& keys, bool experts_allowed) {
  HUNCH_TRY(const int64_t experts, keys.integer("expert_count", 0));
  if (experts != 0 && !experts_allowed)
    return keys.wrong("expert_count", "experts are supported in qwen3moe, gpt-oss and deepseek2 only");
  // Neutral values are 0 (off) and, of factors, 1; anything else changes results.
  for (const std::string_view name : {"attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale",
           "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "residual_scale", "embedding_scale"}) {
    HUNCH_TRY(const double value, keys.number(name, 0));
    const bool factor = !name.starts_with("attention.") && name.ends_with("_scale");
    if (value != 0 && !(factor && value == 1)) return keys.wrong(name, "{} is not supported", value);
  }
  HUNCH_TRY(const auto causal, keys.file().boolean(keys.key("attention.causal")));
  if (causal && !*causal) return keys.wrong("attention.causal", "only causal attention is supported");
  HUNCH_TRY(const auto parts, keys.file().integer("split.count"));
  if (parts && *parts > 1)
    return keys.file().wrong("split.count", "one of {} parts; join them first (llama-gguf-split --merge)", *parts);
  return {};
}

Result<RopeScaling> read_rope_scaling(const ArchKeys& keys, int context_len) {
  RopeScaling out;
  HUNCH_TRY(const auto type, keys.file().text(keys.key("rope.scaling.type")));
  // As llama.cpp: linear where it is not said, by the key of old files where there is no newer one; 0: not at all.
  HUNCH_TRY(const double old_linear, keys.number("rope.scale_linear", 0));
  HUNCH_TRY(const double factor, keys.number("rope.scaling.factor", old_linear));
  if (type && *type == "none") return out;
  if (type && *type != "linear" && *type != "yarn")
    return keys.wrong("rope.scaling.type", "{} is not supported; none, linear and yarn are", quote(*type));
  if (factor != 0) out.factor = factor;
  if (!type || *type == "linear") {
    if (out.factor != 1) out.kind = RopeScaling::Kind::Linear;
    return out;
  }
  out.kind = RopeScaling::Kind::Yarn;
  HUNCH_TRY(const int64_t original, keys.integer("rope.scaling.original_context_length", context_len));
  out.original_context = double(original);
  HUNCH_TRY(out.beta_fast, keys.number("rope.scaling.yarn_beta_fast", 32));
  HUNCH_TRY(out.beta_slow, keys.number("rope.scaling.yarn_beta_slow", 1));
  HUNCH_TRY(const double ext_factor, keys.number("rope.scaling.yarn_ext_factor", 1));
  if (ext_factor != 1) return keys.wrong("rope.scaling.yarn_ext_factor", "only 1 is supported");
  HUNCH_TRY(const double old_factor, keys.number("rope.scaling.attn_factor", 1));
  HUNCH_TRY(const double attention, keys.number("rope.scaling.yarn_attn_factor", old_factor));
  // llama.cpp multiplies yarn's own factor by this key.
  out.attention_factor = attention * (out.factor > 1 ? 0.1 * std::log(out.factor) + 1 : 1);
  return out;
}

Status read_windows(const ArchKeys& keys, ModelShape& shape) {
  HUNCH_TRY(shape.sliding_window, keys.count("attention.sliding_window", 0, 0));
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  const GgufValue* pattern = keys.find(kPattern);
  if (!shape.sliding_window || !pattern) return {};
  if (pattern->type == GgufType::Array) {
    HUNCH_TRY(shape.window_layer, keys.file().booleans(keys.key(kPattern)));
    return {};
  }
  // A number n: of every n layers the last attends to everything.
  HUNCH_TRY(const int n, keys.count(kPattern, 0));
  if (n < 2) return {};
  shape.window_layer.resize(shape.layers);
  for (int layer = 0; layer < shape.layers; ++layer) shape.window_layer[layer] = layer % n < n - 1;
  return {};
}

const TensorEntry* find_tensor(const GgufFile& file, std::string_view name) {
  for (const TensorEntry& entry : file.tensors())
    if (entry.name == name) return &entry;
  return nullptr;
}

// llama3's frequency factors are stored as a tensor, not as keys.
Status read_rope_factors(const GgufFile& file, ModelShape& shape) {
  const TensorEntry* entry = find_tensor(file, "rope_freqs.weight");
  if (!entry) return {};
  if (entry->dtype != DType::F32 || entry->shape.size() != 1 || entry->shape[0] > 256)
    return failure("{}: tensor rope_freqs.weight: must be one row of at most 256 f32", file.file_name());
  shape.rope_factors.resize(entry->shape[0]);
  std::memcpy(shape.rope_factors.data(), file.bytes().data() + entry->offset, entry->bytes);
  return {};
}

Result<ModelShape> read_shape(const GgufFile& file, std::string arch, int64_t num_tokens) {
  const ArchKeys keys(file, arch);
  const bool moe = arch == kGgufQwen3Moe, gpt_oss = arch == kGgufGptOss, deepseek = arch == kGgufDeepSeek;
  HUNCH_OK(refuse_unsupported(keys, moe || gpt_oss || deepseek));
  ModelShape s;
  s.family = moe ? "qwen3_moe" : gpt_oss ? "gpt_oss" : arch;
  HUNCH_TRY(const auto name, file.text("general.name"));
  s.name = name.value_or("");
  HUNCH_TRY(s.hidden, keys.count("embedding_length", 1));
  HUNCH_TRY(s.ffn, keys.count("feed_forward_length", 1, moe || gpt_oss ? std::optional<int64_t>(1) : std::nullopt));
  HUNCH_TRY(s.layers, keys.count("block_count", 1));
  if (s.layers > 1024) return keys.wrong("block_count", "{}, possible are 1 to 1024", s.layers);
  HUNCH_TRY(s.heads, keys.count("attention.head_count", 1));
  HUNCH_TRY(s.kv_heads, keys.count("attention.head_count_kv", 1, s.heads));
  if (s.heads % s.kv_heads != 0)
    return keys.wrong("attention.head_count_kv", "{} does not divide the {} heads", s.kv_heads, s.heads);
  if (!keys.find("attention.key_length") && !deepseek && s.hidden % s.heads != 0)
    return keys.wrong("embedding_length", "{} is not divisible by {} heads", s.hidden, s.heads);
  HUNCH_TRY(s.head_dim, keys.count("attention.key_length", 1, s.hidden / s.heads));
  HUNCH_TRY(const int value_dim, keys.count("attention.value_length", 1, s.head_dim));
  if (value_dim != s.head_dim && !deepseek)
    return keys.wrong("attention.value_length", "{} differs from the key length {}", value_dim, s.head_dim);
  HUNCH_TRY(s.rope_dim, keys.count("rope.dimension_count", 1, s.head_dim));
  HUNCH_TRY(s.context_len, keys.count("context_length", 1));
  HUNCH_TRY(const auto eps, keys.number("attention.layer_norm_rms_epsilon"));
  if (!eps) return keys.wrong("attention.layer_norm_rms_epsilon", "missing");
  s.norm_eps = *eps;
  HUNCH_TRY(s.rope_theta, keys.number("rope.freq_base", 10000));
  HUNCH_TRY(s.rope_scaling, read_rope_scaling(keys, s.context_len));
  HUNCH_OK(read_windows(keys, s));
  HUNCH_OK(read_rope_factors(file, s));
  // Converters permute the query and key rows of this architecture only.
  s.rope_pairs = arch == "llama" ? RopePairs::Neighbours : RopePairs::Halves;
  s.tied_head = !find_tensor(file, "output.weight");
  s.qkv_bias = arch == "qwen2" || find_tensor(file, "blk.0.attn_q.bias");
  s.output_bias = find_tensor(file, "blk.0.attn_output.bias");
  s.qk_norm = arch == "qwen3" || moe;
  if (moe) HUNCH_OK(read_experts(keys, s));
  if (gpt_oss) HUNCH_OK(read_gpt_oss(keys, s));
  if (deepseek) HUNCH_OK(read_deepseek(file, s));
  if (arch == "nsa") { HUNCH_TRY(s.nsa, read_nsa(file)); }

  const TensorEntry* embedding = find_tensor(file, "token_embd.weight");
  HUNCH_TRY(s.vocab_size, keys.integer("vocab_size", num_tokens ? num_tokens : embedding ? embedding->shape[0] : 0));
  if (num_tokens && s.vocab_size != num_tokens)
    return keys.wrong("vocab_size", "{}, but tokenizer.ggml.tokens holds {}", s.vocab_size, num_tokens);
  return s;
}

Result<std::optional<int32_t>> token_id(const GgufFile& file, std::string_view key, size_t num_tokens) {
  HUNCH_TRY(const auto id, file.integer(key));
  if (!id) return std::optional<int32_t>();
  if (*id < 0 || (num_tokens && *id >= int64_t(num_tokens)) || *id > INT32_MAX)
    return file.wrong(key, "{} is outside the vocabulary of {}", *id, num_tokens);
  return std::optional<int32_t>(int32_t(*id));
}

Result<TokenizerSource> read_tokenizer(const GgufFile& file) {
  TokenizerSource t;
  HUNCH_TRY(const auto model, file.text("tokenizer.ggml.model"));
  HUNCH_TRY(const auto pre, file.text("tokenizer.ggml.pre"));
  t.model = model.value_or("");
  t.pre = pre.value_or("");
  HUNCH_TRY(t.tokens, file.texts("tokenizer.ggml.tokens"));
  if (!t.tokens.empty() && t.model.empty()) return file.wrong("tokenizer.ggml.model", "missing");
  HUNCH_TRY(t.token_types, file.integers("tokenizer.ggml.token_type"));
  HUNCH_TRY(t.merges, file.texts("tokenizer.ggml.merges"));
  HUNCH_TRY(t.bos_id, token_id(file, "tokenizer.ggml.bos_token_id", t.tokens.size()));
  HUNCH_TRY(t.eos_id, token_id(file, "tokenizer.ggml.eos_token_id", t.tokens.size()));
  HUNCH_TRY(t.add_bos, file.boolean("tokenizer.ggml.add_bos_token"));
  const auto chat_template = [&](const char* key) -> Result<std::string> {
    HUNCH_TRY(const auto text, file.text(key));
    if (text && text->size() > kMostTemplateBytes)
      return file.wrong(key, "{} bytes, at most {}", text->size(), kMostTemplateBytes);
    return std::string(text.value_or(""));
  };
  HUNCH_TRY(t.chat_template, chat_template("tokenizer.chat_template"));
  HUNCH_TRY(const std::string tools, chat_template("tokenizer.chat_template.tool_use"));
  using Json = nlohmann::json;
  if (!tools.empty())  // as a folder says it
    t.tokenizer_config_json =
        Json{
            {"chat_template",
                Json::array({{{"name", "default"}, {"template", t.chat_template}}, {{"name", "tool_use"}, {"template", tools}}})}}
            .dump(-1, ' ', false, Json::error_handler_t::replace);
  return t;
}

// Every id that ends generation: the keys and, as llama.cpp does, control tokens whose text is a known end mark (converters
// have long written only one of a chat model's two).
Result<std::vector<int32_t>> read_eos(const GgufFile& file, const TokenizerSource& t) {
  std::vector<int32_t> out;
  const auto add = [&](int32_t id) {
    if (std::ranges::find(out, id) == out.end()) out.push_back(id);
  };
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    HUNCH_TRY(const auto id, token_id(file, key, t.tokens.size()));
    if (id) add(*id);
  }
  static constexpr std::array<std::string_view, 5> kEndMarks{
      "<|eot_id|>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>"};
  if (t.token_types.size() == t.tokens.size())
    for (size_t id = 0; id < t.tokens.size(); ++id)
      if (t.token_types[id] == 3 && std::ranges::find(kEndMarks, t.tokens[id]) != kEndMarks.end()) add(int32_t(id));
  return out;
}

Result<SamplingDefaults> read_sampling(const GgufFile& file) {
  SamplingDefaults out;
  HUNCH_TRY(out.temperature, file.number("general.sampling.temp"));
  HUNCH_TRY(out.top_p, file.number("general.sampling.top_p"));
  HUNCH_TRY(out.min_p, file.number("general.sampling.min_p"));
  HUNCH_TRY(const auto top_k, file.integer("general.sampling.top_k"));
  if (top_k && (*top_k < 0 || *top_k > INT32_MAX)) return file.wrong("general.sampling.top_k", "{} is out of range", *top_k);
  if (top_k) out.top_k = int(*top_k);
  // Stored as f32: 0.8 must come back as 0.8, not as 0.800000012.
  for (auto* value : {&out.temperature, &out.top_p, &out.min_p})
    if (*value) *value = std::round(**value * 1e6) / 1e6;
  if (out.temperature && !(*out.temperature >= 0 && *out.temperature <= 1e3))
    return file.wrong("general.sampling.temp", "out of range");
  if (out.top_p && !(*out.top_p > 0 && *out.top_p <= 1)) return file.wrong("general.sampling.top_p", "must lie in (0, 1]");
  if (out.min_p && !(*out.min_p >= 0 && *out.min_p <= 1)) return file.wrong("general.sampling.min_p", "must lie in [0, 1]");
  return out;
}

}

Result<ModelDescription> describe_gguf(const GgufFile& file, bool vocab_only) {
  ModelDescription out;
  HUNCH_TRY(const auto arch, file.text("general.architecture"));
  if (!arch) return file.wrong("general.architecture", "missing");
  HUNCH_TRY(const auto kind, file.text("general.type"));
  if (kind && *kind != "model") return file.wrong("general.type", "{} is not a model", quote(*kind));
  HUNCH_TRY(out.tokenizer, read_tokenizer(file));
  HUNCH_TRY(out.shape.eos_ids, read_eos(file, out.tokenizer));
  const auto eos_ids = out.shape.eos_ids;
  if (vocab_only && file.tensors().empty()) {
    if (out.tokenizer.tokens.empty()) return file.wrong("tokenizer.ggml.tokens", "missing");
    out.shape.family = *arch;
    out.shape.vocab_size = std::ssize(out.tokenizer.tokens);
    HUNCH_OK(check_tokenizer(out.tokenizer, out.shape, file.file_name()));
    return out;
  }
  // Not architectures of GGUF files: mistral is written as llama, the others have spellings of their own.
  const bool known = is_family(*arch) || *arch == kGgufQwen3Moe || *arch == kGgufGptOss || *arch == kGgufDeepSeek;
  if (!known || *arch == "mistral" || *arch == "qwen3_moe" || *arch == "gpt_oss" || is_deepseek(*arch))
    return file.wrong("general.architecture",
        "unknown architecture {}; known are llama (mistral too), qwen2, qwen3, qwen3moe, gpt-oss, "
        "deepseek2, nsa",
        quote(*arch));
  if (file.tensors().empty()) return failure("{}: holds no tensors (a vocabulary-only file)", file.file_name());
  HUNCH_TRY(out.shape, read_shape(file, std::string(*arch), std::ssize(out.tokenizer.tokens)));
  out.shape.eos_ids = eos_ids;
  HUNCH_TRY(out.sampling, read_sampling(file));
  HUNCH_OK(check_shape(out.shape, file.file_name()));
  HUNCH_OK(check_tokenizer(out.tokenizer, out.shape, file.file_name()));
  return out;
}

}
