// 8-bit KV (ops/kv.h): rows to codes, queries as two 8-bit digits, q.k by exact integer dot products, and V codes widened to what
// the weights multiply. Used by attention_body.h, store_kv_body.h and gather_codes_body.h.
//
//   q ~ s (256 high + low), |q / s| <= 127 256: 16 bits, so that what a product loses is the rounding of K alone. Sums of
//   integers are exact, hence independent of their order; keys are stored as bytes k + 128, and -128 sum(digits) is what a sum
//   begins with. V codes are exact in bf16 and fp32. Their scales are multiplied into the weights, once per entry instead of once
//   per element.
#pragma once

namespace hunch::HUNCH_ISA {

inline constexpr int kKeyBias = 128;

HUNCH_SIMD F32 load_row(const float* p, int left) { return left >= kLanes ? load(p) : load_first(p, left, zero()); }

// Scales of a K or V block: behind its codes.
HUNCH_SIMD float* scales_of(std::byte* block, int padded_dim) {
  return reinterpret_cast<float*>(block + size_t(kBlockLen) * size_t(padded_dim));
}
HUNCH_SIMD const float* scales_of(const std::byte* block, int padded_dim) {
  return reinterpret_cast<const float*>(block + size_t(kBlockLen) * size_t(padded_dim));
}

// codes[i] = row[i] most / max|row|, rounded; returns max|row| / most (ops/kv.h). All lanes hold one row, or each its own:
// greatest and zeros (x 0 of every element: NaN where one is not finite) per lane.
HUNCH_SIMD F32 code_factor(F32 greatest, F32 most) { return select(less(greatest, set1(kLeastCoded)), zero(), most / greatest); }
HUNCH_SIMD F32 code_scale(F32 greatest, F32 zeros, F32 most) {
  return select(less(greatest, set1(kLeastCoded)), zero(), greatest / most) + zeros;
}
static float code_row(const float* row, int head_dim, int padded_dim, int most, int32_t* codes) {
  F32 greatest = zero(), zeros = zero();
  for (int d = 0; d < padded_dim; d += kLanes) {
    const F32 x = load_row(row + d, head_dim - d);
    greatest = max(greatest, abs(x));
    zeros = fma(x, zero(), zeros);
  }
  greatest = set1(max_of(greatest));
  alignas(64) float scale[kLanes];
  store(scale, code_scale(greatest, set1(sum(zeros)), set1(float(most))));
  const F32 factor = code_factor(greatest, set1(float(most)));
  const bool finite = scale[0] == scale[0];
  for (int d = 0; d < padded_dim; d += kLanes)
    store(codes + d, finite ? to_i32(load_row(row + d, head_dim - d) * factor) : zero_i32());
  return scale[0];
}

struct KvCodes {
#if HUNCH_LEVEL >= 3
  using Values = KvBf16;
#else
  using Values = KvF32;
#endif
  using Factor = Values::Factor;
  using Query = std::byte;  // [2 padded_dim] high digits, low digits, then a CodedQuery
  static constexpr bool kCodes = true;
  static constexpr int kLaneBytes = 4, kLaneDims = 4, kEntriesPerLine = 2, kElementBytes = 1;
  static constexpr int64_t query_stride(int padded_dim) { return int64_t(padded_dim) * 4; }
  HUNCH_SIMD void put(Factor* to, F32 a, F32 b) { Values::put(to, a, b); }
};
struct CodedQuery {
  float scale;
  int32_t high_start, low_start;
};

static void code_query(const float* q, int head_dim, int padded_dim, std::byte* to) {
  alignas(64) int32_t codes[kMaxCodedDim];
  CodedQuery tail{code_row(q, head_dim, padded_dim, 127 * 256, codes), 0, 0};
  for (int d = 0; d < padded_dim; ++d) {
    const int32_t high = (codes[d] + 128) >> 8, low = codes[d] - high * 256;
    to[d] = std::byte(high), to[padded_dim + d] = std::byte(low);
    tail.high_start -= kKeyBias * high, tail.low_start -= kKeyBias * low;
  }
  __builtin_memcpy(to + 2 * padded_dim, &tail, sizeof tail);
}

// scores[r][entry] = q[r] . k[entry]; R rows of two digits are 2 R rows of accumulators.
template <int R>
void score_codes(const std::byte* keys, int padded_dim, const std::byte* q, int64_t q_stride, float* scores, Ahead& ahead) {
  const int steps = padded_dim / 4;
  const size_t tile_bytes = size_t(steps) * 64;
  const float* scales = scales_of(keys, padded_dim);
  const std::byte* ahead_at = ahead.at;
  const size_t stride = ahead.stride;
  CodedQuery tails[R];
  for (int r = 0; r < R; ++r) __builtin_memcpy(&tails[r], q + r * q_stride + 2 * padded_dim, sizeof tails[r]);
  for (int tile = 0; tile < kKeyTiles; tile += kWide) {
    const std::byte* line_at = keys + size_t(tile) * tile_bytes;
    I32 high[R][kWide], low[R][kWide];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int t = 0; t < kWide; ++t) high[r][t] = set1_i32(tails[r].high_start), low[r][t] = set1_i32(tails[r].low_start);
    for (int step = 0; step < steps; ++step, line_at += 64, ahead_at += stride) {
      I32 lines[kWide];
      fetch_ahead(ahead_at, stride);
#pragma GCC unroll 8
      for (int t = 0; t < kWide; ++t) lines[t] = load_i32(line_at + size_t(t) * tile_bytes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int32_t digits[2];
        __builtin_memcpy(&digits[0], q + r * q_stride + step * 4, 4);
        __builtin_memcpy(&digits[1], q + r * q_stride + padded_dim + step * 4, 4);
        const I32 h = set1_i32(digits[0]), l = set1_i32(digits[1]);
#pragma GCC unroll 8
        for (int t = 0; t < kWide; ++t) high[r][t] = dot4(high[r][t], lines[t], h), low[r][t] = dot4(low[r][t], lines[t], l);
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kWide; ++t) {
      const F32 scale = load(scales + (tile + t) * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        store(scores + r * kBlockLen + (tile + t) * kLanes,
              fma(to_f32(high[r][t]), set1(256.0f), to_f32(low[r][t])) * scale * set1(tails[r].scale));
    }
  }
  ahead.moved_to(ahead_at);
}

static void score_code_rows(const std::byte* keys, int padded_dim, const std::byte* q, int64_t q_stride, int rows, float* scores,
                            Ahead& ahead) {
  constexpr int kRows = kRowTile >= 4 ? 2 : 1;
  for (; rows >= kRows; rows -= kRows, q += kRows * q_stride, scores += kRows * kBlockLen) {
    score_codes<kRows>(keys, padded_dim, q, q_stride, scores, ahead);
    ahead.stride = 0;  // the first rows have asked for the next K; widen_values asks for the next V
  }
  if (rows == 1) score_codes<1>(keys, padded_dim, q, q_stride, scores, ahead);
}

// A block of V codes as KvCodes::Values reads them.
static const std::byte* widen_values(const std::byte* codes, int padded_dim, std::byte* to, Ahead& ahead) {
  const size_t code_bytes = size_t(kBlockLen) * size_t(padded_dim), scale_bytes = kBlockLen * sizeof(float);
  const std::byte* next = ahead.end - code_bytes - scale_bytes;
  for (size_t i = 0; i < scale_bytes; i += 64)
    __builtin_prefetch(next - scale_bytes + i), __builtin_prefetch(ahead.end - scale_bytes + i);
  for (int e = 0; e < kBlockLen; e += 2)
    for (int d = 0; d < padded_dim; d += kLanes, codes += 2 * kLanes, next += 2 * kLanes) {
      __builtin_prefetch(next);
#if HUNCH_LEVEL >= 3
      const auto* bytes = reinterpret_cast<const int8_t*>(codes);
      store(to + (e * padded_dim + 2 * d) * 2, to_bf16(load_s8(bytes), load_s8(bytes + kLanes)));
#else
      const I32 pair = bits_of(load_bf16(reinterpret_cast<const uint16_t*>(codes)));  // both codes in the upper half of a lane
      float* row = reinterpret_cast<float*>(to) + e * padded_dim + d;
      store(row, to_f32(shift_right_sign<24>(shift_left<8>(pair))));
      store(row + padded_dim, to_f32(shift_right_sign<24>(pair)));
#endif
    }
  return to;
}

}  // namespace hunch::HUNCH_ISA
