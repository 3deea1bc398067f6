// Chance: the only source of randomness of a rule, beside the target's own choice. In production keyed noise; in the proofs it
// walks every branch with its exact weight.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/random.h"
#include "tensor/view.h"

namespace hunch {

class Chance {
 public:
  virtual ~Chance() = default;
  // True with probability min(1, p / q), decided as u q <= p (no division: nothing is undefined); false if p or q is 0.
  // `position` is that of the token in question.
  virtual bool below(double p, double q, int64_t position) = 0;
  // A token with probability proportional to max(0, p - q), or to p where that vanishes everywhere (rounding only).
  virtual int32_t residual(View<const float, 1> p, View<const float, 1> q, int64_t position) = 0;
};

class KeyedChance final : public Chance {
 public:
  explicit KeyedChance(const NoiseKey& key) : key_(key) {}

  bool below(double p, double q, int64_t position) override {
    const double u = uniform(key_, NoiseStream::Accept, uint32_t(position), 0);
    return p > 0 && q > 0 && u * q <= p;
  }

  // An exponential race: the least -log(u) / weight wins, so nothing needs normalising.
  int32_t residual(View<const float, 1> p, View<const float, 1> q, int64_t position) override {
    for (const bool subtract : {true, false}) {
      int32_t best = -1;
      double least = std::numeric_limits<double>::infinity();
      for (int64_t token = 0; token < p.extent[0]; ++token) {
        const double weight = double(p(token)) - (subtract ? double(q(token)) : 0.0);
        if (!(weight > 0)) continue;
        const double time = -std::log(uniform(key_, NoiseStream::Residual, uint32_t(position), uint32_t(token))) / weight;
        if (time < least) least = time, best = int32_t(token);
      }
      if (best >= 0) return best;
    }
    return -1;
  }

 private:
  NoiseKey key_;
};

}  // namespace hunch
