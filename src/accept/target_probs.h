// TargetProbs: the target's answers for the rows of one verify pass. Row 0 follows the pending token; row i + 1 follows draft
// node i.
#pragma once

#include "accept/chance.h"
#include "draft/draft_tree.h"
#include "tensor/view.h"

namespace hunch {

class TargetProbs {
 public:
  virtual ~TargetProbs() = default;
  // The target's own token after `row`: arg max of log p plus the target's noise of that position. -1: no valid number.
  virtual int32_t choice(int row) = 0;
  // The processed distribution after `row` (temperature, min-p, top-k, top-p), normalised; [vocab].
  virtual View<const float, 1> row(int row) = 0;

  // Of a child of `row` that was drawn: its token's probabilities, and what chance says in its place. A device that worked these
  // out has no need to hand over rows.
  virtual double p(int row, int32_t token) { return this->row(row)(token); }
  virtual double q(const DraftTree& tree, int row, int32_t token) { return law(tree, row)(token); }
  virtual int32_t residual(const DraftTree& tree, int row, int64_t position, Chance& chance) {
    return chance.residual(this->row(row), law(tree, row), position);
  }
  static View<const float, 1> law(const DraftTree& tree, int row) { return View<const float, 2>(tree.q)[tree.law_of(row)]; }
};

}
