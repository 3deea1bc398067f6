// Product kernels of one instruction set (docs/kernels/matmul.md). Lanes are output columns; an activation is a broadcast of four
// bytes.
#pragma once

namespace hunch::HUNCH_ISA {

// Rows that share one loaded weight vector. With 32 registers: 8 x 2 integer sums, 2 weights, a broadcast; the float sums,
// touched once a block, may live on the stack. Portable vectors are four registers: more rows gain nothing.
inline constexpr int kTileRows = HUNCH_LEVEL >= 2 ? 8 : HUNCH_LEVEL == 1 ? 2 : 1;
// Where arithmetic outlasts the loads (two rows, conversions to fp32, scales and minima) hardware prefetchers fall behind: the
// first tile of a panel asks this far ahead. One row of Q8_0, Q4_0 or Q6_K streams faster without.
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
    out->minus_12_sum = -12 * total;
    out->minus_32_half[0] = -32 * sum_low;
    out->minus_32_half[1] = -32 * sum_high;
  }
}

// --- encodings ---

inline constexpr int kStepBytes = 4 * kPanelColumns, kPairBytes = 2 * kPanelColumns;

constexpr bool has_super_block(DType t) { return t == DType::Q4_K || t == DType::Q5_K || t == DType::Q6_K; }
constexpr bool has_minimum(DType t) { return t == DType::Q4_K || t == DType::Q5_K; }
constexpr int high_bits(DType t) { return t == DType::Q5_K ? 1 : t == DType::Q6_K ? 2 : 0; }  // of a code, above its nibble
constexpr bool has_table(DType t) { return t == DType::MXFP4; }  // codes are numbers of a table, not themselves factors
constexpr int block_bytes(DType t) { return (t == DType::Q8_0 ? 8 : 4 + high_bits(t)) * kStepBytes + kPairBytes; }

// The integer an accumulator of `act` starts at: minus the codes' offset times the sum of the activations.
template <DType T>
HUNCH_SIMD I32 first_sum(const ActivationBlock& act, int half) {
  if constexpr (T == DType::Q8_0) return kTakesOff128 ? zero_i32() : set1_i32(act.minus_128_sum);
  if constexpr (T == DType::Q4_0) return set1_i32(act.minus_8_sum);
  if constexpr (T == DType::MXFP4) return set1_i32(act.minus_12_sum);
  if constexpr (T == DType::Q6_K) return set1_i32(act.minus_32_half[half]);
  return zero_i32();
}

template <int R>
struct Sums {
  F32 at[R][2];
};

// acc += codes of inputs [4 group, 4 group + 4) times those of every row: 16 columns a vector. kHigh: codes have all 8 bits.
template <bool kHigh, int R>
HUNCH_SIMD void dot_group(I32 (&acc)[R][2], I32 w0, I32 w1, const ActivationBlock* act, int64_t blocks, int group) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const I32 a = broadcast4(act[r * blocks].q + 4 * group);
    acc[r][0] = kHigh ? dot4_high(acc[r][0], w0, a) : dot4(acc[r][0], w0, a);
    acc[r][1] = kHigh ? dot4_high(acc[r][1], w1, a) : dot4(acc[r][1], w1, a);
  }
}

// 8-bit codes: one load is four inputs of 16 columns.
template <int R, bool kFirst>
HUNCH_SIMD void dot_codes8(I32 (&acc)[R][2], const std::byte* codes, const ActivationBlock* act, int64_t blocks) {
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    const std::byte* p = codes + j * kStepBytes;
    const I32 w0 = load_i32(p), w1 = load_i32(p + 64);
    if constexpr (kFirst) prefetch(p), prefetch(p + 64);
    dot_group<true>(acc, w0, w1, act, blocks, j);
  }
}

// kMxfp4Doubled with 12 added: factors without a sign.
alignas(16) inline constexpr uint8_t kMxfp4Factors[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

enum class Nibbles { Low, High, Both };  // of a block: inputs 0..15, 16..31, all

// The bits above the nibbles of group kGroup, moved from where weights.h puts them to bit 4 of each byte.
template <DType T, int kGroup>
HUNCH_SIMD I32 high_part(const std::byte* codes, int64_t vector) {
  constexpr int kVector = T == DType::Q6_K ? 4 + kGroup / 4 : 4;
  constexpr int kShift = T == DType::Q6_K ? 4 - 2 * (kGroup % 4) : 4 - kGroup;  // to the left
  const I32 high = load_i32(codes + kVector * kStepBytes + 64 * vector);
  const I32 mask = set1_i32(T == DType::Q6_K ? 0x30303030 : 0x10101010);
  if constexpr (kShift >= 0) return shift_left<kShift>(high) & mask;
  else return shift_right<-kShift>(high) & mask;
}

// Step J of nibbles: one load is two groups of four inputs of 16 columns.
template <DType T, Nibbles kWhich, int J, int R, bool kFirst>
HUNCH_SIMD void dot_nibbles(I32 (&acc)[R][2], const std::byte* codes, const ActivationBlock* act, int64_t blocks) {
  const I32 nibble = set1_i32(0x0f0f0f0f);
  const std::byte* p = codes + J * kStepBytes;
  const I32 w0 = load_i32(p), w1 = load_i32(p + 64);
  if constexpr (kFirst && kWhich != Nibbles::High) {
    prefetch(p), prefetch(p + 64);
    if constexpr (J < high_bits(T)) prefetch(p + 4 * kStepBytes), prefetch(p + 4 * kStepBytes + 64);
  }
  if constexpr (kWhich != Nibbles::High) {
    I32 low0 = w0 & nibble, low1 = w1 & nibble;
    if constexpr (high_bits(T) > 0) low0 = low0 | high_part<T, J>(codes, 0), low1 = low1 | high_part<T, J>(codes, 1);
    if constexpr (has_table(T)) low0 = look_up(kMxfp4Factors, low0), low1 = look_up(kMxfp4Factors, low1);
    dot_group<false>(acc, low0, low1, act, blocks, J);
  }
  if constexpr (kWhich != Nibbles::Low) {
    I32 high0 = shift_right<4>(w0) & nibble, high1 = shift_right<4>(w1) & nibble;
    if constexpr (high_bits(T) > 0) high0 = high0 | high_part<T, 4 + J>(codes, 0), high1 = high1 | high_part<T, 4 + J>(codes, 1);
    if constexpr (has_table(T)) high0 = look_up(kMxfp4Factors, high0), high1 = look_up(kMxfp4Factors, high1);
    dot_group<false>(acc, high0, high1, act, blocks, 4 + J);
  }
}
template <DType T, Nibbles kWhich, int R, bool kFirst>
HUNCH_SIMD void dot_codes4(I32 (&acc)[R][2], const std::byte* codes, const ActivationBlock* act, int64_t blocks) {
  dot_nibbles<T, kWhich, 0, R, kFirst>(acc, codes, act, blocks);
  dot_nibbles<T, kWhich, 1, R, kFirst>(acc, codes, act, blocks);
  dot_nibbles<T, kWhich, 2, R, kFirst>(acc, codes, act, blocks);
  dot_nibbles<T, kWhich, 3, R, kFirst>(acc, codes, act, blocks);
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
          if constexpr (has_minimum(T)) d_min[g] = load_f16(reinterpret_cast<const uint16_t*>(p + kPairBytes) + kLanes * g);
        }
        p += has_minimum(T) ? 2 * kPairBytes : kPairBytes;
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
      if constexpr (T == DType::Q8_0) dot_codes8<R, kFirst>(acc, p, act, blocks);
      else if constexpr (kHalves == 1) dot_codes4<T, Nibbles::Both, R, kFirst>(acc, p, act, blocks);
      else if (half == 0) dot_codes4<T, Nibbles::Low, R, kFirst>(acc, p, act, blocks);
      else dot_codes4<T, Nibbles::High, R, kFirst>(acc, p, act, blocks);
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        F32 scale;
        if constexpr (has_super_block(T)) {
          scale = d[g] *
              load_s8(reinterpret_cast<const int8_t*>(scales) + (T == DType::Q6_K ? kPanelColumns * half : 0) + kLanes * g);
        } else if constexpr (T == DType::MXFP4) {
          scale = load_bf16(reinterpret_cast<const uint16_t*>(scales) + kLanes * g);
        } else {
          scale = load_f16(reinterpret_cast<const uint16_t*>(scales) + kLanes * g);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sums.at[r][g] = fma(to_f32(acc[r][g]), scale * set1(act[r * blocks].scale), sums.at[r][g]);
        if constexpr (has_minimum(T)) {  // w = d sc q - dmin m: the second part needs the sum of the activations only
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

// Even and odd inputs have sums of their own: two chains hide the latency of the addition.
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

// 128 inputs are summed as 2^-8 times the codes' values, then scaled. One chain of additions: decoding a vector takes as long.
template <int R, bool kFirst>
HUNCH_SIMD void sum_fp8(Sums<R>& sums, const std::byte* p, int64_t k, const float* x, int64_t x_stride) {
  for (int64_t begin = 0; begin < k; begin += kScaleGroup) {
    const int64_t n = k - begin < kScaleGroup ? k - begin : kScaleGroup;
    const F32 scale0 = load(reinterpret_cast<const float*>(p)), scale1 = load(reinterpret_cast<const float*>(p) + kLanes);
    p += 4 * kPanelColumns;
    Sums<R> group;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) group.at[r][0] = group.at[r][1] = zero();
    for (int64_t i = 0; i < n; ++i, p += kPanelColumns) {
      const F32 w0 = load_f8(p), w1 = load_f8(p + kLanes);
      if constexpr (kFirst) prefetch(p);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F32 a = set1(x[r * x_stride + begin + i]);
        group.at[r][0] = fma(w0, a, group.at[r][0]);
        group.at[r][1] = fma(w1, a, group.at[r][1]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      sums.at[r][0] = fma(group.at[r][0], scale0, sums.at[r][0]);
      sums.at[r][1] = fma(group.at[r][1], scale1, sums.at[r][1]);
    }
  }
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
  if constexpr (T == DType::F8_E4M3) {
    sum_fp8<R, kFirst>(sums, args.panel, args.k, args.x + row * args.x_stride, args.x_stride);
  } else if constexpr (dtype_info(T).block == 1) {
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
    if (rows == R) tile<T, R, kFirst && HUNCH_LEVEL != 0 && (R > 1 || dtype_info(T).block == 1 || has_minimum(T))>(args, row);
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

template <DType... kTypes>
static constexpr void add_panels(MatmulKernels& table) {
  ((table.panel[int(kTypes)] = panel<kTypes>), ...);
}
static constexpr MatmulKernels matmul_kernels() {
  MatmulKernels table{.quantise = quantise_row};
  add_panels<DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::F8_E4M3,
      DType::MXFP4>(table);
  return table;
}

}
