// Copies between memory of one backend, in order with the other ops.
#pragma once

#include <span>

#include "tensor/view.h"

namespace hunch {

// to[r] = from[r]; rows may be strided, the two do not overlap. With one row in `from`, every row of `to` becomes that.
struct CopyRowsArgs {
  View<const float, 2> from;          // [rows or 1][n]; with `index` any number of rows
  View<float, 2> to;                  // [rows][n]
  View<const int32_t, 1> index = {};  // [rows] to[r] = from[index(r)], in memory of the backend; data null: from[r]
};

// to[r][map(i)] = from[r][i]: logits over a part of a vocabulary in the numbers of the whole. Columns that the map does not name
// keep what they hold (-infinity, put there once). `from` and `to` do not overlap, rows may be strided. `map`: constant_ids().
struct ScatterColumnsArgs {
  View<const float, 2> from;   // [rows][n]
  View<const int32_t, 1> map;  // [n] columns of `to`, none twice; -1: left out
  View<float, 2> to;           // [rows][columns]
};

// to[i] = from[i]; both may be strided (a column of tokens by step and draft).
struct CopyTokensArgs {
  View<const int32_t, 1> from;
  View<int32_t, 1> to;
  std::span<const int32_t> index = {};  // [to] to[i] = from[index[i]], host memory; empty: from[i]
};

}
