// Walk: runs a function once for every outcome of its random calls, with the product of their exact weights. What the proofs of
// the rules use in place of a generator: a law is then a finite sum, not a statistic.
#pragma once

#include <vector>

#include "base/check.h"

namespace hunch {

class Walk {
 public:
  // The outcome of a random call with these weights (they sum to 1); outcomes of weight 0 are never taken.
  int branch(const std::vector<double>& weights) {
    if (depth_ == path_.size()) path_.push_back({weights, next_possible(weights, 0)});
    const Call& call = path_[depth_++];
    HUNCH_CHECK(call.outcome < int(call.weights.size()));
    weight_ *= call.weights[call.outcome];
    return call.outcome;
  }
  double weight() const { return weight_; }

  // body(walk) for every leaf of the tree of outcomes.
  template <class Body>
  static void all(Body&& body) {
    Walk walk;
    do {
      walk.depth_ = 0, walk.weight_ = 1;
      body(walk);
    } while (walk.advance());
  }

 private:
  struct Call {
    std::vector<double> weights;
    int outcome;
  };
  static int next_possible(const std::vector<double>& weights, int from) {
    while (from < int(weights.size()) && !(weights[from] > 0)) ++from;
    return from;
  }
  bool advance() {
    while (!path_.empty()) {
      Call& call = path_.back();
      call.outcome = next_possible(call.weights, call.outcome + 1);
      if (call.outcome < int(call.weights.size())) return true;
      path_.pop_back();
    }
    return false;
  }

  std::vector<Call> path_;
  size_t depth_ = 0;
  double weight_ = 1;
};

}
