// The k best ids of a row by score and their shares (SampleArgs::ranked, shares). Where a row's filters leave few ids the kernel
// of sample.cu ranks them itself; else these are two kernels: behind that one, which leaves what the filters kept as a RankCut,
// or in its place for greedy rows, of which nothing else is wanted.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/cuda/noise.cuh"
#include "backend/cuda/select.cuh"

namespace hunch {

struct RankCut {
  uint32_t key, id;  // Threshold (select.cuh)
  uint32_t best_key, valid;
};

// A row to choose from.
struct SampleRow {
  const float* logits;
  float* probs;  // null: not wanted
  int32_t* token;
  int32_t* second;  // null: not wanted
  float* lead;
  RankCut* cut;     // of ranks by kernels of their own, which otherwise take the row for greedy and choose its token, too
  int32_t* ranked;  // [ranks], null: not wanted
  float* shares;
  double temperature, least, top_p;  // least: the lowest log ratio that min_p lets pass
  NoiseSource noise;
  int32_t vocab, top_k, greedy, filter_p, ranks;  // ranks: k; 0: none, or not by this kernel
};

struct Best {
  double score = -INFINITY;
  int32_t id = INT32_MAX;
  HUNCH_DEVICE void add(double x, int32_t i) {
    if (x > score || (x == score && x > -INFINITY && i < id)) score = x, id = i;
  }
};
HUNCH_DEVICE Best warp_best(Best b) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const double score = __shfl_xor_sync(kAllLanes, b.score, d);
    b.add(score, __shfl_xor_sync(kAllLanes, b.id, d));
  }
  return b;
}
// exp(score - greatest); infinite logits that are equal share alike.
HUNCH_DEVICE double part_of(double score, double greatest) { return score == greatest ? 1 : exp(score - greatest); }

// Bytes of workspace for that many rows of at most k ranks, and the kernels that use it.
size_t rank_bytes(size_t rows, int64_t k);
void enqueue_ranks(Commands& commands, std::span<const SampleRow> rows, int64_t most_vocab, int64_t k, void* workspace);

}
