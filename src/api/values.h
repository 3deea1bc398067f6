// Values as people type them on the command line: whole numbers, numbers, sizes in bytes, choices. Every function returns a
// usage error that names the flag, the value and what is allowed.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "base/failure.h"

namespace hunch {

// The numbers allowed for a flag; `above_least`: the least itself is not allowed.
struct Range {
  double least = -std::numeric_limits<double>::max(), most = std::numeric_limits<double>::max();
  bool above_least = false;

  bool holds(double x) const { return (above_least ? x > least : x >= least) && x <= most; }  // false for NaN
  std::string text() const;  // "in 1..64", "above 0 and at most 1", "at least 0"
};

Result<int64_t> parse_whole(std::string_view flag, std::string_view text, const Range& range);
Result<double> parse_number(std::string_view flag, std::string_view text, const Range& range);

// Bytes: "4096", or with K M G KiB MiB GiB (powers of 1024) or KB MB GB (powers of 1000); "1.5G" is fine. At least 1.
Result<int64_t> parse_bytes(std::string_view flag, std::string_view text);

Result<std::string> parse_choice(std::string_view flag, std::string_view text, std::span<const std::string_view> choices);

// "a, b, c"
std::string comma_list(std::span<const std::string_view> words);

}
