// Copies between memory of one backend, in order with the other ops.
#pragma once

#include <cstdint>

#include "tensor/view.h"

namespace hunch {

// to[r] = from[r]; rows may be strided, the two do not overlap. With one row in `from`, every row of `to` becomes that.
struct CopyRowsArgs {
  View<const float, 2> from;  // [rows or 1][n]
  View<float, 2> to;          // [rows][n]
};

// to[r][map(i)] = from[r][i], and `fill` in every other column: logits over a part of a vocabulary in the numbers of the whole.
// `from` and `to` do not overlap, rows may be strided. `map` is made once and stays as long as ops may read it: ids in memory of
// the backend, allocate(bytes, Memory::Shared) that the host writes before the first op.
struct ScatterColumnsArgs {
  View<const float, 2> from;   // [rows][n]
  View<const int32_t, 1> map;  // [n] columns of `to`, none twice; -1: left out
  View<float, 2> to;           // [rows][columns]
  float fill = 0;              // -inf for logits
};

// to[i] = from[i]; both may be strided (a column of tokens by step and draft).
struct CopyTokensArgs {
  View<const int32_t, 1> from;
  View<int32_t, 1> to;
};

}  // namespace hunch
