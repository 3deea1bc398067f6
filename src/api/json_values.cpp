#include "api/json_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/excerpt.h"
#include "text/unicode.h"

namespace hunch {
namespace {

using simdjson::SUCCESS;
using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

// simdjson says what is wrong and not where; this second reader only looks for the place.
struct FaultFinder : nlohmann::json_sax<nlohmann::json> {
  size_t at = 0;
  bool found = false;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
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
  return usage_error(fmt::format(
      "not JSON: {} (byte {}{})", what, at, at < json.size() ? ", near " + excerpt(json.substr(at), 24) : ", where it ends"));
}

}

Result<element> parse_json(simdjson::dom::parser& parser, std::string_view json, int depth) {
  if (parser.allocate(std::max<size_t>(json.size(), 64), size_t(depth)) != SUCCESS) return Error{"no memory to read the request"};
  element root;
  const auto error = parser.parse(json.data(), json.size()).get(root);
  if (error == simdjson::DEPTH_ERROR) return usage_error(fmt::format("JSON nested deeper than {}", depth));
  if (error == simdjson::MEMALLOC) return Error{"no memory to read the request"};
  if (error != SUCCESS) return not_json(json, error);
  return root;
}

std::string_view kind_name(const element& v) {
  switch (v.type()) {
    case element_type::NULL_VALUE: return "null";
    case element_type::BOOL: return "true or false";
    case element_type::STRING: return "a string";
    case element_type::ARRAY: return "a list";
    case element_type::OBJECT: return "an object";
    default: return "a number";
  }
}

Error wanted(std::string_view key, std::string_view what, const element& v) {
  return usage_error(fmt::format("\"{}\" must be {}, not {}", key, what, kind_name(v)));
}

Result<double> number_value(std::string_view key, const element& v, const Range& range) {
  double x = 0;
  if (v.get(x) != SUCCESS) return wanted(key, fmt::format("a number {}", range.text()), v);
  if (!std::isfinite(x) || !range.holds(x))
    return usage_error(fmt::format("\"{}\" must be a number {}, not {:g}", key, range.text(), x));
  return x;
}

Result<int64_t> whole_value(std::string_view key, const element& v, const Range& range) {
  double x = 0;
  if (v.get(x) != SUCCESS) return wanted(key, fmt::format("a whole number {}", range.text()), v);
  if (!range.holds(x) || x != std::floor(x))
    return usage_error(fmt::format("\"{}\" must be a whole number {}, not {:g}", key, range.text(), x));
  return int64_t(x);
}

Result<bool> truth_value(std::string_view key, const element& v) {
  bool b = false;
  if (v.get(b) != SUCCESS) return wanted(key, "true or false", v);
  return b;
}

Result<std::string> text_value(std::string_view key, const element& v) {
  std::string_view s;
  if (v.get(s) != SUCCESS) return wanted(key, "a string", v);
  // The escape of half a surrogate pair may have become bytes that are no text.
  if (const auto at = first_invalid_utf8(s))
    return usage_error(fmt::format("\"{}\" is no valid Unicode from its byte {} on (half a surrogate pair?)", key, *at));
  return std::string(s);
}

Result<std::vector<int32_t>> ids_value(std::string_view key, const element& v, size_t most) {
  array list;
  if (v.get(list) != SUCCESS) return wanted(key, "a list of token ids", v);
  std::vector<int32_t> ids;
  for (const element item : list) {
    if (ids.size() == most) return usage_error(fmt::format("\"{}\" has more than {} token ids", key, most));
    double x = 0;
    // Whatever stands there, a list of a million needs its place.
    if (item.get(x) != SUCCESS || x != std::floor(x) || !(x >= 0 && x <= kMostId)) {
      const std::string there = item.get(x) == SUCCESS ? fmt::format("{:g}", x) : std::string(kind_name(item));
      return usage_error(fmt::format(
          "\"{}\": item {} must be a token id, a whole number in 0..{}, not {}", key, ids.size(), int64_t(kMostId), there));
    }
    ids.push_back(int32_t(x));
  }
  return ids;
}

Result<std::vector<std::string>> texts_value(std::string_view key, const element& v, size_t most) {
  std::vector<std::string> out;
  array list;
  if (v.get(list) == SUCCESS) {
    for (const element item : list) {
      if (out.size() == most) return usage_error(fmt::format("\"{}\" has more than {} texts", key, most));
      HUNCH_TRY(std::string s, text_value(key, item));
      out.push_back(std::move(s));
    }
  } else {
    if (!v.is_string()) return wanted(key, "a string or a list of strings", v);
    HUNCH_TRY(std::string s, text_value(key, v));
    out.push_back(std::move(s));
  }
  if (std::ranges::find(out, "") != out.end()) return usage_error(fmt::format("\"{}\" holds an empty string: leave it out", key));
  return out;
}

nlohmann::ordered_json copy_of(const element& v) {
  switch (v.type()) {
    case element_type::NULL_VALUE: return nullptr;
    case element_type::BOOL: return bool(v);
    case element_type::STRING: return std::string(std::string_view(v));
    case element_type::INT64: return int64_t(v);
    case element_type::UINT64: return uint64_t(v);
    case element_type::DOUBLE: return double(v);
    case element_type::ARRAY: {
      auto out = nlohmann::ordered_json::array();
      for (const element item : array(v)) out.push_back(copy_of(item));
      return out;
    }
    case element_type::OBJECT: break;
  }
  auto out = nlohmann::ordered_json::object();
  // Past the look-up of the map, which is linear: a million keys must not cost a million times a million.
  std::vector<std::pair<const std::string, nlohmann::ordered_json>>& entries = out.get_ref<nlohmann::ordered_json::object_t&>();
  for (const auto& [name, value] : object(v)) entries.emplace_back(std::string(name), copy_of(value));
  return out;
}

}
