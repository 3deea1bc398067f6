// `hunch eval verify`: what a sparse check costs in quality, against the exact check of the same model, weights and kernels.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/parts.h"

namespace hunch {

struct VerifyEval {
  int64_t context = 0;   // tokens of a window
  int64_t scored = 128;  // of them, at its end
  int rows = 8;          // of a check
  int64_t windows = 4, free_tokens = 64;
};
// Of one text: KL and total variation per token, agreement of the best token, perplexities, with K and V of sparse checks left in
// the cache and with exact ones; agreement of greedy streams; overlap of blocks by distance; times. Errors: the text is too
// short.
Result<nlohmann::ordered_json> eval_verify(
    Engine&, std::span<const int32_t> text, const SpeculationOptions&, const VerifyEval&, const std::atomic<bool>* interrupted);

}
