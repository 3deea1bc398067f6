// Products of experts: few rows each, weights that are read once. A warp has 16 features and one run of the inputs, and reads its
// own quarter of every record through its own ring in shared memory, several records ahead: no warp waits for another until
// the runs' sums are added. Four warps have a unit, 64, 32 or 16 features with all their runs; a block goes through several
// units of one expert without emptying its rings. Rows come in bf16 as mma_sync takes them (fragment_of); four threads of a row
// read 64 bytes, parts ahead; as they take as much of L1 as codes do, those may be read two sides at a time: gate and up, or two
// units. The sums of plain_rows_kernel, bit for bit. Gate and up are of one block, both sides, four warps each or the same in
// turn, which leaves the gated rows as down reads them.
#pragma once

#include "backend/cuda/gate.cuh"
#include "backend/cuda/resident_kernel.cuh"
#include "backend/cuda/tile_copies.cuh"

namespace hunch {

struct __align__(16) UsedExpert {
  int expert, first, count;  // `count` of its pairs, from `first` on: of a block
  int block;                 // of 8 rows, where they begin in expert_groups.cuh's order
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
    copy.template operator()<kShape.scales, 8 * pair_scale_bytes(kType), kParts>();
    if constexpr (kType == DType::Q5_K) copy.template operator()<kShape.high, 128, kParts>();
    if constexpr (kType == DType::Q6_K) copy.template operator()<kShape.high, 256, kParts>();
  }
}

// A stage is a record of every side.
template <DType kType, int kSides>
constexpr int kStageBytes = kSides* record_shape(kType).bytes;
template <DType kType, int kSides>
constexpr int kRingBytes = std::min(6, 32768 / kStageBytes<kType, kSides>) * kStageBytes<kType, kSides>;

// kSides: passes (of a unit, or of one of its matrices) that a warp does together; a block has a multiple of them.
// Grid: (units / per_block, entries of `used`, each at most 8 kGroups pairs), of 128 threads, or 256 where kWide; shared: a ring
// for each 128.
template <DType kType, int kGroups, bool kGated, int kSides, bool kWide = kGated&& kSides == 1>
__global__ void __launch_bounds__(kWide ? 256 : 128, (kWide ? 3 : 6) - (kGroups > 1 ? kWide ? 1 : 2 : 0))
    expert_products_kernel(const ExpertProducts* args) {
  constexpr RecordShape kShape = record_shape(kType);
  constexpr int kParts = kShape.inputs / 64;
  constexpr int kStage = kStageBytes<kType, kSides>, kStages = kRingBytes<kType, kSides> / kStage;
  constexpr int kAhead = kGroups > 1 ? 1 : 2;  // parts of rows in registers
  extern __shared__ __align__(128) std::byte rings[];
  __shared__ float partial[kGated || kSides > 1 ? 2 : 1][4][4 * kGroups][32];
  __shared__ int pair_of[8 * kGroups];
  const int t = kWide ? int(threadIdx.x) % 128 : int(threadIdx.x), lane = t % 32, warp = t / 32,
            group = kWide ? int(threadIdx.x) / 128 : 0;
  const int splits = args->splits, split_shift = splits / 2, num_records = args->num_records;  // 1, 2, 4: shift 0, 1, 2
  // Of a unit each group of four warps has `turns` matrices, one after the other.
  const int matrices = kGated ? args->matrices : 1, turns = kWide ? matrices * 128 / int(blockDim.x) : matrices;
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
  uint32_t memory = shared_address(rings) + uint32_t(group * kRingBytes<kType, kSides>);
  asm volatile("" : "+r"(memory));  // else found anew for every record
  const std::byte* from[kSides];    // of the records to be fetched next, as copy_quarter takes them
  int from_pass = first_pass, from_record = first_record, from_quarter[kSides];
  int fetch_to = 0, stage = 0;  // offsets in the ring
  const auto after = [](int offset) { return offset == (kStages - 1) * kStage ? 0 : offset + kStage; };
  const auto find = [&] {
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
      const int pass = from_pass + side, sixteen = sixteen_of(pass);
      from[side] = (turns > 1 && matrix_of(pass) ? last_tiles : first_tiles) +
          (int64_t(sixteen / 4) * num_records + first_record) * kShape.bytes + sixteen % 4 * kQuarterBytes<kType> + lane * 16;
      from_quarter[side] = sixteen % 4;
    }
  };
  const auto fetch = [&] {  // a group of copies even where none is left
    if (from_pass < end_pass) {
#pragma unroll
      for (int side = 0; side < kSides; ++side) {
        copy_quarter<kType>(memory + uint32_t(fetch_to + side * kShape.bytes), from[side], from_quarter[side], warp, lane);
        from[side] += kShape.bytes;
      }
      if (++from_record == end_record) {
        from_record = first_record;
        if ((from_pass += kSides) < end_pass) find();
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
  uint4 rows[kAhead][kGroups][2];
  // 64 of them: of a part of the run, behind its last those with which the next pass begins.
  const auto load_inputs = [&]<int kTo>(int record, int of_record) {
    record += of_record / kParts, of_record %= kParts;
    if (record >= end_record) record = first_record + kTo / kParts, of_record = kTo % kParts;
    const int part = (record >> input_shift) * kParts + of_record;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g > 0 && g * 8 >= num_pairs) break;
      const uint4* from = x[g] + uint64_t(unsigned(part)) * 8;  // one address for both
      rows[kTo][g][0] = __ldca(from), rows[kTo][g][1] = __ldca(from + 4);
    }
  };
  load_inputs.template operator()<0>(first_record, 0);
  if constexpr (kAhead > 1) load_inputs.template operator()<1>(first_record, 1);

  for (int pass = first_pass; pass < end_pass; pass += kSides) {
    const int matrix = matrix_of(pass), out_dim = args->out_dim;
    float sums[kSides][kGroups][4] = {};
    const auto multiply = [&]<int kPart>(uint32_t record, int at) {  // kPart: of two records
      const uint4(&row)[kGroups][2] = rows[kPart % kAhead];
#pragma unroll
      for (int side = 0; side < kSides; ++side, record += kShape.bytes) {
        uint32_t operand[4][4];
        if constexpr (kType == DType::BF16) {
          const uint32_t feature = record + uint32_t(warp * 2048 + lane % 16 * 128);
#pragma unroll
          for (int step = 0; step < 4; ++step)
            load_matrices(operand[step], feature + uint32_t((step * 2 + lane / 16) ^ lane % 8) * 16);
        } else {
          decode_part<kType, 0, 4>(load_part<kType>(record, kPart % kParts, t), operand);
        }
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          if (g > 0 && g * 8 >= num_pairs) break;
          mma_sync(sums[side][g], operand[0], row[g][0].x, row[g][0].y);
          mma_sync(sums[side][g], operand[1], row[g][0].z, row[g][0].w);
          mma_sync(sums[side][g], operand[2], row[g][1].x, row[g][1].y);
          mma_sync(sums[side][g], operand[3], row[g][1].z, row[g][1].w);
        }
      }
      load_inputs.template operator()<kPart % kAhead>(at, kPart % kParts + kAhead);
    };
    const auto take = [&]<int kRecord>(int at) {  // kRecord: of two
      await_copies<kStages - 2>();
      __syncwarp();  // and all lanes have read the stage before, whose place the next fetch takes
      fetch();
      const uint32_t record = memory + uint32_t(stage);
      multiply.template operator()<kRecord * kParts>(record, at);
      if constexpr (kParts > 1) multiply.template operator()<kRecord * kParts + 1>(record, at);
      stage = after(stage);
    };
#pragma unroll 1
    for (int at = first_record; at < end_record; at += 2 / kParts) {  // two parts
      take.template operator()<0>(at);
      if (kParts == 1 && at + 1 < end_record) take.template operator()<1>(at + 1);
    }

    if (matrix == 0 || turns == 1) __syncthreads();  // the unit before has been read
#pragma unroll
    for (int side = 0; side < kSides; ++side)
#pragma unroll
      for (int r = 0; r < 4 * kGroups; ++r) partial[kSides > 1 ? side : matrix][warp][r][lane] = sums[side][r / 4][r % 4];
    if (turns > kSides && matrix == 0) continue;
    float bias[2][2] = {};  // before the loop they would cost it registers
#pragma unroll
    for (int i = 0; i < (kGated || kSides > 1 ? 4 : 2); ++i) {
      const int k = sixteen_of(kSides > 1 ? pass + i / 2 : pass) * 16 + lane / 4 + i % 2 * 8;
      if (biases[i / 2] && k < out_dim) bias[i / 2][i % 2] = __ldg(biases[i / 2] + k);
    }
    __syncthreads();
#pragma unroll
    for (int side = 0; side < kSides; ++side) {  // of what is left, of a unit; every run's warp has some of the registers
      if (side > 0 && matrices == 2) break;
#pragma unroll 1
      for (int r = split + splits * group; r < 4 * kGroups && r / 4 * 8 < num_pairs; r += splits * (matrices / turns)) {
        const int at = r / 4 * 8 + lane % 4 * 2 + r % 2, below = r % 4 / 2;
        const int k = sixteen_of(pass + side) * 16 + lane / 4 + 8 * below;
        const auto value_of = [&](int which) {
          float total = partial[which][warp - split][r][lane];
#pragma unroll
          for (int s = 1; s < 4; ++s)
            if (s < splits) total += partial[which][warp - split + s][r][lane];
          return total * args->unit + (which ? below ? bias[1][1] : bias[1][0] : below ? bias[0][1] : bias[0][0]);
        };
        const int64_t pair = pair_of[at < num_pairs ? at : 0];
        if constexpr (!kGated) {
          if (at < num_pairs && k < out_dim) args->out[pair * out_dim + k] = value_of(side);
        } else {
          float value = 0;  // past the end too: down's last record reads the whole tile
          if (k < out_dim) {
            const float up = value_of(matrices == 2 ? 1 : side);
            const float gate = matrices == 2 ? value_of(0) : args->out[pair * out_dim + k];
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

}
