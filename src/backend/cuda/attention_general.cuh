// Attention and scores in plain fp32 for stores and shapes that the tensor cores have no form for: F32, other head widths, groups
// of more than 16. One warp takes one packed row; items, partials and their folding are those of attention_args.h. Included by
// attention.cu.
#pragma once

#include "backend/cuda/attention_stream.cuh"
#include "backend/cuda/kv_rows.cuh"

namespace hunch {

constexpr int kGeneralWarps = 8;

HUNCH_DEVICE float dot(DType dtype, const float* q, const KvRow& k, int head_dim) {
  float sum = 0;
  for (int d = 0; d < head_dim; ++d) sum = fmaf(q[d], kv_element(dtype, k, d), sum);
  return sum;
}
HUNCH_DEVICE float warp_max(float x) {
  for (int step = 16; step; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
HUNCH_DEVICE float warp_sum(float x) {
  for (int step = 16; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// Shared memory: [warp][split, super][head_dim] sums.
__global__ void __launch_bounds__(kGeneralWarps * 32) general_attention_kernel(const AttentionDevice* args) {
  extern __shared__ float general_sums[];
  const AttentionDevice a = *args;
  wait_for_previous();
  let_next_start();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  for (int i = int(blockIdx.x); i < a.num_items; i += int(gridDim.x)) {
    const AttentionItemDevice& item = a.items[i];
    const AttentionRunDevice& run = a.runs[item.run];
    const int dim = run.plane.head_dim, rows = item.rows[0];
    float *sums = general_sums + warp * 2 * dim, *super = sums + dim;
    for (int in_tile = warp; in_tile < rows; in_tile += kGeneralWarps) {
      const int packed = item.mgroup * kTileRows + in_tile, row = packed >> a.group_shift;
      const int head = packed & ((1 << a.group_shift) - 1);
      if (head >= a.group) continue;
      const float* q = a.q + (run.first_row + row) * a.q_row + (item.kv_head * a.group + head) * a.q_head;
      const int last = run.last[row], first = max(run.first, run.window ? last + 1 - run.window : 0);
      const int own_leaf = run.leaf_of_row ? run.leaf_of_row[row] : -1;
      if (item.part && (own_leaf < item.leaf_begin || own_leaf >= item.leaf_end)) continue;  // another item's
      float super_top = -INFINITY, super_total = 0;
      for (int d = lane; d < dim; d += 32) super[d] = 0;
      for (int split = item.first_split; split < item.first_split + item.num_splits; ++split) {
        float top = -INFINITY, total = 0;
        for (int d = lane; d < dim; d += 32) sums[d] = 0;
        for (Tiles tiles(item, run.leaves, split, 1); tiles.next();) {
          const int block = tiles.block, leaf = tiles.leaf;
          if (leaf >= 0 && leaf != own_leaf) continue;
          float weight[2], logit[2];
          int entry[2];
          bool read[2];
          for (int h = 0; h < 2; ++h) {
            const int place = block * kPageLen + h * 32 + lane;
            read[h] = place >= first && place <= last;
            entry[h] = stored_entry(run, leaf, item.kv_head, place, last + 1);
            logit[h] = -INFINITY;
            if (read[h])
              logit[h] = a.scale_log2 * dot(run.plane.dtype, q, kv_row(run.plane, run.pages, item.kv_head, entry[h], 0), dim);
          }
          const float next = fmaxf(top, warp_max(fmaxf(logit[0], logit[1]))), base = next == -INFINITY ? 0.0f : next;
          const float alpha = exp2_fast(top - base);
          for (int h = 0; h < 2; ++h) weight[h] = read[h] ? exp2_fast(logit[h] - base) : 0.0f;
          total = fmaf(total, alpha, warp_sum(weight[0] + weight[1]));
          top = next;
          const uint32_t reads[2] = {__ballot_sync(~0u, read[0]), __ballot_sync(~0u, read[1])};
          for (int first_d = 0; first_d < dim; first_d += 32) {
            const int d = first_d + lane;
            float sum = d < dim ? sums[d] * alpha : 0.0f;
            for (int j = 0; j < kPageLen; ++j) {
              const float w = __shfl_sync(~0u, j < 32 ? weight[0] : weight[1], j % 32);
              const int from = __shfl_sync(~0u, j < 32 ? entry[0] : entry[1], j % 32);
              if ((reads[j / 32] >> (j % 32) & 1) && d < dim)
                sum = fmaf(w, kv_element(run.plane.dtype, kv_row(run.plane, run.pages, item.kv_head, from, 1), d), sum);
            }
            if (d < dim) sums[d] = sum;
          }
        }
        const auto store = [&](int64_t offset, const float* values, float top_value, float total_value) {
          float* to = a.partials + offset;
          for (int d = lane; d < dim; d += 32) to[in_tile * dim + d] = values[d];
          if (lane == 0) to[rows * dim + in_tile * 2] = top_value, to[rows * dim + in_tile * 2 + 1] = total_value;
        };
        if (!item.fold) {
          store(item.partial[0] + (split - item.first_split) * partial_floats(rows, dim), sums, top, total);
          continue;
        }
        const MergeWeights w = merge_weights(super_top, top);
        super_top = w.top, super_total = merge(w, super_total, total);
        for (int d = lane; d < dim; d += 32) super[d] = merge(w, super[d], sums[d]);
        if (split + 1 == item.first_split + item.num_splits) store(item.partial[0], super, super_top, super_total);
      }
    }
  }
}

// Adds over pairs of lanes; those with bit `kStep` go on with the upper half.
template <int kHalf, int kStep>
HUNCH_DEVICE void halve_sums(float* sums) {
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const bool upper = threadIdx.x & kStep;
    const float kept = upper ? sums[kHalf + i] : sums[i], sent = upper ? sums[i] : sums[kHalf + i];
    sums[i] = kept + __shfl_xor_sync(~0u, sent, kStep);
  }
}

// Logits of keys in bf16, of up to 256 elements, under a query head each (bounds of pages): four keys and four rows a warp at
// a time, eight elements a lane. Lane 2 (4 key + row) ends with the sum of that pair. out [kv_head][prefix_len].
constexpr int kPairKey = 256, kPairBlocks = 5;  // of an SM
__global__ void __launch_bounds__(128, kPairBlocks) pair_scores_kernel(const AttentionDevice* args) {
  constexpr int kSide = 4;
  wait_for_previous();
  let_next_start();
  const AttentionDevice& a = *args;
  const AttentionRunDevice& run = a.runs[0];
  const KvPlane plane = run.plane;
  const int lane = threadIdx.x % 32, d = lane * 8, dim = plane.head_dim, prefix = run.prefix_len,
            fours = (prefix + kSide - 1) / kSide;
  const int rows = run.num_rows, warps = int(gridDim.x * blockDim.x) / 32;
  const bool adds = run.sum;
  const auto combine = [&](float x, float y) { return adds ? x + y : fmaxf(x, y); };
  const float none = adds ? 0.0f : -INFINITY, scale = a.scale_log2 * kLn2;
  for (int at = int(blockIdx.x * blockDim.x + threadIdx.x) / 32; at < plane.kv_heads * fours; at += warps) {
    const int set = at / fours, first = at % fours * kSide;
    const std::byte* keys = kv_row(plane, run.pages, set, first, 0).data;
    uint4 key[kSide];
#pragma unroll
    for (int e = 0; e < kSide; ++e)
      key[e] = d < dim ? __ldcs(reinterpret_cast<const uint4*>(keys + (2 * e * dim + d) * 2)) : uint4{};
    float score = none;
    for (int listed = 0; listed < rows; listed += kSide) {
      float sums[kSide * kSide] = {};
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
        if (d >= dim) continue;
        const float* q = a.q + (run.first_row + run.rows[min(listed + r, rows - 1)]) * a.q_row + set * a.q_head + d;
        const float4 low = *reinterpret_cast<const float4*>(q), high = *reinterpret_cast<const float4*>(q + 4);
        const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int e = 0; e < kSide; ++e) {
          const uint32_t words[] = {key[e].x, key[e].y, key[e].z, key[e].w};
          float sum = sums[e * kSide + r];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sum = fmaf(x[2 * i], __uint_as_float(words[i] << 16), sum);
            sum = fmaf(x[2 * i + 1], __uint_as_float(words[i] & 0xffff0000), sum);
          }
          sums[e * kSide + r] = sum;
        }
      }
      halve_sums<8, 16>(sums), halve_sums<4, 8>(sums), halve_sums<2, 4>(sums), halve_sums<1, 2>(sums);
      float x = (sums[0] + __shfl_xor_sync(~0u, sums[0], 1)) * scale;
      if (listed + lane / 2 % kSide >= rows) x = none;
      x = combine(x, __shfl_xor_sync(~0u, x, 2));
      score = combine(score, combine(x, __shfl_xor_sync(~0u, x, 4)));
    }
    if (lane % 8 == 0 && first + lane / 8 < prefix) run.scores[set * run.scores_stride + first + lane / 8] = score;
  }
}

// One warp a score, entry by entry: its lanes hold the key, all of whose elements are asked for at once. out [sets][count].
constexpr int kHeld = 16;  // elements of a key in a lane: keys of up to 512
__global__ void __launch_bounds__(128) general_scores_kernel(const AttentionDevice* args) {
  const AttentionDevice a = *args;
  wait_for_previous();
  let_next_start();
  const AttentionRunDevice run = a.runs[0];
  const int kv_heads = run.plane.kv_heads, dim = run.plane.head_dim, lane = threadIdx.x % 32;
  const DType dtype = run.plane.dtype;
  const bool shared = run.sink == ScoreSink::Rows;  // one set for all KV heads
  const int64_t sets = shared ? 1 : kv_heads, warps = int64_t(gridDim.x) * blockDim.x / 32;
  float key[kHeld] = {};
  const auto hold = [&](int kv_head, int entry) {
    const KvRow row = kv_row(run.plane, run.pages, kv_head, entry, 0);
    const auto each = [&](const auto& element) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) key[i] = lane + 32 * i < dim ? element(lane + 32 * i) : 0.0f;
    };
    if (dtype == DType::BF16) each([&](int d) { return kv_element(DType::BF16, row, d); });
    else each([&](int d) { return kv_element(dtype, row, d); });
  };
  const auto score_of = [&](int set, int entry) {
    if (!shared) hold(set, entry);
    float score = run.sum ? 0.0f : -INFINITY;
    for (int listed = 0; listed < run.num_rows; ++listed) {
      const int row = run.rows[listed];
      float sum = 0;
      for (int head = shared ? 0 : set * a.group; head < (shared ? kv_heads * a.group : (set + 1) * a.group); ++head) {
        const float* q = a.q + (run.first_row + row) * a.q_row + head * a.q_head + lane;
        if (shared && head % a.group == 0) hold(head / a.group, entry);
        float x = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) x = fmaf(lane + 32 * i < dim ? q[32 * i] : 0.0f, key[i], x);
        x = warp_sum(x);
        sum += run.weight
            ? fminf(1.0f, exp2_fast(fmaf(x, a.scale_log2, -kLog2E * run.lse[row * run.lse_row + head * run.lse_head])))
            : x * a.scale_log2 * kLn2;
      }
      score = run.sum ? score + sum * run.mean : fmaxf(score, sum * run.mean);
    }
    return score;
  };
  const int64_t count = run.prefix_len / run.block;
  for (int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32; at < sets * count; at += warps) {
    const int set = int(at / count), first = int(at % count) * run.block;
    float score = score_of(set, first);
    for (int i = 1; i < run.block; ++i) score = fmaxf(score, score_of(set, first + i));
    if (lane == 0) run.scores[set * run.scores_stride + at % count] = score;
  }
}

}
