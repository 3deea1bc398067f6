// How answers are written as JSON: one line, and the names of what ended them. Used by answers and reports.
#pragma once

#include <nlohmann/json.hpp>

#include "hunch/hunch.h"

namespace hunch {

// One line, no trailing newline. Numbers that do not exist (a speed of one token) are null; bytes that are no text are replaced.
std::string json_line(const nlohmann::ordered_json& object);

// Bytes as numbers: a token is not always whole characters.
nlohmann::ordered_json bytes_json(std::string_view bytes);

// Null where no time passed.
nlohmann::ordered_json per_second(int64_t n, double milliseconds);

// "stop", "length", "interrupted"
std::string_view finish_name(FinishReason reason);

}
