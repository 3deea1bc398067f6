// A token by its weight, as an exponential race: the least -log(u) / weight wins, so nothing needs normalising.
#pragma once

#include <cmath>

#include "base/random.h"

namespace hunch {

// A token of [0, tokens) with probability proportional to its weight; -1: no weight is above 0.
template <class Weight>
int32_t race(const NoiseKey& key, int64_t position, int64_t tokens, Weight&& weight_of) {
  int32_t best = -1;
  double least = INFINITY;
  for (int64_t token = 0; token < tokens; ++token) {
    const double weight = weight_of(token);
    if (!(weight > 0)) continue;
    const double time = -std::log(uniform(key, NoiseStream::Residual, uint32_t(position), uint32_t(token))) / weight;
    if (time < least) least = time, best = int32_t(token);
  }
  return best;
}

// Rule ratio's residual: by max(0, p - q), or by p where that vanishes everywhere (rounding only).
template <class Probs>
int32_t race_residual(const NoiseKey& key, int64_t position, int64_t tokens, const Probs& p, const Probs& q) {
  for (const bool subtract : {true, false}) {
    const auto weight_of = [&](int64_t token) { return double(p(token)) - (subtract ? double(q(token)) : 0.0); };
    const int32_t best = race(key, position, tokens, weight_of);
    if (best >= 0) return best;
  }
  return -1;
}

}
