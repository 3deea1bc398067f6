// Rotary position embedding: contract in backend/ops/rope.h.

#include "backend/ops/rope.h"

#include "backend/reference/reference_backend.h"

namespace hunch {

void ReferenceBackend::rope_angles(const RopeAnglesArgs& args) {
  for (int64_t r = 0; r < args.positions.extent[0]; ++r) {
    for (int64_t i = 0; i < args.inv_freq.extent[0]; ++i) {
      // The product is rounded to fp32 before the functions see it: at position 30,000 that moves the fast pairs by a thousandth
      // of a radian, and models were trained with it.
      const float angle = float(args.positions(r)) * args.inv_freq(i);
      args.cos_sin(r, i, 0) = std::cos(angle) * args.magnitude;
      args.cos_sin(r, i, 1) = std::sin(angle) * args.magnitude;
    }
  }
}

void ReferenceBackend::rope(const RopeArgs& args) {
  const int64_t half = args.cos_sin.extent[1];
  for (int64_t r = 0; r < args.x.extent[0]; ++r) {
    for (int64_t h = 0; h < args.x.extent[1]; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const bool halves = args.pairs == RopePairs::Halves;
        float& a = args.x(r, h, halves ? i : 2 * i);
        float& b = args.x(r, h, halves ? i + half : 2 * i + 1);
        const float cos = args.cos_sin(r, i, 0), sin = args.cos_sin(r, i, 1);
        const float rotated_a = a * cos - b * sin, rotated_b = b * cos + a * sin;
        a = rotated_a, b = rotated_b;
      }
    }
  }
}

}
