// RankAccuracy: how often the token of each rank of each head was right where all before it were: what a static tree is grown
// from. Learned from what was committed, over all requests of a proposer; forgets slowly. No output depends on it. Allocates in
// its constructor only.
#pragma once

#include <cmath>

#include "draft/static_tree.h"

namespace hunch {

class RankAccuracy {
 public:
  // Trees of up to `nodes` nodes.
  RankAccuracy(int heads, int nodes) : heads_(heads), nodes_(nodes), right_(size_t(heads) * kRanks), tried_(right_.size()) {
    for (int h = 0; h < heads; ++h)
      for (int c = 0; c < kRanks; ++c) {
        // A few made-up trials: half of the first head's best tokens are right, less of deeper ones and of lower ranks.
        tried_[at(h, c)] = kMadeUp;
        right_[at(h, c)] = kMadeUp * float(0.5 * std::pow(0.8, h) * std::pow(0.3, c));
      }
    accuracies_.resize(right_.size());
    tree_.reserve(nodes, heads);
    grow();
  }

  float of(int head, int rank) const { return right_[at(head, rank)] / tried_[at(head, rank)]; }
  void record(int head, int rank, bool right) {
    float& tried = tried_[at(head, rank)];
    if (tried > kMemory) tried *= 0.5f, right_[at(head, rank)] *= 0.5f;
    tried += 1;
    right_[at(head, rank)] += right;
  }
  // After the records of a round. The tree is grown anew every few rounds.
  void end_round() {
    if (++rounds_ % kRoundsPerTree == 0) grow();
  }
  const StaticTree& tree() const { return tree_; }  // the best nodes first

 private:
  static constexpr int kRanks = StaticTree::kMostRanks, kRoundsPerTree = 32;
  static constexpr float kMadeUp = 8, kMemory = 2000;

  static size_t at(int head, int rank) { return size_t(head) * kRanks + rank; }
  void grow() {
    for (int h = 0; h < heads_; ++h)
      for (int c = 0; c < kRanks; ++c) accuracies_[at(h, c)] = of(h, c);
    tree_.grow(View<const float, 2>(accuracies_.data(), heads_, kRanks), nodes_);
  }

  int heads_, nodes_, rounds_ = 0;
  std::vector<float> right_, tried_, accuracies_;  // [heads][ranks]
  StaticTree tree_;
};

}
