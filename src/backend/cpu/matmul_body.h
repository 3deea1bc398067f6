// Product kernels of one instruction set (docs/kernels/matmul.md). Lanes are output columns; an activation is a broadcast of four
// bytes. Row invariance: a row's instructions along K are the same in every tile shape: integer sums are exact, and each block
// adds to the fp32 sum by the same fused multiply-adds in the same order; bias, then accumulate, come last.
#pragma once

namespace hunch::HUNCH_ISA {

// Rows that share one loaded weight vector. With 32 registers: 8 x 2 integer sums, 2 weights, a broadcast; the float sums,
// touched once a block, may live on the stack.
inline constexpr int kTileRows = HUNCH_LEVEL >= 2 ? 8 : 2;
// Where arithmetic outlasts the loads (two rows, or conversions to fp32) the hardware prefetchers fall behind: the first tile of
// a panel asks this far ahead. One row of quantised weights streams faster without.
inline constexpr int kPrefetchBytes = 8192;

HUNCH_SIMD void prefetch(const std::byte* p) { __builtin_prefetch(p + kPrefetchBytes, 0, 3); }

HUNCH_SIMD I32 broadcast4(const int8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return set1_i32(word);
}

// --- quantising a row ---

HUNCH_SIMD void store_s8(int8_t* p, I32 a) {
#if HUNCH_LEVEL >= 2
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v));
#else
  alignas(64) int32_t lanes[kLanes];
  store(lanes, a);
  for (int i = 0; i < kLanes; ++i) p[i] = int8_t(lanes[i]);
#endif
}

static void quantise_row(const float* x, int64_t k, ActivationBlock* out) {
  for (int64_t b = 0; b < k / kActivationBlock; ++b, x += kActivationBlock, ++out) {
    const F32 low = load(x), high = load(x + kLanes);
    const F32 low_abs = abs(low), high_abs = abs(high);
    const I32 greatest_finite = set1_i32(0x7f7fffff);
    const Mask bad = either(less(greatest_finite, bits_of(low_abs)), less(greatest_finite, bits_of(high_abs)));
    const bool finite = none_of(bad);
    const float greatest = finite ? max_of(max(low_abs, high_abs)) : 0;
    // A block this small is a block of zeros: 127 / greatest must not overflow.
    const bool zeros = !(greatest > 1e-30f);
    const F32 inverse = set1(zeros ? 0 : 127 / greatest);
    const I32 q_low = finite ? to_i32(low * inverse) : zero_i32(), q_high = finite ? to_i32(high * inverse) : zero_i32();
    store_s8(out->q, q_low);
    store_s8(out->q + kLanes, q_high);
    const int32_t sum_low = sum(q_low), sum_high = sum(q_high), total = sum_low + sum_high;
    out->scale = finite ? (zeros ? 0 : greatest / 127) : __builtin_nanf("");
    out->scale_sum = out->scale * float(total);
    out->minus_128_sum = -128 * total;
    out->minus_8_sum = -8 * total;
    out->minus_32_half[0] = -32 * sum_low;
    out->minus_32_half[1] = -32 * sum_high;
  }
}

// --- encodings ---

inline constexpr int kStepBytes = 4 * kPanelColumns, kPairBytes = 2 * kPanelColumns;

constexpr bool four_bit(DType t) { return t == DType::Q4_0 || t == DType::Q4_K; }
constexpr bool has_super_block(DType t) { return t == DType::Q4_K || t == DType::Q6_K; }
constexpr int block_bytes(DType t) { return (four_bit(t) ? 4 : 8) * kStepBytes + kPairBytes; }

// The integer an accumulator of `act` starts at: minus the codes' offset times the sum of the activations.
template <DType T>
HUNCH_SIMD I32 first_sum(const ActivationBlock& act, int half) {
  if constexpr (T == DType::Q8_0) return set1_i32(act.minus_128_sum);
  if constexpr (T == DType::Q4_0) return set1_i32(act.minus_8_sum);
  if constexpr (T == DType::Q6_K) return set1_i32(act.minus_32_half[half]);
  return zero_i32();
}

template <int R>
struct Sums {
  F32 at[R][2];
};

// Adds the integer dots of codes [first_step, last_step) to acc. 8-bit: one load is four inputs of 16 columns.
template <int R, bool kFirst>
HUNCH_SIMD void dot_codes8(I32 (&acc)[R][2], const std::byte* codes, const ActivationBlock* act, int64_t blocks, int first,
                           int last) {
#pragma GCC unroll 8
  for (int j = first; j < last; ++j) {
    const std::byte* p = codes + j * kStepBytes;
    const I32 w0 = load_i32(p), w1 = load_i32(p + 64);
    if constexpr (kFirst) prefetch(p), prefetch(p + 64);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const I32 a = broadcast4(act[r * blocks].q + 4 * j);
      acc[r][0] = dot4(acc[r][0], w0, a);
      acc[r][1] = dot4(acc[r][1], w1, a);
    }
  }
}
// 4-bit: one load is two groups of four inputs of 16 columns.
template <int R, bool kFirst>
HUNCH_SIMD void dot_codes4(I32 (&acc)[R][2], const std::byte* codes, const ActivationBlock* act, int64_t blocks) {
  const I32 nibble = set1_i32(0x0f0f0f0f);
#pragma GCC unroll 8
  for (int j = 0; j < 4; ++j) {
    const std::byte* p = codes + j * kStepBytes;
    const I32 w0 = load_i32(p), w1 = load_i32(p + 64);
    if constexpr (kFirst) prefetch(p), prefetch(p + 64);
    const I32 low0 = w0 & nibble, low1 = w1 & nibble;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const I32 a = broadcast4(act[r * blocks].q + 4 * j);
      acc[r][0] = dot4(acc[r][0], low0, a);
      acc[r][1] = dot4(acc[r][1], low1, a);
    }
    const I32 high0 = shift_right<4>(w0) & nibble, high1 = shift_right<4>(w1) & nibble;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const I32 a = broadcast4(act[r * blocks].q + 16 + 4 * j);
      acc[r][0] = dot4(acc[r][0], high0, a);
      acc[r][1] = dot4(acc[r][1], high1, a);
    }
  }
}

template <DType T, int R, bool kFirst>
HUNCH_SIMD void sum_quantised(Sums<R>& sums, const std::byte* p, int64_t blocks, const ActivationBlock* act) {
  F32 d[2] = {zero(), zero()}, d_min[2] = {zero(), zero()};
  for (int64_t b = 0; b < blocks; ++b, p += block_bytes(T), ++act) {
    if constexpr (has_super_block(T)) {
      if (b % 8 == 0) {
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          d[g] = load_f16(reinterpret_cast<const uint16_t*>(p) + kLanes * g);
          if constexpr (T == DType::Q4_K) d_min[g] = load_f16(reinterpret_cast<const uint16_t*>(p + kPairBytes) + kLanes * g);
        }
        p += T == DType::Q4_K ? 2 * kPairBytes : kPairBytes;
      }
    }
    const std::byte* scales = p + block_bytes(T) - kPairBytes;
    if constexpr (kFirst) prefetch(scales);
    constexpr int kHalves = T == DType::Q6_K ? 2 : 1;  // Q6_K has a scale for every 16 inputs
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      I32 acc[R][2];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = first_sum<T>(act[r * blocks], half);
      if constexpr (four_bit(T)) dot_codes4<R, kFirst>(acc, p, act, blocks);
      else dot_codes8<R, kFirst>(acc, p, act, blocks, 8 / kHalves * half, 8 / kHalves * (half + 1));
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        F32 scale;
        if constexpr (has_super_block(T)) {
          scale = d[g] *
                  load_s8(reinterpret_cast<const int8_t*>(scales) + (T == DType::Q6_K ? kPanelColumns * half : 0) + kLanes * g);
        } else {
          scale = load_f16(reinterpret_cast<const uint16_t*>(scales) + kLanes * g);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sums.at[r][g] = fma(to_f32(acc[r][g]), scale * set1(act[r * blocks].scale), sums.at[r][g]);
        if constexpr (T == DType::Q4_K) {  // w = d sc q - dmin m: the second part needs the sum of the activations only
          const F32 minus_min =
              (zero() - d_min[g]) * load_s8(reinterpret_cast<const int8_t*>(scales) + kPanelColumns + kLanes * g);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) sums.at[r][g] = fma(minus_min, set1(act[r * blocks].scale_sum), sums.at[r][g]);
        }
      }
    }
  }
}

template <DType T>
HUNCH_SIMD F32 load_weights(const std::byte* p) {
  if constexpr (T == DType::F32) return load(reinterpret_cast<const float*>(p));
  if constexpr (T == DType::F16) return load_f16(reinterpret_cast<const uint16_t*>(p));
  if constexpr (T == DType::BF16) return load_bf16(reinterpret_cast<const uint16_t*>(p));
}

// Even and odd inputs have sums of their own, added at the end: two chains hide the latency of the addition.
template <DType T, int R, bool kFirst>
HUNCH_SIMD void sum_elements(Sums<R>& sums, const std::byte* p, int64_t k, const float* x, int64_t x_stride) {
  constexpr int kVector = kLanes * (T == DType::F32 ? 4 : 2);
  Sums<R> odd = sums;
  const auto add = [&](Sums<R> & to, const std::byte* at, int64_t i) __attribute__((always_inline)) {
    const F32 w0 = load_weights<T>(at), w1 = load_weights<T>(at + kVector);
    if constexpr (kFirst) prefetch(at);
    if constexpr (kFirst && T == DType::F32) prefetch(at + kVector);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F32 a = set1(x[r * x_stride + i]);
      to.at[r][0] = fma(w0, a, to.at[r][0]);
      to.at[r][1] = fma(w1, a, to.at[r][1]);
    }
  };
  int64_t i = 0;
  for (; i + 2 <= k; i += 2, p += 4 * kVector) {
    add(sums, p, i);
    add(odd, p + 2 * kVector, i + 1);
  }
  if (i < k) add(sums, p, i);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sums.at[r][0] = sums.at[r][0] + odd.at[r][0], sums.at[r][1] = sums.at[r][1] + odd.at[r][1];
}

// --- a panel ---

HUNCH_SIMD void write(const PanelArgs& args, int64_t row, int first_column, F32 value) {
  const int columns = args.columns - first_column;
  if (columns <= 0) return;
  float* out = args.out + row * args.out_stride + first_column;
  if (columns >= kLanes) {
    if (args.bias) value = value + load(args.bias + first_column);
    if (args.accumulate) value = load(out) + value;
    store(out, value);
  } else {
    if (args.bias) value = value + load_first(args.bias + first_column, columns, zero());
    if (args.accumulate) value = load_first(out, columns, zero()) + value;
    store_first(out, value, columns);
  }
}

template <DType T, int R, bool kFirst>
static void tile(const PanelArgs& args, int64_t row) {
  Sums<R> sums;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sums.at[r][0] = sums.at[r][1] = zero();
  if constexpr (dtype_info(T).block == 1) {
    sum_elements<T, R, kFirst>(sums, args.panel, args.k, args.x + row * args.x_stride, args.x_stride);
  } else {
    const int64_t blocks = args.k / kActivationBlock;
    sum_quantised<T, R, kFirst>(sums, args.panel, blocks, args.blocks + row * blocks);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) write(args, row + r, 0, sums.at[r][0]), write(args, row + r, kLanes, sums.at[r][1]);
}

template <DType T, bool kFirst, int R = kTileRows>
HUNCH_SIMD void tile_of(int rows, const PanelArgs& args, int64_t row) {
  if constexpr (R > 0) {
    if (rows == R) tile<T, R, kFirst && (R > 1 || dtype_info(T).block == 1)>(args, row);
    else tile_of<T, kFirst, R - 1>(rows, args, row);
  }
}

// Rows in tiles as even as possible: 8 rows are 4 + 4, not 6 + 2.
template <DType T>
static void panel(const PanelArgs& args) {
  int tiles = (args.rows + kTileRows - 1) / kTileRows;
  int64_t row = 0;
  for (bool first = true; tiles > 0; --tiles, first = false) {
    const int rows = int(args.rows - row + tiles - 1) / tiles;
    if (first) tile_of<T, true>(rows, args, row);
    else tile_of<T, false>(rows, args, row);
    row += rows;
  }
}

static MatmulKernels matmul_kernels() {
  MatmulKernels table;
  table.quantise = quantise_row;
  table.panel[int(DType::F32)] = panel<DType::F32>;
  table.panel[int(DType::F16)] = panel<DType::F16>;
  table.panel[int(DType::BF16)] = panel<DType::BF16>;
  table.panel[int(DType::Q8_0)] = panel<DType::Q8_0>;
  table.panel[int(DType::Q4_0)] = panel<DType::Q4_0>;
  table.panel[int(DType::Q4_K)] = panel<DType::Q4_K>;
  table.panel[int(DType::Q6_K)] = panel<DType::Q6_K>;
  return table;
}

}  // namespace hunch::HUNCH_ISA
