// From logits to tokens on the device: contract in backend/ops/sample.h, without `state` (rules are applied before). A row's
// survivors, scores and probabilities are computed in fp64 as the reference does, after filters in fp32 and integers.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/ops/sample.h"

namespace hunch {

// One launch for all rows of all calls, and two more where some are ranked; each call has its own parameters and key. positions:
// host memory, copied now; the rest is device memory. At most 393,216 ids.
void enqueue_sample(Commands& commands, std::span<const SampleArgs> calls);
inline void enqueue_sample(Commands& commands, const SampleArgs& args) { enqueue_sample(commands, std::span(&args, 1)); }

}
