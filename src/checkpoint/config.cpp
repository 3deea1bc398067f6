// config.json, generation_config.json and tokenizer_config.json. Keys and defaults are transformers'; a JSON null counts as
// absent.
#include "checkpoint/config.h"

#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json_depth.h"
#include "checkpoint/deepseek_config.h"
#include "checkpoint/nsa_config.h"

namespace hunch {
namespace {

using Json = nlohmann::json;
using Kind = RopeScaling::Kind;
using enum Fp8Scales;

std::string shown(const Json& value) { return quote(value.dump(-1, ' ', true, Json::error_handler_t::replace)); }

// An object of a file with accessors that name file and key when a value is not what it should be.
class Fields {
 public:
  static Result<Fields> parse(const std::string& text, std::string source) {
    if (nested_deeper_than(text, kMostJsonDepth)) return failure("{}: nested deeper than {}", source, kMostJsonDepth);
    Json json = text.empty() ? Json::object() : Json::parse(text, nullptr, false);
    if (json.is_discarded()) return failure("{}: not valid JSON", source);
    if (!json.is_object()) return failure("{}: not a JSON object", source);
    return Fields(std::move(json), std::move(source));
  }

  const Json* find(const char* key) const {
    const auto at = json_.find(key);
    return at == json_.end() || at->is_null() ? nullptr : &*at;
  }
  template <class... T>
  Error wrong(std::string_view key, fmt::format_string<T...> what, T&&... values) const {
    return failure("{}: {}: {}", source_, key, fmt::format(what, std::forward<T>(values)...));
  }
  Result<Fields> object(const char* key) const {  // empty where absent
    const Json* value = find(key);
    if (value && !value->is_object()) return wrong(key, "must be an object");
    return Fields(value ? *value : Json::object(), fmt::format("{}: {}", source_, key));
  }
  Result<int64_t> integer(const char* key, std::optional<int64_t> otherwise = {}) const {
    const Json* value = find(key);
    if (!value && otherwise) return *otherwise;
    if (!value) return wrong(key, "missing");
    if (!value->is_number_integer()) return wrong(key, "must be an integer");
    if (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t(INT64_MAX)) return wrong(key, "out of range");
    return value->get<int64_t>();
  }
  Result<int> small_integer(const char* key, std::optional<int64_t> otherwise = {}) const {
    HUNCH_TRY(const int64_t value, integer(key, otherwise));
    if (value < 0 || value > INT32_MAX) return wrong(key, "{} is out of range", value);
    return int(value);
  }
  Result<std::optional<double>> number(const char* key) const {
    const Json* value = find(key);
    if (!value) return std::optional<double>();
    if (!value->is_number() || !std::isfinite(value->get<double>())) return wrong(key, "must be a finite number");
    return std::optional<double>(value->get<double>());
  }
  Result<double> number(const char* key, double otherwise) const {
    HUNCH_TRY(const auto value, number(key));
    return value.value_or(otherwise);
  }
  Result<bool> boolean(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (value && !value->is_boolean()) return wrong(key, "must be true or false");
    return value ? value->get<bool>() : otherwise;
  }
  Result<std::string> text(const char* key) const {  // empty where absent
    const Json* value = find(key);
    if (value && !value->is_string()) return wrong(key, "must be a string");
    return value ? value->get<std::string>() : std::string();
  }
  bool empty() const { return json_.empty(); }
  std::vector<std::string> keys() const {
    std::vector<std::string> out;
    for (const auto& item : json_.items()) out.push_back(item.key());
    return out;
  }
  bool present(const char* key) const { return json_.contains(key); }  // null included

 private:
  Fields(Json json, std::string source) : json_(std::move(json)), source_(std::move(source)) {}
  Json json_;
  std::string source_;
};

// An id or a list of ids.
Result<std::vector<int32_t>> token_ids(const Fields& fields, const char* key) {
  std::vector<int32_t> out;
  const Json* value = fields.find(key);
  if (!value) return out;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      return fields.wrong(key, "must be a token id or a list of them");
    if (std::ranges::find(out, id.get<int32_t>()) == out.end()) out.push_back(id.get<int32_t>());
  }
  return out;
}

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

// `fields`: rope_scaling or rope_parameters. `original`: of the file itself, which goes before theirs; 0: none.
Result<RopeScaling> rope_scaling_of(const Fields& fields, const ModelShape& shape, double original) {
  RopeScaling out;
  HUNCH_TRY(std::string type, fields.text("rope_type"));
  if (type.empty()) {
    HUNCH_TRY(type, fields.text("type"));  // the older spelling
  }
  if (type.empty() || type == "default") return out;
  if (type == "linear") out.kind = Kind::Linear;
  else if (type == "llama3") out.kind = Kind::Llama3;
  else if (type == "yarn") out.kind = Kind::Yarn;
  else return fields.wrong("rope_type", "{} is not supported; default, linear, llama3 and yarn are", quote(type));
  HUNCH_TRY(out.original_context, fields.number("original_max_position_embeddings", double(shape.context_len)));
  if (original != 0) out.original_context = original;
  HUNCH_TRY(const auto factor, fields.number("factor"));
  if (!factor && out.kind != Kind::Yarn) return fields.wrong("factor", "missing");
  out.factor = factor.value_or(double(shape.context_len) / std::max(out.original_context, 1.0));
  HUNCH_TRY(out.low_freq_factor, fields.number("low_freq_factor", 1));
  HUNCH_TRY(out.high_freq_factor, fields.number("high_freq_factor", 4));
  if (out.kind != Kind::Yarn) return out;
  HUNCH_TRY(out.beta_fast, fields.number("beta_fast", 32));
  HUNCH_TRY(out.beta_slow, fields.number("beta_slow", 1));
  HUNCH_TRY(out.truncate, fields.boolean("truncate", true));
  HUNCH_TRY(const auto attention_factor, fields.number("attention_factor"));
  HUNCH_TRY(const double mscale, fields.number("mscale", 0));
  HUNCH_TRY(const double mscale_all, fields.number("mscale_all_dim", 0));
  // Resolved here, so that readers of the shape need not know about mscale.
  out.attention_factor = attention_factor ? *attention_factor
      : mscale && mscale_all              ? yarn_mscale(out.factor, mscale) / yarn_mscale(out.factor, mscale_all)
                                          : yarn_mscale(out.factor, 1);
  return out;
}

Status read_rope(const Fields& config, ModelShape& shape) {
  HUNCH_TRY(const Fields parameters, config.object("rope_parameters"));  // newer files: theta and scaling in one object
  HUNCH_TRY(const Fields scaling, config.object("rope_scaling"));
  const bool gpt_oss = shape.family == "gpt_oss";
  HUNCH_TRY(const double outer_theta, config.number("rope_theta", gpt_oss ? 150000 : 10000));
  HUNCH_TRY(const double scaling_theta, scaling.number("rope_theta", outer_theta));
  HUNCH_TRY(shape.rope_theta, parameters.number("rope_theta", scaling_theta));
  for (const Fields* fields : {&config, &parameters, &scaling}) {
    HUNCH_TRY(const double partial, fields->number("partial_rotary_factor", 1));
    if (partial != 1) return fields->wrong("partial_rotary_factor", "only 1 is supported");
  }
  for (const std::string& key : parameters.keys()) {
    const Json& value = *parameters.find(key.c_str());
    if (value.is_object()) return parameters.wrong(key, "one for every type of layers is not supported");
  }
  for (const std::string& key : scaling.keys())
    if (const Json* other = parameters.find(key.c_str()); !parameters.empty() && (!other || *other != *scaling.find(key.c_str())))
      return scaling.wrong(key, "differs from rope_parameters, where it belongs");
  HUNCH_TRY(const double original, config.number("original_max_position_embeddings", 0));
  HUNCH_TRY(shape.rope_scaling, rope_scaling_of(parameters.empty() ? scaling : parameters, shape, original));
  if (gpt_oss && parameters.empty() && scaling.empty())
    shape.rope_scaling = {.kind = Kind::Yarn, .factor = 32, .original_context = 4096, .truncate = false};
  // Yarn files give the context before extension; the model was trained for the extended one.
  const RopeScaling& r = shape.rope_scaling;
  if (r.kind == Kind::Yarn && r.factor >= 1 && r.original_context >= 1 && r.original_context * r.factor < (1 << 27))
    shape.context_len = std::max(shape.context_len, int(r.original_context * r.factor));
  return {};
}

Status read_windows(const Fields& config, ModelShape& shape) {
  const bool mistral = shape.family == "mistral", gpt_oss = shape.family == "gpt_oss";
  if (shape.family == "llama") return {};
  if (!mistral && !gpt_oss) {
    HUNCH_TRY(const bool used, config.boolean("use_sliding_window", false));
    if (!used || !shape.family.starts_with("qwen")) return {};
  }
  // Absent means transformers' default, null means none.
  const int64_t otherwise = config.present("sliding_window") ? 0 : gpt_oss ? 128 : 4096;
  HUNCH_TRY(shape.sliding_window, config.small_integer("sliding_window", otherwise));
  if (mistral || (!gpt_oss && !shape.sliding_window) || shape.family == "qwen3_moe") return {};  // none; in every layer
  int full_layers = 0;
  if (!gpt_oss) { HUNCH_TRY(full_layers, config.small_integer("max_window_layers", 28)); }
  shape.window_layer.resize(shape.layers);
  for (int layer = 0; layer < shape.layers; ++layer) shape.window_layer[layer] = gpt_oss ? layer % 2 == 0 : layer >= full_layers;
  return {};
}

Status read_layer_types(const Fields& config, ModelShape& shape) {
  const Json* types = config.find("layer_types");
  constexpr std::string_view kReaders[] = {"mistral", "qwen2", "qwen3", "gpt_oss"};
  if (!types || std::ranges::find(kReaders, shape.family) == std::end(kReaders)) return {};
  if (!types->is_array() || types->size() != size_t(shape.layers))
    return config.wrong("layer_types", "must be a list of {} strings", shape.layers);
  std::vector<uint8_t> windowed;
  for (const Json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention")
      return config.wrong("layer_types", "only full_attention and sliding_attention are supported");
    windowed.push_back(type == "sliding_attention");
  }
  const bool any = std::ranges::find(windowed, 1) != windowed.end();
  if (any && !shape.sliding_window)
    return config.wrong("layer_types", "names sliding_attention, but there is no sliding_window, or use_sliding_window is off");
  if (shape.sliding_window) shape.window_layer = windowed;
  return {};
}

// What would change results and is not computed.
Status refuse_unsupported(const Fields& config, std::string_view family) {
  const bool experts_allowed = family == "qwen3_moe" || family == "gpt_oss" || is_deepseek(family);
  HUNCH_TRY(const bool mlp_bias, config.boolean("mlp_bias", false));
  if (mlp_bias) return config.wrong("mlp_bias", "biases in the feed-forward block are not supported");
  HUNCH_TRY(const bool causal, config.boolean("is_causal", true));
  if (!causal) return config.wrong("is_causal", "only causal attention is supported");
  HUNCH_TRY(const std::string act, config.text("hidden_act"));
  if (!act.empty() && act != "silu" && act != "swish")
    return config.wrong("hidden_act", "{} is not supported; silu is", quote(act));
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    HUNCH_TRY(const int64_t experts, config.integer(key, 0));
    if (experts > 0 && (!experts_allowed || (key == std::string_view("n_routed_experts")) != is_deepseek(family)))
      return config.wrong(key, "experts are supported in qwen3_moe, gpt_oss, deepseek_v2 and deepseek_v3 only");
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "logits_scaling", "embedding_multiplier"})
    if (config.find(key)) return config.wrong(key, "not supported in this architecture");
  return {};
}

// [128, 128]
Status check_block(const Fields& fields, const char* key) {
  const Json* block = fields.find(key);
  if (!block || *block != Json::array({kFp8Block, kFp8Block}))
    return fields.wrong(key, "blocks of {} x {} are supported; found {}", kFp8Block, kFp8Block, block ? shown(*block) : "none");
  return {};
}

// compressed-tensors: every group of layers has a scheme of its own; one for all is what this reads.
Result<Fp8Scales> read_compressed(const Fields& config) {
  HUNCH_TRY(const std::string format, config.text("format"));
  if (format != "float-quantized" && format != "naive-quantized")
    return config.wrong("format", "{} is not supported; float-quantized (FP8) is", quote(format));
  HUNCH_TRY(const Fields transforms, config.object("transform_config"));
  if (!transforms.empty()) return config.wrong("transform_config", "not supported");
  HUNCH_TRY(const Fields sparsity, config.object("sparsity_config"));
  HUNCH_TRY(const std::string sparse, sparsity.text("format"));
  if (!sparse.empty() && sparse != "dense") return sparsity.wrong("format", "{} is not supported", quote(sparse));
  HUNCH_TRY(const Fields groups, config.object("config_groups"));
  Fp8Scales out = None;
  for (const std::string& name : groups.keys()) {
    HUNCH_TRY(const Fields group, groups.object(name.c_str()));
    HUNCH_TRY(const Fields weights, group.object("weights"));
    HUNCH_TRY(const std::string type, weights.text("type"));
    HUNCH_TRY(const int64_t bits, weights.integer("num_bits", 0));
    HUNCH_TRY(const std::string strategy, weights.text("strategy"));
    if (type != "float" || bits != 8) return weights.wrong("type", "only float with 8 bits (FP8) is supported");
    Fp8Scales scales = None;
    if (strategy == "tensor") scales = Matrix;
    if (strategy == "channel") scales = Rows;
    if (strategy == "block") {
      HUNCH_OK(check_block(weights, "block_structure"));
      scales = Blocks;
    }
    if (scales == None) return weights.wrong("strategy", "{} is not supported; tensor, channel and block are", quote(strategy));
    if (out != None && out != scales) return weights.wrong("strategy", "groups of layers with different ones are not supported");
    out = scales;
  }
  if (out == None) return config.wrong("config_groups", "missing");
  return out;
}

// Quantised folders: FP8 weights; everything else is refused by name.
Result<Fp8Scales> read_quantisation(const Fields& config, const ModelShape& shape) {
  if (!config.find("quantization_config")) return None;
  HUNCH_TRY(const Fields quantised, config.object("quantization_config"));
  HUNCH_TRY(const std::string method, quantised.text("quant_method"));
  if (method == "compressed-tensors") return read_compressed(quantised);
  if (method == "mxfp4" && shape.family == "gpt_oss") return None;  // of experts; the tensors say so themselves
  if (method != "fp8")
    return quantised.wrong("quant_method",
        "{} is not supported; fp8 and compressed-tensors with FP8 weights are: use "
        "one of those, the original weights or a GGUF file",
        quote(method));
  HUNCH_TRY(const std::string kind, quantised.text("fmt"));
  if (!kind.empty() && kind != "e4m3") return quantised.wrong("fmt", "{} is not supported; e4m3 is", quote(kind));
  if (!quantised.find("weight_block_size")) return Matrix;
  HUNCH_OK(check_block(quantised, "weight_block_size"));
  return Blocks;
}

// Defaults are transformers', not those of the released models (norm_topk_prob).
Status read_experts(const Fields& config, ModelShape& s) {
  // transformers 5 writes the second.
  HUNCH_TRY(s.num_experts, config.small_integer(config.find("num_experts") ? "num_experts" : "num_local_experts", 128));
  HUNCH_TRY(s.experts_per_token, config.small_integer("num_experts_per_tok", 8));
  HUNCH_TRY(s.expert_ffn, config.integer("moe_intermediate_size", 768));
  HUNCH_TRY(s.norm_expert_shares, config.boolean("norm_topk_prob", false));
  HUNCH_TRY(const int step, config.small_integer("decoder_sparse_step", 1));
  if (step < 1) return config.wrong("decoder_sparse_step", "must be at least 1");
  s.expert_layer.resize(s.layers);
  for (int layer = 0; layer < s.layers; ++layer) s.expert_layer[layer] = s.num_experts > 0 && (layer + 1) % step == 0;
  if (const Json* dense = config.find("mlp_only_layers")) {
    if (!dense->is_array()) return config.wrong("mlp_only_layers", "must be a list of layers");
    for (const Json& layer : *dense) {
      if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= uint64_t(s.layers))
        return config.wrong("mlp_only_layers", "{} is no layer, the model has 0 to {}", shown(layer), s.layers - 1);
      s.expert_layer[layer.get<size_t>()] = 0;
    }
  }
  if (std::ranges::find(s.expert_layer, 1) == s.expert_layer.end())
    s.num_experts = s.experts_per_token = 0, s.expert_ffn = 0, s.expert_layer.clear();
  return {};
}

// gpt-oss: experts in every layer, what is left out is transformers'.
Status read_gpt_oss(const Fields& config, ModelShape& s) {
  HUNCH_TRY(s.num_experts, config.small_integer("num_local_experts", 128));
  HUNCH_TRY(s.experts_per_token,
      config.small_integer(config.find("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token", 4));
  HUNCH_TRY(s.gate_limit, config.number("swiglu_limit", 7.0));
  HUNCH_TRY(s.gate_alpha, config.number("swiglu_alpha", 1.702));
  s.expert_ffn = s.ffn;
  s.expert_layer.assign(s.layers, 1);
  s.attention_sinks = s.shares_of_chosen = s.expert_bias = true;
  return {};
}

// fla's own layout of config.json has other words for some keys, and a width of the feed-forward block that may be derived.
Status read_fla_sizes(const Fields& config, ModelShape& s) {
  HUNCH_TRY(s.layers, config.small_integer("num_hidden_layers"));
  HUNCH_TRY(s.heads, config.small_integer("num_heads"));
  HUNCH_TRY(s.kv_heads, config.small_integer("num_kv_heads", s.heads));
  HUNCH_TRY(s.norm_eps, config.number("norm_eps", 1e-6));
  HUNCH_TRY(s.qkv_bias, config.boolean("qkv_bias", false));
  HUNCH_TRY(const bool elementwise, config.boolean("elementwise_affine", true));
  if (!elementwise) return config.wrong("elementwise_affine", "norms without weights are not supported");
  if (config.find("intermediate_size")) return {};
  HUNCH_TRY(const int ratio, config.small_integer("hidden_ratio", 4));
  if (s.hidden < 1 || s.hidden > 1 << 20 || ratio < 1 || ratio > 64) return config.wrong("hidden_ratio", "out of range");
  s.ffn = (s.hidden * ratio * 2 / 3 + 255) / 256 * 256;
  return {};
}

Result<ModelShape> read_shape(const Fields& config) {
  ModelShape s;
  HUNCH_TRY(s.family, config.text("model_type"));
  if (s.family.empty()) return config.wrong("model_type", "missing");
  if (s.family == "llama-nsa") s.family = "nsa";
  if (!is_family(s.family))
    return config.wrong("model_type", "unknown architecture {}; known are {}", quote(s.family), fmt::join(kFamilies, ", "));
  const bool gpt_oss = s.family == "gpt_oss";
  HUNCH_OK(refuse_unsupported(config, s.family));
  const bool llama = s.family == "llama", mistral = s.family == "mistral", qwen2 = s.family == "qwen2",
             moe = s.family == "qwen3_moe", qwen3 = s.family == "qwen3", nsa = s.family == "nsa",
             deepseek = is_deepseek(s.family);
  const bool fla = nsa && !config.find("num_attention_heads") && config.find("num_heads");
  HUNCH_TRY(s.name, config.text("_name_or_path"));
  s.name.erase(0, s.name.rfind('/') + 1);  // the rest says where somebody's disk had it
  HUNCH_TRY(s.vocab_size, config.integer("vocab_size"));
  HUNCH_TRY(s.hidden, config.integer("hidden_size"));
  HUNCH_TRY(s.ffn,
      config.integer("intermediate_size",
          moe       ? std::optional<int64_t>(6144)
              : fla ? std::optional<int64_t>(0)
                    : std::nullopt));
  HUNCH_TRY(s.layers, config.small_integer("num_hidden_layers"));
  HUNCH_TRY(s.prediction_layers, config.small_integer("num_nextn_predict_layers", 0));
  if (s.prediction_layers < 0 || s.prediction_layers > 16)
    return config.wrong("num_nextn_predict_layers", "{}, possible are 0 to 16", s.prediction_layers);
  HUNCH_TRY(s.heads, config.small_integer(fla ? "num_heads" : "num_attention_heads"));
  if (s.layers < 1 || s.layers > 1024) return config.wrong("num_hidden_layers", "{}, possible are 1 to 1024", s.layers);
  if (s.heads < 1) return config.wrong("num_attention_heads", "must be at least 1");
  HUNCH_TRY(s.kv_heads,
      config.small_integer("num_key_value_heads",
          llama || nsa             ? s.heads
              : mistral || gpt_oss ? 8
              : moe                ? 4
                                   : 32));
  if (!config.find("head_dim") && !qwen3 && !gpt_oss && !deepseek && s.hidden % s.heads != 0)
    return config.wrong("hidden_size", "{} is not divisible by {} heads", s.hidden, s.heads);
  HUNCH_TRY(s.head_dim, config.small_integer("head_dim", qwen3 ? 128 : gpt_oss ? 64 : s.hidden / s.heads));
  s.rope_dim = s.head_dim;
  HUNCH_TRY(s.context_len,
      config.small_integer("max_position_embeddings",
          llama || nsa             ? 2048
              : mistral || gpt_oss ? 131072
              : deepseek           ? 4096
                                   : 32768));
  HUNCH_TRY(s.norm_eps, config.number("rms_norm_eps", gpt_oss ? 1e-5 : 1e-6));
  HUNCH_TRY(s.tied_head, config.boolean("tie_word_embeddings", false));
  HUNCH_TRY(const bool attention_bias, config.boolean("attention_bias", gpt_oss));
  if (nsa && attention_bias) return config.wrong("attention_bias", "biases are not part of this architecture");
  s.qkv_bias = qwen2 || (!mistral && attention_bias);
  s.output_bias = !mistral && !qwen2 && attention_bias;
  if (fla) HUNCH_OK(read_fla_sizes(config, s));
  s.qk_norm = qwen3 || moe;
  if (moe) HUNCH_OK(read_experts(config, s));
  if (gpt_oss) HUNCH_OK(read_gpt_oss(config, s));
  HUNCH_OK(read_rope(config, s));
  HUNCH_OK(read_windows(config, s));
  HUNCH_OK(read_layer_types(config, s));
  return s;
}

Result<SamplingDefaults> read_sampling(const Fields& generation) {
  SamplingDefaults out;
  HUNCH_TRY(out.temperature, generation.number("temperature"));
  HUNCH_TRY(out.top_p, generation.number("top_p"));
  HUNCH_TRY(out.min_p, generation.number("min_p"));
  if (generation.find("top_k")) { HUNCH_TRY(out.top_k, generation.small_integer("top_k")); }
  if (out.temperature && *out.temperature < 0) return generation.wrong("temperature", "must not be negative");
  if (out.top_p && !(*out.top_p > 0 && *out.top_p <= 1)) return generation.wrong("top_p", "must lie in (0, 1]");
  if (out.min_p && !(*out.min_p >= 0 && *out.min_p <= 1)) return generation.wrong("min_p", "must lie in [0, 1]");
  return out;
}

const std::string* named_template(const Json& list, std::string_view name) {
  if (list.is_array())
    for (const Json& entry : list)
      if (entry.is_object() && entry.value("name", Json()) == name && entry.contains("template") && entry["template"].is_string())
        return entry["template"].get_ptr<const std::string*>();
  return nullptr;
}

// A string, or a list of named templates of which "default" counts; tool_template() finds one more.
Result<std::string> chat_template_of(const Fields& tokenizer_config) {
  const Json* value = tokenizer_config.find("chat_template");
  if (!value) return std::string();
  if (value->is_string()) return value->get<std::string>();
  if (const std::string* found = named_template(*value, "default")) return *found;
  return tokenizer_config.wrong("chat_template", "must be a string or a list of templates with one named default");
}

// The id of the end-of-text token that tokenizer_config.json or special_tokens_map.json names, for folders whose configs give
// none.
std::optional<int32_t> named_eos(const Fields& tokenizer_config, const Fields& special_tokens) {
  const auto text_of = [](const Json* value) {
    if (value && value->is_object() && value->contains("content")) value = &(*value)["content"];
    return value && value->is_string() ? value->get<std::string>() : std::string();
  };
  std::string name = text_of(tokenizer_config.find("eos_token"));
  if (name.empty()) name = text_of(special_tokens.find("eos_token"));
  const Json* added = tokenizer_config.find("added_tokens_decoder");
  if (name.empty() || !added || !added->is_object()) return std::nullopt;
  for (const auto& [id, token] : added->items())
    if (token.is_object() && token.value("content", Json()) == name && !id.empty() && id.size() <= 8 &&
        id.find_first_not_of("0123456789") == id.npos)
      return std::stoi(id);
  return std::nullopt;
}

}

std::string tool_template(const TokenizerSource& tokenizer) {
  const Json config = Json::parse(tokenizer.tokenizer_config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object() || !config.contains("chat_template")) return {};
  const std::string* plain = named_template(config["chat_template"], "default");
  const std::string* tools = named_template(config["chat_template"], "tool_use");
  // A file chat_template.jinja stands for the whole list.
  return plain && tools && *plain == tokenizer.chat_template ? *tools : "";
}

Result<ModelDescription> describe_folder(FolderTexts texts, std::string_view folder) {
  const auto in = [&](const char* file) { return fmt::format("{}/{}", folder, file); };
  const auto parse = [&](const std::string& text, const char* file) { return Fields::parse(text, in(file)); };
  ModelDescription out;
  HUNCH_TRY(const Fields config, parse(texts.config, "config.json"));
  HUNCH_TRY(const Fields generation, parse(texts.generation_config, "generation_config.json"));
  HUNCH_TRY(const Fields tokenizer_config, parse(texts.tokenizer_config, "tokenizer_config.json"));
  HUNCH_TRY(out.shape, read_shape(config));
  HUNCH_TRY(const JsonConfig keys, JsonConfig::parse(texts.config, in("config.json")));
  if (out.shape.family == "nsa") { HUNCH_TRY(out.shape.nsa, read_nsa(keys)); }
  if (is_deepseek(out.shape.family)) HUNCH_OK(read_deepseek(keys, out.shape));
  HUNCH_TRY(out.fp8, read_quantisation(config, out.shape));
  HUNCH_TRY(out.shape.eos_ids, token_ids(generation, "eos_token_id"));
  if (out.shape.eos_ids.empty()) { HUNCH_TRY(out.shape.eos_ids, token_ids(config, "eos_token_id")); }
  HUNCH_TRY(const Fields special_tokens, parse(texts.special_tokens_map, "special_tokens_map.json"));
  if (out.shape.eos_ids.empty())
    if (const auto id = named_eos(tokenizer_config, special_tokens)) out.shape.eos_ids.push_back(*id);
  HUNCH_TRY(out.sampling, read_sampling(generation));

  TokenizerSource& t = out.tokenizer;
  HUNCH_TRY(const auto bos, token_ids(config, "bos_token_id"));
  if (!bos.empty()) t.bos_id = bos[0];
  if (!out.shape.eos_ids.empty()) t.eos_id = out.shape.eos_ids[0];
  if (tokenizer_config.find("add_bos_token")) { HUNCH_TRY(t.add_bos, tokenizer_config.boolean("add_bos_token", false)); }
  // The file of its own wins, as in transformers.
  t.chat_template = std::move(texts.chat_template);
  if (t.chat_template.empty()) { HUNCH_TRY(t.chat_template, chat_template_of(tokenizer_config)); }
  t.tokenizer_json = std::move(texts.tokenizer);
  t.tokenizer_config_json = std::move(texts.tokenizer_config);
  HUNCH_OK(check_shape(out.shape, in("config.json")));
  HUNCH_OK(check_tokenizer(t, out.shape, in("config.json")));
  return out;
}

}
