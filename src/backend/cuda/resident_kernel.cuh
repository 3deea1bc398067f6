// Products of few rows (at most 8): the same sums in the same order as products_kernel.cuh, with activations that stay. A block
// has one run of the inputs for all its units: after wait_for_previous() it rounds that run's activations once, into shared
// memory, and from then on its pipeline carries weights only, whose first stages were filled before. Plain weights go to the
// tensor cores from shared memory by warpgroup, codes by warp (mma.sync), which needs no meetings of warps: both add 16 inputs
// alike on this hardware.
#pragma once

#include "backend/cuda/products_kernel.cuh"

namespace hunch {

// Activations for wgmma: [8 inputs][rows, a power of two][8] bf16. The tensor cores always take 8 rows, and with fewer here the
// others are whatever follows, in columns that nobody reads.
HUNCH_DEVICE uint64_t rows_descriptor(uint32_t shared_address, int row_shift) {
  return uint64_t((shared_address & 0x3ffff) >> 4) | uint64_t(1) << (16 + row_shift) | uint64_t(1) << (32 + row_shift);
}

// d += a b: 16 features of a warp, 16 inputs, 8 rows; registers as those of a warp in wgmma<8>.
HUNCH_DEVICE void mma_sync(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Inputs [first, first + count) of all rows, rounded by an op before (packed_rows.cuh) or now; past the end are zeros. `count` is
// a multiple of 64. With kSync as mma_sync takes them, [32 inputs][rows][4 threads][8]: a thread's words of two steps together.
template <bool kSync>
HUNCH_DEVICE void load_rows(const ProductsOnDevice& a, std::byte* to, int first, int count, int threads) {
  constexpr int kAhead = 4;
  const int shift = a.row_shift, units = count / 8 << shift, in_dim = int(a.in_dim);
  const float4 zero = make_float4(0, 0, 0, 0);
  const auto store = [&](int unit, const uint4& x) {
    if constexpr (kSync) {
      const int row = unit & ((1 << shift) - 1), block = unit >> shift;
      auto* words = reinterpret_cast<uint32_t*>(to) + (((block / 4 << shift) + row) * 16 + block % 4);
      words[0] = x.x, words[4] = x.y, words[8] = x.z, words[12] = x.w;
    } else {
      *reinterpret_cast<uint4*>(to + unit * 16) = x;
    }
  };
  if (a.packed_x) {  // one block of 8 rows
    for (int begin = int(threadIdx.x); begin < units; begin += 2 * kAhead * threads) {
      uint4 x[2 * kAhead];
#pragma unroll
      for (int i = 0; i < 2 * kAhead; ++i) {
        const int unit = begin + i * threads, k = first + (unit >> shift) * 8;
        x[i] = unit < units
            ? __ldcg(reinterpret_cast<const uint4*>(a.packed_x + k / 64 * 1024 + swizzled(unit & ((1 << shift) - 1), k % 64)))
            : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < 2 * kAhead; ++i)
        if (begin + i * threads < units) store(begin + i * threads, x[i]);
    }
    return;
  }
  for (int begin = int(threadIdx.x); begin < units; begin += kAhead * threads) {
    float4 low[kAhead], high[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int unit = begin + i * threads, row = unit & ((1 << shift) - 1), k = first + (unit >> shift) * 8;
      const float4* from = reinterpret_cast<const float4*>(a.x + row * a.x_stride + k);
      const bool wanted = unit < units && row < a.rows;
      low[i] = wanted && k < in_dim ? __ldcg(from) : zero;
      high[i] = wanted && k + 4 < in_dim ? __ldcg(from + 1) : zero;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (begin + i * threads < units)
        store(begin + i * threads,
            make_uint4(bf16x2_of(low[i].x, low[i].y), bf16x2_of(low[i].z, low[i].w), bf16x2_of(high[i].x, high[i].y),
                bf16x2_of(high[i].z, high[i].w)));
  }
}

// exchange_sums and write_sums of 8 rows: only words of rows that are there, and what they are added to is fetched meanwhile.
HUNCH_DEVICE void finish_rows(
    const float (&sums)[4], const ProductsOnDevice& a, const ProductOnDevice& p, int tile, int split, int t) {
  constexpr uint32_t kNothing = 0xffffffffu;
  const int splits = a.splits, share = 4 / splits;
  auto* words = reinterpret_cast<uint32_t*>(p.partials) + int64_t(tile) * splits * (4 * 128) + t;
  const auto row_of = [&](int reg) { return t % 4 * 2 + reg % 2; };
  if (splits > 1) {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const int receiver = splits == 4 ? reg : reg / 2;
      const uint32_t bits = __float_as_uint(sums[reg]);
      if (row_of(reg) < a.rows)
        store_relaxed(words + ((receiver * splits + split) * share + reg - receiver * share) * 128,
            bits == kNothing ? 0x7fffffffu : bits);  // the other NaN
    }
  }
  const uint32_t* mine = words + split * splits * share * 128;
#pragma unroll
  for (int reg = 0; reg < 4; ++reg) {
    const int i = reg - split * share;
    const int feature = tile * 64 + t / 32 * 16 + t % 32 / 4 + 8 * (reg / 2);
    if (i < 0 || i >= share || row_of(reg) >= a.rows) continue;
    const bool there = feature < p.out_dim;
    float* out = p.out + row_of(reg) * p.out_stride + feature;
    const float old = there && a.accumulate ? __ldcg(out) : 0.0f, bias = there && p.bias ? p.bias[feature] : 0.0f;
    float sum = sums[reg];
    if (splits > 1) {
      const uint32_t* from = mine + i * 128;
      uint32_t values[4];
      bool missing;
      do {
        missing = false;
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          values[s] = load_relaxed(from + (s < splits ? s : 0) * share * 128);
          missing |= values[s] == kNothing;
        }
      } while (missing);
      sum = __uint_as_float(values[0]) + __uint_as_float(values[1]);
      if (splits == 4) sum = (sum + __uint_as_float(values[2])) + __uint_as_float(values[3]);
#pragma unroll 1
      for (int s = 0; s < splits; ++s) store_relaxed(const_cast<uint32_t*>(from) + s * share * 128, kNothing);
    }
    const float value = sum * a.unit + bias;
    if (there) *out = a.accumulate ? accumulated(old, value) : value;
  }
}

template <DType kType>
__global__ void __launch_bounds__(3 * 128 + 32, 2) resident_rows_kernel(const ProductsOnDevice* args) {
#if HUNCH_HOPPER
  constexpr RecordShape kShape = record_shape(kType);
  constexpr int kParts = kShape.inputs / 64;
  constexpr bool kSync = kType != DType::BF16;
  extern __shared__ __align__(1024) std::byte shared_memory[];
  SharedHead& head = *reinterpret_cast<SharedHead*>(shared_memory);
  std::byte* const shared = shared_memory + kHeadBytes;
  const int group_tiles = int(blockDim.x) / 128, warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  let_next_start();
  for (int i = int(threadIdx.x); i < int(sizeof(ProductsOnDevice) / 4); i += int(blockDim.x))
    reinterpret_cast<uint32_t*>(&head.args)[i] = __ldcg(reinterpret_cast<const uint32_t*>(args) + i);
  uint32_t memory = shared_address(shared);
  asm volatile("" : "+r"(memory));  // else the compiler finds the address out again, slowly, wherever it needs it
  const uint32_t full = memory - uint32_t(kHeadBytes - offsetof(SharedHead, full)), empty = full + kMostStages * 8;
  static_assert(offsetof(SharedHead, empty) == offsetof(SharedHead, full) + kMostStages * 8);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kMostStages; ++s) {
      barrier_init(full + uint32_t(s * 8), 1);
      barrier_init(empty + uint32_t(s * 8), 4 * group_tiles);
    }
    barrier_init_done();
  }
  __syncthreads();
  const ProductsOnDevice& a = head.args;
  // A block without work keeps its place until the kernel before has ended: otherwise two blocks of the next would meet there.
  if (int(blockIdx.x) >= a.units) {
    wait_for_previous();
    return;
  }
  const int stages = a.stages, stage_bytes = a.stage_bytes, tile_bytes = a.tile_bytes;
  const uint32_t first_stage = memory + uint32_t(a.x_offset);
  Ring ring;
  Cursor<1> at(a, group_tiles);

  if (warp == 4 * group_tiles) {
    const uint64_t policy = policy_read_once();
    const Pace pace(a);
    for (int step = 0; at.valid(); ++step, ring.next(stages)) {
      const int tiles = at.tiles(), count = at.count();
      const uint32_t barrier = full + uint32_t(ring.stage * 8);
      if (step >= stages) barrier_wait(empty + uint32_t(ring.stage * 8), ring.phase ^ 1);
      else pace.wait(step, empty);
      if (lane == 0) barrier_arrive_and_expect(barrier, uint32_t(tiles * count * kShape.bytes));
      __syncwarp();
      if (lane < tiles) {
        int tile = at.group * group_tiles + lane;
        const ProductOnDevice& p = product_of(a, tile);
        copy_to_shared(first_stage + uint32_t(ring.stage * stage_bytes + lane * tile_bytes),
            p.tiles + (int64_t(tile) * a.num_records + at.record) * kShape.bytes, uint32_t(count * kShape.bytes), barrier,
            policy);
      }
      at.next();
    }
    return;
  }

  const int group_warp = warp / 4, t = int(threadIdx.x) % 128, threads = group_tiles * 128;
  const uint32_t first_tile = first_stage + uint32_t(group_warp * tile_bytes);
  const int x_shift = a.records_per_input - 1;
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + uint32_t(stage * 8));
  };
  wait_for_previous();
  const int x_record = at.record >> x_shift;
  load_rows<kSync>(a, shared, x_record * kShape.inputs, (((at.end - 1) >> x_shift) - x_record + 1) * kShape.inputs, threads);
  show_to_tensor_cores();
  named_barrier(4, threads);

  float sums[4];
  for (; at.valid(); at.next_unit()) {
    if constexpr (kType == DType::BF16) {
      // Of a descriptor only the low word moves: 16 inputs a step.
      const uint64_t x_begin = rows_descriptor(memory, a.row_shift);
      const uint32_t x_step = 2u << a.row_shift;
      const auto x_at = [&](uint32_t low) { return uint64_t(uint32_t(x_begin >> 32)) << 32 | low; };
      hold(sums);
      int before = -1;
      for (bool first = true; at.record < at.end; at.record += at.count(), ring.next(stages), first = false) {
        barrier_wait(full + uint32_t(ring.stage * 8), ring.phase);
        const uint64_t weights = tile_descriptor(first_tile + uint32_t(ring.stage * stage_bytes));
        const uint32_t x = uint32_t(x_begin) + uint32_t(4 * ((at.record >> x_shift) - x_record)) * x_step;
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < 4; ++step)
          wgmma<8>(sums, weights + uint64_t(step * 2), x_at(x + uint32_t(step) * x_step), step > 0 || !first);
        wgmma_commit();
        if (before >= 0) {
          wgmma_wait<1>();
          release(before);
        }
        before = ring.stage;
      }
      wgmma_wait<0>();
      hold(sums);
      release(before);
    } else {
      // A few parts' codes are taken into registers together, and the stage goes back before they are decoded.
      constexpr int kTogether = kType == DType::Q4_0 || kType == DType::MXFP4 ? 4 : 2;
      uint32_t x = memory + uint32_t(lane * 16);
      const uint32_t x_step = 64u << a.row_shift;
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = 0;
      for (; at.record < at.end; at.record += at.count(), ring.next(stages)) {
        barrier_wait(full + uint32_t(ring.stage * 8), ring.phase);
        uint32_t record = first_tile + uint32_t(ring.stage * stage_bytes);
        int part = 0, left = at.count() * kParts;
        const auto multiply = [&]<int kCount>() {
          PartCodes<kType> codes[kCount];
#pragma unroll
          for (int i = 0; i < kCount; ++i) {
            codes[i] = load_part<kType>(record, part, t);
            if (++part == kParts) part = 0, record += uint32_t(kShape.bytes);
          }
          left -= kCount;
          if (left == 0) release(ring.stage);
#pragma unroll
          for (int i = 0; i < kCount; ++i) {
            uint32_t operand[4][4];
            const uint4 b = load_16(x), c = load_16(x + x_step);
            x += 2 * x_step;
            decode_part<kType, 0, 4>(codes[i], operand);
            mma_sync(sums, operand[0], b.x, b.y);
            mma_sync(sums, operand[1], b.z, b.w);
            mma_sync(sums, operand[2], c.x, c.y);
            mma_sync(sums, operand[3], c.z, c.w);
          }
        };
        while (left >= kTogether) multiply.template operator()<kTogether>();
        if (kTogether > 2 && left >= 2) multiply.template operator()<2>();
        if (left > 0) multiply.template operator()<1>();
      }
      hold(sums);
    }
    int tile = at.group * group_tiles + group_warp;
    if (tile < a.num_tiles) {
      const ProductOnDevice& p = product_of(a, tile);
      finish_rows(sums, a, p, tile, at.split, t);
    }
  }
#endif
}

}
