#include "cli/setting_sources.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/nearest.h"
#include "cli/request_flags.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using Texts = std::vector<std::string>;

using Json = nlohmann::ordered_json;

struct Renamed {
  std::string_view variable, flag;
};
// llama.cpp's variables whose names are not the flag's in capitals.
constexpr Renamed kLlama[] = {{"LLAMA_API_KEY", "--api-key"}, {"LLAMA_ARG_N_PARALLEL", "--parallel"},
    {"LLAMA_ARG_N_PREDICT", "--n-predict"}, {"LLAMA_ARG_THREADS_HTTP", "--threads-http"}, {"LLAMA_ARG_CACHE_TYPE_K", "-ctk"},
    {"LLAMA_ARG_CACHE_TYPE_V", "-ctv"}, {"LLAMA_ARG_ENDPOINT_METRICS", "--metrics"}, {"LLAMA_ARG_ENDPOINT_SLOTS", "--slots"},
    {"LLAMA_ARG_ENDPOINT_PROPS", "--props"}, {"LLAMA_ARG_MODEL_DRAFT", "--model-draft"}, {"LLAMA_ARG_DRAFT_MAX", "--draft-max"},
    {"LLAMA_ARG_BATCH", "--batch-size"}, {"VLLM_API_KEY", "--api-key"}};

bool says_yes(std::string_view v) { return v == "1" || v == "true" || v == "on" || v == "enabled" || v == "yes"; }
bool says_no(std::string_view v) { return v == "0" || v == "false" || v == "off" || v == "disabled" || v == "no"; }

// "max_num_seqs", "MAX_NUM_SEQS" -> "--max-num-seqs"
std::string flag_of(std::string_view key) {
  std::string out = key.size() == 1 ? "-" : "--";
  for (const char c : key) out += c == '_' ? '-' : c >= 'A' && c <= 'Z' ? char(c + 32) : c;
  return out;
}

// One setting as arguments. False: there is no such flag, or no such switch.
bool add(const FlagSet& set, const std::string& flag, const std::string& value, Texts& out) {
  const auto arity = set.arity(flag);
  if (!arity) return false;
  if (*arity != FlagSet::Arity::None) {
    out.push_back(flag), out.push_back(value);
    return true;
  }
  if (says_yes(value)) {
    out.push_back(flag);
    return true;
  }
  if (!says_no(value)) return false;
  const std::string off = "--no-" + flag.substr(2);
  if (set.arity(off)) out.push_back(off);  // else it is off by itself
  return true;
}

std::string trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r' || text.back() == '\t')) text.remove_suffix(1);
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  return std::string(text);
}

// A scalar of YAML as people write it: quoted, a number or word, or JSON for lists and objects.
Json yaml_scalar(const std::string& text) {
  if (text.size() >= 2 && text.front() == '\'' && text.back() == '\'') return text.substr(1, text.size() - 2);
  if (!text.empty() && (text[0] == '"' || text[0] == '[' || text[0] == '{')) {
    Json value = Json::parse(text, nullptr, false);
    if (!value.is_discarded()) return value;
    if (text.front() == '[' && text.back() == ']') {  // of bare words
      value = Json::array();
      for (size_t at = 1, end; at < text.size(); at = end + 1) {
        end = std::min(text.find(',', at), text.size() - 1);
        value.push_back(yaml_scalar(trimmed(std::string_view(text).substr(at, end - at))));
      }
      return value;
    }
  }
  return text;
}

Result<Json> parse_yaml(std::string_view text, const std::string& path) {
  Json out = Json::object();
  std::string key;
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1, ++number;
    size_t from = line.find_first_of("#'\"");  // a "#" in quotes begins no comment
    from = from != line.npos && from > 0 && line[from - 1] == ' ' && line[from] != '#' ? line.find(line[from], from + 1) : 0;
    const size_t comment = line.starts_with('#') ? 0 : line.find(" #", from);
    line = line.substr(0, comment);
    const std::string content = trimmed(line);
    if (content.empty() || content == "---") continue;
    if (content.starts_with("- ") && !key.empty() && (out[key].is_array() || out[key] == "")) {
      if (!out[key].is_array()) out[key] = Json::array();
      out[key].push_back(yaml_scalar(trimmed(std::string_view(content).substr(2))));
      continue;
    }
    const size_t colon = content.find(':');
    if (colon == content.npos || line[0] == ' ' || line[0] == '\t')
      return usage_error(
          "{}: line {} is neither `key: value` nor `- value` of a list; objects go on one line as JSON", path, number);
    key = trimmed(std::string_view(content).substr(0, colon));
    if (out.contains(key)) return usage_error("{}: line {}: {} stands there twice", path, number, excerpt(key));
    out[key] = yaml_scalar(trimmed(std::string_view(content).substr(colon + 1)));
  }
  return out;
}

std::string as_text(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}

Result<Texts> config_text_arguments(const FlagSet& set, std::string_view text, const std::string& path) {
  Json config;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && text[first] == '{') {
    config = Json::parse(text, nullptr, false);
    if (!config.is_object()) return usage_error("{}: this is not a JSON object", path);
  } else {
    HUNCH_TRY(config, parse_yaml(text, path));
  }
  Texts out;
  for (const auto& [key, value] : config.items()) {
    const std::string flag = flag_of(key);
    if (!set.arity(flag)) {
      const std::vector<std::string_view> known = set.known_names();
      return usage_error("{}: there is no setting {}{}", path, excerpt(key), did_you_mean(flag, known));
    }
    const Json values = value.is_array() ? value : Json::array({value});
    for (const Json& one : values)
      if (!add(set, flag, as_text(one), out))
        return usage_error("{}: {} is a switch: true or false, not {}", path, excerpt(key), excerpt(as_text(one)));
  }
  return out;
}

Result<Texts> config_arguments(const FlagSet& set, const std::string& path) {
  HUNCH_TRY(const std::string text, read_text_file(path));
  return config_text_arguments(set, text, path);
}

Texts environment() {
  Texts out;
  for (char** at = environ; at && *at; ++at) out.emplace_back(*at);
  return out;
}

Texts environment_arguments(const FlagSet& set, const Texts& environment, std::span<const std::string> arguments) {
  Texts llama, own;
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (equals == entry.npos || equals + 1 == entry.size()) continue;
    const std::string_view name = std::string_view(entry).substr(0, equals);
    const std::string value = entry.substr(equals + 1);
    const auto put = [&](const std::string& flag, Texts& out) {
      const auto says = [&](const std::string& a) { return a == flag || a.starts_with(flag + "="); };
      if (std::ranges::none_of(arguments, says)) add(set, flag, value, out);
    };
    const auto renamed = std::find_if(std::begin(kLlama), std::end(kLlama), [&](const Renamed& r) { return r.variable == name; });
    if (renamed != std::end(kLlama)) put(std::string(renamed->flag), llama);
    else if (name.starts_with("LLAMA_ARG_")) put(flag_of(name.substr(10)), llama);
    else if (name.starts_with("HUNCH_")) put(flag_of(name.substr(6)), own);
  }
  llama.insert(llama.end(), own.begin(), own.end());  // ours win
  return llama;
}

}
