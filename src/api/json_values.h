// Values out of JSON that nobody has checked (simdjson): every reader names the key, what was wanted and what stood there. Used
// by the tables of keys of requests.
#pragma once

#include <simdjson.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "api/values.h"

namespace hunch {

// As all readers of requests call them.
using simdjson::SUCCESS;
using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

inline constexpr int kMaxJsonDepth = 64;
inline constexpr double kMostId = 1 << 30;

// The root, alive as long as the parser. Errors: where the text stops being JSON, deeper nesting than `depth`, no memory.
Result<element> parse_json(simdjson::dom::parser& parser, std::string_view json, int depth = kMaxJsonDepth);

// A value under its key.
struct Field : element {
  std::string_view key;
};

std::string_view kind_name(const element& v);  // "a string"
Error wanted(const Field& v, std::string_view what);
// Its key, and right behind it these words.
template <class... Args>
Error wrong(const Field& v, fmt::format_string<Args...> words, Args&&... args) {
  return usage_error("\"{}\"{}", v.key, fmt::format(words, std::forward<Args>(args)...));
}

Result<double> number_value(const Field& v, const Range& range);
Result<int64_t> whole_value(const Field& v, const Range& range);
Result<bool> truth_value(const Field& v);
Result<std::string> text_value(const Field& v);
Result<std::vector<int32_t>> ids_value(const Field& v, size_t most = SIZE_MAX);
// A string or a list of strings, none of them empty.
Result<std::vector<std::string>> texts_value(const Field& v, size_t most = SIZE_MAX);

// The same value, order of keys kept, for what is handed on as a whole.
nlohmann::ordered_json copy_of(const element& v);

}
