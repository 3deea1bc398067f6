// SiblingLaws: what is left of the target's distribution p and of the drafter's q while the children of one node, drawn from q
// without replacement, are refused one after the other: p' = norm(max(p' - q', 0)), q' = norm(q' without the refused token).
// Given the children before it, a child is a sample of q', and p' is what the rest of the rule has to emit. Rule ratio's scratch.
#pragma once

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "tensor/view.h"

namespace hunch {

class SiblingLaws {
 public:
  explicit SiblingLaws(int64_t vocab) : p_(vocab), q_(vocab) {}

  void begin(View<const float, 1> p, View<const float, 1> q) {
    HUNCH_CHECK(p.extent[0] == std::ssize(p_) && q.extent[0] == std::ssize(q_));
    for (size_t i = 0; i < p_.size(); ++i) p_[i] = p(int64_t(i)), q_[i] = q(int64_t(i));
  }
  double p(int32_t token) const { return p_[token]; }
  double q(int32_t token) const { return q_[token]; }
  View<const double, 1> target() const { return View<const double, 1>(p_.data(), std::ssize(p_)); }

  void refuse(int32_t token) {
    double left = 0;
    for (size_t i = 0; i < p_.size(); ++i) left += std::max(0.0, p_[i] - q_[i]);
    // Nothing left: p' and q' are equal, and only rounding can have refused. p' stays.
    if (left > 0)
      for (size_t i = 0; i < p_.size(); ++i) p_[i] = std::max(0.0, p_[i] - q_[i]) / left;
    // Summed anew: 1 - q(token) would be mostly rounding where the token had nearly all of the mass. No mass left: q' is 0.
    q_[token] = 0;
    double mass = 0;
    for (const double x : q_) mass += x;
    for (double& x : q_) x = mass > 0 ? x / mass : 0;
  }

 private:
  std::vector<double> p_, q_;  // [vocab]
};

}
