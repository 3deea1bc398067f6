// Children drawn from a distribution (DraftLaw::Given), for any drafter. Rule ratio is exact only if they are what the law says:
// drawn without replacement, in order, and if nothing that was drawn decides how many there are.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "base/random.h"
#include "tensor/view.h"

namespace hunch {

inline constexpr size_t kMostChildren = 16;

// Fills `out`, at most kMostChildren, with children of a node whose distribution is q [vocab], in the order drawn: the best of
// log q + Gumbel noise are draws without replacement (Yellott, 1977; Kool et al., 2019). The sampler's choice and second are the
// first two of such draws, for drafters that need no more. -1 where nothing is left to draw.
inline void draw_children(View<const float, 1> q, const NoiseKey& key, NoiseStream stream, int64_t position,
                          std::span<int32_t> out) {
  HUNCH_CHECK(out.size() <= kMostChildren);
  std::array<double, kMostChildren> times;
  times.fill(std::numeric_limits<double>::infinity());
  std::fill(out.begin(), out.end(), -1);
  for (int64_t token = 0; token < q.extent[0]; ++token) {
    if (!(q(token) > 0)) continue;
    // A race: least where log q + Gumbel noise is greatest.
    double time = -std::log(uniform(key, stream, uint32_t(position), uint32_t(token))) / double(q(token));
    int32_t at = int32_t(token);
    for (size_t rank = 0; rank < out.size(); ++rank)
      if (time < times[rank]) std::swap(time, times[rank]), std::swap(at, out[rank]);
  }
}

// What a drafter may look at to decide whether a node gets another child: how likely the likeliest token is. A function of q: how
// the draw came out (the lead of its choice, the probability of what was drawn) must not be asked.
inline float likeliest(View<const float, 1> q) {
  float most = 0;
  for (int64_t token = 0; token < q.extent[0]; ++token) most = std::max(most, q(token));
  return most;
}

}  // namespace hunch
