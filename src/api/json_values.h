// Values out of JSON that nobody has checked (simdjson): every reader names the key, what was wanted and what stood there. Used
// by the tables of keys of requests.
#pragma once

#include <simdjson.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "api/values.h"
#include "base/result.h"

namespace hunch {

inline constexpr int kMaxJsonDepth = 64;
inline constexpr double kMostId = 1 << 30;

// The root, alive as long as the parser. Errors: where the text stops being JSON, deeper nesting than `depth`, no memory.
Result<simdjson::dom::element> parse_json(simdjson::dom::parser& parser, std::string_view json, int depth = kMaxJsonDepth);

std::string_view kind_name(const simdjson::dom::element& v);  // "a string"
Error wanted(std::string_view key, std::string_view what, const simdjson::dom::element& v);

Result<double> number_value(std::string_view key, const simdjson::dom::element& v, const Range& range);
Result<int64_t> whole_value(std::string_view key, const simdjson::dom::element& v, const Range& range);
Result<bool> truth_value(std::string_view key, const simdjson::dom::element& v);
Result<std::string> text_value(std::string_view key, const simdjson::dom::element& v);
Result<std::vector<int32_t>> ids_value(std::string_view key, const simdjson::dom::element& v, size_t most = SIZE_MAX);
// A string or a list of strings, none of them empty.
Result<std::vector<std::string>> texts_value(std::string_view key, const simdjson::dom::element& v, size_t most = SIZE_MAX);

// The same value, order of keys kept, for what is handed on as a whole.
nlohmann::ordered_json copy_of(const simdjson::dom::element& v);

}
