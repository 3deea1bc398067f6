// From logits to a token: one processing order for every row, plain, draft, verify or bonus.
#pragma once

#include <cstdint>

#include "base/random.h"
#include "tensor/view.h"

namespace hunch {

struct SamplingParams {
  float temperature = 0.8f;  // below 1e-5: greedy, arg max, lowest id on ties
  int top_k = 40;            // 0: off
  float top_p = 0.95f;       // 1: off
  float min_p = 0.05f;       // 0: off; relative to the greatest probability
};

// Order: divide by temperature; min_p; top-k by (probability descending, id ascending); top-p on the renormalised survivors
// (the smallest set whose mass reaches top_p); softmax. The token is arg max over the survivors of log p + Gumbel noise of
// (key, stream, position, id), -log(-log u) with 32-bit u: a sample of p, and a function of logits, key and position alone.
struct SampleArgs {
  View<const float, 2> logits;  // [rows][vocab]; columns past the vocabulary do not exist
  SamplingParams params;
  NoiseKey key;
  NoiseStream stream = NoiseStream::Target;
  View<const int32_t, 1> positions;  // [rows] position of the token being chosen
  View<int32_t, 1> tokens;           // [rows] out; -1 where the row has a NaN or no finite logit
  View<float, 2> probs;  // [rows][vocab] out, the processed distribution, 0 outside the support; data null: not wanted
};

}  // namespace hunch
