// Speculation of one request: speculative_config with the keys of the flag of that name, or a word; and whether it must not
// change what the model says.
#include <fmt/format.h>

#include <algorithm>

#include "api/body_keys.h"
#include "api/nearest.h"
#include "api/speculation_settings.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using simdjson::SUCCESS;
using simdjson::dom::element;
using simdjson::dom::object;

}

Status read_lossless(std::string_view key, const element& v, BodyReader& in) {
  std::string_view word;
  bool on = false;
  if (v.get(on) == SUCCESS) in.out.lossless_required |= on;
  else if (v.get(word) == SUCCESS && word == "required") in.out.lossless_required = true;
  else if (v.get(word) != SUCCESS || word != "any")
    return usage_error(fmt::format("\"{}\" must be \"required\" (or true) or \"any\" (or false)", key));
  return {};
}

Status read_speculative_config(std::string_view key, const element& v, BodyReader& in) {
  std::string_view word;
  bool on = true;
  if (v.get(word) == SUCCESS || (v.get(on) == SUCCESS && !on)) {
    in.out.speculation = nlohmann::json{{"method", !on || word == "off" ? "none" : std::string(word)}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace);
    return {};
  }
  object fields;
  if (v.get(fields) != SUCCESS) return wanted(key, "an object, or a word: \"off\" or a method", v);
  // The one key that a flag does not know; the rest goes to the reader of the flag.
  element lossless;
  if (fields["lossless"].get(lossless) != SUCCESS) {
    if (fields.size() > 0) in.out.speculation = simdjson::minify(v);
    return {};
  }
  HUNCH_OK(read_lossless("lossless", lossless, in));
  nlohmann::ordered_json rest = nlohmann::ordered_json::object();
  size_t keys = 0;
  for (const auto& [name, value] : fields) {
    if (++keys > kMaxBodyKeys) return usage_error(fmt::format("\"{}\" has too many keys", key));
    if (name == "lossless") continue;
    if (rest.contains(std::string(name)))
      return usage_error(fmt::format("\"{}\": the key {} stands there twice", key, excerpt(name)));
    rest[std::string(name)] = copy_of(value);
  }
  if (!rest.empty()) in.out.speculation = rest.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return {};
}

Status check_no_speculation_meant(std::string_view key) {
  const auto meant_inside = [&](std::string_view inner) {
    return usage_error(fmt::format("unknown key {}: settings of speculation stand inside \"speculative_config\"{}", excerpt(key),
        inner.empty() ? "" : fmt::format(", as \"{}\"", inner)));
  };
  for (const SpeculationSetting& setting : speculation_settings())
    if (key == setting.key && key != "rule") return meant_inside(setting.key);
  const std::string_view begins[] = {"spec", "draft", "sparse_attn", "ngram_", "prompt_lookup", "suffix_decoding"};
  const bool begun = std::any_of(std::begin(begins), std::end(begins), [&](std::string_view b) { return key.starts_with(b); });
  // One or two slips away from the key itself: letters swapped at its beginning, "eculative_config".
  if (!begun && (key.size() < 8 || edit_distance(key.substr(0, 64), "speculative_config") > 3)) return {};
  std::vector<std::string_view> known{"speculative_config"};
  if (const std::string_view near = nearest_word(key, known); !near.empty())
    return usage_error(fmt::format("unknown key {} (did you mean {}?)", excerpt(key), near));
  std::vector<std::string_view> inner;
  for (const SpeculationSetting& setting : speculation_settings()) inner.push_back(setting.key);
  return meant_inside(nearest_word(key, inner));
}

}
