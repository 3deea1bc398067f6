#include "api/json_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/unicode.h"

namespace hunch {
namespace {

using enum simdjson::dom::element_type;

// simdjson says what is wrong and not where; this second reader, which accepts all else, only looks for the place.
struct FaultFinder : nlohmann::detail::json_sax_acceptor<nlohmann::json> {
  size_t at = 0;
  bool found = false;

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    at = position, found = true;
    return false;
  }
};

Error not_json(std::string_view json, simdjson::error_code error) {
  std::string_view what = simdjson::error_message(error);
  if (const size_t end = what.find_first_of(".:;"); end != what.npos)
    what = what.substr(0, end);  // the rest speaks to programmers
  size_t at = 0;
  FaultFinder finder;
  if (const auto broken = first_invalid_utf8(json)) {
    at = *broken;
  } else if (!json.starts_with("\xef\xbb\xbf")) {
    nlohmann::json::sax_parse(json, &finder);
    if (!finder.found) return usage_error("a whole number in it does not fit 64 bits; make it a string");
    at = std::min(finder.at > 0 ? finder.at - 1 : 0, json.size());
  }
  return usage_error(
      "not JSON: {} (byte {}{})", what, at, at < json.size() ? "" : ", where it ends");  // prompts are not repeated
}

}

Result<element> parse_json(simdjson::dom::parser& parser, std::string_view json, int depth) {
  if (parser.allocate(std::max<size_t>(json.size(), 64), size_t(depth)) != SUCCESS) return Error{"no memory to read the request"};
  element root;
  const auto error = parser.parse(json.data(), json.size()).get(root);
  if (error == simdjson::DEPTH_ERROR) return usage_error("JSON nested deeper than {}", depth);
  if (error == simdjson::MEMALLOC) return Error{"no memory to read the request"};
  if (error != SUCCESS) return not_json(json, error);
  return root;
}

std::string_view kind_name(const element& v) {
  switch (v.type()) {
    case NULL_VALUE: return "null";
    case BOOL: return "true or false";
    case STRING: return "a string";
    case ARRAY: return "a list";
    case OBJECT: return "an object";
    default: return "a number";
  }
}

Error wanted(const Field& v, std::string_view what) { return wrong(v, " must be {}, not {}", what, kind_name(v)); }

Result<double> number_value(const Field& v, const Range& range) {
  double x = 0;
  if (v.get(x) != SUCCESS) return wanted(v, fmt::format("a number {}", range.text()));
  if (!std::isfinite(x) || !range.holds(x)) return wrong(v, " must be a number {}, not {:g}", range.text(), x);
  return x;
}

Result<int64_t> whole_value(const Field& v, const Range& range) {
  double x = 0;
  if (v.get(x) != SUCCESS) return wanted(v, fmt::format("a whole number {}", range.text()));
  if (!range.holds(x) || x != std::floor(x)) return wrong(v, " must be a whole number {}, not {:g}", range.text(), x);
  return int64_t(x);
}

Result<bool> truth_value(const Field& v) {
  bool b = false;
  if (v.get(b) != SUCCESS) return wanted(v, "true or false");
  return b;
}

Result<std::string> text_value(const Field& v) {
  std::string_view s;
  if (v.get(s) != SUCCESS) return wanted(v, "a string");
  // The escape of half a surrogate pair may have become bytes that are no text.
  if (const auto at = first_invalid_utf8(s))
    return wrong(v, " is no valid Unicode from its byte {} on (half a surrogate pair?)", *at);
  return std::string(s);
}

Result<std::vector<int32_t>> ids_value(const Field& v, size_t most) {
  array list;
  if (v.get(list) != SUCCESS) return wanted(v, "a list of token ids");
  std::vector<int32_t> ids;
  for (const element item : list) {
    if (ids.size() == most) return wrong(v, " has more than {} token ids", most);
    int64_t id = -1;
    double x = 0;
    // Whatever stands there, a list of a million needs its place.
    if (item.get(id) != SUCCESS || id < 0 || id > int64_t(kMostId)) {
      const std::string there = item.get(x) == SUCCESS ? fmt::format("{:g}", x) : std::string(kind_name(item));
      return wrong(v, ": item {} must be a token id, a whole number in 0..{}, not {}", ids.size(), int64_t(kMostId), there);
    }
    ids.push_back(int32_t(id));
  }
  return ids;
}

Result<std::vector<std::string>> texts_value(const Field& v, size_t most) {
  std::vector<std::string> out;
  array list;
  if (v.is_string()) {
    HUNCH_TRY(out.emplace_back(), text_value(v));
  } else {
    if (v.get(list) != SUCCESS) return wanted(v, "a string or a list of strings");
    for (const element item : list) {
      if (out.size() == most) return wrong(v, " has more than {} texts", most);
      HUNCH_TRY(out.emplace_back(), text_value({item, v.key}));
    }
  }
  if (std::ranges::find(out, "") != out.end()) return wrong(v, " holds an empty string: leave it out");
  return out;
}

nlohmann::ordered_json copy_of(const element& v) {
  switch (v.type()) {
    case NULL_VALUE: return nullptr;
    case BOOL: return bool(v);
    case STRING: return std::string(std::string_view(v));
    case INT64: return int64_t(v);
    case UINT64: return uint64_t(v);
    case DOUBLE: return double(v);
    case ARRAY: {
      auto out = nlohmann::ordered_json::array();
      for (const element item : array(v)) out.push_back(copy_of(item));
      return out;
    }
    case OBJECT: break;
  }
  auto out = nlohmann::ordered_json::object();
  // Past the look-up of the map, which is linear: a million keys must not cost a million times a million.
  std::vector<std::pair<const std::string, nlohmann::ordered_json>>& entries = out.get_ref<nlohmann::ordered_json::object_t&>();
  for (const auto& [name, value] : object(v)) entries.emplace_back(std::string(name), copy_of(value));
  return out;
}

}
