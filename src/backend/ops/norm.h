// RMS norm and the gates of feed-forward (SwiGLU) and attention.
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

// With a limit, a gate is g sigmoid(alpha g) (u + 1) of g = min(gate, limit), u = up clamped to [-limit, limit] (gpt-oss).
struct GateClamp {
  float limit = 0;  // 0: the plain gate
  float alpha = 1;
};

// out = silu(gate) * up, silu(a) = a / (1 + exp(-a)); with `sigmoid` out = up / (1 + exp(-gate)). `out` may be `gate` or `up`;
// rows of `up` may have stride 0.
struct GateArgs {
  View<const float, 2> gate, up;  // [rows][n]
  View<float, 2> out;
  bool sigmoid = false;
  bool accumulate = false;  // out +=
  GateClamp clamp = {};     // neither with `sigmoid` nor with `accumulate`
};

}
