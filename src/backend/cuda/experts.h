// Mixtures of experts on the device: contract in backend/ops/experts.h. Products have the sums of matmul.h (experts_kernel.cuh)
// over lists of rows that a kernel makes of the ids, so that the host never learns where rows go. All views are device memory.
// The scratch of ExpertsArgs is not used: the workspace has room for every (row, expert) pair of kExpertRows rows.
#pragma once

#include <cstdint>

#include "backend/cuda/commands.h"
#include "backend/ops/experts.h"

namespace hunch {

inline constexpr int kMostExperts = 1024;  // of a layer
inline constexpr int kExpertRows = 256;    // with more, these many at a time, and each time weights are read again

// What all calls have read so far.
struct ExpertsRead {
  uint64_t experts = 0, bytes = 0;  // distinct experts; their weights
};

void enqueue_route(Commands&, const RouteArgs&);
// `total` is device memory and grows; `seen` (host memory that the device writes) is a copy of it, as of the last wait.
void enqueue_experts(Commands&, const ExpertsArgs&, ExpertsRead* total, ExpertsRead* seen);

}  // namespace hunch
