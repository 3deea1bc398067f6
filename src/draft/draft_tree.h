// DraftTree: the guesses of one round. Parents stand before their children; a chain is the tree whose node i has parent i - 1.
// The root, parent -1, is the pending token and no node. Shapes are known to the host, contents (tokens, q) live in backend
// memory.
#pragma once

#include <algorithm>
#include <vector>

#include "tensor/view.h"

namespace hunch {

// What a rule may assume about how a node's token was found.
enum class DraftLaw : uint8_t {
  Point,  // deterministic: no distribution
  // Drawn from q, bit for bit. The children of one node are drawn without replacement (SampleArgs::ranked), in the order of their
  // numbers. Whether a node has another child may depend on all that was known before that child was drawn, never on the child.
  Given,
  Noise,  // arg max of the drafter's log-probabilities plus the target's own noise of that position (rule match)
};

struct DraftTree {
  int size = 0;  // nodes in use; 0: plain decoding
  DraftLaw law = DraftLaw::Point;
  // Lookups: how good the guess looks (length of the match, or tokens that the past says will be kept): twice as good is another
  // class to the planner.
  double worth = 0;
  // The tokens are still being made: ops may read them, the host only after Backend::synchronize(). The shape is valid; a token
  // may become -1, which no target chooses.
  bool in_flight = false;
  int passes = 0;                // of the target that found these guesses; 0: looked up
  std::vector<int32_t> parents;  // [capacity]; -1: child of the pending token
  View<int32_t, 1> tokens;       // [capacity]
  // [capacity][vocab] Given: row law_of(r) is what the children of row r (0: the pending token, x: node x - 1) were drawn from,
  // before the first was. Of a chain that is the row with the node's number.
  View<float, 2> q;
  std::vector<int32_t> laws;  // [1 + size] rows of q by row; empty: every row its own. Filled by who needs it, and emptied

  void make_chain(int length) {
    size = length;
    for (int node = 0; node < length; ++node) parents[node] = node - 1;
  }
  bool branches() const {
    for (int node = 0; node < size; ++node)
      if (parents[node] != node - 1) return true;
    return false;
  }
  // Nodes on the path to `node`, itself included; -1: 0.
  int depth_of(int node) const {
    int depth = 0;
    for (; node >= 0; node = parents[node]) ++depth;
    return depth;
  }
  int depth() const {
    int most = 0;
    for (int node = 0; node < size; ++node) most = std::max(most, depth_of(node));
    return most;
  }
  int law_of(int row) const { return laws.empty() ? row : laws[row]; }
  // The first child of `node` (-1: of the root), or -1.
  int child(int node) const {
    for (int next = node + 1; next < size; ++next)
      if (parents[next] == node) return next;
    return -1;
  }
  // The next child of the parent of `node`, or -1.
  int sibling(int node) const {
    for (int next = node + 1; next < size; ++next)
      if (parents[next] == parents[node]) return next;
    return -1;
  }
};

}
