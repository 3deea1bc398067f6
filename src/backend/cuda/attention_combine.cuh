// The folding of partials of attention, and of planes of scores, behind its kernels. Included by attention.cu.
#pragma once

#include "backend/cuda/attention_stream.cuh"
#include "backend/cuda/packed_rows.cuh"

namespace hunch {

inline constexpr int kCombineWarps = 8, kTileWarps = 4, kBlocksOfSm = 7, kWarpsOfSm = kTileWarps * kBlocksOfSm;

// One row of one head is folded by a block, each warp some of its super-splits. A lane has four elements.
inline constexpr int kSupersOfWarp = 32 / kSuperSplits;
inline constexpr int kSlotsAtOnce = 4;  // partials that a warp asks for together
struct Folded {
  float4 sums = make_float4(0, 0, 0, 0);
  float top = -INFINITY, total = 0;
  HUNCH_DEVICE void add(const float4& x, float x_top, float x_total) {
    const MergeWeights w = merge_weights(top, x_top);
    top = w.top, total = merge(w, total, x_total);
    sums.x = merge(w, sums.x, x.x), sums.y = merge(w, sums.y, x.y);
    sums.z = merge(w, sums.z, x.z), sums.w = merge(w, sums.w, x.w);
  }
  HUNCH_DEVICE void add(const Folded& x) { add(x.sums, x.top, x.total); }
};
HUNCH_DEVICE const float* partial_of(const float* in_partial, AttentionSlot slot) { return in_partial + (slot & ~1u); }
HUNCH_DEVICE void write_row(const CombineDevice& a, int row, int head, int d, Folded& all) {
  if (a.sinks) all.add(make_float4(0, 0, 0, 0), a.sinks[head] * kLog2E, 1);  // a logit that has no value
  // A row that reads nothing has no weights: zeros, and -inf (or its sink) below.
  const float share = all.total == 0 ? 0.0f : a.value_scale / all.total;
  const auto out = [&](float x) { return all.total == 0 ? 0.0f : x * share + 0.0f; };
  const float4 y = make_float4(out(all.sums.x), out(all.sums.y), out(all.sums.z), out(all.sums.w));
  if (d < a.head_dim) {
    *reinterpret_cast<float4*>(a.out + row * a.out_row + head * a.out_head + d) = y;
    if (a.packed) pack_four({a.packed, a.packed_blocks}, row, head * a.head_dim + d, y);
  }
  if (d == 0 && a.lse) a.lse[row * a.lse_row + head * a.lse_head] = (all.top + log2f(all.total)) * kLn2;
}

__global__ void __launch_bounds__(kCombineWarps * 32, 2) combine_kernel(const CombineDevice* args) {
  constexpr int kAtOnce = kCombineWarps * kSupersOfWarp;  // super-splits
  static_assert(kSupersOfWarp * kSuperSplits == 32);
  __shared__ float4 shared_sums[kAtOnce][32];
  __shared__ float2 shared_state[kAtOnce];
  const CombineDevice a = *args;
  const int lane = int(threadIdx.x) % 32, warp = uniform(int(threadIdx.x) / 32), at_head = int(blockIdx.x);
  if (at_head >= a.count) return;
  const CombineRowDevice row = a.rows[at_head / a.group];
  const int head = row.kv_head * a.group + at_head % a.group;
  const int in_tile = row.in_tile + at_head % a.group;
  // The slots of a warp's super-splits, one a lane.
  int count = 0;  // of the lane's super-split
  AttentionSlot mine = 0;
  const auto look_up = [&](int first) {
    const int super = first + warp + lane / kSuperSplits * kCombineWarps;
    count = 0;
    if (super >= row.num_supers) return;
    const AttentionSuperDevice of = a.supers[row.first_super + super];
    count = of.num_slots, mine = a.slots[of.first_slot + min(lane % kSuperSplits, of.num_slots - 1)];
  };
  look_up(0);
  wait_for_previous();
  let_next_start();
  for (int d = lane * 4; d - lane * 4 < a.head_dim; d += 128) {
    const float* const sums = a.partials + in_tile * a.head_dim + min(d, a.head_dim - 4);
    const float* const states = a.partials + row.rows * a.head_dim + in_tile * 2;
    Folded all;
    for (int first = 0; first < row.num_supers; first += kAtOnce) {
      const int supers = min(kAtOnce, row.num_supers - first);
      if (first > 0 || d >= 128) {
        __syncthreads();
        look_up(first);
      }
      const float2 state = *reinterpret_cast<const float2*>(partial_of(states, mine));
#pragma unroll
      for (int j = 0; j < kSupersOfWarp; ++j) {
        if (warp + j * kCombineWarps >= supers) break;
        const int slots = uniform(__shfl_sync(~0u, count, j * kSuperSplits));
        Folded super;
#pragma unroll
        for (int half = 0; half < kSuperSplits; half += kSlotsAtOnce) {
          if (half >= slots) break;
          float4 x[kSlotsAtOnce];
#pragma unroll
          for (int i = 0; i < kSlotsAtOnce; ++i) {
            const AttentionSlot slot = __shfl_sync(~0u, mine, j * kSuperSplits + half + i);
            if (half + i < slots) x[i] = *reinterpret_cast<const float4*>(partial_of(sums, slot));
          }
#pragma unroll
          for (int i = 0; i < kSlotsAtOnce; ++i) {
            const int from = j * kSuperSplits + half + i;
            const float top = __shfl_sync(~0u, state.x, from), total = __shfl_sync(~0u, state.y, from);
            if (half + i < slots) super.add(x[i], top, total);
          }
        }
        shared_sums[warp + j * kCombineWarps][lane] = super.sums;
        if (lane == 0) shared_state[warp + j * kCombineWarps] = make_float2(super.top, super.total);
      }
      __syncthreads();
      if (warp == 0)
        for (int at = 0; at < supers; ++at) all.add(shared_sums[at][lane], shared_state[at].x, shared_state[at].y);
    }
    if (warp == 0) write_row(a, row.out_row, head, d, all);
  }
}

// The same for tiles of many rows, whose partials lie side by side in the same slots: a warp has some rows of a tile, one after
// the other (kAlone: one, and asks for more at once). Paced by instructions: a super-split of one partial is folded at once.
template <bool kAlone>
__global__ void __launch_bounds__(kTileWarps * 32, kAlone ? 4 : kBlocksOfSm) combine_tiles_kernel(const CombineDevice* args) {
  constexpr int kTileSlots = kAlone ? 8 : 4;
  const CombineDevice& a = *args;  // registers are for partials
  const int lane = int(threadIdx.x) % 32, warp = uniform(int(threadIdx.x) / 32);
  if (int(blockIdx.x) >= a.count * a.blocks_of_tile) return;
  const CombineTileDevice tile = a.tiles[int(blockIdx.x) / a.blocks_of_tile];
  const int begin = (int(blockIdx.x) % a.blocks_of_tile * kTileWarps + warp) * a.rows_of_warp;
  const int end = min(begin + a.rows_of_warp, tile.rows), slots = tile.num_slots;
  AttentionSlot mine = lane < slots ? a.slots[tile.first_slot + lane] : 0;
  const bool alone = slots <= 32 && __popc(__ballot_sync(~0u, mine & 1)) == slots;
  wait_for_previous();
  for (int row = begin; row < end; ++row)
    for (int d = lane * 4; d - lane * 4 < a.head_dim; d += 128) {
      const float* const sums = a.partials + row * a.head_dim + min(d, a.head_dim - 4);
      const float* const states = a.partials + tile.rows * a.head_dim + row * 2;
      Folded all, super;
      for (int first = 0; first < slots; first += 32) {
        const int count = min(32, slots - first);
        if (slots > 32) mine = lane < count ? a.slots[tile.first_slot + first + lane] : 0;
        const float2 state = *reinterpret_cast<const float2*>(partial_of(states, mine));
        const unsigned begins = __ballot_sync(~0u, mine & 1);
        for (int from = 0; from < count; from += kTileSlots) {
          float4 x[kTileSlots];
#pragma unroll
          for (int i = 0; i < kTileSlots; ++i) {
            const AttentionSlot slot = __shfl_sync(~0u, mine, from + i);
            if (from + i < count) x[i] = *reinterpret_cast<const float4*>(partial_of(sums, slot));
          }
#pragma unroll
          for (int i = 0; i < kTileSlots; ++i) {
            if (from + i >= count) break;
            const float top = __shfl_sync(~0u, state.x, from + i), total = __shfl_sync(~0u, state.y, from + i);
            if (alone) {
              all.add(x[i], top, total);
            } else {
              if (begins >> (from + i) & 1) all.add(super), super = Folded();
              super.add(x[i], top, total);
            }
          }
        }
      }
      if (!alone) all.add(super);
      if (row + 1 == end) let_next_start();
      const int packed = tile.first_packed + row, in_group = packed % tile.padded_group;
      if (in_group < a.group)
        write_row(a, tile.first_row + packed / tile.padded_group, tile.kv_head * a.group + in_group, d, all);
    }
}

__global__ void reduce_scores_kernel(const ReduceScoresDevice* args) {
  const ReduceScoresDevice a = *args;
  wait_for_previous();
  let_next_start();
  const int64_t sets = a.by_rows ? 1 : a.kv_heads, total = sets * a.prefix_len;
  for (int64_t first = int64_t(blockIdx.x) * blockDim.x; first < total; first += int64_t(gridDim.x) * blockDim.x) {
    const int64_t at = first + threadIdx.x, set = at / a.prefix_len, entry = at % a.prefix_len;
    float score = a.sum ? 0.0f : -INFINITY;
    for (int g = 0; g < a.groups && at < total; ++g) {
      float value = 0;
      if (a.by_rows) {
        for (int h = 0; h < a.kv_heads; ++h) value += a.planes[(int64_t(g) * a.kv_heads + h) * a.plane_stride + entry];
        value *= a.mean;
      } else {
        value = a.planes[(int64_t(g) * a.kv_heads + set) * a.plane_stride + entry];
      }
      score = a.sum ? score + value : fmaxf(score, value);
    }
    for (int step = 1; step < a.block; step *= 2) score = fmaxf(score, __shfl_xor_sync(~0u, score, step));
    if (at < total && entry % a.block == 0) a.out[set * a.out_stride + entry / a.block] = score;
  }
}

}
