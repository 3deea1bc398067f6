// Speculation of one request: speculative_config with the keys of the flag of that name, or a word; and whether it must not
// change what the model says.
#include <fmt/format.h>

#include <algorithm>

#include "api/body_keys.h"
#include "api/json_text.h"
#include "api/nearest.h"
#include "api/speculation_settings.h"
#include "text/excerpt.h"

namespace hunch {

Status read_lossless(const Field& v, BodyReader& in) {
  std::string_view word;
  bool on = false;
  if (v.get(on) == SUCCESS) in.out.lossless_required |= on;
  else if (v.get(word) == SUCCESS && word == "required") in.out.lossless_required = true;
  else if (v.get(word) != SUCCESS || word != "any") return wrong(v, " must be \"required\" (or true) or \"any\" (or false)");
  return {};
}

Status read_speculative_config(const Field& v, BodyReader& in) {
  std::string_view word;
  bool on = true;
  if (v.get(word) == SUCCESS || (v.get(on) == SUCCESS && !on)) {
    in.out.speculation = json_line({{"method", !on || word == "off" ? "none" : std::string(word)}});
    return {};
  }
  object fields;
  if (v.get(fields) != SUCCESS) return wanted(v, "an object, or a word: \"off\" or a method");
  // The one key that a flag does not know; the rest goes to the reader of the flag.
  element lossless;
  if (fields["lossless"].get(lossless) != SUCCESS) {
    if (fields.size() > 0) in.out.speculation = simdjson::minify(v);
    return {};
  }
  HUNCH_OK(read_lossless({lossless, "lossless"}, in));
  auto rest = nlohmann::ordered_json::object();
  size_t keys = 0;
  for (const auto& [name, value] : fields) {
    if (++keys > kMaxBodyKeys) return wrong(v, " has too many keys");
    if (name == "lossless") continue;
    if (rest.contains(std::string(name))) return wrong(v, ": the key {} stands there twice", excerpt(name));
    rest[std::string(name)] = copy_of(value);
  }
  if (!rest.empty()) in.out.speculation = json_line(rest);
  return {};
}

Status check_no_speculation_meant(std::string_view key) {
  const auto meant_inside = [&](std::string_view inner) {
    return usage_error("unknown key {}: settings of speculation stand inside \"speculative_config\"{}", excerpt(key),
        inner.empty() ? "" : fmt::format(", as \"{}\"", inner));
  };
  for (const SpeculationSetting& setting : speculation_settings())
    if (key == setting.key && key != "rule") return meant_inside(setting.key);
  constexpr std::string_view kBegins[] = {"spec", "draft", "sparse_attn", "ngram_", "prompt_lookup", "suffix_decoding"};
  const bool begun = std::ranges::any_of(kBegins, [&](std::string_view b) { return key.starts_with(b); });
  // One or two slips away from the key itself: letters swapped at its beginning, "eculative_config".
  const bool near_outside = key.size() >= 8 && edit_distance(key.substr(0, 64), "speculative_config") <= 3;
  std::vector<std::string_view> known{"speculative_config", "lossless"};
  if (const std::string_view near = nearest_word(key, known); !near.empty())
    return usage_error("unknown key {} (did you mean {}?)", excerpt(key), near);
  std::vector<std::string_view> inner;
  for (const SpeculationSetting& setting : speculation_settings()) inner.push_back(setting.key);
  const std::string_view near = nearest_word(key, inner);
  return begun || near_outside || (key.size() > 6 && !near.empty()) ? meant_inside(near) : Status();
}

}
