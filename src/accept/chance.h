// Chance: the only source of randomness of a rule, beside the target's own choice. In production keyed noise; in the proofs it
// walks every branch with its exact weight.
#pragma once

#include "base/race.h"
#include "tensor/view.h"

namespace hunch {

class Chance {
 public:
  virtual ~Chance() = default;
  // True with probability min(1, p / q), decided as u q <= p (no division: nothing is undefined); false if p or q is 0.
  // `position` is that of the token in question; `rank` tells the coins of siblings apart: 0 for the child drawn first, and so
  // on.
  virtual bool below(double p, double q, int64_t position, int rank) = 0;
  // A token with probability proportional to max(0, p - q), or to p where that vanishes everywhere (rounding only).
  virtual int32_t residual(View<const float, 1> p, View<const float, 1> q, int64_t position) = 0;
  // The same with q the point mass of `token`: any other token, with probability proportional to p.
  virtual int32_t without(View<const float, 1> p, int32_t token, int64_t position) = 0;
  // A token with probability proportional to its weight; -1: none is above 0. Of these three a position asks for one, once.
  virtual int32_t among(View<const double, 1> weights, int64_t position) = 0;
};

class KeyedChance final : public Chance {
 public:
  explicit KeyedChance(const NoiseKey& key) : key_(key) {}

  bool below(double p, double q, int64_t position, int rank) override {
    const double u = uniform(key_, NoiseStream::Accept, uint32_t(position), uint32_t(rank));
    return p > 0 && q > 0 && u * q <= p;
  }

  int32_t residual(View<const float, 1> p, View<const float, 1> q, int64_t position) override {
    return race_residual(key_, position, p.extent[0], p, q);
  }

  int32_t without(View<const float, 1> p, int32_t token, int64_t position) override {
    for (const int32_t left_out : {token, -1}) {
      const auto weight_of = [&](int64_t other) { return other == left_out ? 0.0 : double(p(other)); };
      const int32_t best = race(key_, position, p.extent[0], weight_of);
      if (best >= 0) return best;
    }
    return -1;
  }

  int32_t among(View<const double, 1> weights, int64_t position) override {
    return race(key_, position, weights.extent[0], [&](int64_t token) { return weights(token); });
  }

 private:
  NoiseKey key_;
};

}
