// The JSON behind --speculative-config. Keys of vLLM that hunch knows but does not take are answered one by one: people paste
// configurations that worked elsewhere.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/nearest.h"
#include "api/speculation_settings.h"
#include "checkpoint/drafter_method.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using nlohmann::json;
constexpr std::string_view kFlag = "--speculative-config";

constexpr std::string_view kNoCounterpart = "there is nothing here that it would change: leave it out";
constexpr std::string_view kNoDownload = "nothing is downloaded: \"model\" names a folder or file, leave this out";
constexpr std::pair<std::string_view, std::string_view> kForeign[] = {
    {"tensor_parallel_size", "guesses run where the target runs: leave it out (vLLM's own key is draft_tensor_parallel_size)"},
    {"max_model_len", "guesses share the target's context: use -c"},
    {"quantization",
        "drafters are quantised beforehand, with hunch quantize; for self use \"sparse_attn_draft_weights\": \"q4_0\" or "
        "\"q8_0\""},
    {"kv_cache_dtype", "guesses share the type of the target's KV cache: use --kv-type"},
    {"revision", kNoDownload},
    {"code_revision", kNoDownload},
    {"draft_load_config", kNoDownload},
    {"enforce_eager", kNoCounterpart},
    {"use_local_argmax_reduction", kNoCounterpart},
    {"disable_padded_drafter_batch", kNoCounterpart},
    {"disable_by_batch_size", "method auto guesses less by itself where many requests run: leave it out"},
    {"num_speculative_tokens_per_batch_size",
        "method auto guesses less by itself where many requests run: use num_speculative_tokens"},
    {"rejection_sample_method", "use \"rule\": \"match\" or \"ratio\" (ratio is vLLM's standard)"},
    {"synthetic_acceptance_rates", "acceptance is never made up here: leave it out"},
    {"synthetic_acceptance_length", "acceptance is never made up here: leave it out"},
    {"draft_sample_method", "guesses are sampled by the request's own sampling settings: leave it out"},
    {"enable_adaptive_verification", kNoCounterpart},
};

// What stands for nothing asked: keys of vLLM's at their defaults.
bool is_neutral(std::string_view key, const json& v) {
  if (std::ranges::find(kForeign, key, [](const auto& f) { return f.first; }) == std::end(kForeign)) return false;
  return v.is_null() || v == false || key == "enforce_eager" || v == "auto" || v == "standard";
}

std::vector<std::string_view> valid_keys() {
  std::vector<std::string_view> keys;
  for (const SpeculationSetting& s : speculation_settings()) keys.push_back(s.key);
  keys.insert(keys.begin() + 1, "model");
  return keys;
}

Error unknown_key(std::string_view key) {
  for (const auto& [foreign, answer] : kForeign)
    if (foreign == key) return usage_error("{}: \"{}\": {}", kFlag, key, answer);
  const auto valid = valid_keys();
  return usage_error("{}: unknown key {}{}; valid keys: {}", kFlag, excerpt(key), did_you_mean(key, valid), comma_list(valid));
}

std::string_view kind_name(const json& v) {
  return v.is_null()   ? "null"
      : v.is_boolean() ? "true or false"
      : v.is_number()  ? "a number"
      : v.is_string()  ? "a string"
      : v.is_array()   ? "a list"
                       : "an object";
}

Result<SettingValue> value_of(const SpeculationSetting& setting, const json& v) {
  using Kind = SpeculationSetting::Kind;
  const auto name = fmt::format("{}: \"{}\"", kFlag, setting.key);
  const auto must_be = [&](std::string_view what) { return usage_error("{} must be {}, not {}", name, what, kind_name(v)); };
  std::string text = v.is_string() ? v.get<std::string>() : v.dump();
  if (setting.kind == Kind::Choice) {
    if (!v.is_string()) return must_be(fmt::format("a string ({})", comma_list(setting.choices)));
  } else if (setting.kind == Kind::Layers) {
    if (!v.is_number() && !v.is_array()) return must_be("a number of layers or a list of them");
    if (v.is_array()) {
      text.clear();
      for (const json& layer : v) text += layer.dump() + ",";
    }
  } else if (setting.kind == Kind::LayerList) {
    if (v != "none" && !v.is_array()) return must_be("a list of layers or \"none\"");
    if (v.is_array()) {
      text = v.empty() ? "none" : "";
      for (const json& layer : v) text += (text.empty() ? "" : ",") + (layer.is_string() ? "" : layer.dump());
    }
  } else if (setting.kind == Kind::Tree) {
    if (!v.is_string() && !v.is_array()) return must_be("a string or a list such as \"[(0,), (1,), (0, 0)]\"");
  } else if (!v.is_number()) {
    return must_be("a number " + setting.range.text());
  }
  return parse_setting(setting, name, text);  // one place for ranges and their messages
}

// Parses with a watch on repeated keys, of which nlohmann would silently keep the last.
Result<json> parse_object(std::string_view text) {
  std::vector<std::string> seen;
  std::string repeated;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (std::ranges::find(seen, key) != seen.end() && repeated.empty()) repeated = key;
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
    return usage_error("{}: invalid JSON at character {}{}", kFlag, at + 1,
        at >= text.size() ? ", where the text ends too early" : ", near " + excerpt(text.substr(from, 24)));
  } catch (const json::exception& e) {  // numbers beyond a double
    return usage_error("{}: invalid JSON: {}", kFlag, excerpt(e.what(), 120));
  }
  if (!object.is_object())
    return usage_error("{} must be a JSON object such as '{{\"method\": \"sparse_attn\"}}', not {}", kFlag, kind_name(object));
  if (!repeated.empty()) return usage_error("{}: the key {} stands there twice", kFlag, excerpt(repeated));
  return object;
}

// Keys of vLLM that are no setting of ours: the drafter itself, and switches that may stand where they change nothing. False: not
// one of them.
Result<bool> take_vllm_key(const std::string& key, const json& v, SpeculativeConfig& config) {
  const auto wrong = [&](std::string_view what) { return usage_error("{}: \"{}\" {}", kFlag, key, what); };
  if (key == "model") {
    if (v.is_null()) return true;
    if (!v.is_string() || v.get_ref<const std::string&>().empty())
      return wrong(fmt::format("must be a string, the path of a drafter, not {}", v.is_string() ? "empty" : kind_name(v)));
    if (v == "ngram") config.values.emplace(0, std::string("ngram"));
    else config.model = v.get<std::string>();
    return true;
  }
  for (const auto& [name, only, why] : {std::tuple("draft_tensor_parallel_size", json(1), "must be 1: guesses run on one device"),
           {"parallel_drafting", json(false), "must be false: drafters that guess all tokens in one pass are not available"}})
    if (key == name) return v == only || v.is_null() ? Result<bool>(true) : wrong(why);
  if (key == "use_heterogeneous_vocab") {
    if (!v.is_boolean()) return wrong(fmt::format("must be true or false, not {}", kind_name(v)));
    const auto& settings = speculation_settings();
    const auto at = std::ranges::find(settings, "draft_vocab_mode", &SpeculationSetting::key);
    const SettingValue mode = std::string(v.get<bool>() ? "intersection" : "same");
    const auto [said, fresh] = config.values.emplace(size_t(at - settings.begin()), mode);
    if (!fresh && said->second != mode) return wrong("contradicts \"draft_vocab_mode\"; say it once");
    return true;
  }
  return false;
}

}

Result<SpeculativeConfig> parse_speculative_config(std::string_view text) {
  HUNCH_TRY(const json object, parse_object(text));
  const auto& settings = speculation_settings();
  SpeculativeConfig config;
  SettingValues& values = config.values;
  if (object.contains("method") && !object["method"].is_null()) {  // first: the keys of another method say less than its name
    HUNCH_TRY(values[0], value_of(settings[0], object["method"]));
  }
  for (const auto& [key, v] : object.items()) {
    HUNCH_TRY(const bool taken, take_vllm_key(key, v, config));
    if (taken) continue;
    const auto at = std::ranges::find(settings, key, &SpeculationSetting::key);
    if (is_neutral(key, v) || (at != settings.end() && v.is_null())) continue;
    if (at == settings.end()) return unknown_key(key);
    HUNCH_TRY(values[at - settings.begin()], value_of(*at, v));
  }
  const bool sparse = std::ranges::any_of(values, [&](const auto& v) { return settings[v.first].key.starts_with("sparse_"); });
  if (config.model && sparse && !values.contains(0))
    return usage_error("{}: \"model\" beside keys of self: say which \"method\" is meant", kFlag);
  const bool verify = std::ranges::any_of(values, [&](const auto& v) { return settings[v.first].key.starts_with("verify"); });
  if (!values.contains(0) && !config.model && !(verify && !sparse)) {
    if (!sparse)
      return usage_error(
          "{}: \"method\" is missing; there are auto, self (also spelled sparse_attn), ngram, suffix, cascade, "
          "staged, none, and {} with a \"model\"",
          kFlag, fmt::join(kDrafterMethods, ", "));
    values[0] = std::string("self");  // keys that only one method has name it
  }
  return config;
}

}
