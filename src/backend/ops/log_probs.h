// Natural log-probabilities of the model's own distribution: log p(id) = x(id) - log sum_j exp(x(j)) of raw logits, before any
// rule, temperature or truncation. For emitted tokens (the verify row that chose them) and for prompt tokens.
#pragma once

#include <algorithm>
#include <cmath>

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

inline double log_probability(View<const float, 1> logits, int32_t id) {  // on the host, of finite logits
  const float most = *std::max_element(logits.data, logits.data + logits.extent[0]);
  double sum = 0;
  for (int64_t i = 0; i < logits.extent[0]; ++i) sum += std::exp(double(logits(i)) - double(most));
  return double(logits(id)) - double(most) - std::log(sum);
}

}
