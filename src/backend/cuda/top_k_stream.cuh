// Selection where there are many sets (top_k.cu): one block takes a set and reads it once. A sample of the set gives a value that
// the threshold very likely exceeds; the block then streams all scores, dilates them in registers and keeps only those above that
// value, in shared memory; a histogram of these finds the threshold, and the few entries in its bin are ranked exactly. A bound
// that lets too few or too many pass is tried again with another margin; what still fails (many equal scores, an address
// that is not aligned) is marked, and top_k_kernel does it afterwards.
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/cuda/select.cuh"
#include "backend/cuda/top_k_set.cuh"

namespace hunch {

struct StreamDevice {
  TopKSets sets;
  uint32_t* failed;  // [sets], written for each
  uint32_t capacity;
  int32_t pad;
};

constexpr int kTile = 1024;            // entries that a warp takes at a time
constexpr int kVectors = kTile / 128;  // 16-byte loads per lane
constexpr int kHalo = 16;              // entries before them that may spread into them
constexpr int kUnit = 8;               // neighbours that a lane dilates
constexpr int kUnits = kTile / kUnit;
static_assert(kUnits == 4 * 32);                              // four lists of candidates in a tile
constexpr int kMostTiles = 256;                               // 262,144 entries
constexpr int kSegment = 28, kSegmentVectors = kSegment / 4;  // of a sample: 7 x 16 bytes, so that lanes meet in no bank
constexpr int kRounds = 2;                                    // segments per lane
constexpr int kStreamBins = 2048;
constexpr int kBoundary = 512;  // entries in the threshold's bin that are ranked one against the other
constexpr int kTries = 3;
constexpr int kStreamSpread = 16;
constexpr int kLeastStreamed = 4096;

// A candidate is one word: how far its key lies above the bound's, in units of 8, saturated (22 bits, four octaves), and its
// place in its tile (10 bits). The greatest distance is kept for entries of the threshold's bin that were chosen.
constexpr uint32_t kPlace = kTile - 1, kFar = (1u << 25) - 9, kChosen = ~kPlace;
constexpr int kBinShift = 21;

struct StreamShared {
  TopKSet set;
  alignas(16) uint32_t tiles[kMostTiles][4];  // the candidates of up to 32 units each: first << 16 | number
  uint32_t kept[kMostTiles];                  // chosen of a tile, then chosen before it
  uint8_t units[8][kUnits];                   // of each warp: those of the tile that may have candidates
  uint32_t group_sums[8];
  uint32_t used, boundary;
  struct {
    uint32_t bin, below;
  } found;
  alignas(16) float buffer[1];  // [warps][kHalo + kTile], then [capacity] words
};

// In the warps' buffers, when all has been read: the histogram and the entries in the threshold's bin.
struct Chosen {
  alignas(16) uint32_t bins[kStreamBins];
  uint32_t word[kBoundary], index[kBoundary], key[kBoundary];
};
constexpr int kStreamBuffer = kHalo + kTile;
static_assert(sizeof(Chosen) <= 4 * kStreamBuffer * sizeof(float));

// fmaxf() that gives NaN where either is NaN: an entry that is NaN shows in all that it reaches.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// The doubling scheme of spread 16 over neighbours; the first kHalo values are spent. kNan: a NaN stays and never spreads, as it
// is defined; otherwise it spreads to all within reach.
template <bool kNan, int kStep, int kFirst, int kCount>
__device__ __forceinline__ void dilate_step(float (&y)[kCount], float factor) {
#pragma unroll
  for (int i = kCount - 1; i >= kFirst; --i) {
    const float x = factor * y[i - kStep];
    if (kNan) y[i] = x > y[i] ? x : y[i];
    else y[i] = max_or_nan(y[i], x);
  }
}
template <bool kNan, int kCount>
__device__ __forceinline__ void dilate_sixteen(float (&y)[kCount], const float (&factor)[4]) {
  dilate_step<kNan, 1, 1>(y, factor[0]);
  dilate_step<kNan, 2, 3>(y, factor[1]);
  dilate_step<kNan, 4, 7>(y, factor[2]);
  dilate_step<kNan, 8, 15>(y, factor[3]);
  dilate_step<kNan, 1, 16>(y, factor[0]);
}
__device__ __forceinline__ bool reaches(const float4& x, float bound) { return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)) >= bound; }

// The bin in which entry `rank` (from 0, lowest first) lies, and the entries below it. All threads call it, after a barrier; the
// bins may be changed after the next one. Where all bins together hold no more than `rank`: the last bin.
__device__ __forceinline__ void find_low_bin(StreamShared& s, const uint32_t* bins, uint32_t rank) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  constexpr int kPer = kStreamBins / 8;
  for (int g = warp; g < 8; g += warps) {
    const uint4 a = *reinterpret_cast<const uint4*>(&bins[g * kPer + lane * 8]);
    const uint4 b = *reinterpret_cast<const uint4*>(&bins[g * kPer + lane * 8 + 4]);
    const uint32_t sum = __reduce_add_sync(kAllLanes, a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w);
    if (lane == 0) s.group_sums[g] = sum;
  }
  __syncthreads();
  if (warp != 0) return;
  uint32_t value = lane < 8 ? s.group_sums[lane] : 0, upto = warp_scan(value);
  const uint32_t past = __ballot_sync(kAllLanes, upto > rank);
  if (past == 0) {
    if (lane == 31) s.found = {kStreamBins - 1, upto};
    return;
  }
  const int group = __ffs(int(past)) - 1;
  const uint32_t before = __shfl_sync(kAllLanes, upto - value, group);
  const uint4 a = *reinterpret_cast<const uint4*>(&bins[group * kPer + lane * 8]);
  const uint4 b = *reinterpret_cast<const uint4*>(&bins[group * kPer + lane * 8 + 4]);
  const uint32_t counts[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  value = a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
  upto = warp_scan(value) + before;
  if (upto > rank && upto - value <= rank) {
    uint32_t below = upto - value;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if (below <= rank && rank < below + counts[c]) s.found = {uint32_t(group * kPer + lane * 8 + c), below};
      below += counts[c];
    }
  }
}

template <int kSpread>
struct Stream {
  StreamShared& s;
  const TopKSet& set;
  float* buffer;    // this warp's
  uint32_t* words;  // the block's
  uint32_t capacity;
  float factor[4];

  __device__ __forceinline__ void clear(uint32_t* bins) const {
    for (int i = threadIdx.x; i < kStreamBins; i += blockDim.x) bins[i] = 0;
  }

  // Every fourth entry of a segment counts: with a spread its neighbours hardly differ, and without there are enough.
  static constexpr int kSampled = kSpread ? (kSegment - kHalo) / 4 : kSegment / 4;

  // The key that about `margin` times `count` of the set's entries reach, by segments at equal distances; 0 if there is none.
  // Ends with a barrier. The words' memory serves as its bins.
  __device__ __forceinline__ uint32_t sampled_key(float margin) const {
    const int lane = threadIdx.x & 31, segments = kRounds * int(blockDim.x);
    const float distance = float(set.n - kSegment) / float(segments);
    uint32_t* bins = words;
    clear(bins);
    __syncthreads();
    uint32_t keys[kRounds][kSampled];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int first = r * int(blockDim.x) + int(threadIdx.x & ~31u);
      __syncwarp();
#pragma unroll
      for (int v = 0; v < kSegmentVectors; ++v) {
        const int piece = v * 32 + lane, segment = piece / kSegmentVectors;
        const int from = int(float(first + segment) * distance) & ~3;
        *reinterpret_cast<float4*>(buffer + piece * 4) =
            __ldg(reinterpret_cast<const float4*>(set.scores + from) + piece % kSegmentVectors);
      }
      __syncwarp();
      float y[kSegment];
#pragma unroll
      for (int v = 0; v < kSegmentVectors; ++v) {
        const float4 x = *reinterpret_cast<const float4*>(buffer + lane * kSegment + v * 4);
        y[4 * v] = x.x, y[4 * v + 1] = x.y, y[4 * v + 2] = x.z, y[4 * v + 3] = x.w;
      }
      if (kSpread) dilate_sixteen<false>(y, factor);
#pragma unroll
      for (int i = 0; i < kSampled; ++i) {
        keys[r][i] = key_of(y[kSegment - 1 - 4 * i]);
        atomicAdd(&bins[keys[r][i] >> 21], 1u);
      }
    }
    __syncthreads();
    const int taken = segments * kSampled, ends = set.sinks + (set.n - set.recent_from);
    const int wanted = int(margin * float(taken) * float(max(set.count - ends, 1)) / float(max(set.n - ends, 1))) + 1;
    const bool enough = wanted < taken;
    const uint32_t rank = enough ? uint32_t(taken - wanted) : 0u;
    find_low_bin(s, bins, rank);
    __syncthreads();
    const uint32_t high = s.found.bin, below = s.found.below;
    clear(bins);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRounds; ++r)
#pragma unroll
      for (int i = 0; i < kSampled; ++i) count_where(keys[r][i] >> 21 == high, &bins[(keys[r][i] >> 10) & 2047u]);
    __syncthreads();
    find_low_bin(s, bins, rank - below);
    __syncthreads();
    const uint32_t key = high << 21 | s.found.bin << 10;
    return enough ? key : 0u;
  }

  // Candidates of all tiles into the words. Only entries near one that reaches the bound itself are dilated at all: the units
  // with such entries, or behind them, are listed, and each lane takes one.
  __device__ __forceinline__ void stream(uint32_t bound_key) const {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const int tiles = (set.n + kTile - 1) / kTile;
    const float bound = value_of(bound_key);
    uint8_t* units = s.units[warp];
    float4 next[kVectors], halo = make_float4(0, 0, 0, 0);
    const auto load = [&](int tile) {
      const int from = tile * kTile + lane * 4;
      if ((tile + 1) * kTile <= set.n) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) next[v] = __ldcs(reinterpret_cast<const float4*>(set.scores + from + v * 128));
      } else {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const int j = from + v * 128;
          const float* at = set.scores + j;
          next[v] =
              make_float4(j < set.n ? at[0] : 0, j + 1 < set.n ? at[1] : 0, j + 2 < set.n ? at[2] : 0, j + 3 < set.n ? at[3] : 0);
        }
      }
      if (kSpread && lane < kHalo / 4 && tile > 0) halo = __ldg(reinterpret_cast<const float4*>(set.scores + from - kHalo));
    };
    if (warp < tiles) load(warp);
    for (int tile = warp; tile < tiles; tile += warps) {
      __syncwarp();  // the buffer has been read
      if (kSpread && lane < kHalo / 4) *reinterpret_cast<float4*>(buffer + lane * 4) = halo;
      // Bit l of word v: entries 128 v + 4 l and the three after it. A lane looks after four units, eight such groups, and needs
      // the four groups before them.
      uint32_t own = 0, before = 0, last = kSpread ? __ballot_sync(kAllLanes, reaches(halo, bound)) << 28 : 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        *reinterpret_cast<float4*>(buffer + kHalo + v * 128 + lane * 4) = next[v];
        const uint32_t word = __ballot_sync(kAllLanes, reaches(next[v], bound));
        if (lane >> 2 == v) own = word, before = last;
        last = word;
      }
      if (tile + warps < tiles) load(tile + warps);
      const bool edge = tile * kTile < set.sinks || (tile + 1) * kTile > set.recent_from;  // recent_from <= n
      const int shift = 8 * (lane & 3);
      const uint32_t groups = shift == 0 ? own << 4 | before >> 28 : own >> (shift - 4);
      int total = 0, at = 0;
      bool active[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        active[i] = edge || (groups >> (2 * i) & (kSpread ? 0x3fu : 0x30u)) != 0;
        const uint32_t all = __ballot_sync(kAllLanes, active[i]);
        total += __popc(all), at += __popc(all & ((1u << lane) - 1));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (active[i]) units[at++] = uint8_t(4 * lane + i);
      uint32_t* lists = s.tiles[tile];
      if (lane < 4) lists[lane] = 0;
      __syncwarp();
      for (int r = 0; r < total; r += 32) {
        const uint32_t listed = take(units, r + lane < total ? r + lane : -1, tile, edge, bound_key);
        if (lane == 0) lists[r / 32] = listed;
      }
    }
  }

  // The candidates of one unit per lane (none where `which` is negative): where they are now, as in StreamShared::tiles.
  __device__ __forceinline__ uint32_t take(const uint8_t* units, int which, int tile, bool edge, uint32_t bound_key) const {
    const int lane = threadIdx.x & 31, unit = which >= 0 ? units[which] : 0;
    const float bound = value_of(bound_key), limit = which >= 0 ? bound : NAN;
    float y[kHalo + kUnit];
    const auto read = [&] {
#pragma unroll
      for (int v = kSpread ? 0 : kHalo / 4; v < (kHalo + kUnit) / 4; ++v) {
        const float4 x = *reinterpret_cast<const float4*>(buffer + unit * kUnit + v * 4);
        y[4 * v] = x.x, y[4 * v + 1] = x.y, y[4 * v + 2] = x.z, y[4 * v + 3] = x.w;
      }
    };
    read();
    if (kSpread) {
      dilate_sixteen<false>(y, factor);
      const float some = y[kHalo] + y[kHalo + kUnit - 1];  // whatever NaN there was is in one of these
      if (some != some) read(), dilate_sixteen<true>(y, factor);
    }
    if (edge) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        const int j = tile * kTile + unit * kUnit + i;
        if (j < set.sinks || j >= set.recent_from) y[kHalo + i] = INFINITY;
        if (j >= set.n) y[kHalo + i] = NAN;  // never a candidate
      }
    }
    uint32_t own = 0;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) own += y[kHalo + i] >= limit ? 1u : 0u;
    uint32_t before = 0, total = 0;  // own <= 8: four bits, without the shuffles of a scan
#pragma unroll
    for (int bit = 0; bit < 4; ++bit) {
      const uint32_t all = __ballot_sync(kAllLanes, own >> bit & 1u);
      before += __popc(all & ((1u << lane) - 1)) << bit, total += __popc(all) << bit;
    }
    uint32_t first = 0;
    if (lane == 0) first = atomicAdd(&s.used, total);
    first = __shfl_sync(kAllLanes, first, 0);
    if (first + total > capacity) return 0;
    uint32_t* to = words + first + before;
    // Where there is a spread the bound is above zero, and bits are ordered as values are.
    const float far = __uint_as_float(min(__float_as_uint(bound) + kFar, 0x7f800000u));
    const uint32_t base = __float_as_uint(bound) << 7;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const float x = y[kHalo + i];
      uint32_t above;
      if (kSpread) above = (__float_as_uint(fminf(x, far)) << 7) - base;
      else above = min(key_of_number(x) - bound_key, kFar) << 7;
      if (x >= limit) *to++ = (above & ~kPlace) | uint32_t(unit * kUnit + i);
    }
    return first << 16 | total;
  }

  // Entry j after dilation.
  __device__ __forceinline__ uint32_t exact_key(int j) const {
    if (j < set.sinks || j >= set.recent_from) return kInfKey;
    if (!kSpread) return key_of(__ldg(set.scores + j));
    float y[kHalo + 1];
#pragma unroll
    for (int t = 0; t <= kHalo; ++t) y[t] = j + t >= kHalo ? __ldg(set.scores + j + t - kHalo) : 0.0f;
    dilate_sixteen<true>(y, factor);
    return key_of(y[kHalo]);
  }

  // Calls op(words, i, end) for each 128 words [i, end) of a tile, in order: four per lane, 32 apart, 0 from `end` on.
  template <class Op>
  __device__ __forceinline__ void each_list(int tile, const Op& op) const {
    const int lane = threadIdx.x & 31;
    uint4 lists = *reinterpret_cast<const uint4*>(s.tiles[tile]);
    while ((lists.x | lists.y | lists.z | lists.w) != 0) {
      const uint32_t first = lists.x >> 16, end = first + (lists.x & 0xffffu);
      for (uint32_t i = first; i < end; i += 128) {
        uint32_t word[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) word[k] = i + 32 * k + lane < end ? words[i + 32 * k + lane] : 0u;
        op(word, i, end);
      }
      lists = make_uint4(lists.y, lists.z, lists.w, 0);
    }
  }

  // The count best of the candidates, written out. False if too many lie in the threshold's bin.
  __device__ __forceinline__ bool choose(uint32_t candidates, Chosen& c) const {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const int tiles = (set.n + kTile - 1) / kTile;
    clear(c.bins);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < candidates; i += 4 * blockDim.x) {
      uint32_t word[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) word[k] = i + k * blockDim.x < candidates ? words[i + k * blockDim.x] : ~0u;
#pragma unroll
      for (int k = 0; k < 4; ++k) {  // the last bin: many, and hardly ever looked for
        const uint32_t bin = word[k] >> kBinShift;
        count_where(bin != kStreamBins - 1, &c.bins[bin]);
      }
    }
    __syncthreads();
    const uint32_t drop = candidates - uint32_t(set.count);  // the lowest so many
    find_low_bin(s, c.bins, drop);
    __syncthreads();
    const uint32_t bin = s.found.bin, drop_here = drop - s.found.below;
    const uint32_t least = bin == kStreamBins - 1 ? kChosen : (bin + 1) << kBinShift;
    for (int t = warp; t < tiles; t += warps) {
      uint32_t above = 0;
      each_list(t, [&](const uint32_t(&word)[4], uint32_t i, uint32_t end) {
        bool here = false;
#pragma unroll
        for (int k = 0; k < 4; ++k) above += word[k] >= least, here |= word[k] >> kBinShift == bin;
        if (!here) return;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const uint32_t at = i + 32 * k + lane;
          if (word[k] >> kBinShift != bin || at >= end) continue;
          const uint32_t to = atomicAdd(&s.boundary, 1u);
          if (to < kBoundary) c.word[to] = at, c.index[to] = uint32_t(t) * kTile + (word[k] & kPlace);
        }
      });
      above = __reduce_add_sync(kAllLanes, above);
      if (lane == 0) s.kept[t] = above;
    }
    __syncthreads();
    const uint32_t equal = s.boundary;
    if (equal > kBoundary) return false;
    for (uint32_t i = threadIdx.x; i < equal; i += blockDim.x) c.key[i] = exact_key(int(c.index[i]));
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < equal; i += blockDim.x) {
      const uint32_t key = c.key[i], index = c.index[i];
      uint32_t lower = 0;
      for (uint32_t o = 0; o < equal; ++o) lower += c.key[o] < key || (c.key[o] == key && c.index[o] > index);
      if (lower < drop_here) continue;
      words[c.word[i]] |= kChosen;
      atomicAdd(&s.kept[index / kTile], 1u);
    }
    __syncthreads();
    if (warp == 0) {
      uint32_t before = 0;
      for (int t = 0; t < tiles; t += 32) {
        const uint32_t value = t + lane < tiles ? s.kept[t + lane] : 0u, upto = warp_scan(value);
        if (t + lane < tiles) s.kept[t + lane] = before + upto - value;
        before += __shfl_sync(kAllLanes, upto, 31);
      }
    }
    __syncthreads();
    for (int t = warp; t < tiles; t += warps) {
      int32_t* to = set.index + s.kept[t];
      each_list(t, [&](const uint32_t(&word)[4], uint32_t, uint32_t) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const uint32_t all = __ballot_sync(kAllLanes, word[k] >= least);
          if (word[k] >= least) to[__popc(all & ((1u << lane) - 1))] = int32_t(uint32_t(t) * kTile + (word[k] & kPlace));
          to += __popc(all);
        }
      });
    }
    return true;
  }

  __device__ __forceinline__ bool run(Chosen& chosen) const {
    if (!set.aligned || (kSpread ? !set.spread.is_sixteen() : set.spread.num_steps != 0) || set.n < kLeastStreamed ||
        set.n > kTile * kMostTiles)
      return false;
    if (uint32_t(set.count) > capacity) return false;
    // The sample's relative error: so many independent windows reach the threshold.
    const float windows = float(kRounds * int(blockDim.x)) * (kSpread ? 1.7f : float(kSampled));
    const float error = rsqrtf(fmaxf(windows * float(set.count) / float(set.n), 1.0f));
    const float most = 0.95f * float(capacity) / float(set.count);
    float margin = fminf(1 + 3 * error, 0.5f * (1 + most));
    for (int attempt = 0; attempt < kTries; ++attempt) {
      if (threadIdx.x == 0) s.used = 0, s.boundary = 0;
      const uint32_t key = sampled_key(margin);
      if (kSpread ? key <= 0x80000000u || key >= kInfKey : key < kLeastFiniteKey || key >= kInfKey) return false;
      stream(key);
      __syncthreads();
      const uint32_t candidates = s.used;
      if (candidates >= uint32_t(set.count) && candidates <= capacity) return choose(candidates, chosen);
      // Towards the middle of what would do, by how far this one missed.
      margin *= fminf(fmaxf(0.5f * (1 + most) * float(set.count) / float(max(candidates, 1u)), 0.25f), 4.0f);
      __syncthreads();
    }
    return false;
  }
};

template <int kSpread>
__global__ void __launch_bounds__(256, 2) stream_top_k_kernel(const StreamDevice* args) {
  extern __shared__ __align__(16) unsigned char memory[];
  StreamShared& s = *reinterpret_cast<StreamShared*>(memory);
  const int warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const StreamDevice a = *args;
  if (threadIdx.x == 0) s.set = a.sets[blockIdx.x];
  __syncthreads();
  wait_for_previous();
  let_next_start();
  uint32_t* words = reinterpret_cast<uint32_t*>(s.buffer + warps * kStreamBuffer);
  const Stream<kSpread> stream{s, s.set, s.buffer + warp * kStreamBuffer, words, a.capacity,
      {s.set.spread.factor[0], s.set.spread.factor[1], s.set.spread.factor[2], s.set.spread.factor[3]}};
  const bool done = stream.run(*reinterpret_cast<Chosen*>(s.buffer));
  if (threadIdx.x == 0) a.failed[blockIdx.x] = done ? 0 : 1;
}

inline size_t stream_shared_bytes(int warps, int capacity) {
  return offsetof(StreamShared, buffer) + (size_t(warps) * kStreamBuffer + size_t(capacity)) * sizeof(float);
}

}  // namespace hunch
