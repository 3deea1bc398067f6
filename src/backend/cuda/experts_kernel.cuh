// Products of experts: few rows each, weights that are read once. A warp has 16 features and one run of the inputs, and reads its
// own quarter of every record through its own ring in shared memory, several records ahead: no warp waits for another until
// the runs' sums are added. Four warps have a unit, 64, 32 or 16 features with all their runs; a block goes through several
// units of one expert without emptying its rings. Rows come in bf16 as mma_sync takes them (fragment_of); four threads of a row
// read 64 bytes, and those of the next part while this one's weights come. The sums of plain_rows_kernel, bit for bit. Gate and
// up are of one block, four warps each or the same in turn, which leaves the gated rows as down reads them.
#pragma once

#include "backend/cuda/gate.cuh"
#include "backend/cuda/resident_kernel.cuh"
#include "backend/cuda/tile_copies.cuh"

namespace hunch {

struct __align__(16) UsedExpert {
  int expert, first, count, pad;  // `count` of its pairs, from `first` on: of a block
};

struct ExpertProducts {
  const std::byte* const* tiles;  // [matrices][experts]
  const float* const* biases;     // likewise; null: none
  const UsedExpert* used;
  const int32_t* pairs;
  const uint4* x;   // [rows][x_units]
  float* out;       // [pairs][out_dim]; where up comes alone, gate lies there
  uint32_t* gated;  // [pairs][gated_units][4], instead of `out`
  GateClamp clamp;
  int x_units, gated_units;
  int pairs_of_row;       // pairs that share a row of x
  int matrices, experts;  // 1 or 2; of each
  int out_dim, num_records, records_per_input, splits;
  int units, per_block;  // units of 64 / splits features: of a matrix, of a block
  float unit;
  bool listed;  // `used` and `pairs` are older than the kernel before this one
};

// Eight inputs of a row as one thread of four holds them for two steps of mma_sync: word i is inputs 8 i + 2 (unit % 4) and the
// next of the 32 from unit / 4 * 32 on. `value` gives input k; zero past the end.
template <class Value>
HUNCH_DEVICE uint4 fragment_of(int unit, const Value& value) {
  const int k = unit / 4 * 32 + unit % 4 * 2;
  return make_uint4(bf16x2_of(value(k), value(k + 1)), bf16x2_of(value(k + 8), value(k + 9)),
      bf16x2_of(value(k + 16), value(k + 17)), bf16x2_of(value(k + 24), value(k + 25)));
}
// Of a row in that form: whole records of any encoding.
constexpr int fragment_units(int64_t dim) { return int((dim + 127) / 128) * 16; }

// Of plain values or codes, with which a record begins.
template <DType kType>
constexpr int kQuarterBytes = kType == DType::BF16 ? 2048 : 512;

// A warp's copy of a quarter of a record (16 features) to another quarter of a record's place. `from`: of the quarter's values or
// codes, the lane's first 16 bytes.
template <DType kType>
HUNCH_DEVICE void copy_quarter(uint32_t to, const std::byte* from, int quarter, int to_quarter, int lane) {
  constexpr RecordShape kShape = record_shape(kType);
  constexpr int kParts = kShape.inputs / 64;
  // kCount times [4 quarters][kBytes].
  const auto copy = [&]<int kOffset, int kBytes, int kCount>() {
    constexpr int kEach = kBytes / 16;
#pragma unroll
    for (int first = 0; first < kEach * kCount; first += 32) {
      const int i = first + lane, at = kOffset + i / kEach * (4 * kBytes) + i % kEach * 16;
      const int beyond = kOffset == 0 ? first / kEach * (4 * kBytes) + first % kEach * 16
                                      : at - lane * 16 + quarter * (kBytes - kQuarterBytes<kType>);
      if (i < kEach * kCount) copy_16_or_zeros(to + uint32_t(at + to_quarter * kBytes), from + beyond, true);
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

// A stage is as many records as are read in one go.
template <DType kType>
constexpr int kTogetherOf = record_shape(kType).bytes < 4096 ? 2 : 1;
template <DType kType>
constexpr int kRingStages = std::min(6, 32768 / (kTogetherOf<kType> * record_shape(kType).bytes));
template <DType kType>
constexpr int kRingBytes = kRingStages<kType>* kTogetherOf<kType>* record_shape(kType).bytes;

// Grid: (units / per_block, entries of `used`, each at most 8 kGroups pairs), of 128 threads, or 256 where kGated; shared: a
// ring for each 128.
template <DType kType, int kGroups, bool kGated>
__global__ void __launch_bounds__(kGated ? 256 : 128, (kGated ? 3 : 6) - (kGroups > 1 ? kGated ? 1 : 2 : 0))
    expert_products_kernel(const ExpertProducts* args) {
  constexpr RecordShape kShape = record_shape(kType);
  constexpr int kParts = kShape.inputs / 64;
  constexpr int kTogether = kTogetherOf<kType>, kStageBytes = kTogether * kShape.bytes, kStages = kRingStages<kType>;
  extern __shared__ __align__(128) std::byte rings[];
  __shared__ float partial[kGated ? 2 : 1][4][4 * kGroups][32];
  __shared__ int pair_of[8 * kGroups];
  const int t = int(threadIdx.x) % 128, lane = t % 32, warp = t / 32, group = kGated ? int(threadIdx.x) / 128 : 0;
  const int splits = args->splits, split_shift = splits / 2, num_records = args->num_records;  // 1, 2, 4: shift 0, 1, 2
  // Of a unit each group of four warps has `turns` matrices, one after the other.
  const int matrices = kGated ? args->matrices : 1, turns = kGated ? matrices * 128 / int(blockDim.x) : 1;
  const int split = warp & (splits - 1);
  const int first_unit = int(blockIdx.x) * args->per_block;
  const int first_pass = first_unit * turns, end_pass = min(first_unit + args->per_block, args->units) * turns;
  const int first_record = num_records * split >> split_shift, end_record = num_records * (split + 1) >> split_shift;
  const int experts = args->experts, input_shift = args->records_per_input - 1;
  const std::byte* const* const tiles = args->tiles;
  // In this order the kernel behind need not wait for the list and its weights.
  const bool listed = args->listed;
  if (!listed) wait_for_previous();
  let_next_start();
  const int4 used = __ldcg(reinterpret_cast<const int4*>(args->used) + blockIdx.y);  // UsedExpert
  const int num_pairs = used.z;
  if (num_pairs == 0) return;
  // Asked for together: nothing is fetched before they are known.
  const int last_matrix = (matrices - 1) * experts + used.x;
  const std::byte *first_tiles = tiles[group * experts + used.x], *last_tiles = tiles[last_matrix];
  const float* biases[2] = {};  // of the first matrix, of the last
  if (args->biases) biases[0] = args->biases[used.x], biases[1] = args->biases[last_matrix];
  const int own_pair = t < num_pairs ? __ldcg(args->pairs + used.y + t) : 0;
  const auto matrix_of = [&](int pass) { return turns == 1 ? group : pass & 1; };
  const auto sixteen_of = [&](int pass) { return (pass >> (turns - 1)) * (4 >> split_shift) + (warp >> split_shift); };
  uint32_t memory = shared_address(rings) + uint32_t(group * kRingBytes<kType>);
  asm volatile("" : "+r"(memory));  // else found anew for every record
  const std::byte* from = nullptr;  // of the record to be fetched next, as copy_quarter takes it
  int from_pass = first_pass, from_record = first_record, from_quarter = 0;
  int fetch_to = 0, stage = 0;  // offsets in the ring
  const auto after = [](int offset) { return offset == (kStages - 1) * kStageBytes ? 0 : offset + kStageBytes; };
  const auto find = [&] {
    const int sixteen = sixteen_of(from_pass);
    from = (turns > 1 && matrix_of(from_pass) ? last_tiles : first_tiles) +
        (int64_t(sixteen / 4) * num_records + first_record) * kShape.bytes + sixteen % 4 * kQuarterBytes<kType> + lane * 16;
    from_quarter = sixteen % 4;
  };
  const auto fetch = [&] {  // a group of copies even where none is left
    if (from_pass < end_pass) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (i > 0 && from_record + i >= end_record) break;
        copy_quarter<kType>(memory + uint32_t(fetch_to + i * kShape.bytes), from + i * kShape.bytes, from_quarter, warp, lane);
      }
      from += kStageBytes, from_record += kTogether;
      if (from_record >= end_record) {
        from_record = first_record;
        if (++from_pass < end_pass) find();
      }
    }
    end_copies();
    fetch_to = after(fetch_to);
  };
  find();
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) fetch();

  if (listed) wait_for_previous();
  if (group == 0 && t < num_pairs) pair_of[t] = own_pair;
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
      const uint4* from = x[g] + uint64_t(unsigned(part)) * 8;  // one address for both
      rows[g][0] = __ldca(from), rows[g][1] = __ldca(from + 4);
    }
  };
  load_inputs((first_record >> input_shift) * kParts);

  for (int pass = first_pass; pass < end_pass; ++pass) {
    const int matrix = matrix_of(pass), feature = sixteen_of(pass) * 16 + lane / 4, out_dim = args->out_dim;
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
        // The next part's, of the next pass behind the last.
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

    if (matrix == 0 || turns == 1) __syncthreads();  // the unit before has been read
#pragma unroll
    for (int r = 0; r < 4 * kGroups; ++r) partial[matrix][warp][r][lane] = sums[r / 4][r % 4];
    if (turns > 1 && matrix == 0) continue;
    float bias[kGated ? 2 : 1][2] = {};  // before the loop they would cost it registers
#pragma unroll
    for (int i = 0; i < (kGated ? 4 : 2); ++i)
      if (biases[i / 2] && feature + i % 2 * 8 < out_dim) bias[i / 2][i % 2] = __ldg(biases[i / 2] + feature + i % 2 * 8);
    __syncthreads();
    // Every run's warp has some of the registers.
#pragma unroll 1
    for (int r = split + splits * group; r < 4 * kGroups && r / 4 * 8 < num_pairs; r += splits * (matrices / turns)) {
      const int at = r / 4 * 8 + lane % 4 * 2 + r % 2, below = r % 4 / 2, k = feature + 8 * below;
      const auto value_of = [&](int which, const float(&bias)[2]) {
        float total = partial[which][warp - split][r][lane];
#pragma unroll
        for (int s = 1; s < 4; ++s)
          if (s < splits) total += partial[which][warp - split + s][r][lane];
        return total * args->unit + (below ? bias[1] : bias[0]);
      };
      const int64_t pair = pair_of[at < num_pairs ? at : 0];
      if constexpr (!kGated) {
        if (at < num_pairs && k < out_dim) args->out[pair * out_dim + k] = value_of(0, bias[0]);
      } else {
        float value = 0;  // past the end too: down's last record reads the whole tile
        if (k < out_dim) {
          const float up = value_of(matrices - 1, bias[1]);
          const float gate = matrices == 2 ? value_of(0, bias[0]) : args->out[pair * out_dim + k];
          value = args->clamp.limit > 0 ? clamped_gate(gate, up, args->clamp) : silu(gate) * up;
        }
        const float next = __shfl_down_sync(0xffffffffu, value, 4);  // feature k + 1, where k is even
        if (at < num_pairs && k % 2 == 0)
          args->gated[pair * args->gated_units * 4 + k / 32 * 16 + k % 8 / 2 * 4 + k % 32 / 8] = bf16x2_of(value, next);
      }
    }
  }
}

}
