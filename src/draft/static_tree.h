// StaticTree: the shape of a tree of guesses, whatever the tokens. A node is a path of ranks: (0, 2) is the third likeliest token
// behind the likeliest one (vLLM's speculative_token_tree, Medusa's choices). Requests bring shapes; proposers also grow their
// own from how often each rank was right (Medusa; Cai et al., 2024, section 2.3.3).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "tensor/view.h"

namespace hunch {

class StaticTree {
 public:
  static constexpr int kMostRanks = 16;

  struct Node {
    int32_t parent = -1;  // node; -1: child of the pending token
    int32_t rank = 0;     // in [0, kMostRanks)
    int32_t depth = 1;
  };

  StaticTree() = default;
  // One list of ranks for each node, in any order; parents come first in the result, siblings by rank, levels one after the
  // other. Errors (usage) name the node: an empty path, a rank out of range, a node twice or without its parent, too many nodes.
  static Result<StaticTree> make(std::span<const std::vector<int>> paths, int most_nodes);

  // The tree with the most accepted tokens per round: accuracies(h, c) is the chance that the token of rank c at depth h + 1 is
  // right where all before it were; a node is worth the product along its path, and the best is added until there are `nodes` or
  // none is worth more than 0: every prefix is the best tree of its size. Equals: the smaller parent, then the lower rank.
  // Allocates nothing once reserve() has seen the sizes.
  void grow(View<const float, 2> accuracies, int nodes);
  void reserve(int nodes, int depth) {
    nodes_.reserve(nodes), growing_.reserve(nodes + 1), by_worth_.reserve(size_t(depth) * kMostRanks);
  }

  int size() const { return int(nodes_.size()); }
  const Node& node(int index) const { return nodes_[index]; }
  int depth() const;                                  // of the deepest node
  int ranks() const;                                  // 1 + the greatest rank
  bool branches() const { return size() > depth(); }  // some node has two children
  // Whether the node has children.
  bool goes_on(int index) const {
    return std::any_of(nodes_.begin() + index + 1, nodes_.end(), [&](const Node& node) { return node.parent == index; });
  }
  std::string text() const;  // "[(0,), (1,), (0, 0)]"

 private:
  struct Growing {
    float value = 1;  // of the node: the product along its path
    int32_t children = 0;
  };

  std::vector<Node> nodes_;
  std::vector<Growing> growing_;   // [1 + nodes] the root first; scratch of grow()
  std::vector<int32_t> by_worth_;  // [depth][ranks] ranks, the most accurate first; scratch of grow()
};

}
