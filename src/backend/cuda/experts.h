// Mixtures of experts on the device: contract in backend/ops/experts.h. Products have the bits of those of plain_products.cuh,
// over lists of rows that a kernel makes of the ids, so that the host never learns where rows go. All views are device memory.
// The scratch of ExpertsArgs is not used: the workspace has room for every (row, expert) pair of a call.
#pragma once

#include <unordered_map>

#include "backend/cuda/commands.h"
#include "backend/cuda/weights.h"
#include "backend/ops/experts.h"

namespace hunch {

inline constexpr int kMostExperts = 1024;  // of a layer
inline constexpr int kExpertRows = 256;    // at a time, unless grouped (experts.cu); each time weights are read again

// What all calls have read so far.
struct ExpertsRead {
  uint64_t experts = 0, bytes = 0;  // distinct experts; their weights
};

// Where the weights of a layer's experts lie, gathered once: looking at hundreds of weights in every layer of every step took the
// host longer than all else.
class ExpertTables {
 public:
  struct Table {
    std::vector<Expert> experts;          // gathered of these,
    uint64_t freed = 0;                   // when so many weights had gone
    std::vector<const std::byte*> tiles;  // [gate, up, down][experts]
    std::vector<const float*> biases;     // likewise; empty: none
    const CudaWeight *gate, *up, *down;   // the first expert's, whose shapes are those of all
  };
  const Table& of(std::span<const Expert> experts);

 private:
  std::unordered_map<const Expert*, Table> tables_;
};

void enqueue_route(Commands&, const RouteArgs&);
// `total` is device memory and grows; `seen` (host memory that the device writes) is a copy of it, as of the last wait.
void enqueue_experts(Commands&, ExpertTables&, const ExpertsArgs&, ExpertsRead* total, ExpertsRead* seen);

}
