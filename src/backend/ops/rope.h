// Rotary position embedding (Su et al., 2021): the angles of a pass are made once, every layer applies them.
#pragma once

#include "checkpoint/shape.h"
#include "tensor/view.h"

namespace hunch {

// cos_sin[r][i] = {cos, sin}(position[r] * inv_freq[i]) * magnitude, angles in fp32 as the reference implementations do.
struct RopeAnglesArgs {
  View<const int32_t, 1> positions;  // [rows]
  View<const float, 1> inv_freq;     // [d/2], scaling already applied
  float magnitude = 1;               // yarn's attention factor
  View<float, 3> cos_sin;            // [rows][d/2][2]
};

// Rotates the first d elements of every head in place.
struct RopeArgs {
  View<float, 3> x;              // [rows][heads][head_dim]
  View<const float, 3> cos_sin;  // [rows][d/2][2]
  RopePairs pairs = RopePairs::Halves;
};

// Queries and keys made ready for attention: RMS norm of every head where weights are given, then rope, both in place. The
// default calls norm and rope; a device does it in one step.
struct ReadyHeadsArgs {
  View<float, 3> q, k;                               // [rows][heads or kv_heads][head_dim]
  const float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim]; null: no norm
  double eps = 1e-6;
  View<const float, 3> cos_sin;  // [rows][d/2][2]
  RopePairs pairs = RopePairs::Halves;
};

}
