// The k best ids of a row by score and their shares (SampleArgs::ranked, shares): two kernels after that of sample.cu, which
// leaves what a row's filters kept as a RankCut.
#pragma once

#include <span>

#include "backend/cuda/commands.h"
#include "backend/cuda/noise.cuh"

namespace hunch {

struct RankCut {
  uint32_t key, id;  // Threshold (select.cuh)
  uint32_t best_key, valid;
};

struct RankRow {
  const float* logits;
  const RankCut* cut;  // written by the kernel before
  int32_t* ranked;     // [k], may be null
  float* shares;       // [k], may be null
  double temperature;
  NoiseSource noise;
  int32_t vocab, k, greedy;
};

// Bytes of workspace for that many rows of at most k ranks, and the kernels that use it.
size_t rank_bytes(size_t rows, int64_t k);
void enqueue_ranks(Commands& commands, std::span<const RankRow> rows, int64_t most_vocab, int64_t k, void* workspace);

}  // namespace hunch
