// What selections share (top_k.cu, sample.cu, log_probs.cu): floats as integers in the same order, and the count-th best of what
// a cluster of blocks holds, by radix: histograms of 11, 11 and 10 bits of the key in each block's shared memory, added across
// the cluster; equal keys are told apart by 11 + 11 bits of the index. Counts are integers: no order of additions shows in the
// result.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "backend/cuda/ptx.h"

namespace hunch {

// A block that is alone: also lets kernels of clusters compile, for devices on which they never run (host_ops.h).
struct NoCluster {
  __device__ unsigned block_rank() const { return 0; }
  __device__ void sync() const { __syncthreads(); }
  template <class T>
  __device__ T* map_shared_rank(T* p, int) const {
    return p;
  }
};
#if HUNCH_HOPPER
HUNCH_DEVICE auto cluster_of_blocks() { return cooperative_groups::this_cluster(); }
#else
HUNCH_DEVICE NoCluster cluster_of_blocks() { return {}; }
#endif

constexpr int kClusterBlocks = 8;  // the most that every Hopper device places
// The blocks that share a selection: kClusterBlocks, or one by itself.
template <int kBlocks>
HUNCH_DEVICE auto blocks_together() {
  if constexpr (kBlocks > 1) return cluster_of_blocks();
  else return NoCluster{};
}
constexpr int kBins = 2048, kGroupBins = 128, kGroups = kBins / kGroupBins;
constexpr int64_t kMostEntries = int64_t(1) << 22;  // indices have 22 bits
constexpr unsigned kAllLanes = 0xffffffffu;

// Keys: greater is better. Absent entries have key 0, NaN key 1: neither is the key of a number.
constexpr uint32_t kAbsentKey = 0, kNanKey = 1, kLeastFiniteKey = 0x00800000u, kInfKey = 0xff800000u;

HUNCH_DEVICE uint32_t key_of_number(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 + 0 is +0
  return bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
}
HUNCH_DEVICE uint32_t key_of(float x) { return x != x ? kNanKey : key_of_number(x); }
HUNCH_DEVICE float value_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

// Four keys in one access: left to itself the compiler loads them one by one as they are looked at, each with conflicts of banks.
HUNCH_DEVICE uint4 load_four(const void* keys) {
  uint4 k;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(k.x), "=r"(k.y), "=r"(k.z), "=r"(k.w)
               : "r"(uint32_t(__cvta_generic_to_shared(keys)))
               : "memory");
  return k;
}

constexpr uint32_t kEveryId = 0xffffffffu;

// The entries that are kept: greater keys, and of the equal ones those up to an index.
struct Threshold {
  uint32_t key, id;
  HUNCH_DEVICE bool keeps(uint32_t k, uint32_t i) const { return k > key || (k == key && i <= id); }
  struct Four {
    bool x, y, z, w;
  };
  // Of indices i .. i + 3. Most often equal keys are all kept.
  HUNCH_DEVICE Four keeps_four(const uint4& k, uint32_t i) const {
    if (id == kEveryId) return {k.x >= key, k.y >= key, k.z >= key, k.w >= key};
    return {keeps(k.x, i), keeps(k.y, i + 1), keeps(k.z, i + 2), keeps(k.w, i + 3)};
  }
};

struct SelectShared {
  alignas(16) uint32_t bins[kBins];              // best first; zero between selections
  uint32_t group_sums[kClusterBlocks][kGroups];  // of every block, in every block
  struct {
    uint32_t bin, remaining, inside;
  } found;
};

HUNCH_DEVICE uint32_t warp_scan(uint32_t x) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const uint32_t y = __shfl_up_sync(kAllLanes, x, d);
    if (lane >= d) x += y;
  }
  return x;
}

// Before the first selection, by all threads of a block; a barrier must follow.
HUNCH_DEVICE void clear_bins(SelectShared& s) {
  for (int i = threadIdx.x; i < kBins; i += blockDim.x) s.bins[i] = 0;
}

// The blocks of a cluster wait for each other, but what they wrote is not made visible (that costs a thousand cycles): enough
// where memory is about to be overwritten whose last reads by others have returned.
template <int kBlocks>
HUNCH_DEVICE void cluster_meet() {
#if HUNCH_HOPPER
  if constexpr (kBlocks > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// The bin of the `remaining`-th entry (from 1) of all blocks' bins, how many are still wanted of it, and how many it holds.
// Clears the bins. At least 8 warps; all threads of all blocks call it, after a cluster.sync() by which all have begun.
// Needs remaining <= entries counted. Every block tells
// every block the sums of its groups of bins; each then reads the one group that matters from all.
struct Found {
  uint32_t bin, remaining, inside;
};
template <int kBlocks = kClusterBlocks>
__device__ __noinline__ Found find_bin(SelectShared& s, uint32_t remaining) {
  const auto cluster = blocks_together<kBlocks>();
  const unsigned rank = cluster.block_rank();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  __syncthreads();  // all of this block have counted
  for (int g = warp; g < kGroups; g += int(blockDim.x >> 5)) {
    const uint4 four = *reinterpret_cast<const uint4*>(&s.bins[g * kGroupBins + lane * 4]);
    const uint32_t sum = __reduce_add_sync(kAllLanes, four.x + four.y + four.z + four.w);
    if (lane < kBlocks) *cluster.map_shared_rank(&s.group_sums[rank][g], lane) = sum;
  }
  cluster.sync();
  if (warp == 0) {
    uint32_t value = 0;
    if (lane < kGroups)
      for (int b = 0; b < kBlocks; ++b) value += s.group_sums[b][lane];
    uint32_t upto = warp_scan(value);
    const int group = __ffs(int(__ballot_sync(kAllLanes, upto >= remaining))) - 1;
    const uint32_t left = remaining - __shfl_sync(kAllLanes, upto - value, group);
    uint4 sums{0, 0, 0, 0};
    uint32_t* bins = &s.bins[group * kGroupBins + lane * 4];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const uint4 x = *reinterpret_cast<const uint4*>(cluster.map_shared_rank(bins, b));
      sums.x += x.x, sums.y += x.y, sums.z += x.z, sums.w += x.w;
    }
    value = sums.x + sums.y + sums.z + sums.w;
    upto = warp_scan(value);
    if (upto - value < left && left <= upto) {
      const uint32_t counts[4] = {sums.x, sums.y, sums.z, sums.w};
      uint32_t below = upto - value;
      bool done = false;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (!done && left <= below + counts[c]) {
          s.found = {uint32_t(group * kGroupBins + lane * 4 + c), left - below, counts[c]};
          done = true;
        }
        below += counts[c];
      }
    }
  }
  __syncthreads();
  const Found found{s.found.bin, s.found.remaining, s.found.inside};
  cluster_meet<kBlocks>();  // nobody reads others' bins any more
  for (int i = threadIdx.x; i < kBins; i += blockDim.x) s.bins[i] = 0;
  __syncthreads();
  return found;
}

// One more in a bin where `in`; a predicate instead of a branch.
HUNCH_DEVICE void count_where(bool in, const uint32_t* bin) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p red.shared.add.u32 [%0], 1;\n}" ::"r"(uint32_t(__cvta_generic_to_shared(bin))),
      "r"(uint32_t(in))
      : "memory");
}

// Of the entries with `key`, the `count`-th lowest index. each(op) calls op(key, index) for every entry of this thread.
template <int kBlocks = kClusterBlocks, class Each>
HUNCH_DEVICE Threshold select_ids(SelectShared& s, uint32_t key, uint32_t count, const Each& each) {
  each([&](uint32_t k, uint32_t i) { count_where(k == key, &s.bins[i >> 11]); });
  const Found high = find_bin<kBlocks>(s, count);
  if (high.remaining == high.inside) return {key, high.bin << 11 | 2047u};
  each([&](uint32_t k, uint32_t i) { count_where(k == key && i >> 11 == high.bin, &s.bins[i & 2047u]); });
  return {key, high.bin << 11 | find_bin<kBlocks>(s, high.remaining).bin};
}

HUNCH_DEVICE void count_high(SelectShared& s, uint32_t key) { count_where(true, &s.bins[2047u - (key >> 21)]); }

// What keeps exactly the `count` best. Expects count_high() done for every entry, in the calling order of find_bin's promise.
template <int kBlocks = kClusterBlocks, class Each>
HUNCH_DEVICE Threshold select_best(SelectShared& s, uint32_t count, const Each& each) {
  Found f = find_bin<kBlocks>(s, count);
  const uint32_t high = 2047u - f.bin;
  if (f.remaining == f.inside) return {high << 21, kEveryId};
  each([&](uint32_t k, uint32_t) {
    const uint32_t above = k - (high << 21);
    count_where(above < 1u << 21, &s.bins[2047u - (above >> 10)]);
  });
  f = find_bin<kBlocks>(s, f.remaining);
  const uint32_t middle = high << 11 | (2047u - f.bin);
  if (f.remaining == f.inside) return {middle << 10, kEveryId};
  each([&](uint32_t k, uint32_t) {
    const uint32_t above = k - (middle << 10);
    count_where(above < 1u << 10, &s.bins[1023u - above]);
  });
  f = find_bin<kBlocks>(s, f.remaining);
  const uint32_t key = middle << 10 | (1023u - f.bin);
  if (f.remaining == f.inside) return {key, kEveryId};
  return select_ids<kBlocks>(s, key, f.remaining, each);
}

}
