// INTERFACE 5: an acceptance rule decides which drafts stay and which token follows. It reads like the paper and draws only
// through Chance and TargetProbs::choice.
#pragma once

#include "accept/chance.h"
#include "accept/target_probs.h"
#include "base/guarantee.h"
#include "base/registry.h"
#include "draft/draft_tree.h"
#include "draft/verdict.h"

namespace hunch {

class AcceptanceRule {
 public:
  struct Setup {
    int64_t vocab = 0;  // room for distributions of that many tokens
  };
  virtual ~AcceptanceRule() = default;
  virtual Guarantee guarantee() const = 0;
  // Drafts come with the distribution they were drawn from, or are points.
  virtual bool needs_q() const = 0;
  // What accept() asks TargetProbs for, of such a tree: choices alone, p, q and residual too, or anything.
  enum class Reads : uint8_t { Choices, Weights, Rows };
  virtual Reads reads(const DraftTree&) const { return needs_q() ? Reads::Rows : Reads::Choices; }
  // Trees may branch. Of trees of rules that do not take them accept follows first children.
  virtual bool takes_branches() const { return false; }
  // `first` is the position of the token after row 0.
  virtual void accept(const DraftTree&, int64_t first, TargetProbs& p, Chance&, Verdict& out) const = 0;
};

}
