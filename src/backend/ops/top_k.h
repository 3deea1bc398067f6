// Selection: the k best entries of a score array, ascending, ties to the lower index; the same result on every backend.
#pragma once

#include "tensor/view.h"

namespace hunch {

// For each set: S'(j) = max over 0 <= t <= spread of 0.98^t S(j - t) (forward dilation, by doubling: y(j) = max(y(j),
// 0.98^st y(j - st)) for t = 0, st = min(t + 1, n - t), t += st until t = n), then `sinks` first and `recent` last entries count
// as +inf, then the `count` greatest by (score descending, index ascending); NaN ranks lowest, -0 equals +0.
// Requires 1 <= count <= n. Spread is for scores >= 0 only. Without scores (data null) the list is the `sinks` first and `recent`
// last entries, count = sinks + recent. With a block > 1 all of this is about blocks of so many entries, and what is chosen are
// theirs: of block b those from b * block on.
struct TopKArgs {
  View<const float, 2> scores;  // [sets][>= n]
  int64_t n = 0, count = 0;
  int spread = 0, sinks = 0, recent = 0;
  int block = 1;
  View<int32_t, 2> index;  // [sets][count * block], ascending
};

// Scores of neighbours together, before a choice. pool > 1: means over so many entries around each (odd; cut at the ends, the
// divisor stays). block > 1: the greatest of each whole block, n / block of them.
struct ReduceScoresArgs {
  View<const float, 2> scores;  // [sets][>= n]
  int64_t n = 0;
  int pool = 1, block = 1;  // one of them is 1
  View<float, 2> out;       // [sets][>= n, or n / block]
};

}
