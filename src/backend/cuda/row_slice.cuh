// One row of logits in the shared memory of a cluster of blocks, for sample.cu and log_probs.cu: read once, then looked at as
// often as needed. Which thread holds which id depends on the vocabulary only, so every sum has one order.
#pragma once

#include "backend/cuda/select.cuh"

namespace hunch {

constexpr int kRowThreads = 512, kRowWarps = kRowThreads / 32;
constexpr int kMostListed = 1024;                           // entries that one block sorts
constexpr int64_t kMostVocab = 48 * 1024 * kClusterBlocks;  // what the shared memory of a cluster holds beside RowShared

struct RowShared {
  SelectShared select;
  alignas(16) uint32_t best_of[kClusterBlocks * kRowWarps], flags_of[kClusterBlocks * kRowWarps];  // of warps, in every block
  uint32_t bound;
  uint32_t warp_counts[kRowWarps], block_counts[kClusterBlocks];
  double warp_sums[kRowWarps], block_sums[kClusterBlocks];
  uint32_t num_listed;         // in block 0
  uint32_t num_own, own_from;  // of this block's part of the list
};

// Ids in a block: a multiple of four.
__host__ __device__ inline int slice_len(int64_t vocab) {
  return int((vocab + 4 * kClusterBlocks - 1) / (4 * kClusterBlocks)) * 4;
}

struct RowSlice {
  uint32_t* keys;  // [len] shared; absent past the vocabulary
  int first, len;

  // op(four keys, id of the first)
  template <class Op>
  HUNCH_DEVICE void each_four(const Op& op) const {
    constexpr int kStep = kRowThreads * 4, kFlight = 4;  // loads in flight; those past the end are of the last ids
    for (int base = threadIdx.x * 4; base < len; base += kStep * kFlight) {
      uint4 k[kFlight];
#pragma unroll
      for (int f = 0; f < kFlight; ++f) k[f] = load_four(keys + min(base + f * kStep, len - 4));
#pragma unroll
      for (int f = 0; f < kFlight; ++f)
        if (base + f * kStep < len) op(k[f], uint32_t(first + base + f * kStep));
    }
  }
  template <class Op>
  HUNCH_DEVICE void each(const Op& op) const {
    each_four([&](uint4 k, uint32_t id) { op(k.x, id), op(k.y, id + 1), op(k.z, id + 2), op(k.w, id + 3); });
  }
};

template <class T>
HUNCH_DEVICE void tell_all(T* slot, const T& value) {  // of thread 0; a cluster.sync() must follow
  const auto cluster = cluster_of_blocks();
  for (int b = 0; b < kClusterBlocks; ++b) *cluster.map_shared_rank(slot, b) = value;
}

struct RowStats {
  uint32_t best = 0;  // greatest key
  bool nan = false, finite = false;
  __device__ bool valid() const { return !nan && finite; }
};

// Reads the row. All threads of the cluster, after a cluster.sync() by which all blocks have begun.
HUNCH_DEVICE RowStats load_row(RowShared& s, const RowSlice& slice, const float* logits, int vocab) {
  const auto cluster = cluster_of_blocks();
  const unsigned rank = cluster.block_rank();
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  const bool aligned = reinterpret_cast<uintptr_t>(logits) % 16 == 0;
  uint32_t best = 0, flags = 0;
  constexpr int kFlight = 8;  // loads of 16 bytes in flight per thread
  for (int base = t * 4; base < slice.len; base += kRowThreads * 4 * kFlight) {
    float x[kFlight][4];
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      const int i = base + f * kRowThreads * 4, id = slice.first + i;
      if (i < slice.len && aligned && id + 4 <= vocab) {
        const float4 v = *reinterpret_cast<const float4*>(logits + id);
        x[f][0] = v.x, x[f][1] = v.y, x[f][2] = v.z, x[f][3] = v.w;
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) x[f][c] = i < slice.len && id + c < vocab ? logits[id + c] : -INFINITY;
      }
    }
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      const int i = base + f * kRowThreads * 4, id = slice.first + i;
      if (i >= slice.len) break;
      uint32_t k[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        k[c] = key_of(x[f][c]);
        if (id + c >= vocab) k[c] = kAbsentKey;
        best = max(best, k[c]);
        flags |= (k[c] == kNanKey ? 1u : 0u) | (k[c] >= kLeastFiniteKey && k[c] < kInfKey ? 2u : 0u);
      }
      *reinterpret_cast<uint4*>(slice.keys + i) = make_uint4(k[0], k[1], k[2], k[3]);
    }
  }
  best = __reduce_max_sync(kAllLanes, best), flags = __reduce_or_sync(kAllLanes, flags);
  if (lane < kClusterBlocks) {
    *cluster.map_shared_rank(&s.best_of[rank * kRowWarps + warp], lane) = best;
    *cluster.map_shared_rank(&s.flags_of[rank * kRowWarps + warp], lane) = flags;
  }
  cluster.sync();
  static_assert(kClusterBlocks * kRowWarps == 32 * 4);
  const uint4 bests = load_four(&s.best_of[lane * 4]), every = load_four(&s.flags_of[lane * 4]);
  best = __reduce_max_sync(kAllLanes, max(max(bests.x, bests.y), max(bests.z, bests.w)));
  flags = __reduce_or_sync(kAllLanes, every.x | every.y | every.z | every.w);
  return {best, (flags & 1) != 0, (flags & 2) != 0};
}

// A key that at least `count` ids reach and hardly more: the count-th best of what warps found greatest. 0: there is no such key.
HUNCH_DEVICE uint32_t reached_by(RowShared& s, uint32_t count) {
  constexpr uint32_t kAll = kClusterBlocks * kRowWarps;
  if (count > kAll) return 0;
  const uint32_t t = threadIdx.x;
  if (t < kAll) {
    const uint32_t mine = s.best_of[t];
    uint32_t before = 0;
#pragma unroll 8
    for (uint32_t i = 0; i < kAll; i += 4) {
      const uint4 x = load_four(&s.best_of[i]);
      before += (x.x > mine || (x.x == mine && i < t)) + (x.y > mine || (x.y == mine && i + 1 < t)) +
          (x.z > mine || (x.z == mine && i + 2 < t)) + (x.w > mine || (x.w == mine && i + 3 < t));
    }
    if (before == count - 1) s.bound = mine;
  }
  __syncthreads();
  return s.bound;
}

// Sums over the cluster, the same bits in every thread. One call each between cluster-wide barriers of others.
HUNCH_DEVICE uint32_t cluster_count(RowShared& s, uint32_t x) {
  const auto cluster = cluster_of_blocks();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  x = __reduce_add_sync(kAllLanes, x);
  if (lane == 0) s.warp_counts[warp] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t sum = 0;
    for (int w = 0; w < kRowWarps; ++w) sum += s.warp_counts[w];
    tell_all(&s.block_counts[cluster.block_rank()], sum);
  }
  cluster.sync();
  x = 0;
  for (int b = 0; b < kClusterBlocks; ++b) x += s.block_counts[b];
  return x;
}
// T: double or uint64_t.
template <class T>
HUNCH_DEVICE T block_sum(RowShared& s, T x) {  // in thread 0
  T* sums = reinterpret_cast<T*>(s.warp_sums);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(kAllLanes, x, d);
  if (lane == 0) sums[warp] = x;
  __syncthreads();
  x = 0;
  if (threadIdx.x == 0)
    for (int w = 0; w < kRowWarps; ++w) x += sums[w];
  return x;
}
template <class T>
HUNCH_DEVICE T cluster_sum(RowShared& s, T x) {
  const auto cluster = cluster_of_blocks();
  T* sums = reinterpret_cast<T*>(s.block_sums);
  x = block_sum(s, x);
  if (threadIdx.x == 0) tell_all(&sums[cluster.block_rank()], x);
  cluster.sync();
  x = 0;
  for (int b = 0; b < kClusterBlocks; ++b) x += sums[b];
  return x;
}

// Entries as integers in the order of selection: greater key first, then lower id.
HUNCH_DEVICE uint64_t listed(uint32_t key, uint32_t id) { return uint64_t(key) << 32 | uint32_t(~id); }
HUNCH_DEVICE uint32_t key_listed(uint64_t x) { return uint32_t(x >> 32); }
HUNCH_DEVICE int32_t id_listed(uint64_t x) { return int32_t(~uint32_t(x)); }

// Sends what `kept` keeps (at most kMostListed) and `also(key, id)` allows to the list of block 0, in no order; a
// cluster.sync() must follow. `own`: room for as many in each block.
template <class Also>
HUNCH_DEVICE void list_kept(
    RowShared& s, uint64_t* list, uint64_t* own, const RowSlice& slice, const Threshold& kept, const Also& also) {
  const auto cluster = cluster_of_blocks();
  slice.each_four([&](uint4 k, uint32_t id) {
    if (max(max(k.x, k.y), max(k.z, k.w)) < kept.key) return;
    const auto keep = kept.keeps_four(k, id);
    if (keep.x && also(k.x, id)) own[atomicAdd(&s.num_own, 1u)] = listed(k.x, id);
    if (keep.y && also(k.y, id + 1)) own[atomicAdd(&s.num_own, 1u)] = listed(k.y, id + 1);
    if (keep.z && also(k.z, id + 2)) own[atomicAdd(&s.num_own, 1u)] = listed(k.z, id + 2);
    if (keep.w && also(k.w, id + 3)) own[atomicAdd(&s.num_own, 1u)] = listed(k.w, id + 3);
  });
  __syncthreads();
  const uint32_t count = s.num_own;
  if (threadIdx.x == 0) s.own_from = count ? atomicAdd(cluster.map_shared_rank(&s.num_listed, 0), count) : 0;
  __syncthreads();
  uint64_t* to = cluster.map_shared_rank(list, 0) + s.own_from;
  for (uint32_t i = threadIdx.x; i < count; i += kRowThreads) to[i] = own[i];
}

// Sorts list[0, n), best first; room for the next power of two. One block.
HUNCH_DEVICE void sort_list(uint64_t* list, int n) {
  const int t = threadIdx.x;
  if (n <= 128) {  // each entry counts those before it
    uint64_t mine = 0;
    int before = 0;
    if (t < n) {
      mine = list[t];
#pragma unroll 8
      for (int i = 0; i < n; ++i) before += list[i] > mine ? 1 : 0;
    }
    __syncthreads();
    if (t < n) list[before] = mine;
    __syncthreads();
    return;
  }
  int size = 256;
  while (size < n) size *= 2;
  for (int i = n + t; i < size; i += kRowThreads) list[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = t; i < size / 2; i += kRowThreads) {
        const int a = 2 * i - (i & (step - 1)), b = a + step;
        const uint64_t x = list[a], y = list[b];
        if ((x < y) == ((a & run) == 0)) list[a] = y, list[b] = x;
      }
      __syncthreads();
    }
  }
}

// exp(log2_ratio * ln 2) for log2_ratio <= 0 to fp32 precision at any distance: whole and fraction apart.
HUNCH_DEVICE float exp2_of(double log2_ratio) {
  if (!(log2_ratio > -150)) return 0;
  const double whole = rint(log2_ratio);
  return ldexpf(exp2f(float(log2_ratio - whole)), int(whole));
}

}
