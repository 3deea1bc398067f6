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

// to[i] = from[i]; both may be strided (a column of tokens by step and draft).
struct CopyTokensArgs {
  View<const int32_t, 1> from;
  View<int32_t, 1> to;
};

// to[r][map[i]] = from[r][i]; every other column becomes `fill`: logits of a draft vocabulary in the target's numbering.
struct ScatterColumnsArgs {
  View<const float, 2> from;   // [rows][n]
  View<const int32_t, 1> map;  // [n] columns of `to`, ascending
  View<float, 2> to;           // [rows][m]
  float fill = 0;
};

}  // namespace hunch
