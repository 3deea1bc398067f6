// See rank.h. A row is cut into 32 slices: a block scores one in shared memory, in fp64 as the choice itself is made, sums it and
// lists its best ids; a warp then merges the 32 sorted lists and sums. Which thread holds which id depends on the vocabulary
// only, so the sums have one order.
#include "backend/cuda/rank.h"

#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

constexpr int kSlices = 32;  // a lane each in the merge

struct SliceSum {
  double greatest, sum;  // of scores; of exp(score - greatest)
  int32_t nan, finite;   // whether there are such logits
};
struct RankDevice {
  const SampleRow* rows;
  double* scores;  // [row][slice][k] descending
  int32_t* ids;
  SliceSum* sums;  // [row][slice]
  int32_t k;
};

__host__ __device__ int slice_len_of(int64_t vocab) { return int((vocab + 4 * kSlices - 1) / (4 * kSlices)) * 4; }

// Threads of a block: one for four ids where a slice has few; most then wait once for what they read.
int threads_of(int64_t vocab) { return std::min(1024, (slice_len_of(vocab) / 4 + 31) / 32 * 32); }

// What is known of ids, whatever part of a row they are.
HUNCH_DEVICE SliceSum total_of(SliceSum own) {  // over a warp's lanes, for all
  double greatest = own.greatest;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) greatest = fmax(greatest, __shfl_xor_sync(kAllLanes, greatest, d));
  own.sum = own.greatest == -INFINITY ? 0 : own.sum * part_of(own.greatest, greatest);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) own.sum += __shfl_xor_sync(kAllLanes, own.sum, d);
  return {greatest, own.sum, __any_sync(kAllLanes, own.nan), __any_sync(kAllLanes, own.finite)};
}
// The lists of a warp's lanes as one: [k][lane] in shared memory, each descending. to(nth, best)
struct Lists {
  double* scores;
  int32_t* ids;
  int k;
  HUNCH_DEVICE Lists(double* memory, int length)
      : scores(memory), ids(reinterpret_cast<int32_t*>(memory + length * 32)), k(length) {}
  HUNCH_DEVICE void put(int list, int nth, double score, int32_t id) const {
    scores[nth * 32 + list] = score, ids[nth * 32 + list] = id;
  }
  template <class To>
  HUNCH_DEVICE void merge(int count, const To& to) const {
    const int lane = int(threadIdx.x) % 32;
    int at = 0;
    for (int j = 0; j < count; ++j) {
      Best head;
      if (at < count) head.add(scores[at * 32 + lane], ids[at * 32 + lane]);
      const Best all = warp_best(head);
      if (all.id != INT32_MAX && all.id == head.id) ++at;
      if (lane == 0) to(j, all);
    }
  }
};
size_t list_bytes(int64_t k) { return size_t(k) * 32 * (sizeof(double) + sizeof(int32_t)); }

// Blocks [slice][row]. Shared memory: a list of every warp, then the slice's scores. A warp takes its best ids one after the
// other, then one merges the lists.
__global__ void __launch_bounds__(1024) rank_slices_kernel(const RankDevice* args) {
  extern __shared__ __align__(16) double memory[];
  __shared__ SliceSum warp_sums[32];
  const RankDevice a = *args;
  const SampleRow row = a.rows[blockIdx.y];
  const Lists lists(memory, a.k);
  double* const slice_scores = memory + a.k * 48;
  wait_for_previous();
  let_next_start();
  const RankCut cut = row.cut ? *row.cut : RankCut{kLeastFiniteKey, kEveryId, 0, 1};
  const int t = int(threadIdx.x), lane = t % 32, warp = t / 32, threads = int(blockDim.x);
  const int len = slice_len_of(row.vocab), first = int(blockIdx.x) * len, count = max(0, min(len, row.vocab - first));
  const Threshold kept{cut.key, cut.id};
  const double best = double(value_of(cut.best_key));
  // Op on every index of this thread: fours of ids that share a block of noise.
  const auto each_four = [&](const auto& op) {
    for (int base = 4 * t; base < count; base += 4 * threads) op(base, min(4, count - base));
  };
  const bool aligned = reinterpret_cast<uintptr_t>(row.logits) % 16 == 0;
  SliceSum own{-INFINITY, 0, 0, 0};
  each_four([&](int base, int n) {
    uint32_t bits[4] = {};
    float x[4] = {};
    if (!row.greedy) *reinterpret_cast<uint4*>(bits) = row.noise.bits_of_four(uint32_t(first + base) / 4);
    if (aligned && n == 4) *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(row.logits + first + base);
    else
      for (int c = 0; c < n; ++c) x[c] = row.logits[first + base + c];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (c >= n) break;
      const uint32_t key = key_of(x[c]);
      own.nan |= key == kNanKey, own.finite |= key >= kLeastFiniteKey && key < kInfKey;
      double score = -INFINITY;
      if (cut.valid && kept.keeps(key, uint32_t(first + base + c))) {
        score = double(value_of(key));
        if (!row.greedy) score = (key == cut.best_key ? 0 : (score - best) / row.temperature) + gumbel(bits[c]);
      }
      slice_scores[base + c] = score, own.greatest = fmax(own.greatest, score);
    }
  });
  each_four([&](int base, int n) {
    for (int c = 0; c < n; ++c)
      if (slice_scores[base + c] > -INFINITY) own.sum += part_of(slice_scores[base + c], own.greatest);
  });
  own = total_of(own);
  if (lane == 0) warp_sums[warp] = own;
  const auto own_best = [&] {
    Best best;
    each_four([&](int base, int n) {
      for (int c = 0; c < n; ++c) best.add(slice_scores[base + c], base + c);
    });
    return best;
  };
  Best mine = own_best();
  for (int j = 0; j < row.ranks; ++j) {
    const Best all = warp_best(mine);
    const bool some = all.id != INT32_MAX;
    if (lane == 0) lists.put(warp, j, all.score, some ? first + all.id : INT32_MAX);
    if (some && all.id / 4 % threads == t) {
      slice_scores[all.id] = -INFINITY;
      mine = own_best();
    }
  }
  __syncthreads();
  if (warp > 0) return;
  const int warps = threads / 32;
  own = total_of(lane < warps ? warp_sums[lane] : SliceSum{-INFINITY, 0, 0, 0});
  if (lane == 0) a.sums[blockIdx.y * kSlices + blockIdx.x] = own;
  for (int j = 0; lane >= warps && j < row.ranks; ++j) lists.put(lane, j, -INFINITY, INT32_MAX);
  const int64_t list = (int64_t(blockIdx.y) * kSlices + blockIdx.x) * a.k;
  lists.merge(row.ranks, [&](int j, const Best& b) { a.scores[list + j] = b.score, a.ids[list + j] = b.id; });
}

// Shared memory: the lists.
__global__ void rank_merge_kernel(const RankDevice* args) {
  extern __shared__ __align__(16) double memory[];
  const RankDevice a = *args;
  const Lists lists(memory, a.k);
  const SampleRow row = a.rows[blockIdx.x];
  const int lane = int(threadIdx.x);
  const int64_t list = (int64_t(blockIdx.x) * kSlices + lane) * a.k;
  wait_for_previous();
  let_next_start();
#pragma unroll 4
  for (int j = 0; j < row.ranks; ++j)
    lists.put(lane, j, a.scores[list + j], a.ids[list + j]);  // together: else each is waited for
  const SliceSum all = total_of(a.sums[blockIdx.x * kSlices + lane]);
  const bool valid = row.cut || (!all.nan && all.finite);
  lists.merge(row.ranks, [&](int j, const Best& b) {
    const bool some = valid && b.id != INT32_MAX;
    if (j == 0 && !row.cut) *row.token = some ? b.id : -1;
    if (row.ranked) row.ranked[j] = some ? b.id : -1;
    if (row.shares) row.shares[j] = some ? float(part_of(b.score, all.greatest) / all.sum) : 0;
  });
}

size_t score_bytes(size_t rows, int64_t k) { return rows * kSlices * size_t(k) * sizeof(double); }

}

size_t rank_bytes(size_t rows, int64_t k) {
  return rows * kSlices * sizeof(SliceSum) + score_bytes(rows, k) + rows * kSlices * size_t(k) * sizeof(int32_t);
}

void enqueue_ranks(Commands& commands, std::span<const SampleRow> rows, int64_t most_vocab, int64_t k, void* workspace) {
  auto* at = static_cast<std::byte*>(workspace);
  RankDevice device;
  device.rows = commands.data(rows), device.k = int32_t(k);
  device.sums = reinterpret_cast<SliceSum*>(at), at += rows.size() * kSlices * sizeof(SliceSum);
  device.scores = reinterpret_cast<double*>(at), at += score_bytes(rows.size(), k);
  device.ids = reinterpret_cast<int32_t*>(at);
  commands.launch(rank_slices_kernel,
      {.blocks = dim3(kSlices, unsigned(rows.size())),
          .threads = unsigned(threads_of(most_vocab)),
          .shared_bytes = list_bytes(k) + size_t(slice_len_of(most_vocab)) * sizeof(double)},
      device);
  commands.launch(
      rank_merge_kernel, {.blocks = dim3(unsigned(rows.size())), .threads = 32, .shared_bytes = list_bytes(k)}, device);
}

}
