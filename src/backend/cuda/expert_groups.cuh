// Products of experts with many rows each, a prompt's: where experts_kernel.cuh would read the weights once for every 32 pairs.
// Pairs stand by their experts, packed as products_kernel.cuh takes rows (packed_rows.cuh), each expert's from a block of 8 rows
// on. A block has 64 pairs and two tiles of 64 features, of gate and up the same, a warpgroup each; one warp more fills stages.
// The sums of plain_rows_kernel, bit for bit.
#pragma once

#include "backend/cuda/experts_kernel.cuh"

namespace hunch {

constexpr int kGroupPairs = 64;
constexpr int kGroupThreads = 2 * 128 + 32;

struct PackPairs {
  const float* x;
  std::byte* packed;
  const UsedExpert* used;
  const int32_t* pairs;
  int64_t x_stride;
  int hidden, parts, x_blocks, per_row;
};
// Grid: (entries of `used`, any).
[[maybe_unused]] static __global__ void __launch_bounds__(256) pack_pairs_kernel(const PackPairs* args) {
  let_next_start();
  const PackPairs a = *args;
  wait_for_previous();
  const UsedExpert used = a.used[blockIdx.x];
  const int row_units = a.parts * 8;
  for (int unit = int(blockIdx.y * blockDim.x + threadIdx.x); unit < used.count * row_units;
       unit += int(gridDim.y * blockDim.x)) {
    const int i = unit / row_units, k = unit % row_units * 8;
    const float* const x = a.x + a.pairs[used.first + i] / a.per_row * a.x_stride;
    *reinterpret_cast<uint4*>(a.packed + (int64_t(k / 64) * a.x_blocks + used.block + i / 8) * 1024 + swizzled(i % 8, k % 64)) =
        pack_eight(x, k, a.hidden);
  }
}

template <DType kType>
struct GroupStages {
  static constexpr RecordShape kShape = record_shape(kType);
  static constexpr int kParts = kShape.inputs / 64;
  static constexpr int kRecords = kType == DType::BF16 || kParts > 1 ? 1 : 2;
  static constexpr int kTile = kRecords * kShape.bytes, kWeights = (2 * kTile + 1023) / 1024 * 1024;
  static constexpr int kBytes = kWeights + kRecords * kParts * kGroupPairs * 128;
  static constexpr int kCount = (112 * 1024 - kHeadBytes) / kBytes;
  static constexpr int kShared = kHeadBytes + kCount * kBytes;
};

// Grid: (pairs of tiles, or gate and up of one; entries of `used`). Of the arguments `units` are tiles, x_units and gated_units
// blocks of rows.
template <DType kType, bool kGated>
__global__ void __launch_bounds__(kGroupThreads, 2) expert_groups_kernel(const ExpertProducts* args) {
#if HUNCH_HOPPER
  using Stages = GroupStages<kType>;
  constexpr int N = kGroupPairs, kRecords = Stages::kRecords, kParts = Stages::kParts, kHalf = N / 4;
  constexpr int kRecordBytes = Stages::kShape.bytes;
  extern __shared__ __align__(1024) std::byte shared_memory[];
  int* const pair_of = reinterpret_cast<int*>(shared_memory + kHeadBytes / 2);  // [N], behind the barriers
  let_next_start();
  const int t = int(threadIdx.x) % 128, warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, mine = warp / 4;
  const uint32_t full = shared_address(shared_memory), empty = full + kMostStages * 8, memory = full + kHeadBytes;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Stages::kCount; ++s) barrier_init(full + uint32_t(s * 8), 1), barrier_init(empty + uint32_t(s * 8), 8);
    barrier_init_done();
  }
  const int num_records = args->num_records, split_shift = args->splits / 2, splits = args->splits;
  wait_for_previous();
  const int4 used = __ldcg(reinterpret_cast<const int4*>(args->used) + blockIdx.y);  // UsedExpert
  const int count = used.z;
  if (count == 0) return;
  if (int(threadIdx.x) < count) pair_of[threadIdx.x] = args->pairs[used.y + int(threadIdx.x)];
  __syncthreads();
  const int tiles = kGated ? 2 : min(2, args->units - 2 * int(blockIdx.x));
  Ring ring;
  // Both sides walk alike: body(record, count of a stage, true if it is the first of a run).
  const auto walk = [&](const auto& body, const auto& end_run) {
    for (int split = 0; split < splits; ++split) {
      const int first = num_records * split >> split_shift, end = num_records * (split + 1) >> split_shift;
      for (int record = first; record < end; record += kRecords, ring.next(Stages::kCount))
        body(record, min(kRecords, end - record), record == first);
      end_run(split == 0);
    }
  };

  if (warp == 8) {
    const uint64_t policy = policy_normal();
    const int shift = args->records_per_input - 1, x_lane = lane - 2;
    const int matrix = kGated ? lane : 0, tile = kGated ? int(blockIdx.x) : 2 * int(blockIdx.x) + lane;
    const std::byte* weights = nullptr;
    if (lane < tiles) weights = args->tiles[matrix * args->experts + used.x] + int64_t(tile) * num_records * kRecordBytes;
    const std::byte* const x = reinterpret_cast<const std::byte*>(args->x) + int64_t(used.w) * 1024;
    const int64_t part_bytes = int64_t(args->x_units) * 1024;
    int step = 0;
    walk(
        [&](int record, int records, bool) {
          if (step++ >= Stages::kCount) barrier_wait(empty + uint32_t(ring.stage * 8), ring.phase ^ 1);
          const uint32_t barrier = full + uint32_t(ring.stage * 8), to = memory + uint32_t(ring.stage * Stages::kBytes);
          const int parts = records * kParts;
          if (lane == 0) barrier_arrive_and_expect(barrier, uint32_t(tiles * records * kRecordBytes + parts * N * 128));
          __syncwarp();
          if (lane < tiles)
            copy_to_shared(to + uint32_t(lane * Stages::kTile), weights + int64_t(record) * kRecordBytes,
                uint32_t(records * kRecordBytes), barrier, policy);
          if (x_lane >= 0 && x_lane < parts)
            copy_to_shared(to + uint32_t(Stages::kWeights + x_lane * N * 128),
                x + ((record >> shift) * kParts + x_lane) * part_bytes, N * 128, barrier, policy);
        },
        [](bool) {});
    return;
  }

  float sums[N / 2], total[N / 2];
  walk(
      [&](int, int records, bool first) {
        barrier_wait(full + uint32_t(ring.stage * 8), ring.phase);
        const int at = ring.stage * Stages::kBytes;
        if (first) hold(sums);
        multiply_records<kType, N>(sums, shared_memory + kHeadBytes + at + mine * Stages::kTile,
            memory + uint32_t(at + Stages::kWeights), records, first, t);
        wgmma_wait<0>();
        hold(sums);
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + uint32_t(ring.stage * 8));
      },
      [&](bool first) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) total[i] = first ? sums[i] : total[i] + sums[i];
      });

  const int out_dim = args->out_dim, experts = args->experts;
  const float unit = args->unit;
  const auto bias_of = [&](int matrix, int feature) {
    return args->biases && feature < out_dim ? args->biases[matrix * experts + used.x][feature] : 0.0f;
  };
  const int own = t / 32 * 16 + lane / 4;  // of a tile's features; and 8 behind it
  if constexpr (!kGated) {
    if (mine >= tiles) return;
    const int feature = (2 * int(blockIdx.x) + mine) * 64 + own;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = feature + 8 * i;
      const float bias = bias_of(0, k);
#pragma unroll
      for (int r = 0; r < N / 4; ++r) {
        const int row = r / 2 * 8 + lane % 4 * 2 + r % 2;
        if (row < count && k < out_dim)
          args->out[int64_t(pair_of[row]) * out_dim + k] = total[r / 2 * 4 + 2 * i + r % 2] * unit + bias;
      }
    }
  } else {
    // Each warpgroup ends half of the rows, and hands its sums of the others over, where stages were.
    auto* const handed = reinterpret_cast<float*>(shared_memory + kHeadBytes) + t;
    named_barrier(1, 256);
#pragma unroll
    for (int r = 0; r < kHalf; ++r) handed[((1 - mine) * kHalf + r) * 128] = mine ? total[r] : total[kHalf + r];
    named_barrier(1, 256);
    const GateClamp clamp = args->clamp;
    const int tile = int(blockIdx.x), odd = own % 2;
    float bias[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) bias[i / 2][i % 2] = bias_of(i / 2, tile * 64 + own + i % 2 * 8);
    std::byte* const to = reinterpret_cast<std::byte*>(args->gated) + (int64_t(tile) * args->gated_units + used.w) * 1024;
#pragma unroll
    for (int r = 0; r < kHalf; r += 2) {  // two neighbouring rows of a feature
      const int row = (mine * kHalf + r) / 4 * 8 + lane % 4 * 2, below = r / 2 % 2;
      float y[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float here = mine ? total[kHalf + r + i] : total[r + i], there = handed[(mine * kHalf + r + i) * 128];
        const float gate = (mine ? there : here) * unit + bias[0][below], up = (mine ? here : there) * unit + bias[1][below];
        y[i] = tile * 64 + own + 8 * below >= out_dim ? 0 : clamp.limit > 0 ? clamped_gate(gate, up, clamp) : silu(gate) * up;
      }
      // Two neighbouring features of a row make a word: lanes of an even one write the first row's, the others the second's.
      const float other = __shfl_xor_sync(0xffffffffu, odd ? y[0] : y[1], 4);
      if (row + odd < count)
        *reinterpret_cast<uint32_t*>(to + row / 8 * 1024 + swizzled(row % 8 + odd, own - odd + 8 * below)) =
            odd ? bf16x2_of(other, y[1]) : bf16x2_of(y[0], other);
    }
  }
#endif
}

}
