// DynamicTree: the draft tree of EAGLE-2 (Li et al., 2024): every level tries the top_k likeliest tokens behind each node that
// goes on, the top_k best of those go on, and in the end the best nodes of all levels are kept. Best is the greatest product of
// shares on the path, ties to the one tried first: a parent is kept before its children. Or the tree of a fixed shape
// (draft/static_tree.h), level by level too. Allocates in reserve() only.
#pragma once

#include <algorithm>

#include "backend/ops/tree.h"
#include "base/check.h"
#include "draft/static_tree.h"

namespace hunch {

class DynamicTree {
 public:
  struct Node {
    int32_t token = -1;
    int parent = -1;   // node tried before; -1: the root
    double score = 0;  // the product of the shares on the path
    int row = -1;      // of the round where it went on; -1: it did not
    int shape = -1;    // node of the shape
  };

  void reserve(int top_k, int depth) {
    const size_t most = size_t(top_k) + size_t(depth) * top_k * top_k;
    nodes_.reserve(most), order_.reserve(most), number_.reserve(most), frontier_.reserve(most);
  }
  // With a `shape` that outlives the tree, its nodes are all that is tried, and the earlier one is the better.
  void begin(const StaticTree* shape = nullptr) { nodes_.clear(), frontier_.clear(), level_ = 0, shape_ = shape; }

  // Children of the node that goes on as number `at` of the level before (the root: -1), likeliest first; shares in (0, 1].
  void try_children(int at, std::span<const int32_t> tokens, std::span<const float> shares) {
    const int parent = at < 0 ? -1 : frontier_[at];
    if (shape_) return try_shape(parent, tokens);
    const double before = parent < 0 ? 1 : nodes_[parent].score;
    for (size_t i = 0; i < tokens.size() && tokens[i] >= 0; ++i)
      nodes_.push_back({tokens[i], parent, before * double(std::clamp(shares[i], kLeastShare, 1.0f))});
  }
  // Ends a level: the `most` best of its nodes go on, as rows first_row, first_row + 1, ... in the order tried.
  std::span<const int> advance(int most, int first_row) {
    order_.clear();
    for (int node = level_; node < int(nodes_.size()); ++node)
      if (!shape_ || shape_->goes_on(nodes_[node].shape)) order_.push_back(node);
    const size_t count = keep_best(most);
    frontier_.assign(order_.begin(), order_.begin() + count);
    std::ranges::sort(frontier_);
    for (const int node : frontier_) nodes_[node].row = first_row++;
    level_ = int(nodes_.size());
    return frontier_;
  }
  // The `most` best nodes of all levels in the order tried: emit(number, token, parent's number or -1).
  template <class Emit>
  int choose(int most, Emit&& emit) {
    order_.clear();
    for (int node = 0; node < int(nodes_.size()); ++node) order_.push_back(node);
    const size_t count = keep_best(most);
    std::sort(order_.begin(), order_.begin() + count);
    number_.assign(nodes_.size(), -1);
    for (size_t i = 0; i < count; ++i) {
      const Node& node = nodes_[order_[i]];
      const int parent = node.parent < 0 ? -1 : number_[node.parent];
      HUNCH_CHECK(node.parent < 0 || parent >= 0);
      number_[order_[i]] = int(i);
      emit(int(i), node.token, parent);
    }
    return int(count);
  }
  const Node& node(int index) const { return nodes_[index]; }
  int size() const { return int(nodes_.size()); }

 private:
  void try_shape(int parent, std::span<const int32_t> tokens) {
    const int of = parent < 0 ? -1 : nodes_[parent].shape;
    for (int i = of + 1; i < shape_->size(); ++i) {
      const StaticTree::Node& node = shape_->node(i);
      if (node.parent == of && tokens[node.rank] >= 0)
        nodes_.push_back({.token = tokens[node.rank], .parent = parent, .score = -double(i), .shape = i});
    }
  }
  size_t keep_best(int most) {
    const size_t count = std::min(order_.size(), size_t(std::max(0, most)));
    std::partial_sort(order_.begin(), order_.begin() + count, order_.end(), [&](int a, int b) {
      const double x = nodes_[a].score, y = nodes_[b].score;
      return x != y ? x > y : a < b;
    });
    return count;
  }

  std::vector<Node> nodes_;
  std::vector<int> order_, number_, frontier_;
  int level_ = 0;  // first node of the level in the works
  const StaticTree* shape_ = nullptr;
};

}
