// The kernel of products with weights: out[row][feature] = sum over inputs of weight[feature][input] x[row][input].
//
// Weights are the first operand of the tensor cores (64 features a warpgroup), activations, rounded to bf16, the second, with N
// of them. An element's sum never depends on N: inputs are added 16 by 16 in ascending order within each of the weight's `splits`
// runs of records, and the runs' sums in order. A unit of work is (group of G tiles, run or all runs, row tile of N rows); blocks
// walk over units with one pipeline of stages in shared memory that does not stop between units. A stage is a few records of each
// of the G tiles and the activations they meet.
//   warps 0..4G-1   consumers, a warpgroup a tile
//   next warp       one thread that fills stages with the copy engine; weights before wait_for_previous(), as far as stages reach
// The first blocks pack the activations as bf16 into the workspace and all others wait for them, which is shorter
// than a kernel before; with many rows that kernel runs. Many rows: pairs of blocks with neighbouring row tiles each fetch half
// of the weights for both. Where a unit is one run, its sums go to `partials`; the last block of a tile to arrive adds all runs
// in order.
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/cuda/weights_kernel.cuh"
#include "backend/cuda/wgmma.h"

namespace hunch {

inline constexpr int kMaxProducts = 8;

struct ProductOnDevice {
  const std::byte* tiles;
  const float* bias;
  float* out;
  float* partials;  // [row tile][tile][split][N / 2][128]
  int32_t* counters;
  int64_t out_stride;
  int num_tiles, out_dim;
};
struct ProductsOnDevice {
  ProductOnDevice products[kMaxProducts];
  const float* x;
  const std::byte* packed_x;  // [part][x_blocks] blocks of 8 rows x 64 inputs, 1 KiB each, swizzled
  int64_t x_stride, in_dim;
  int num_products, num_tiles;                         // tiles of all products
  int rows, row_tiles, row_band, x_blocks, row_shift;  // many rows: row tiles in pairs; log2 of resident rows
  int num_records, records_per_input, stage_records;   // of a tile; 2 of the same inputs (values, rests); most of a stage
  int splits, group_tiles, groups, units;
  int stages, stage_bytes, tile_bytes, x_offset;  // of shared memory; of a tile in a stage
  int packers, parts;                             // blocks that pack; parts of the inputs
  float unit;                                     // of sums: a power of two
  int32_t* packed_count;                          // packers that are done, blocks that have seen it
  bool accumulate, keep_weights, exchange;        // exchange: partials are Commands::ones
};

// Shared memory: this, then the stages.
inline constexpr int kMostStages = 12;
struct SharedHead {
  ProductsOnDevice args;
  uint64_t full[kMostStages], empty[kMostStages];
  volatile int is_last[3];
};
inline constexpr int kHeadBytes = 1024;
static_assert(sizeof(SharedHead) <= kHeadBytes);

// Walks over the records of a block's units, in order, a stage at a time.
template <bool kWhole>
struct Cursor {
  static constexpr int kBlocks = kWhole ? 2 : 1;  // that share a unit
  const ProductsOnDevice& a;
  const int stage_records, splits_shift;                                           // splits are 1, 2 or 4
  int group_tiles, unit, group = 0, split = 0, row_tile = 0, record = 0, end = 0;  // end: of the run

  __device__ Cursor(const ProductsOnDevice& args, int tiles)
      : a(args),
        stage_records(args.stage_records),
        splits_shift(args.splits >> 1),
        group_tiles(tiles),
        unit(int(blockIdx.x) / kBlocks) {
    open();
  }
  __device__ bool valid() const { return unit < a.units; }
  __device__ void open() {
    if (!valid()) return;
    if constexpr (kWhole) {
      // Bands of row tiles, so that blocks running together share both weights and activations.
      const int in_band = a.groups * a.row_band, band = unit / in_band, left = a.row_tiles - band * a.row_band;
      const int width = left < a.row_band ? left : a.row_band, i = unit - band * in_band;
      row_tile = 2 * (band * a.row_band + i % width) + int(blockIdx.x) % 2;
      group = i / width;
      split = 0;
    } else {
      int i = unit;
      if (a.row_tiles > 1) {
        i = unit / a.row_tiles;
        row_tile = unit - i * a.row_tiles;
      }
      split = i & (a.splits - 1);
      group = i >> splits_shift;
    }
    open_run();
  }
  __device__ void open_run() {
    record = a.num_records * split >> splits_shift;
    end = a.num_records * (split + 1) >> splits_shift;
  }
  __device__ int count() const { return end - record < stage_records ? end - record : stage_records; }
  // True if another unit begins.
  __device__ bool next() {
    record += count();
    if (record < end) return false;
    if (kWhole && split + 1 < a.splits) {
      ++split;
      open_run();
      return false;
    }
    next_unit();
    return true;
  }
  __device__ void next_unit() {
    unit += int(gridDim.x) / kBlocks;
    open();
  }
  __device__ int tiles() const {  // of this group
    const int left = a.num_tiles - group * group_tiles;
    return left < group_tiles ? left : group_tiles;
  }
};

struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

__device__ __forceinline__ const ProductOnDevice& product_of(const ProductsOnDevice& a, int& tile) {
  int p = 0;
  while (p + 1 < a.num_products && tile >= a.products[p].num_tiles) tile -= a.products[p++].num_tiles;
  return a.products[p];
}

// Of sums of decoded weights.
constexpr float unit_of(DType type) { return type == DType::Q4_0 ? 0x1p22f : 1.0f; }

// What thread t of the warpgroup needs of a part of a coded tile, as it lies there.
template <DType kType>
struct PartCodes {
  uint4 codes[has_byte_codes(kType) ? 2 : 1];
  uint2 scales, high, super;  // high: fifth bits (x), Q6_K's high bits
};
template <DType kType>
__device__ __forceinline__ PartCodes<kType> load_part(uint32_t record, int part, int t) {
  constexpr RecordShape kShape = record_shape(kType);
  const int pair = t / 32 * 8 + t % 32 / 4;
  PartCodes<kType> p{};
  p.scales = load_8(record + uint32_t(kShape.scales + (part * 32 + pair) * 8));
  constexpr int kWords = has_byte_codes(kType) ? 2 : 1;
#pragma unroll
  for (int h = 0; h < kWords; ++h) p.codes[h] = load_16(record + uint32_t(((part * kWords + h) * 128 + t) * 16));
  if constexpr (kType == DType::Q5_K) p.high.x = load_4(record + uint32_t(kShape.high + (part * 128 + t) * 4));
  if constexpr (kType == DType::Q6_K) {
    p.high = load_8(record + uint32_t(kShape.high + (part * 128 + t) * 8));
    p.super.x = load_4(record + uint32_t(kShape.super + pair * 4));
  }
  if constexpr (kType == DType::Q4_K || kType == DType::Q5_K) p.super = load_8(record + uint32_t(kShape.super + pair * 8));
  return p;
}

// Two codes of E4M3, the lower or the upper ones of a word, as fp16 times 1 / kF8Unit: an instruction, or the bits moved into
// place, 2^8 too small.
#if __CUDA_ARCH__ >= 890
constexpr float kF8Unit = 1;
#else
constexpr float kF8Unit = 256;
#endif
template <bool kUpper>
__device__ __forceinline__ uint32_t f8_halves(uint32_t word) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(kUpper ? word >> 16 : word)));
  return halves;
#else
  const uint32_t high = __byte_perm(word, 0, kUpper ? 0x3424 : 0x1404);
  return (high & 0x80008000u) | (high >> 1 & 0x3f803f80u);
#endif
}

// Operands of the part: a[i] of step kFirst + i, an even number of them.
template <DType kType, int kFirst, int kSteps>
__device__ __forceinline__ void decode_part(const PartCodes<kType>& p, uint32_t (&a)[kSteps][4]) {
  const uint2 scales = p.scales;
  if constexpr (kType == DType::F8_E4M3) {
    const float scale[2] = {__uint_as_float(scales.x) * kF8Unit, __uint_as_float(scales.y) * kF8Unit};
#pragma unroll
    for (int h = kFirst / 2; h < (kFirst + kSteps) / 2; ++h) {
      const uint32_t words[4] = {p.codes[h].x, p.codes[h].y, p.codes[h].z, p.codes[h].w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // step 2h + i / 4, register i % 4
        const uint32_t halves = i % 2 ? f8_halves<true>(words[i / 2]) : f8_halves<false>(words[i / 2]);
        const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&halves));
        a[2 * h + i / 4 - kFirst][i % 4] = bf16x2_of(both.x * scale[i % 2], both.y * scale[i % 2]);
      }
    }
    return;
  } else if constexpr (kType == DType::Q8_0) {
    float d[2][2];
    for (int below = 0; below < 2; ++below) {
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(below ? &scales.y : &scales.x));
      d[below][0] = both.x, d[below][1] = both.y;
    }
#pragma unroll
    for (int h = kFirst / 2; h < (kFirst + kSteps) / 2; ++h) {
      const uint4 codes = p.codes[h];
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // step 2h + i / 4, register i % 4
        const uint32_t word = words[i / 2];
        const float scale = d[i % 2][h];
        // A byte in the mantissa of 2^23: exact.
        const float low = __uint_as_float(__byte_perm(word, 0x4b000000u, i % 2 ? 0x7542 : 0x7540)) - 8388736.0f;
        const float high = __uint_as_float(__byte_perm(word, 0x4b000000u, i % 2 ? 0x7543 : 0x7541)) - 8388736.0f;
        a[2 * h + i / 4 - kFirst][i % 4] = bf16x2_of(low * scale, high * scale);
      }
    }
    return;
  } else if constexpr (kType == DType::Q4_0) {
    // The low byte of a bf16 that is nothing else is that integer times 2^-133. One instruction makes it (code - 8) d 2^-22,
    // which is rounded as (code - 8) d would be; sums are in that unit. Scales: at most 2^16 2^111. Odd registers have their
    // nibble 4 bits higher.
    const uint32_t words[4] = {p.codes[0].x, p.codes[0].y, p.codes[0].z, p.codes[0].w};
#pragma unroll
    for (int block = kFirst / 2; block < (kFirst + kSteps) / 2; ++block) {
      uint32_t scale[2], eight[2];  // of features
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const float2 both = __half22float2(*reinterpret_cast<const __half2*>(below ? &scales.y : &scales.x));
        const uint32_t d = block ? bf16x2_of(both.y, both.y) : bf16x2_of(both.x, both.x);
        scale[below] = bf16x2_mul(d, below ? 0x75007500u : 0x77007700u);  // 2^107, 2^111
        eight[below] = bf16x2_mul(d, 0xb600b600u);                        // -8 2^-22
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // step 2 block + i / 4, register i % 4
        const uint32_t word = words[2 * block + i / 4] >> (i % 4 / 2 * 8);
        a[2 * block + i / 4 - kFirst][i % 4] = bf16x2_fma(word & (i % 2 ? 0x00f000f0u : 0x000f000fu), scale[i % 2], eight[i % 2]);
      }
    }
  } else {
    // A code in the low bits of the mantissa of 128 (bf16 has 7): 128 + code, exact.
    constexpr uint32_t kBase = 0x43004300u;
    // In registers that the compiler does not look into: an instruction takes one constant of its own only, and this needs two.
    uint32_t nibbles = 0x000f000fu, base = kBase;
    asm("" : "+r"(nibbles), "+r"(base));
    const uint4 codes = p.codes[0];
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w}, fifth = p.high.x;
    const uint2 high = p.high;
    uint32_t scale[2][4], min[2][2];  // [feature][16 inputs], [feature][32 inputs]; Q6_K alone has four
    if constexpr (kType == DType::Q6_K) {
      const float2 d = __half22float2(*reinterpret_cast<const __half2*>(&p.super.x));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t word = i / 4 ? scales.y : scales.x;
        const float value = (i / 4 ? d.y : d.x) * float(int8_t(word >> (8 * (i % 4))));
        scale[i / 4][i % 4] = bf16x2_of(value, value);
      }
    } else {
      const uint2 super = p.super;
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const uint32_t two = below ? super.y : super.x, word = below ? scales.y : scales.x;
        const float2 d = __half22float2(*reinterpret_cast<const __half2*>(&two));
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          const float s = d.x * float(word >> (16 * block) & 255), m = -(d.y * float(word >> (16 * block + 8) & 255));
          scale[below][2 * block] = scale[below][2 * block + 1] = bf16x2_of(s, s);
          min[below][block] = bf16x2_of(m, m);
        }
      }
    }
#pragma unroll
    for (int step = kFirst; step < kFirst + kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t value = and_or(words[step] >> (4 * i), nibbles, base);
        if constexpr (kType == DType::Q5_K) {
          const int shift = 4 * step + i;
          value |= (shift >= 4 ? fifth >> (shift - 4) : fifth << (4 - shift)) & 0x00100010u;
        }
        if constexpr (kType == DType::Q6_K) {
          const int shift = 2 * (4 * (step % 2) + i);
          const uint32_t word = step / 2 ? high.y : high.x;
          value |= (shift >= 4 ? word >> (shift - 4) : word << (4 - shift)) & 0x00300030u;
        }
        if constexpr (kType == DType::Q6_K) value = bf16x2_mul(bf16x2_sub(value, 0x43204320u), scale[i % 2][step]);  // 160
        if constexpr (kType == DType::Q4_K || kType == DType::Q5_K)
          value = bf16x2_fma(bf16x2_sub(value, kBase), scale[i % 2][step], min[i % 2][step / 2]);
        a[step - kFirst][i] = value;
      }
    }
  }
}

// Adds `count` records (one of bf16) of a tile to `sums`. Coded weights are done with when it returns; otherwise all that is read
// stays in use until the group committed last is done.
template <DType kType, int N>
__device__ __forceinline__ void multiply_records(float (&sums)[N / 2], const std::byte* record, uint32_t x, int count, bool first,
                                                 int t) {
  constexpr RecordShape kShape = record_shape(kType);
  if constexpr (kType == DType::BF16) {
    const uint64_t a = tile_descriptor(shared_address(record)), b = tile_descriptor(x);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma<N>(sums, a + uint64_t(step * 2), b + uint64_t(step * 2), step > 0 || !first);
    wgmma_commit();
  } else {
    for (int i = 0; i < count; ++i, record += kShape.bytes) {
#pragma unroll
      for (int part = 0; part < kShape.inputs / 64; ++part, x += N * 128, first = false) {
        uint32_t a[4][4];
        decode_part<kType, 0, 4>(load_part<kType>(shared_address(record), part, t), a);
        const uint64_t b = tile_descriptor(x);
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < 4; ++step) wgmma<N>(sums, a[step], b + uint64_t(step * 2), step > 0 || !first);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int step = 0; step < 4; ++step) hold(a[step]);
        hold(sums);
      }
    }
  }
}

// One sum to its place. `reg` of thread t: wgmma.h.
template <int N>
__device__ __forceinline__ void write_sum(float sum, int reg, const ProductsOnDevice& a, const ProductOnDevice& p, int tile,
                                          int row_tile, int t) {
  const int feature = tile * 64 + t / 32 * 16 + t % 32 / 4 + 8 * (reg / 2 % 2);
  const int row = row_tile * N + reg / 4 * 8 + t % 4 * 2 + reg % 2;
  if (feature >= p.out_dim || row >= a.rows) return;
  float* out = p.out + row * p.out_stride + feature;
  const float value = sum * a.unit + (p.bias ? p.bias[feature] : 0.0f);
  *out = a.accumulate ? __ldcg(out) + value : value;
}
template <int N>
__device__ __forceinline__ void write_sums(const float (&sums)[N / 2], const ProductsOnDevice& a, const ProductOnDevice& p,
                                           int tile, int row_tile, int t) {
#pragma unroll
  for (int reg = 0; reg < N / 2; ++reg) write_sum<N>(sums[reg], reg, a, p, tile, row_tile, t);
}

// Sums of one run, exchanged with the blocks of the other runs: each block gets a share of the registers from all, adds it up in
// the order of runs and writes it. A word of all ones is one that has not arrived: no flags, no fences, one way through L2.
// Blocks of a grid are all on the device together, and a unit waits for units before it or of its own tile only.
template <int N>
__device__ __forceinline__ void exchange_sums(const float (&sums)[N / 2], const ProductsOnDevice& a, const ProductOnDevice& p,
                                              int tile, int row_tile, int split, int t) {
  constexpr uint32_t kNothing = 0xffffffffu;
  const int splits = a.splits, share = N / 2 / splits;  // 2 or 4 runs
  // [receiver][sender][share][128]
  auto* words = reinterpret_cast<uint32_t*>(p.partials) + int64_t(row_tile * p.num_tiles + tile) * splits * (N / 2) * 128 + t;
#pragma unroll
  for (int reg = 0; reg < N / 2; ++reg) {
    const int receiver = splits == 4 ? reg / (N / 8) : reg / (N / 4);
    const uint32_t bits = __float_as_uint(sums[reg]);
    store_relaxed(words + ((receiver * splits + split) * share + reg - receiver * share) * 128,
                  bits == kNothing ? 0x7fffffffu : bits);  // the other NaN
  }
  const uint32_t* mine = words + split * splits * share * 128;
#pragma unroll 1
  for (int i = 0; i < share; ++i, mine += 128) {
    uint32_t values[4];
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        values[s] = load_relaxed(mine + (s < splits ? s : 0) * share * 128);
        missing |= values[s] == kNothing;
      }
    } while (missing);
    float sum = __uint_as_float(values[0]) + __uint_as_float(values[1]);
    if (splits == 4) sum = (sum + __uint_as_float(values[2])) + __uint_as_float(values[3]);
    write_sum<N>(sum, split * share + i, a, p, tile, row_tile, t);
#pragma unroll 1
    for (int s = 0; s < splits; ++s) store_relaxed(const_cast<uint32_t*>(mine) + s * share * 128, kNothing);
  }
}

// 8 neighbouring inputs of a row to packed_x; rows and inputs past the end are zeros.
__device__ __forceinline__ void pack_unit(const float* x, int64_t x_stride, int64_t in_dim, int rows, int parts, int x_blocks,
                                          std::byte* packed, int unit) {
  // Neighbouring units are of one row, so that both sides are whole lines.
  const int row = unit / 8 / parts, part = unit / 8 % parts, column = unit % 8;
  const int64_t k = int64_t(part) * 64 + column * 8;
  float values[8] = {};
  if (row < rows) {
    const float* from = x + row * x_stride + k;
    if (k + 8 <= in_dim && reinterpret_cast<uint64_t>(from) % 16 == 0) {
      const float4 low = __ldcg(reinterpret_cast<const float4*>(from)), high = __ldcg(reinterpret_cast<const float4*>(from) + 1);
      values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
      values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (k + i < in_dim) values[i] = __ldcg(from + i);
    }
  }
  *reinterpret_cast<uint4*>(packed + (int64_t(part) * x_blocks + row / 8) * 1024 + swizzled(row % 8, column * 8)) =
      make_uint4(bf16x2_of(values[0], values[1]), bf16x2_of(values[2], values[3]), bf16x2_of(values[4], values[5]),
                 bf16x2_of(values[6], values[7]));
}

// Threads that are not consumers: a warpgroup where registers move from it to the consumers.
constexpr int helper_threads(bool whole) { return whole ? 128 : 32; }

template <DType kType, int N, bool kWhole>
__device__ __forceinline__ void products(const ProductsOnDevice* args) {
  constexpr RecordShape kShape = record_shape(kType);
  constexpr int kParts = kShape.inputs / 64;
  extern __shared__ __align__(1024) std::byte shared_memory[];
  SharedHead& head = *reinterpret_cast<SharedHead*>(shared_memory);
  std::byte* const shared = shared_memory + kHeadBytes;
  const int group_tiles = (int(blockDim.x) - helper_threads(kWhole)) / 128;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  let_next_start();
  for (int i = int(threadIdx.x); i < int(sizeof(ProductsOnDevice) / 4); i += int(blockDim.x))
    reinterpret_cast<uint32_t*>(&head.args)[i] = __ldcg(reinterpret_cast<const uint32_t*>(args) + i);
  const uint32_t memory = shared_address(shared), full = shared_address(head.full), empty = shared_address(head.empty);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kMostStages; ++s) {
      barrier_init(full + uint32_t(s * 8), 1);
      barrier_init(empty + uint32_t(s * 8), 4 * group_tiles * (kWhole ? 2 : 1));
    }
    barrier_init_done();
  }
  if constexpr (kWhole) sync_pair();
  __syncthreads();
  const ProductsOnDevice& a = head.args;
  const int stages = a.stages, stage_bytes = a.stage_bytes, x_offset = a.x_offset;

  if (warp >= 4 * group_tiles) {
    if constexpr (kWhole) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (warp == 4 * group_tiles) {
      // One lane a tile and one a part of activations: the time of this warp's own instructions is what a stage must
      // not wait for, so everything that stays is kept in registers.
      const uint64_t weight_policy = a.keep_weights ? policy_normal() : policy_read_once(), x_policy = policy_normal();
      const int tile_bytes = a.tile_bytes, shift = a.records_per_input - 1;
      const int64_t part_bytes = int64_t(a.x_blocks) * 1024;
      struct Feed {  // of this lane in a unit
        const std::byte *weights = nullptr, *x = nullptr;
        int stage_bytes = 0;  // of weights and activations for each record
      };
      const auto feed_of = [&](const Cursor<kWhole>& at) {
        Feed feed;
        const int tiles = at.tiles();
        if (lane < tiles) {
          int tile = at.group * group_tiles + lane;
          const ProductOnDevice& p = product_of(a, tile);
          feed.weights = p.tiles + int64_t(tile) * a.num_records * kShape.bytes;
        }
        feed.stage_bytes = tiles * kShape.bytes + kParts * N * 128;
        feed.x = a.packed_x + lane * part_bytes + int64_t(at.row_tile) * (N * 128);
        return feed;
      };
      const auto copy_weights = [&](const Cursor<kWhole>& at, const Feed& feed, int stage) {
        const int count = at.count();
        const uint32_t barrier = full + uint32_t(stage * 8), to = memory + uint32_t(stage * stage_bytes + lane * tile_bytes);
        if (lane == 0) barrier_arrive_and_expect(barrier, uint32_t(count * feed.stage_bytes));
        __syncwarp();
        if (feed.weights) {
          const std::byte* from = feed.weights + int64_t(at.record) * kShape.bytes;
          if constexpr (kWhole) {
            const int half = count * kShape.bytes / 2, offset = int(blockIdx.x) % 2 * half;
            copy_to_both(to + uint32_t(offset), from + offset, uint32_t(half), barrier, weight_policy);
          } else {
            copy_to_shared(to, from, uint32_t(count * kShape.bytes), barrier, weight_policy);
          }
        }
      };
      const auto copy_x = [&](const Cursor<kWhole>& at, const Feed& feed, int stage) {
        const uint32_t to = memory + uint32_t(stage * stage_bytes), barrier = full + uint32_t(stage * 8);
        if (lane < at.count() * kParts)
          copy_to_shared(to + uint32_t(x_offset + lane * N * 128), feed.x + int64_t(at.record >> shift) * kParts * part_bytes,
                         N * 128, barrier, x_policy);
      };
      Cursor<kWhole> ahead(a, group_tiles);
      Feed feed = feed_of(ahead);
      int begun = 0;
      for (; begun < stages && ahead.valid(); ++begun) {
        copy_weights(ahead, feed, begun);
        if (ahead.next() && ahead.valid()) feed = feed_of(ahead);
      }
      wait_for_previous();
      if constexpr (!kWhole) {
        if (lane == 0) {
          while (load_acquire(a.packed_count) < a.packers) {}
          if (atomicAdd(a.packed_count + 1, 1) == int(gridDim.x) - 1) {  // all have seen it
            a.packed_count[0] = a.packed_count[1] = 0;
          }
        }
        __syncwarp();
        show_to_copy_engine();
      }
      Ring ring;
      Cursor<kWhole> at(a, group_tiles);
      feed = feed_of(at);
      for (int step = 0; at.valid(); ring.next(stages), ++step) {
        if (step >= begun) {
          barrier_wait(empty + uint32_t(ring.stage * 8), ring.phase ^ 1);
          copy_weights(at, feed, ring.stage);
        }
        copy_x(at, feed, ring.stage);
        if (at.next() && at.valid()) feed = feed_of(at);
      }
    }
    return;
  }

  if constexpr (kWhole) asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
  const int group_warp = warp / 4, t = int(threadIdx.x) % 128;
  const auto release = [&](int stage) {
    __syncwarp();
    if constexpr (kWhole) {
      if (lane < 2) barrier_arrive_at(empty + uint32_t(stage * 8), uint32_t(lane));
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
      __threadfence();
      show_to_copy_engine();
      named_barrier(4, threads);
      if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(a.packed_count, 1);
      }
    }
  }
  Ring ring;
  Cursor<kWhole> at(a, group_tiles);
  const int tile_offset = group_warp * a.tile_bytes;
  float sums[N / 2], total[kWhole ? N / 2 : 1];
  while (at.valid()) {
    while (true) {
      const int begin = at.record;
      int before = -1;
      for (; at.record < at.end; at.record += at.count(), ring.next(stages)) {
        barrier_wait(full + uint32_t(ring.stage * 8), ring.phase);
        const int at_stage = ring.stage * stage_bytes;
        if constexpr (!kWhole) hold(sums);
        multiply_records<kType, N>(sums, shared + at_stage + tile_offset, memory + uint32_t(at_stage + x_offset), at.count(),
                                   at.record == begin, t);
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
      if constexpr (!kWhole) break;
      if constexpr (kWhole) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) total[i] = at.split == 0 ? sums[i] : total[i] + sums[i];
        if (++at.split == a.splits) break;
        at.open_run();
      }
    }
    int tile = at.group * group_tiles + group_warp;
    if (tile < a.num_tiles) {
      const ProductOnDevice& p = product_of(a, tile);
      if constexpr (kWhole) {
        write_sums<N>(total, a, p, tile, at.row_tile, t);
      } else if (a.splits == 1) {
        write_sums<N>(sums, a, p, tile, at.row_tile, t);
      } else if (a.exchange) {
        exchange_sums<N>(sums, a, p, tile, at.row_tile, at.split, t);
      } else {
        // [split][N / 2][128] of this tile and row tile; the counter says how many runs are there.
        float* partials = p.partials + int64_t(at.row_tile * p.num_tiles + tile) * a.splits * (N / 2) * 128 + t;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) __stcg(partials + (at.split * (N / 2) + i) * 128, sums[i]);
        __threadfence();
        named_barrier<128>(1 + group_warp);
        if (t == 0) {
          int32_t* counter = p.counters + at.row_tile * p.num_tiles + tile;
          const bool last = atomicAdd(counter, 1) == a.splits - 1;
          if (last) *counter = 0;
          __threadfence();
          head.is_last[group_warp] = last;
        }
        named_barrier<128>(1 + group_warp);
        if (head.is_last[group_warp]) {
#pragma unroll
          for (int i = 0; i < N / 2; ++i) sums[i] = __ldcg(partials + i * 128);
          for (int split = 1; split < a.splits; ++split)
#pragma unroll
            for (int i = 0; i < N / 2; ++i) sums[i] = sums[i] + __ldcg(partials + (split * (N / 2) + i) * 128);
          write_sums<N>(sums, a, p, tile, at.row_tile, t);
        }
      }
    }
    at.next_unit();
  }
  if constexpr (kWhole) sync_pair();  // the other block still arrives at barriers here
}

template <DType kType, int N>
__global__ void __launch_bounds__(3 * 128 + helper_threads(false), 2) few_rows_kernel(const ProductsOnDevice* args) {
#if HUNCH_HOPPER
  products<kType, N, false>(args);
#endif
}
template <DType kType>
__global__ void HUNCH_CLUSTER(2) __launch_bounds__(512, 1) many_rows_kernel(const ProductsOnDevice* args) {
#if HUNCH_HOPPER
  products<kType, 128, true>(args);
#endif
}

struct PackActivations {
  const float* x;
  std::byte* packed;
  int64_t x_stride, in_dim;
  int rows, x_blocks, parts;
};
__global__ void pack_activations_kernel(const PackActivations* args) {
  let_next_start();
  const PackActivations a = *args;
  wait_for_previous();
  const int units = a.parts * a.x_blocks * 64;
  for (int unit = int(blockIdx.x * blockDim.x + threadIdx.x); unit < units; unit += int(gridDim.x * blockDim.x))
    pack_unit(a.x, a.x_stride, a.in_dim, a.rows, a.parts, a.x_blocks, a.packed, unit);
}

}  // namespace hunch
