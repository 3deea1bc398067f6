// Walks a tree by the target's own tokens: draw one after each row, descend to the child that equals it, stop where none does.
// Its law: docs/exactness.md.
#pragma once

#include "accept/target_probs.h"
#include "draft/draft_tree.h"
#include "draft/verdict.h"

namespace hunch {

inline void follow_own_tokens(const DraftTree& tree, TargetProbs& target, Verdict& out) {
  for (int node = -1;;) {
    const int32_t own = target.choice(node + 1);
    if (own < 0) return void(out.next = -1);  // no valid logits; a guess may have no number either
    int next = -1;
    for (int child = node + 1; child < tree.size && next < 0; ++child)
      if (tree.parents[child] == node && tree.tokens(child) == own) next = child;
    if (next < 0) return void(out.next = own);
    out.path.push_back(next);
    out.tokens.push_back(own);
    node = next;
  }
}

}
