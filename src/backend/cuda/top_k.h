// Selection of the best entries on the device: contract in backend/ops/top_k.h, the reference's result bit for bit. With few sets
// a cluster of blocks takes each, one read of the scores where they fit its shared memory (393,216 entries; 131,072 with more
// sets). From a set per multiprocessor on, one block takes each and reads it once, whatever its length up to 262,144 entries, if
// count <= 12,000, spread is 0 or 16 and scores are aligned to 16 bytes; sets that are not so go to the clusters.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/ops/top_k.h"

namespace hunch {

// One launch for all of them, whatever their lengths, or two (and before it one per step of each spread > 32). n < 4 Mi.
void enqueue_top_k(Commands& commands, std::span<const TopKArgs> calls);
inline void enqueue_top_k(Commands& commands, const TopKArgs& args) { enqueue_top_k(commands, std::span(&args, 1)); }

}
