// Products of experts: few rows each, weights that are read once. A warp has 16 features and one run of the inputs, and reads its
// own quarter of every record several parts ahead, codes into registers, bf16 into a ring of its own in shared memory: no warp
// waits for another until the runs' sums are added. A block is four warps, so 64, 32 or 16 features with all their runs, and goes
// on from one such unit of its expert to the next with parts of that on their way. Rows come in bf16 as mma_sync takes them
// (fragment_of), a part ahead as well. The sums of plain_rows_kernel, bit for bit.
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

// Parts on their way. Of codes even numbers: records have one part or two.
constexpr int parts_ahead(DType type, int groups) {
  if (type == DType::BF16) return 3;
  return type == DType::Q4_0 || type == DType::MXFP4 ? (groups == 1 ? 6 : 4) : groups == 1 ? 4 : 2;
}

// Grid: (units / per_block, used experts, 8 kGroups pairs of an expert in turn).
template <DType kType, int kGroups>
__global__ void __launch_bounds__(128, kType == DType::BF16 && kGroups == 1 ? 6 : 4)
    expert_products_kernel(const ExpertProducts* args) {
  constexpr RecordShape kShape = record_shape(kType);
  constexpr bool kPlain = kType == DType::BF16;
  constexpr int kParts = kShape.inputs / 64, kAhead = parts_ahead(kType, kGroups), kStages = kAhead + 1;
  __shared__ __align__(128) std::byte ring[kPlain ? kStages * kShape.bytes : 16];
  __shared__ float partial[4][4 * kGroups][32];
  __shared__ int pair_of[8 * kGroups];
  let_next_start();
  const int t = int(threadIdx.x), lane = t % 32, warp = t / 32;
  const int splits = args->splits, split_shift = splits / 2, num_records = args->num_records;  // 1, 2, 4: shift 0, 1, 2
  const int first_unit = int(blockIdx.x) * args->per_block, end_unit = min(first_unit + args->per_block, args->units);
  const int of_matrix = args->num_tiles << split_shift, split = warp & (splits - 1);
  const int first_record = num_records * split >> split_shift, end_record = num_records * (split + 1) >> split_shift;
  const int num_parts = (end_record - first_record) * kParts;
  const int experts = args->experts, input_shift = args->records_per_input - 1;
  const std::byte* const* const tiles = args->tiles;
  wait_for_previous();
  const int4 used = __ldcg(reinterpret_cast<const int4*>(args->used) + blockIdx.y);  // UsedExpert

  // Units are those of one matrix or of two; the warp's 16 features of a unit among those of its matrix.
  const auto matrix_of = [&](int unit) { return unit < of_matrix ? 0 : 1; };
  const auto sixteen_of = [&](int unit) {
    return (unit - matrix_of(unit) * of_matrix) * (4 >> split_shift) + (warp >> split_shift);
  };
  // The first record of the warp's run.
  const auto record_of = [&](int unit) {
    return tiles[matrix_of(unit) * experts + used.x] +
           (int64_t(sixteen_of(unit) >> 2) * num_records + first_record) * kShape.bytes;
  };

  for (int begin = int(blockIdx.z) * 8 * kGroups; begin < used.z; begin += int(gridDim.z) * 8 * kGroups) {
    const int num_pairs = min(8 * kGroups, used.z - begin);
    __syncthreads();  // the pairs before have been written
    if (t < num_pairs) pair_of[t] = __ldcg(args->pairs + used.y + begin + t);
    const std::byte* from = record_of(first_unit);

    // Codes of part i % kAhead, and the thread of a record's warpgroup whose they are.
    PartCodes<kType> codes[kPlain ? 1 : kAhead];
    const auto thread_of = [&](int unit) { return (sixteen_of(unit) & 3) * 32 + lane; };
    // Of bf16: what is to be copied next, and where to.
    const uint32_t memory = shared_address(ring) + uint32_t(warp * 2048);
    int from_unit = first_unit, from_record = first_record, fetch_to = 0, stage = 0;
    const auto after = [&](int offset) { return offset == (kStages - 1) * kShape.bytes ? 0 : offset + kShape.bytes; };
    const auto fetch = [&] {  // a group of copies even where none is left
      if (from_unit < end_unit) {
        const std::byte* const quarter = from + (sixteen_of(from_unit) & 3) * 2048 + lane * 16;
#pragma unroll
        for (int i = 0; i < 4; ++i) copy_16_or_zeros(memory + uint32_t(fetch_to + i * 512 + lane * 16), quarter + i * 512, true);
        from += kShape.bytes;
        if (++from_record == end_record) {
          from_record = first_record;
          if (++from_unit < end_unit) from = record_of(from_unit);
        }
      }
      end_copies();
      fetch_to = after(fetch_to);
    };
    if constexpr (kPlain) {
#pragma unroll 1
      for (int i = 0; i < kAhead; ++i) fetch();
    } else {
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (i < num_parts) codes[i] = load_part<kType>(from + i / kParts * kShape.bytes, i % kParts, thread_of(first_unit));
    }

    __syncthreads();
    // Columns without a pair repeat the first one; nobody reads their sums.
    const uint4* x[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int i = g * 8 + lane / 4, row = pair_of[i < num_pairs ? i : 0] / args->pairs_of_row;
      x[g] = args->x + int64_t(row) * args->x_units + (first_record >> input_shift) * kParts * 8 + lane % 4;
    }
    uint4 rows[kGroups][2];
    const auto load_inputs = [&](int part) {  // 64 of them
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (g > 0 && g * 8 >= num_pairs) break;
        rows[g][0] = __ldca(x[g] + part * 8), rows[g][1] = __ldca(x[g] + part * 8 + 4);
      }
    };
    load_inputs(0);

    for (int unit = first_unit; unit < end_unit; ++unit) {
      float sums[kGroups][4] = {};
      const auto multiply = [&](const uint32_t(&operand)[4][4]) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          if (g > 0 && g * 8 >= num_pairs) break;
          mma_sync(sums[g], operand[0], rows[g][0].x, rows[g][0].y);
          mma_sync(sums[g], operand[1], rows[g][0].z, rows[g][0].w);
          mma_sync(sums[g], operand[2], rows[g][1].x, rows[g][1].y);
          mma_sync(sums[g], operand[3], rows[g][1].z, rows[g][1].w);
        }
      };
      uint32_t operand[4][4];
      if constexpr (kPlain) {
        const int odd = first_record & input_shift;  // a run may begin with the rests of values that another has
#pragma unroll 1
        for (int at = 0; at < num_parts; ++at) {
          await_copies<kAhead - 1>();
          __syncwarp();  // and all lanes have read the stage before, whose place the next fetch takes
          fetch();
          const uint32_t feature = memory + uint32_t(stage + lane % 16 * 128);
#pragma unroll
          for (int step = 0; step < 4; ++step)
            load_matrices(operand[step], feature + uint32_t((step * 2 + lane / 16) ^ lane % 8) * 16);
          multiply(operand);
          load_inputs(at + 1 < num_parts ? (at + 1 + odd) >> input_shift : 0);
          stage = after(stage);
        }
      } else {
        // Rounds of kAhead parts; the last one, of which some may be missing, loads the next unit's first.
#pragma unroll 1
        for (int at = 0; at < num_parts; at += kAhead) {
          const bool last = at + kAhead >= num_parts;
          from += kAhead / kParts * kShape.bytes;
          if (last && unit + 1 < end_unit) from = record_of(unit + 1);
          const int left = !last ? num_parts - at - kAhead : unit + 1 < end_unit ? num_parts : 0;
          const int thread = thread_of(last ? unit + 1 : unit);
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            if (at + i < num_parts) {
              decode_part<kType, 0, 4>(codes[i], operand);
              multiply(operand);
              load_inputs(at + i + 1 < num_parts ? at + i + 1 : 0);
            }
            if (i < left) codes[i] = load_part<kType>(from + i / kParts * kShape.bytes, i % kParts, thread);
          }
        }
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
}

}  // namespace hunch
