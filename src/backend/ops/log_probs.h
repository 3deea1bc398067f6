// Natural log-probabilities of the model's own distribution: log p(id) = x(id) - log sum_j exp(x(j)) of raw logits, before any
// rule, temperature or truncation. For emitted tokens (the verify row that chose them) and for prompt tokens.
#pragma once

#include <cstdint>

#include "tensor/view.h"

namespace hunch {

// Sums run in one fixed order: the bits of a row do not depend on other rows, `count` or threads. A row with a NaN or without a
// finite logit has NaN values and ids -1.
struct LogProbsArgs {
  View<const float, 2> logits;  // [rows][vocab]; never changed
  View<const int32_t, 1> ids;   // [rows]; data null: not wanted
  View<float, 1> values;        // [rows] out, of `ids`; -inf where the logit is
  int count = 0;                // most probable ids wanted, ties to the lower id; past the vocabulary: id -1, value -inf
  View<int32_t, 2> top_ids;     // [rows][count] out, best first
  View<float, 2> top_values;    // [rows][count] out
};

}  // namespace hunch
