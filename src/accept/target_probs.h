// TargetProbs: the target's answers for the rows of one verify pass. Row 0 follows the pending token; row i + 1 follows draft
// node i.
#pragma once

#include <cstdint>

#include "tensor/view.h"

namespace hunch {

class TargetProbs {
 public:
  virtual ~TargetProbs() = default;
  // The target's own token after `row`: arg max of log p plus the target's noise of that position. -1: no valid number.
  virtual int32_t choice(int row) = 0;
  // The processed distribution after `row` (temperature, min-p, top-k, top-p), normalised; [vocab].
  virtual View<const float, 1> row(int row) = 0;
};

}  // namespace hunch
