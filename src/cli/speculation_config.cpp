// The JSON behind --speculative-config. Keys of vLLM that hunch knows but does not take are answered one by one: people paste
// configurations that worked elsewhere.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/nearest.h"
#include "cli/speculation_flags.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using nlohmann::json;
constexpr std::string_view kFlag = "--speculative-config";

struct ForeignKey {
  std::string_view key, answer;
};
constexpr std::string_view kOnlySelf = "belongs to a proposer that is not available yet; self-speculation does not use it";
constexpr std::string_view kOneModel = "self-speculation guesses with the target's own weights: leave it out";
constexpr ForeignKey kForeign[] = {
    {"model",
     "self-speculation guesses with the target's own weights, and a separate draft model is not available yet: leave it out"},
    {"tensor_parallel_size", "guesses run where the target runs: leave it out (vLLM's own key is draft_tensor_parallel_size)"},
    {"draft_tensor_parallel_size", "guesses run where the target runs: leave it out"},
    {"max_model_len", "guesses share the target's context: use -c"},
    {"quantization", "use \"sparse_attn_draft_weights\": \"q4_0\" or \"q8_0\""},
    {"kv_cache_dtype", "guesses share the target's KV cache: use --kv-type"},
    {"revision", kOneModel},
    {"code_revision", kOneModel},
    {"draft_load_config", kOneModel},
    {"enforce_eager", "there are no recorded graphs on this device: leave it out"},
    {"parallel_drafting", kOnlySelf},
    {"use_heterogeneous_vocab", kOnlySelf},
    {"use_local_argmax_reduction", kOnlySelf},
    {"speculative_token_tree", kOnlySelf},
    {"disable_padded_drafter_batch", kOnlySelf},
    {"disable_by_batch_size", "method auto guesses less by itself where many requests run: leave it out"},
    {"num_speculative_tokens_per_batch_size",
     "method auto guesses less by itself where many requests run: use num_speculative_tokens"},
    {"rejection_sample_method", "use \"rule\": \"match\" or \"ratio\" (ratio is vLLM's standard)"},
    {"synthetic_acceptance_rates", "acceptance is never made up here: leave it out"},
    {"synthetic_acceptance_length", "acceptance is never made up here: leave it out"},
    {"draft_sample_method", "guesses are sampled by the request's own sampling settings: leave it out"},
    {"enable_adaptive_verification", kOnlySelf},
};

std::vector<std::string_view> valid_keys() {
  std::vector<std::string_view> keys;
  for (const SpeculationSetting& s : speculation_settings()) keys.push_back(s.key);
  return keys;
}

Error unknown_key(std::string_view key) {
  for (const ForeignKey& foreign : kForeign)
    if (foreign.key == key) return usage_error(fmt::format("{}: \"{}\": {}", kFlag, key, foreign.answer));
  const auto valid = valid_keys();
  return usage_error(
      fmt::format("{}: unknown key {}{}; valid keys: {}", kFlag, excerpt(key), did_you_mean(key, valid), comma_list(valid)));
}

std::string_view kind_name(const json& v) {
  return v.is_null()      ? "null"
         : v.is_boolean() ? "true or false"
         : v.is_number()  ? "a number"
         : v.is_string()  ? "a string"
         : v.is_array()   ? "a list"
                          : "an object";
}

Result<SettingValue> value_of(const SpeculationSetting& setting, const json& v) {
  const std::string name = fmt::format("{}: \"{}\"", kFlag, setting.key);
  if (setting.kind == SpeculationSetting::Kind::Choice) {
    if (!v.is_string())
      return usage_error(fmt::format("{} must be a string ({}), not {}", name, comma_list(setting.choices), kind_name(v)));
    return parse_setting(setting, name, v.get_ref<const std::string&>());
  }
  if (setting.kind == SpeculationSetting::Kind::Layers) {
    if (!v.is_number() && !v.is_array())
      return usage_error(fmt::format("{} must be a number of layers or a list of them, not {}", name, kind_name(v)));
    if (v.is_number()) return parse_setting(setting, name, v.dump());
    std::string list;
    for (const json& layer : v) list += layer.dump() + ",";
    return parse_setting(setting, name, list);
  }
  if (!v.is_number()) return usage_error(fmt::format("{} must be a number {}, not {}", name, setting.range.text(), kind_name(v)));
  return parse_setting(setting, name, v.dump());  // one place for ranges and their messages
}

// Parses with a watch on repeated keys, of which nlohmann would silently keep the last.
Result<json> parse_object(std::string_view text) {
  std::vector<std::string> seen;
  std::string repeated;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (std::find(seen.begin(), seen.end(), key) != seen.end() && repeated.empty()) repeated = key;
      seen.push_back(key);
    }
    return true;
  };
  json object;
  try {
    object = json::parse(text, watch);
  } catch (const json::parse_error& e) {
    const size_t at = std::min(e.byte > 0 ? e.byte - 1 : 0, text.size());
    const size_t from = at > 12 ? at - 12 : 0;
    return usage_error(
        fmt::format("{}: invalid JSON at character {}{}", kFlag, at + 1,
                    at >= text.size() ? ", where the text ends too early" : ", near " + excerpt(text.substr(from, 24))));
  } catch (const json::exception& e) {  // numbers beyond a double
    return usage_error(fmt::format("{}: invalid JSON: {}", kFlag, excerpt(e.what(), 120)));
  }
  if (!object.is_object())
    return usage_error(
        fmt::format("{} must be a JSON object such as '{{\"method\": \"sparse_attn\"}}', not {}", kFlag, kind_name(object)));
  if (!repeated.empty()) return usage_error(fmt::format("{}: the key {} stands there twice", kFlag, excerpt(repeated)));
  return object;
}

}  // namespace

Result<SettingValues> parse_speculative_config(std::string_view text) {
  HUNCH_TRY(const json object, parse_object(text));
  const auto& settings = speculation_settings();
  SettingValues values;
  if (object.contains("method")) {  // first: the keys of another method say less than its name
    HUNCH_TRY(values[0], value_of(settings[0], object["method"]));
  }
  for (const auto& [key, v] : object.items()) {
    const auto at =
        std::find_if(settings.begin(), settings.end(), [&, name = key](const SpeculationSetting& s) { return s.key == name; });
    if (at == settings.end()) return unknown_key(key);
    HUNCH_TRY(values[size_t(at - settings.begin())], value_of(*at, v));
  }
  const bool sparse =
      std::any_of(values.begin(), values.end(), [&](const auto& v) { return settings[v.first].key.starts_with("sparse_"); });
  if (!values.contains(0)) {
    if (!sparse)
      return usage_error(fmt::format(
          "{}: \"method\" is missing; there are auto, self (also spelled sparse_attn), ngram, suffix, cascade, none", kFlag));
    values[0] = std::string("self");  // keys that only one method has name it
  }
  return values;
}

}  // namespace hunch
