// The noise of base/random.h on the device: the same 32 bits for the same key, stream, position and id.
#pragma once

#include <cstdint>

#include "backend/cuda/ptx.h"

namespace hunch {

struct NoiseSource {
  uint32_t key[2];
  uint32_t position, stream, sample;

  // Bits of ids 4 * block .. 4 * block + 3 (Philox4x32-10).
  HUNCH_DEVICE uint4 bits_of_four(uint32_t block) const {
    uint4 c{block, position, stream, sample};
    uint32_t k0 = key[0], k1 = key[1];
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const uint32_t a_high = __umulhi(0xD2511F53u, c.x), a_low = 0xD2511F53u * c.x;
      const uint32_t b_high = __umulhi(0xCD9E8D57u, c.z), b_low = 0xCD9E8D57u * c.z;
      c = {b_high ^ c.y ^ k0, b_low, a_high ^ c.w ^ k1, a_low};
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return c;
  }
  HUNCH_DEVICE uint32_t bits(uint32_t id) const {
    const uint4 four = bits_of_four(id / 4);
    const uint32_t lane = id % 4;
    return lane == 0 ? four.x : lane == 1 ? four.y : lane == 2 ? four.z : four.w;
  }
};

// -log(-log u), u = (bits + 0.5) / 2^32.
HUNCH_DEVICE double gumbel(uint32_t bits) { return -log(-log((double(bits) + 0.5) * 0x1p-32)); }
// -log u and the former within 1e-4: filters before the exact forms. Near u = 1 the logarithm is a series of 1 - u.
HUNCH_DEVICE float exponential_about(uint32_t bits) {
  const float rest = (float(~bits) + 0.5f) * 0x1p-32f;  // 1 - u
  const float series = rest * fmaf(rest, fmaf(rest, fmaf(rest, 0.25f, 1 / 3.0f), 0.5f), 1);
  return rest < 0.03125f ? series : -__logf((float(bits) + 0.5f) * 0x1p-32f);
}
HUNCH_DEVICE float gumbel_about(uint32_t bits) { return -__logf(exponential_about(bits)); }

}
