// What tests of all folders say of texts and results. A failure names the caller's line.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <source_location>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hunch {
using Ints = std::vector<int32_t>;
}
namespace hunch::test {

using Place = std::source_location;

// `text` holds `part`; a failure shows both.
inline void expect_part(std::string_view text, std::string_view part, const Place& place = Place::current()) {
  if (text.find(part) == text.npos) ADD_FAILURE_AT(place.file_name(), int(place.line())) << part << " in: " << text;
}

// The message of a Result or Status; "accepted" where there is none.
template <class R>
std::string error_of(const R& result) {
  return result.ok() ? "accepted" : result.error().message;
}
template <class R>
void expect_error(const R& result, std::string_view part, const Place& place = Place::current()) {
  expect_part(error_of(result), part, place);
}

// A NaN equals itself, and 0 is not -0.
inline bool same_bits(const float* a, const float* b, size_t n) { return n == 0 || std::memcmp(a, b, n * sizeof(float)) == 0; }
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

// The value; where there is none, the message is shown and the program ends.
template <class T>
T good(Result<T> result, const Place& place = Place::current()) {
  if (!result.ok()) ADD_FAILURE_AT(place.file_name(), int(place.line())) << result.error().message;
  return std::move(result).value();
}

}
