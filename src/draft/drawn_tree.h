// DrawnTree: the shape of a tree whose nodes are drawn (DraftLaw::Given, rule ratio). The children of a node are draws from its q
// without replacement, in their order. Whether a node goes on may depend on everything; how many of its draws are kept may depend
// on no draw of its level, all made from the same numbers. So a level is decided before it is looked at: plan() knows the laws of
// its nodes, take() only stores the draws.
//
// A first child is kept with a chance that the law suggests (draft/confidence.h), the next with half of what is left, and so on.
// Levels get the nodes of the best tree for an average law, within a level the likeliest first. A fixed shape
// (draft/static_tree.h) says it all by itself; its ranks then count draws.
#pragma once

#include <algorithm>

#include "base/check.h"
#include "draft/static_tree.h"

namespace hunch {

class DrawnTree {
 public:
  struct Node {
    int32_t token = -1;
    int parent = -1;   // node; -1: the root
    int nth = 0;       // child of its parent
    float chance = 1;  // that the path to it is kept
    int row = -1;      // of the round where it went on; -1: it did not. The root's is 0
    int shape = -1;    // node of the shape
  };

  // Allocates, nothing else does.
  void reserve(int nodes, int depth) {
    nodes_.reserve(nodes), level_.reserve(nodes + 1), children_.reserve(nodes + 1);
    kept_.reserve(nodes + 1);
    order_.reserve(nodes), budget_.reserve(depth), chances_.resize(size_t(depth) * StaticTree::kMostRanks);
    best_.reserve(nodes, depth);
  }
  // Up to `nodes` nodes in `depth` levels, `top_k` behind one. `first_kept`: of first children, what is usual. With a `shape`
  // that outlives the tree, its nodes.
  void begin(int nodes, int depth, int top_k, float first_kept, const StaticTree* shape = nullptr) {
    nodes_.clear(), level_.assign(1, -1);
    shape_ = shape, most_ = nodes, depth_ = 0, top_k_ = std::min(top_k, StaticTree::kMostRanks), deepest_ = depth;
    if (shape_) return;
    for (int level = 0; level < depth; ++level)
      for (int nth = 0; nth < top_k_; ++nth) chances_[level * top_k_ + nth] = chance_of(first_kept, nth);
    best_.grow(View<const float, 2>(chances_.data(), depth, top_k_), nodes);
    budget_.assign(depth, 0);
    for (int node = 0; node < best_.size(); ++node) ++budget_[best_.node(node).depth - 1];
  }

  // How many children the level's nodes get. first_kept[i]: the chance that the first child of the i-th is kept, by its law. Then
  // take() for each, in this order.
  void plan(std::span<const float> first_kept) {
    HUNCH_CHECK(first_kept.size() == level_.size());
    children_.assign(level_.size(), 0), kept_.assign(first_kept.begin(), first_kept.end());
    fresh_ = int(nodes_.size());
    int left = most_ - fresh_;
    if (shape_) {
      for (size_t i = 0; i < level_.size(); ++i) left -= children_[i] = std::min(left, children_of_shape(shape_of(level_[i])));
      return;
    }
    for (left = std::min(left, due()); left > 0; --left) {
      float most = 0;
      size_t best = 0;
      for (size_t i = 0; i < level_.size(); ++i) {
        if (children_[i] == top_k_) continue;
        const float chance = path_chance(level_[i]) * chance_of(first_kept[i], children_[i]);
        if (chance > most) most = chance, best = i;
      }
      if (most == 0) return;
      ++children_[best];
    }
  }
  int children(int i) const { return children_[i]; }
  // The draws of the i-th node of the level, in order, at least so many of them; behind the last that is possible -1.
  void take(int i, std::span<const int32_t> draws) {
    const int parent = level_[i];
    int at_shape = shape_of(parent);
    for (int nth = 0; nth < children_[i] && draws[nth] >= 0; ++nth) {
      Node node{.token = draws[nth], .parent = parent, .nth = nth};
      if (shape_) node.shape = at_shape = next_of_shape(shape_of(parent), nth == 0 ? shape_of(parent) : at_shape);
      else node.chance = path_chance(parent) * chance_of(kept_[i], nth);
      nodes_.push_back(node);
    }
  }
  // Ends the level: the `most` likeliest of its nodes go on, as rows first_row, first_row + 1, ... in ascending order. Empty: the
  // tree is done.
  std::span<const int> advance(int most, int first_row) {
    order_.clear();
    most = std::min(most, most_ - int(nodes_.size()));
    if (++depth_ == deepest_) most = 0;
    if (!shape_ && most > 0) most = std::min(most, due());  // no more than will have children
    for (int node = fresh_; node < int(nodes_.size()); ++node)
      if (!shape_ || shape_->goes_on(nodes_[node].shape)) order_.push_back(node);
    const size_t count = std::min(order_.size(), size_t(std::max(0, most)));
    std::partial_sort(order_.begin(), order_.begin() + count, order_.end(), [&](int a, int b) {
      const float x = nodes_[a].chance, y = nodes_[b].chance;
      return x != y ? x > y : a < b;
    });
    level_.assign(order_.begin(), order_.begin() + count);
    std::ranges::sort(level_);
    for (const int node : level_) nodes_[node].row = first_row++;
    return level_;
  }

  // What the rule made of it: emit(row, whether its first child was kept) for every row whose children it looked at.
  template <class Emit>
  void outcome(std::span<const int> path, Emit&& emit) const {
    int at = -1;
    for (const int node : path) emit(row_of(at), nodes_[node].nth == 0), at = node;
    if (std::ranges::any_of(nodes_, [&](const Node& node) { return node.parent == at; })) emit(row_of(at), false);
  }
  const Node& node(int index) const { return nodes_[index]; }
  int size() const { return int(nodes_.size()); }

 private:
  static float chance_of(float first_kept, int nth) {
    if (nth == 0) return first_kept;
    float left = 1 - first_kept;
    for (int i = 0; i < nth; ++i) left *= 0.5f;
    return left;
  }
  // Nodes of the level that runs next; what earlier ones left over is its own.
  int due() const {
    int out = -int(nodes_.size());
    for (int level = 0; level <= depth_; ++level) out += budget_[level];
    return out;
  }
  int row_of(int node) const { return node < 0 ? 0 : nodes_[node].row; }
  float path_chance(int node) const { return node < 0 ? 1 : nodes_[node].chance; }
  int shape_of(int node) const { return node < 0 ? -1 : nodes_[node].shape; }
  // The child of `of` behind node `after` of the shape; its size: there is none.
  int next_of_shape(int of, int after) const {
    do ++after;
    while (after < shape_->size() && shape_->node(after).parent != of);
    return after;
  }
  int children_of_shape(int of) const {
    int count = 0;
    for (int at = next_of_shape(of, of); at < shape_->size(); at = next_of_shape(of, at)) ++count;
    return std::min(count, StaticTree::kMostRanks);
  }

  std::vector<Node> nodes_;
  std::vector<int> level_, children_;  // nodes of the level in the works, and how many draws each of them keeps
  std::vector<float> kept_;            // [level]
  std::vector<int> order_, budget_;    // scratch; nodes by level
  std::vector<float> chances_;         // [depth][top_k]
  StaticTree best_;
  const StaticTree* shape_ = nullptr;
  int most_ = 0, depth_ = 0, top_k_ = 1, deepest_ = 0, fresh_ = 0;
};

}
