// The gate of an FFN, one element (backend/ops/norm.h).
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/ops/norm.h"

namespace hunch {

// Within 4 + 1.2 |x| units in the last place: where many are computed their time counts.
HUNCH_DEVICE float silu(float x, float alpha = 1) { return __fdividef(x, 1 + __expf(-alpha * x)); }

// NaN stays.
HUNCH_DEVICE float clamped_gate(float gate, float up, const GateClamp& clamp) {
  const float limit = clamp.limit;
  const float x = gate > limit ? limit : gate, v = up > limit ? limit : up < -limit ? -limit : up;
  return (v + 1) * silu(x, clamp.alpha);
}

}
