// The kernel of products with weights: out[row][feature] = sum over inputs of weight[feature][input] x[row][input].
//
// Weights are the first operand of the tensor cores (64 features a warpgroup), activations, rounded to bf16, the second, with N
// of them. An element's sum never depends on N (docs/kernels/products.md). A unit of work is (group of G tiles, run or all runs,
// row tile of N rows); blocks walk over units with one pipeline of stages in shared memory that does not stop between units. A
// stage is a few records of each of the G tiles and the activations they meet.
//   warps 0..4G-1   consumers, a warpgroup a tile
//   two warps more  which fill stages with the copy engine: one with weights, long before wait_for_previous() returns; one with
//                   activations
// Activations come packed as bf16. The op before has left them so (packed_rows.cuh); else the first blocks pack them into the
// workspace and all others wait, which is shorter than a kernel before; with many rows that kernel runs. Blocks of a cluster
// each fetch a part of what they share, for all: from 33 rows on two groups' blocks their activations; with many rows blocks of
// two row tiles their weights. Where a unit is one run, its sums are exchanged with
// the blocks of the others.
#pragma once

#include "backend/cuda/decode.cuh"
#include "backend/cuda/gate.cuh"
#include "backend/cuda/products_walk.cuh"
#include "backend/cuda/ptx.h"
#include "backend/cuda/tile_copies.cuh"

namespace hunch {

// As many rows as an instruction may have of the registers that a thread begins with.
constexpr int halves_of(int n) { return n > 192 ? 2 : 1; }

// Adds `count` records (one of bf16) of a tile to `sums`. Coded weights are done with when it returns; otherwise all that is read
// stays in use until the group committed last is done. kAhead: a part is decoded while the tensor cores have the one before,
// where registers allow and a block has an SM.
template <DType kType, int N, bool kAhead = false>
HUNCH_DEVICE void multiply_records(float (&sums)[N / 2], const std::byte* record, uint32_t x, int count, bool first, int t) {
  constexpr RecordShape kShape = record_shape(kType);
  if constexpr (kType == DType::BF16) {
    const uint64_t a = tile_descriptor(shared_address(record)), b = tile_descriptor(x);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      constexpr int kHalves = halves_of(N), kRows = N / kHalves;
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        wgmma<kRows>(reinterpret_cast<float(&)[kRows / 2]>(sums[half * kRows / 2]), a + uint64_t(step * 2),
            b + uint64_t(half * kRows * 8 + step * 2), step > 0 || !first);
    }
    wgmma_commit();
  } else {
    constexpr int kParts = kShape.inputs / 64;
    uint32_t a[2][4][4];
    const auto multiply = [&]<int kBuffer>(int part) {
      const std::byte* from = record + part / kParts * kShape.bytes;
      decode_part<kType, 0, 4>(load_part<kType>(shared_address(from), part % kParts, t), a[kBuffer]);
      const uint32_t b = tile_operand(x + uint32_t(part) * (N * 128));
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < 4; ++step)
        wgmma<N>(sums, a[kBuffer][step], b + uint32_t(step * 2), step > 0 || part > 0 || !first);
      wgmma_commit();
    };
    const auto await = [&](int buffers) {
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < 4 * buffers; ++i) hold(a[i / 4][i % 4]);
      hold(sums);
    };
    const int parts = count * kParts;
    int part = 0;
    if constexpr (kAhead) {
      for (; part + 2 <= parts; part += 2) {
        multiply.template operator()<0>(part);
        multiply.template operator()<1>(part + 1);  // decoded while the tensor cores have the first
        await(2);
      }
    }
    for (; part < parts; ++part) {
      multiply.template operator()<0>(part);
      await(1);
    }
  }
}

// Where kTogether neighbouring sums (1, 2 or 4) from `first_reg` of thread t go, wgmma.h: what they are added to is fetched
// together.
template <int N, int kTogether>
struct Places {
  float* out;
  int64_t stride;
  int features, rows;  // that are there, from the first: of two 8 apart, of two next to each other
  float old[kTogether], bias[2];

  Places() = default;
  HUNCH_DEVICE Places(int first_reg, const ProductsOnDevice& a, const ProductOnDevice& p, int tile, int row_tile, int t) {
    const int feature = tile * 64 + t / 32 * 16 + t % 32 / 4 + 8 * (first_reg / 2 % 2);
    const int row = row_tile * N + first_reg / 4 * 8 + t % 4 * 2 + first_reg % 2;
    features = p.out_dim - feature, rows = a.rows - row;
    stride = p.out_stride;
    out = p.out + row * stride + feature;
#pragma unroll
    for (int i = 0; i < 2; ++i) bias[i] = p.bias && features > 8 * i ? p.bias[feature + 8 * i] : 0.0f;
    fetch(a);
  }
  HUNCH_DEVICE void fetch(const ProductsOnDevice& a) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) old[i] = there(i) && a.accumulate ? __ldcg(at(i)) : 0.0f;
  }
  HUNCH_DEVICE bool there(int i) const { return features > i / 2 * 8 && rows > i % 2; }
  HUNCH_DEVICE float* at(int i) const { return out + i / 2 * 8 + i % 2 * stride; }
  HUNCH_DEVICE void write(const float* sums, const ProductsOnDevice& a) const {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const float value = sums[i] * a.unit + bias[i / 2];
      if (there(i)) *at(i) = a.accumulate ? accumulated(old[i], value) : value;
    }
  }
  // To those of the next 8 rows.
  HUNCH_DEVICE void next(const ProductsOnDevice& a) {
    out += 8 * stride, rows -= 8;
    asm volatile("" : "+l"(out), "+r"(rows));  // else the places of all are found first, for which there are no registers
    fetch(a);
  }
};
template <int N>
HUNCH_DEVICE void write_sums(
    const float (&sums)[N / 2], const ProductsOnDevice& a, const ProductOnDevice& p, int tile, int row_tile, int t) {
  Places<N, 4> places(0, a, p, tile, row_tile, t);
  if constexpr (N >= 64 && N <= 192) {  // what many are added to is asked for together
#pragma unroll
    for (int reg = 0; reg < N / 2; reg += 16) {
      Places<N, 4> second = places, third, fourth;
      second.next(a), third = second;
      third.next(a), fourth = third;
      fourth.next(a);
      places.write(sums + reg, a), second.write(sums + reg + 4, a);
      third.write(sums + reg + 8, a), fourth.write(sums + reg + 12, a);
      places = fourth;
      if (reg + 16 < N / 2) places.next(a);
    }
  } else {
#pragma unroll
    for (int reg = 0; reg < N / 2; reg += 4) {
      places.write(sums + reg, a);
      if (reg + 4 < N / 2) places.next(a);
    }
  }
}

// Sums of one run, exchanged with the blocks of the other runs: each block gets a share of the registers from all, adds it up in
// the order of runs and writes it. A word of all ones is one that has not arrived: no flags, no fences, one way through L2.
// Blocks of a grid are all on the device together, and a unit waits for units before it or of its own tile only.
// kMost: words of a sender at a time, which need registers.
template <int N, int kSplits, int kMost>
HUNCH_DEVICE void exchange_sums(
    const float (&sums)[N / 2], const ProductsOnDevice& a, const ProductOnDevice& p, int tile, int row_tile, int split, int t) {
  constexpr uint32_t kNothing = 0xffffffffu;
  constexpr int kShare = N / 2 / kSplits, kEven = kShare & -kShare, kTogether = kEven < kMost ? kEven : kMost;
  constexpr int kPlaces = kTogether < 4 ? kTogether : 4;
  constexpr bool kKeeps = N == 64 && kShare == kTogether;  // a block's own share stays in registers: where it pays
  const int first_row = row_tile * N;
  // [receiver][sender][share][128]
  auto* words = reinterpret_cast<uint32_t*>(p.partials) + int64_t(row_tile * p.num_tiles + tile) * kSplits * (N / 2) * 128 + t;
  uint32_t* const to = words + split * kShare * 128;
  const auto word = [&](int reg) {
    const uint32_t bits = __float_as_uint(sums[reg]);
    return bits == kNothing ? 0x7fffffffu : bits;  // the other NaN
  };
#pragma unroll
  for (int reg = 0; reg < N / 2; ++reg) {
    // Of eights of rows only those that are there, and what is waited for with them.
    if (first_row + (reg - reg % kShare % kTogether) / 4 * 8 < a.rows && !(kKeeps && reg / kShare == split))
      store_relaxed(to + (reg / kShare * kSplits * kShare + reg % kShare) * 128, word(reg));
  }
  uint32_t* mine = words + split * kSplits * kShare * 128;
#pragma unroll 1
  for (int i = 0; i < kShare; i += kTogether, mine += kTogether * 128) {
    if (first_row + (split * kShare + i) / 4 * 8 >= a.rows) break;
    const Places<N, kPlaces> places(split * kShare + i, a, p, tile, row_tile, t);
    Places<N, kPlaces> others = places;
    if constexpr (kTogether > kPlaces) others = Places<N, kPlaces>(split * kShare + i + kPlaces, a, p, tile, row_tile, t);
    // All are asked for together, and those that were not there again.
    uint32_t values[kSplits][kTogether];
    bool missing = true;
#pragma unroll
    for (int s = 0; s < kSplits; ++s)
#pragma unroll
      for (int j = 0; j < kTogether; ++j) values[s][j] = kKeeps && s == split ? word(s * kShare + j) : kNothing;
    while (missing) {
      missing = false;
#pragma unroll
      for (int s = 0; s < kSplits; ++s)
#pragma unroll
        for (int j = 0; j < kTogether; ++j)
          if (values[s][j] == kNothing) values[s][j] = load_relaxed(mine + (s * kShare + j) * 128);
#pragma unroll
      for (int s = 0; s < kSplits; ++s)
#pragma unroll
        for (int j = 0; j < kTogether; ++j) missing |= values[s][j] == kNothing;
    }
    float sum[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      sum[j] = __uint_as_float(values[0][j]);
#pragma unroll
      for (int s = 1; s < kSplits; ++s) sum[j] = sum[j] + __uint_as_float(values[s][j]);
    }
    places.write(sum, a);
    if constexpr (kTogether > kPlaces) others.write(sum + kPlaces, a);
#pragma unroll
    for (int s = 0; s < kSplits; ++s)
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
        if (!(kKeeps && s == split)) store_relaxed(mine + (s * kShare + j) * 128, kNothing);
  }
}

// multiply_records for one record of a gate and what it lets through: 32 features of the one, 32 of the other. Warps take 8 of
// both into registers, so that a thread has both of an element.
template <int N>
HUNCH_DEVICE void multiply_gated(float (&sums)[N / 2], uint32_t record, uint32_t x, bool first, int t) {
  constexpr int kHalves = halves_of(N), kRows = N / kHalves, kSteps = N > 224 ? 1 : N == 32 ? 2 : 4;  // as registers allow
  const int lane = t % 32, row = lane % 8;
  const uint32_t from = record + uint32_t(lane / 8 % 2 * 4096 + t / 32 * 1024 + row * 128);
#pragma unroll
  for (int begin = 0; begin < 4; begin += kSteps) {
    uint32_t operand[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) load_matrices(operand[i], from + uint32_t((2 * (begin + i) + lane / 16) ^ row) * 16);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        wgmma<kRows>(reinterpret_cast<float(&)[kRows / 2]>(sums[half * kRows / 2]), operand[i],
            x + uint32_t((begin + i) * 2 + half * kRows * 8), begin + i > 0 || !first);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) hold(operand[i]);
    hold(sums);
  }
}

// The bits of the gate's own kernel (rows.cu), rounded.
template <int N>
HUNCH_DEVICE void write_gated(const float (&sums)[N / 2], const ProductsOnDevice& a, int tile, int t) {
  const int feature = tile * 32 + t / 32 * 8 + t % 32 / 4, odd = feature % 2;
  std::byte* to = a.gated + int64_t(feature / 64) * a.gated_blocks * 1024 + swizzled(t % 4 * 2 + odd, (feature - odd) % 64);
#pragma unroll
  for (int j = 0; j < N / 8; ++j, to += 1024) {
    float y[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) y[i] = silu(sums[4 * j + i] * a.unit + 0.0f) * (sums[4 * j + 2 + i] * a.unit + 0.0f);
    // Two neighbouring features of a row make a word: lanes of an even one write the first row, the others the second.
    const float other = __shfl_xor_sync(0xffffffffu, odd ? y[0] : y[1], 4);
    if (8 * j + t % 4 * 2 + odd < a.rows)
      *reinterpret_cast<uint32_t*>(to) = odd ? bf16x2_of(other, y[1]) : bf16x2_of(y[0], other);
  }
}

// Inputs k .. k + 7 of a row; past the end are zeros.
HUNCH_DEVICE uint4 pack_eight(const float* row, int64_t k, int64_t in_dim) {
  float values[8] = {};
  const float* from = row + k;
  if (k + 8 <= in_dim && reinterpret_cast<uint64_t>(from) % 16 == 0) {
    const float4 low = __ldcg(reinterpret_cast<const float4*>(from)), high = __ldcg(reinterpret_cast<const float4*>(from) + 1);
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (k + i < in_dim) values[i] = __ldcg(from + i);
  }
  return make_uint4(bf16x2_of(values[0], values[1]), bf16x2_of(values[2], values[3]), bf16x2_of(values[4], values[5]),
      bf16x2_of(values[6], values[7]));
}

// 8 neighbouring inputs of a row to packed_x; rows past the end are zeros.
HUNCH_DEVICE void pack_unit(
    const float* x, int64_t x_stride, int64_t in_dim, int rows, int parts, int x_blocks, std::byte* packed, int unit) {
  // Neighbouring units are of one row, so that both sides are whole lines.
  const int row = unit / 8 / parts, part = unit / 8 % parts, column = unit % 8;
  *reinterpret_cast<uint4*>(packed + (int64_t(part) * x_blocks + row / 8) * 1024 + swizzled(row % 8, column * 8)) =
      pack_eight(x + row * x_stride, int64_t(part) * 64 + column * 8, row < rows ? in_dim : 0);
}

// Threads that are not consumers: a warpgroup where registers move from it to the consumers.
constexpr int helper_threads(int n, bool whole) { return whole || n > 128 ? 128 : 64; }

template <DType kType, int N, int kBlocks, bool kWhole, bool kCut = false, bool kGated = false>
HUNCH_DEVICE void products(const ProductsOnDevice* args) {
  constexpr RecordShape kShape = record_shape(kType);
  constexpr int kParts = kShape.inputs / 64;
  extern __shared__ __align__(1024) std::byte shared_memory[];
  SharedHead& head = *reinterpret_cast<SharedHead*>(shared_memory);
  std::byte* const shared = shared_memory + kHeadBytes;
  const int group_tiles = (int(blockDim.x) - helper_threads(N, kWhole)) / 128;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, rank = int(blockIdx.x) % kBlocks;
  let_next_start();
  for (int i = int(threadIdx.x); i < int(sizeof(ProductsOnDevice) / 4); i += int(blockDim.x))
    reinterpret_cast<uint32_t*>(&head.args)[i] = __ldcg(reinterpret_cast<const uint32_t*>(args) + i);
  const uint32_t memory = shared_address(shared), full = shared_address(head.full), empty = shared_address(head.empty);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kMostStages; ++s) {
      barrier_init(full + uint32_t(s * 8), 2);
      barrier_init(empty + uint32_t(s * 8), 4 * group_tiles * kBlocks);
    }
    barrier_init_done();
  }
  if constexpr (kBlocks > 1) cluster_arrive();
  __syncthreads();
  const ProductsOnDevice& a = head.args;
  const int stages = a.stages, stage_bytes = a.stage_bytes, x_offset = a.x_offset;

  if (warp >= 4 * group_tiles) {
    if constexpr (N > 192) give_registers<32>();
    else if constexpr (helper_threads(N, kWhole) == 128) give_registers<56>();
    if constexpr (kWhole) cluster_wait();
    // One lane a tile or a part of activations: the time of these warps' own instructions is what a stage must not wait for, so
    // everything that stays is kept in registers.
    Cursor<kBlocks, kWhole> at(a, group_tiles);
    Ring ring;
    if (warp == 4 * group_tiles) {
      const uint64_t policy = a.keep_weights ? policy_normal() : policy_read_once();
      constexpr int kTwo = kGated ? 1 : 0;  // two lanes a tile, whose halves are of two matrices
      const int mine = lane >> kTwo, half = lane & kTwo, lane_offset = mine * a.tile_bytes + half * (kShape.bytes / 2);
      const std::byte* weights = nullptr;  // of this lane
      int tiles = 0;
      const auto open = [&] {
        tiles = at.tiles();
        if (mine >= tiles) return;
        int tile = at.group * group_tiles + mine;
        const ProductOnDevice& p = kGated ? a.products[half] : product_of(a, tile);
        weights = p.tiles + int64_t(tile >> kTwo) * a.num_records * kShape.bytes + (tile & kTwo) * (kShape.bytes / 2);
      };
      open();
      const Pace pace(a);
      for (int step = 0; at.valid(); ring.next(stages), ++step) {
        if (step >= stages) barrier_wait(empty + uint32_t(ring.stage * 8), ring.phase ^ 1);
        else if constexpr (!kWhole) pace.wait(step, empty);
        const int bytes = at.count() * kShape.bytes;
        const uint32_t barrier = full + uint32_t(ring.stage * 8);
        if (lane == 0) barrier_arrive_and_expect(barrier, uint32_t(tiles * bytes));
        __syncwarp();
        if (mine < tiles) {
          const uint32_t to = memory + uint32_t(ring.stage * stage_bytes + lane_offset);
          const std::byte* from = weights + int64_t(at.record) * kShape.bytes;
          if constexpr (kWhole) {
            const int offset = rank * (bytes / 2);
            copy_to_blocks(to + uint32_t(offset), from + offset, uint32_t(bytes / 2), barrier, 3, policy);
          } else {
            copy_to_shared(to, from, uint32_t(bytes >> kTwo), barrier, policy);
          }
        }
        if (at.next() && at.valid()) open();
      }
      if constexpr (kBlocks > 1 && !kWhole) cluster_wait();
    } else if (warp == 4 * group_tiles + 1) {
      const uint64_t policy = policy_normal();
      const int shift = a.records_per_input - 1;
      const int64_t part_bytes = int64_t(a.x_blocks) * 1024;
      if constexpr (kBlocks > 1 && !kWhole) cluster_wait();
      wait_for_previous();
      if constexpr (!kWhole) {
        if (lane == 0 && a.packers > 0) {
          while (load_acquire(a.packed_count) < a.packers) {}
        }
        __syncwarp();
        show_to_copy_engine();
      }
      for (int step = 0; at.valid(); ring.next(stages), ++step) {
        if (step >= stages) barrier_wait(empty + uint32_t(ring.stage * 8), ring.phase ^ 1);
        const int parts = at.count() * kParts;
        const uint32_t barrier = full + uint32_t(ring.stage * 8);
        if (lane == 0) barrier_arrive_and_expect(barrier, uint32_t(parts * N * 128));
        __syncwarp();
        if (lane < parts) {
          const uint32_t to = memory + uint32_t(ring.stage * stage_bytes + x_offset + lane * N * 128);
          const std::byte* from =
              a.packed_x + (int64_t(at.record >> shift) * kParts + lane) * part_bytes + int64_t(at.row_tile) * (N * 128);
          if constexpr (kBlocks == 2 && !kWhole) {
            copy_to_blocks(to + uint32_t(rank * N * 64), from + rank * N * 64, N * 64, barrier, 3, policy);
          } else {
            copy_to_shared(to, from, N * 128, barrier, policy);
          }
        }
        at.next();
      }
      if constexpr (!kWhole) {
        if (lane == 0 && a.packers > 0 && atomicAdd(a.packed_count + 1, 1) == int(gridDim.x) - 1)  // all have seen it
          a.packed_count[0] = a.packed_count[1] = 0;
      }
    }
    return;
  }

  if constexpr (N > 192) take_registers<160>();
  else if constexpr (helper_threads(N, kWhole) == 128) take_registers<152>();
  if constexpr (kBlocks > 1) cluster_wait();
  const int group_warp = warp / 4, t = int(threadIdx.x) % 128;
  const auto release = [&](int stage) {
    __syncwarp();
    if constexpr (kBlocks > 1) {
      if (lane < kBlocks) barrier_arrive_at(empty + uint32_t(stage * 8), uint32_t(rank ^ lane));  // who writes here
    } else {
      if (lane == 0) barrier_arrive(empty + uint32_t(stage * 8));
    }
  };
  wait_for_previous();
  if constexpr (!kWhole) {
    if (int(blockIdx.x) < a.packers) {
      const int units = a.parts * a.x_blocks * 64, threads = group_tiles * 128;
      for (int unit = int(blockIdx.x) * threads + int(threadIdx.x); unit < units; unit += a.packers * threads)
        pack_unit(a.x, a.x_stride, a.in_dim, a.rows, a.parts, a.x_blocks, const_cast<std::byte*>(a.packed_x), unit);
      show_to_copy_engine();
      named_barrier(4, threads);
      if (threadIdx.x == 0) add_release(a.packed_count, 1);  // after what the barrier has gathered
    }
  }
  Ring ring;
  Cursor<kBlocks, kWhole> at(a, group_tiles);
  const int tile_offset = group_warp * a.tile_bytes;
  float sums[N / 2], total[kWhole && !kCut ? N / 2 : 1];
  while (at.valid()) {
    if constexpr (N > 64) {  // so that their registers are free while sums are written
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sums[i] = 0;
    }
    while (true) {
      const int begin = at.record;
      int before = -1;
      for (; at.record < at.end; at.record += at.count(), ring.next(stages)) {
        barrier_wait(full + uint32_t(ring.stage * 8), ring.phase);
        const int at_stage = ring.stage * stage_bytes;
        if constexpr (!kWhole) hold(sums);
        if constexpr (kGated)
          multiply_gated<N>(sums, memory + uint32_t(at_stage + tile_offset), tile_operand(memory + uint32_t(at_stage + x_offset)),
              at.record == begin, t);
        else
          multiply_records<kType, N, N <= 64>(
              sums, shared + at_stage + tile_offset, memory + uint32_t(at_stage + x_offset), at.count(), at.record == begin, t);
        if constexpr (kType == DType::BF16 && kWhole) {
          if (before >= 0) {
            wgmma_wait<1>();
            release(before);
          }
          before = ring.stage;
        } else {
          wgmma_wait<0>();
          hold(sums);
          release(ring.stage);
        }
      }
      wgmma_wait<0>();
      hold(sums);
      if (before >= 0) release(before);
      if constexpr (!kWhole || kCut) {
        break;
      } else {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) total[i] = at.split == 0 ? sums[i] : total[i] + sums[i];
        if (++at.split == a.splits) break;
        at.open_run();
      }
    }
    int tile = at.group * group_tiles + group_warp;
    if constexpr (kGated) {
      if (tile < a.num_tiles) write_gated<N>(sums, a, tile, t);
    } else if (tile < a.num_tiles) {
      const ProductOnDevice& p = product_of(a, tile);
      if constexpr (kWhole && !kCut) {
        write_sums<N>(total, a, p, tile, at.row_tile, t);
      } else if (!kCut && a.splits == 1) {
        write_sums<N>(sums, a, p, tile, at.row_tile, t);
      } else if (a.splits == 2) {
        exchange_sums<N, 2, kWhole ? 4 : 8>(sums, a, p, tile, at.row_tile, at.split, t);
      } else {
        exchange_sums<N, 4, kWhole ? 4 : 8>(sums, a, p, tile, at.row_tile, at.split, t);
      }
    }
    at.next_unit();
  }
  if constexpr (kBlocks > 1) sync_cluster();  // the others still arrive at barriers here
}

// Blocks that share activations: where those are a good part of what is read.
constexpr int few_rows_cluster(int n) { return n > 32 ? 2 : 1; }
// Of an SM at once, as registers allow.
constexpr int few_rows_blocks(bool plain, int n) { return n > 32 || (n == 32 && !plain) ? 1 : 2; }

template <DType kType, int N, bool kGated>
__global__ void HUNCH_CLUSTER(few_rows_cluster(N))
    __launch_bounds__(3 * 128 + helper_threads(N, false), few_rows_blocks(kType == DType::BF16, N))
        few_rows_kernel(const ProductsOnDevice* args) {
#if HUNCH_HOPPER
  products<kType, N, few_rows_cluster(N), false, false, kGated>(args);
#endif
}
template <DType kType, bool kCut>
__global__ void HUNCH_CLUSTER(2) __launch_bounds__(512, 1) many_rows_kernel(const ProductsOnDevice* args) {
#if HUNCH_HOPPER
  products<kType, 128, 2, true, kCut>(args);
#endif
}

struct PackActivations {
  const float* x;
  std::byte* packed;
  int64_t x_stride, in_dim;
  int rows, x_blocks, parts;
};
[[maybe_unused]] static __global__ void pack_activations_kernel(const PackActivations* args) {
  let_next_start();
  const PackActivations a = *args;
  wait_for_previous();
  const int units = a.parts * a.x_blocks * 64;
  for (int unit = int(blockIdx.x * blockDim.x + threadIdx.x); unit < units; unit += int(gridDim.x * blockDim.x))
    pack_unit(a.x, a.x_stride, a.in_dim, a.rows, a.parts, a.x_blocks, a.packed, unit);
}

}
