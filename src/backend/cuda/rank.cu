// See rank.h. A row is cut into 32 slices: a block scores one in shared memory, in fp64 as the choice itself is made, sums it and
// takes its best ids one after the other; a warp then merges the 32 sorted lists and sums. Which thread holds which id depends on
// the vocabulary only, so the sums have one order.
#include "backend/cuda/rank.h"

#include "backend/cuda/ptx.h"
#include "backend/cuda/select.cuh"

namespace hunch {
namespace {

constexpr int kSlices = 32;  // a lane each in the merge
constexpr int kThreads = 256, kWarps = kThreads / 32;

struct RankDevice {
  const RankRow* rows;
  double* scores;  // [row][slice][k] descending
  int32_t* ids;
  double2* sums;  // [row][slice] greatest score, and the sum of exp(score - greatest)
  int32_t k;
};

struct Best {
  double score = -INFINITY;
  int32_t id = INT32_MAX;
  __device__ __forceinline__ void add(double x, int32_t i) {
    if (x > score || (x == score && x > -INFINITY && i < id)) score = x, id = i;
  }
};
__device__ __forceinline__ Best warp_best(Best b) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const double score = __shfl_xor_sync(kAllLanes, b.score, d);
    b.add(score, __shfl_xor_sync(kAllLanes, b.id, d));
  }
  return b;
}
// exp(score - greatest); infinite logits that are equal share alike.
__device__ __forceinline__ double part_of(double score, double greatest) { return score == greatest ? 1 : exp(score - greatest); }

__host__ __device__ int slice_len_of(int64_t vocab) { return int((vocab + 4 * kSlices - 1) / (4 * kSlices)) * 4; }

// Blocks [slice][row]. Shared memory: the slice's scores.
__global__ void __launch_bounds__(kThreads) rank_slices_kernel(const RankDevice* args) {
  extern __shared__ __align__(16) double slice_scores[];
  __shared__ Best warp_bests[kWarps];
  __shared__ double warp_sums[kWarps];
  const RankDevice a = *args;
  wait_for_previous();
  let_next_start();
  const RankRow row = a.rows[blockIdx.y];
  const RankCut cut = *row.cut;
  const int t = int(threadIdx.x), lane = t % 32, warp = t / 32;
  const int len = slice_len_of(row.vocab), first = int(blockIdx.x) * len, count = max(0, min(len, row.vocab - first));
  const Threshold kept{cut.key, cut.id};
  const double best = double(value_of(cut.best_key));
  // Op on every index of this thread: fours of ids that share a block of noise.
  const auto each_four = [&](const auto& op) {
    for (int base = 4 * t; base < count; base += 4 * kThreads) op(base, min(4, count - base));
  };
  each_four([&](int base, int n) {
    uint4 bits{0, 0, 0, 0};
    if (!row.greedy) bits = row.noise.bits_of_four(uint32_t(first + base) / 4);
    for (int c = 0; c < n; ++c) {
      const uint32_t key = key_of(row.logits[first + base + c]);
      double score = -INFINITY;
      if (cut.valid && kept.keeps(key, uint32_t(first + base + c))) {
        score = double(value_of(key));
        if (!row.greedy)
          score = (key == cut.best_key ? 0 : (score - best) / row.temperature) +
              gumbel(c == 0    ? bits.x
                      : c == 1 ? bits.y
                      : c == 2 ? bits.z
                               : bits.w);
      }
      slice_scores[base + c] = score;
    }
  });
  const auto own_best = [&] {
    Best own;
    each_four([&](int base, int n) {
      for (int c = 0; c < n; ++c) own.add(slice_scores[base + c], base + c);
    });
    return own;
  };
  Best own = own_best();
  const int64_t list = (int64_t(blockIdx.y) * kSlices + blockIdx.x) * a.k;
  for (int j = 0; j < row.k; ++j) {
    const Best of_warp = warp_best(own);
    __syncthreads();  // the round before has been read
    if (lane == 0) warp_bests[warp] = of_warp;
    __syncthreads();
    const Best all = warp_best(lane < kWarps ? warp_bests[lane] : Best{});
    if (j == 0) {
      double sum = 0;
      each_four([&](int base, int n) {
        for (int c = 0; c < n; ++c)
          if (slice_scores[base + c] > -INFINITY) sum += part_of(slice_scores[base + c], all.score);
      });
#pragma unroll
      for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kAllLanes, sum, d);
      if (lane == 0) warp_sums[warp] = sum;
      __syncthreads();
      if (t == 0) {
        sum = 0;
        for (int w = 0; w < kWarps; ++w) sum += warp_sums[w];
        a.sums[blockIdx.y * kSlices + blockIdx.x] = {all.score, sum};
      }
    }
    const bool some = all.id != INT32_MAX;
    if (t == 0) a.scores[list + j] = all.score, a.ids[list + j] = some ? first + all.id : INT32_MAX;
    if (some && all.id / 4 % kThreads == t) {
      slice_scores[all.id] = -INFINITY;
      own = own_best();
    }
  }
}

// Shared memory: the lists, [k][slice].
__global__ void rank_merge_kernel(const RankDevice* args) {
  extern __shared__ __align__(16) double list_scores[];
  const RankDevice a = *args;
  auto* list_ids = reinterpret_cast<int32_t*>(list_scores + a.k * kSlices);
  const RankRow row = a.rows[blockIdx.x];
  const int lane = int(threadIdx.x);
  const int64_t list = (int64_t(blockIdx.x) * kSlices + lane) * a.k;
  wait_for_previous();
  let_next_start();
#pragma unroll 4
  for (int j = 0; j < row.k; ++j)  // together: one by one each is waited for
    list_scores[j * kSlices + lane] = a.scores[list + j], list_ids[j * kSlices + lane] = a.ids[list + j];
  const double2 own = a.sums[blockIdx.x * kSlices + lane];
  double greatest = own.x;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) greatest = fmax(greatest, __shfl_xor_sync(kAllLanes, greatest, d));
  double total = own.x == -INFINITY ? 0 : own.y * part_of(own.x, greatest);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(kAllLanes, total, d);
  int at = 0;
  for (int j = 0; j < row.k; ++j) {
    Best head;
    if (at < row.k) head.add(list_scores[at * kSlices + lane], list_ids[at * kSlices + lane]);
    const Best all = warp_best(head);
    const bool some = all.id != INT32_MAX;
    if (some && all.id == head.id) ++at;
    if (lane != 0) continue;
    if (row.ranked) row.ranked[j] = some ? all.id : -1;
    if (row.shares) row.shares[j] = some ? float(part_of(all.score, greatest) / total) : 0;
  }
}

size_t score_bytes(size_t rows, int64_t k) { return rows * kSlices * size_t(k) * sizeof(double); }

}  // namespace

size_t rank_bytes(size_t rows, int64_t k) {
  return rows * kSlices * sizeof(double2) + score_bytes(rows, k) + rows * kSlices * size_t(k) * sizeof(int32_t);
}

void enqueue_ranks(Commands& commands, std::span<const RankRow> rows, int64_t most_vocab, int64_t k, void* workspace) {
  auto* at = static_cast<std::byte*>(workspace);
  RankDevice device;
  device.rows = commands.data(rows), device.k = int32_t(k);
  device.sums = reinterpret_cast<double2*>(at), at += rows.size() * kSlices * sizeof(double2);
  device.scores = reinterpret_cast<double*>(at), at += score_bytes(rows.size(), k);
  device.ids = reinterpret_cast<int32_t*>(at);
  commands.launch(rank_slices_kernel,
      {.blocks = dim3(kSlices, unsigned(rows.size())),
          .threads = kThreads,
          .shared_bytes = size_t(slice_len_of(most_vocab)) * sizeof(double)},
      device);
  commands.launch(rank_merge_kernel,
      {.blocks = dim3(unsigned(rows.size())),
          .threads = 32,
          .shared_bytes = size_t(k) * kSlices * (sizeof(double) + sizeof(int32_t))},
      device);
}

}  // namespace hunch
