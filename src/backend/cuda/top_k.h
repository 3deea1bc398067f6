// Selection of the best entries on the device: contract in backend/ops/top_k.h, the reference's result bit for bit. One read of
// the scores where they fit the cluster's shared memory (up to 131,072 per set with many sets, 393,216 with few).
#pragma once

#include <span>

#include "backend/cuda/commands.h"
#include "backend/ops/top_k.h"

namespace hunch {

// One launch for all of them, whatever their lengths (and one before it per step of each spread > 32). n < 4 Mi.
void enqueue_top_k(Commands& commands, std::span<const TopKArgs> calls);
inline void enqueue_top_k(Commands& commands, const TopKArgs& args) { enqueue_top_k(commands, std::span(&args, 1)); }

}  // namespace hunch
