// Selection: the k best entries of a score array, ascending, ties to the lower index; the same result on every backend.
#pragma once

#include <cstdint>

#include "tensor/view.h"

namespace hunch {

// For each set: S'(j) = max over 0 <= t <= spread of 0.98^t S(j - t) (forward dilation, by doubling: y(j) = max(y(j),
// 0.98^st y(j - st)) for t = 0, st = min(t + 1, n - t), t += st until t = n), then `sinks` first and `recent` last entries count
// as +inf, then the `count` greatest by (score descending, index ascending); NaN ranks lowest, -0 equals +0.
// Requires 1 <= count <= n. Spread is for scores >= 0 only.
struct TopKArgs {
  View<const float, 2> scores;  // [sets][>= n]
  int64_t n = 0, count = 0;
  int spread = 0, sinks = 0, recent = 0;
  View<int32_t, 2> index;  // [sets][count], ascending
};

}  // namespace hunch
