// The clocks of everything that is timed.
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <vector>

namespace hunch {

using Clock = std::chrono::steady_clock;
inline double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}
// This thread's processor time: a busy machine makes work slow, not large.
inline double thread_seconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return double(used.tv_sec) + 1e-9 * double(used.tv_nsec);
}
// The upper one of two in the middle.
inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}
