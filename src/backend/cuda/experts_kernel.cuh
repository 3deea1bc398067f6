// Products of experts: few rows each, weights that are read once. A warp has 16 features and one run of the inputs, and reads its
// own quarter of every record through its own ring in shared memory, several records ahead: no warp waits for another until
// the runs' sums are added. A block is four warps, so 64, 32 or 16 features with all their runs, and goes through several such
// units of one expert without emptying its rings. Rows come in bf16 as mma_sync takes them (fragment_of); four threads of a row
// read 64 bytes, and those of the next part while this one's weights come. The sums of plain_rows_kernel, bit for bit.
#pragma once

#include <algorithm>

#include "backend/cuda/resident_kernel.cuh"
#include "backend/cuda/tile_copies.cuh"

namespace hunch {

struct __align__(16) UsedExpert {
  int expert, first, count, pad;  // `count` pairs from `first` on
};

struct ExpertProducts {
  const std::byte* const* tiles;  // [matrices][experts]
  const float* const* biases;     // likewise; null: none
  const UsedExpert* used;
  const int32_t* pairs;
  const uint4* x;      // [rows][x_units]
  float* out;          // [matrices][pairs][out_dim]
  int64_t out_matrix;  // from one matrix's pairs to the next's
  int x_units;
  int pairs_of_row;  // pairs that share a row of x
  int experts, out_dim, num_tiles, num_records, records_per_input, splits;
  int units, per_block;  // units of 64 / splits features: of all matrices, of a block
  float unit;
};

// Eight inputs of a row as one thread of four holds them for two steps of mma_sync: word i is inputs 8 i + 2 (unit % 4) and the
// next of the 32 from unit / 4 * 32 on. `value` gives input k; zero past the end.
template <class Value>
__device__ __forceinline__ uint4 fragment_of(int unit, const Value& value) {
  const int k = unit / 4 * 32 + unit % 4 * 2;
  return make_uint4(bf16x2_of(value(k), value(k + 1)), bf16x2_of(value(k + 8), value(k + 9)),
      bf16x2_of(value(k + 16), value(k + 17)), bf16x2_of(value(k + 24), value(k + 25)));
}
// Of a row in that form: whole records of any encoding.
constexpr int fragment_units(int64_t dim) { return int((dim + 127) / 128) * 16; }

// A warp's copy of a quarter of a record (16 features) to another quarter of a record's place.
template <DType kType>
__device__ __forceinline__ void copy_quarter(uint32_t to, const std::byte* from, int quarter, int to_quarter, int lane) {
  constexpr RecordShape kShape = record_shape(kType);
  constexpr int kParts = kShape.inputs / 64;
  // kCount times [4 quarters][kBytes].
  const auto copy = [&]<int kOffset, int kBytes, int kCount>() {
    constexpr int kEach = kBytes / 16;
#pragma unroll
    for (int first = 0; first < kEach * kCount; first += 32) {
      const int i = first + lane, at = kOffset + i / kEach * (4 * kBytes) + i % kEach * 16;
      if (i < kEach * kCount) copy_16_or_zeros(to + uint32_t(at + to_quarter * kBytes), from + (at + quarter * kBytes), true);
    }
  };
  if constexpr (kType == DType::BF16) {
    copy.template operator()<0, 2048, 1>();
  } else {
    copy.template operator()<0, 512, has_byte_codes(kType) ? 2 : kParts>();
    copy.template operator()<kShape.scales, 64, kParts>();
    if constexpr (kType == DType::Q5_K) copy.template operator()<kShape.high, 128, kParts>();
    if constexpr (kType == DType::Q6_K) copy.template operator()<kShape.high, 256, kParts>();
    if constexpr (kShape.super > 0) copy.template operator()<kShape.super, kType == DType::Q6_K ? 32 : 64, 1>();
  }
}

// Grid: (units / per_block, used experts, pairs of an expert / (8 kGroups)).
template <DType kType, int kGroups>
__global__ void __launch_bounds__(128, kGroups == 1 ? 6 : 4) expert_products_kernel(const ExpertProducts* args) {
  constexpr RecordShape kShape = record_shape(kType);
  constexpr int kParts = kShape.inputs / 64;
  // A stage is as many records as are read in one go.
  constexpr int kTogether = kShape.bytes < 4096 ? 2 : 1, kStageBytes = kTogether * kShape.bytes;
  constexpr int kStages = std::min(6, 32768 / kStageBytes);
  __shared__ __align__(128) std::byte ring[kStages * kStageBytes];
  __shared__ float partial[4][4 * kGroups][32];
  __shared__ int pair_of[8 * kGroups];
  let_next_start();
  const int t = int(threadIdx.x), lane = t % 32, warp = t / 32;
  const int splits = args->splits, split_shift = splits / 2, num_records = args->num_records;  // 1, 2, 4: shift 0, 1, 2
  const int first_unit = int(blockIdx.x) * args->per_block, end_unit = min(first_unit + args->per_block, args->units);
  const int of_matrix = args->num_tiles << split_shift, split = warp & (splits - 1);
  const int first_record = num_records * split >> split_shift, end_record = num_records * (split + 1) >> split_shift;
  const int experts = args->experts, input_shift = args->records_per_input - 1;
  const std::byte* const* const tiles = args->tiles;
  wait_for_previous();
  const int4 used = __ldcg(reinterpret_cast<const int4*>(args->used) + blockIdx.y);  // UsedExpert
  const int begin = int(blockIdx.z) * 8 * kGroups, num_pairs = min(8 * kGroups, used.z - begin);
  if (num_pairs <= 0) return;
  if (t < num_pairs) pair_of[t] = __ldcg(args->pairs + used.y + begin + t);

  // Units are those of one matrix or of two; the warp's 16 features of a unit among those of its matrix.
  const auto matrix_of = [&](int unit) { return unit < of_matrix ? 0 : 1; };
  const auto sixteen_of = [&](int unit) {
    return (unit - matrix_of(unit) * of_matrix) * (4 >> split_shift) + (warp >> split_shift);
  };
  const uint32_t memory = shared_address(ring);
  const std::byte* from = nullptr;  // the record to be fetched next
  int from_unit = first_unit, from_record = first_record, from_quarter = 0;
  int fetch_to = 0, stage = 0;  // offsets in the ring
  const auto after = [](int offset) { return offset == (kStages - 1) * kStageBytes ? 0 : offset + kStageBytes; };
  const auto find = [&] {
    const int sixteen = sixteen_of(from_unit);
    from = tiles[matrix_of(from_unit) * experts + used.x] + (int64_t(sixteen / 4) * num_records + first_record) * kShape.bytes;
    from_quarter = sixteen % 4;
  };
  const auto fetch = [&] {  // a group of copies even where none is left
    if (from_unit < end_unit) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (i > 0 && from_record + i >= end_record) break;
        copy_quarter<kType>(memory + uint32_t(fetch_to + i * kShape.bytes), from + i * kShape.bytes, from_quarter, warp, lane);
      }
      from += kStageBytes, from_record += kTogether;
      if (from_record >= end_record) {
        from_record = first_record;
        if (++from_unit < end_unit) find();
      }
    }
    end_copies();
    fetch_to = after(fetch_to);
  };
  find();
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) fetch();

  __syncthreads();
  // Columns without a pair repeat the first one; nobody reads their sums.
  const uint4* x[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int i = g * 8 + lane / 4;
    x[g] = args->x + int64_t(pair_of[i < num_pairs ? i : 0] / args->pairs_of_row) * args->x_units + lane % 4;
  }
  uint4 rows[kGroups][2];
  const auto load_inputs = [&](int part) {  // 64 of them
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g > 0 && g * 8 >= num_pairs) break;
      rows[g][0] = __ldca(x[g] + part * 8), rows[g][1] = __ldca(x[g] + part * 8 + 4);
    }
  };
  load_inputs((first_record >> input_shift) * kParts);

  for (int unit = first_unit; unit < end_unit; ++unit) {
    float sums[kGroups][4] = {};
    const auto multiply = [&](uint32_t record, int at) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint32_t operand[4][4];
        if constexpr (kType == DType::BF16) {
          const uint32_t feature = record + uint32_t(warp * 2048 + lane % 16 * 128);
#pragma unroll
          for (int step = 0; step < 4; ++step)
            load_matrices(operand[step], feature + uint32_t((step * 2 + lane / 16) ^ lane % 8) * 16);
        } else {
          decode_part<kType, 0, 4>(load_part<kType>(record, part, t), operand);
        }
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          if (g > 0 && g * 8 >= num_pairs) break;
          mma_sync(sums[g], operand[0], rows[g][0].x, rows[g][0].y);
          mma_sync(sums[g], operand[1], rows[g][0].z, rows[g][0].w);
          mma_sync(sums[g], operand[2], rows[g][1].x, rows[g][1].y);
          mma_sync(sums[g], operand[3], rows[g][1].z, rows[g][1].w);
        }
        // The next part's, of the next unit behind the last.
        if (part + 1 < kParts) load_inputs((at >> input_shift) * kParts + part + 1);
        else load_inputs(((at + 1 < end_record ? at + 1 : first_record) >> input_shift) * kParts);
      }
    };
#pragma unroll 1
    for (int at = first_record; at < end_record; at += kTogether) {
      await_copies<kStages - 2>();
      __syncwarp();  // and all lanes have read the stage before, whose place the next fetch takes
      fetch();
      const uint32_t record = memory + uint32_t(stage);
      multiply(record, at);
      if (kTogether > 1 && at + 1 < end_record) multiply(record + kShape.bytes, at + 1);
      stage = after(stage);
    }

    const int matrix = matrix_of(unit), feature = sixteen_of(unit) * 16 + lane / 4, out_dim = args->out_dim;
    const float* const bias_of = args->biases ? args->biases[matrix * experts + used.x] : nullptr;
    float* const out = args->out + matrix * args->out_matrix + feature;
    const float scale = args->unit;
    float bias[2] = {};
#pragma unroll
    for (int below = 0; below < 2; ++below)
      if (bias_of && feature + 8 * below < out_dim) bias[below] = bias_of[feature + 8 * below];
    __syncthreads();  // the unit before has been read
#pragma unroll
    for (int r = 0; r < 4 * kGroups; ++r) partial[warp][r][lane] = sums[r / 4][r % 4];
    __syncthreads();
#pragma unroll 1
    for (int r = split; r < 4 * kGroups && r / 4 * 8 < num_pairs; r += splits) {  // every run's warp has some of the registers
      const int at = r / 4 * 8 + lane % 4 * 2 + r % 2, below = r % 4 / 2;
      if (at >= num_pairs || feature + 8 * below >= out_dim) continue;
      float total = partial[warp - split][r][lane];
#pragma unroll
      for (int s = 1; s < 4; ++s)
        if (s < splits) total += partial[warp - split + s][r][lane];
      out[int64_t(pair_of[at]) * out_dim + 8 * below] = total * scale + (below ? bias[1] : bias[0]);
    }
  }
}

}  // namespace hunch
