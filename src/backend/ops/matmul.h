// Products with weights, and the embedding look-up of a (possibly tied) table.
#pragma once

#include <span>

#include "base/dtype.h"
#include "tensor/view.h"

namespace hunch {

// A matrix [out_dim][in_dim] in the form its backend multiplies fastest; made once at load, never changed.
class Weight {
 public:
  virtual ~Weight() = default;
  DType dtype = DType::F32;
  int64_t out_dim = 0, in_dim = 0;
  size_t bytes = 0;  // that one product reads
};

struct Product {
  const Weight* weight = nullptr;  // [n][k]
  const float* bias = nullptr;     // [n] or null
  View<float, 2> out;              // [rows][n]
};

// out = x weight^T (+ bias) for every product; x is shared (quantised once per row where the encoding wants it).
// Row invariance: a row of `out` has the same bits for any number of rows and any number of products in the call.
struct MatmulArgs {
  View<const float, 2> x;  // [rows][k]
  std::span<const Product> products;
  bool accumulate = false;  // out += (the residual stream)
};

// out += down (silu(gate x) * up x), the bits of its ops one by one. What lies between them is nobody else's: `gate_out` and
// `up_out` are room for it and hold anything afterwards.
struct FeedForwardArgs {
  View<const float, 2> x;
  const Weight *gate = nullptr, *up = nullptr, *down = nullptr;
  View<float, 2> gate_out, up_out;  // [rows][width]
  View<float, 2> out;
};

// out[r] = row ids[r] of the table, dequantised; zeros for an id outside the table (a draft row without a valid number).
struct EmbedArgs {
  View<const int32_t, 1> ids;  // [rows]
  const Weight* table = nullptr;
  View<float, 2> out;  // [rows][k]
};

}
