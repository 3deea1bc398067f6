// The clock of everything that is timed.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace hunch {

using Clock = std::chrono::steady_clock;
inline double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}
// The upper one of two in the middle.
inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}
