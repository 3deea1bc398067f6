// RMS norm and the SwiGLU gate.
#pragma once

#include "tensor/view.h"

namespace hunch {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. `x` and `out` may be the same view; rows may be strided.
struct NormArgs {
  View<const float, 2> x;         // [rows][n]; for q/k norm a row is one head
  const float* weight = nullptr;  // [n]
  double eps = 1e-6;
  View<float, 2> out;
};

// out = silu(gate) * up, silu(a) = a / (1 + exp(-a)). `out` may be `gate`.
struct GateArgs {
  View<const float, 2> gate, up;  // [rows][n]
  View<float, 2> out;
};

}  // namespace hunch
