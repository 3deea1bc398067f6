// The vector vocabulary of the CPU kernels: 16 lanes of fp32 (F32) or int32 (I32) and a lane mask (Mask), whatever the registers.
// Included by instances/*.cpp inside a target region with HUNCH_ISA and HUNCH_LEVEL set; kernel bodies know no more of the
// instruction set. Results are bit-stable within one, not between them.
#pragma once

#define HUNCH_SIMD [[gnu::always_inline]] static inline

#if HUNCH_LEVEL >= 1
namespace hunch::HUNCH_ISA {

// What both forms of registers do with 256 bits.

// 16 codes of E4M3 (no NaN) as 2^-8 times their values: in fp16 the exponent's bias is 15 instead of 7.
HUNCH_SIMD __m256i f8_halves(const std::byte* p) {
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)), 7);
  return _mm256_and_si256(shifted, _mm256_set1_epi16(int16_t(0xbfff)));
}
HUNCH_SIMD float sum_of(__m256 h) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
HUNCH_SIMD float max_of(__m256 h) {
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

}
#endif

#if HUNCH_LEVEL >= 2
#include "backend/cpu/simd_avx512.h"
#elif HUNCH_LEVEL == 1
#include "backend/cpu/simd_avx2.h"
#else
#include "backend/cpu/simd_portable.h"
#endif

namespace hunch::HUNCH_ISA {

inline constexpr int kLanes = 16;
inline constexpr float kInf = __builtin_inff();

// Each register header provides, all by value:
//   F32:  load store zero set1 | operators + - * / | fma(a, b, c) = a b + c | max(a, b), min(a, b): b where either is NaN
//         less(a, b), less_equal, equal -> Mask | select(mask, a, b): a where set | sqrt | round (to nearest even, in fp32)
//         load_bf16 load_f16 load_s8 load_f8 load_f8_nan (16 consecutive) | store_bf16 store_f16 (nearest even, NaN stays NaN)
//         sum(a), max_of(a): one fixed tree | max_of_halves(a, out[2]): of lanes 0 to 7 and 8 to 15 | scale2(a, n): a 2^n, n
//         integral in fp32, denormals rounded once
//   I32:  load_i32 store zero_i32 set1_i32 | + - * & | shift_left<n> shift_right<n> (logical) shift_right_sign<n>
//         equal(a, b), less(a, b) (signed), less_unsigned(a, b) -> Mask | select | to_f32 | to_i32 (nearest even)
//         bits_of(F32) float_of(I32): the same bits | dot4(acc, u8, s8): acc += sum of 4 unsigned x signed byte products, exact
//         while u8 < 128 | dot4_high: of any u8, or of u8 - 128 if kTakesOff128
//         dot2(acc, a, b): acc += both products of signed 16-bit halves, modulo 2^32 | widen_s8(p): 32 signed bytes to 16 bits,
//         two a lane | look_up(table, a): each byte of a, 0 to 15, to the table's byte of that number | even_bytes, odd_bytes:
//         the bytes 0 and 2, 1 and 3 of a lane as unsigned halves | store_s16(p, a, b, f): 32 products a f, b f in [0, 32767],
//         rounded, as 16 bits; of other products anything | max_unsigned(a, b), max_unsigned(a): of all lanes | sum(I32): integer
//         sum of the lanes | compress_store(p, mask, a): the set lanes of a, in order, to p; returns how many (writes up to 16
//         lanes)
//   Mask: first_lanes(n) | bits(mask) -> uint32_t | mask_of(bits) | both(a, b) | either(a, b) | none_of(mask)
// Always-inlined wrappers over them follow.

inline constexpr bool kTakesOff128 = HUNCH_LEVEL == 1 || HUNCH_LEVEL == 2;
#if HUNCH_LEVEL != 1 && HUNCH_LEVEL != 2
HUNCH_SIMD I32 dot4_high(I32 acc, I32 u8, I32 s8) { return dot4(acc, u8, s8); }
#endif

HUNCH_SIMD F32 load_first(const float* p, int n, F32 rest) {  // lanes >= n are `rest` and are not read
  alignas(64) float lanes[kLanes];
  store(lanes, rest);
  for (int i = 0; i < n && i < kLanes; ++i) lanes[i] = p[i];
  return load(lanes);
}
HUNCH_SIMD F32 load_row(const float* p, int left) { return left >= kLanes ? load(p) : load_first(p, left, zero()); }
HUNCH_SIMD void store_first(float* p, F32 a, int n) {  // lanes >= n are not written
  if (n >= kLanes) return store(p, a);
  alignas(64) float lanes[kLanes];
  store(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

HUNCH_SIMD I32 lane_numbers() {
  alignas(64) static constexpr int32_t kNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load_i32(kNumbers);
}

// The two bf16 values of each 32-bit lane: the lower half is the even element.
HUNCH_SIMD F32 bf16_even(I32 pair) { return float_of(shift_left<16>(pair)); }
HUNCH_SIMD F32 bf16_odd(I32 pair) { return float_of(pair & set1_i32(int32_t(0xffff0000u))); }

HUNCH_SIMD F32 abs(F32 a) { return float_of(bits_of(a) & set1_i32(0x7fffffff)); }

// 2^t for t <= 0 (a little above is fine): relative error 2e-7 plus that of t. -inf gives 0; NaN stays NaN.
HUNCH_SIMD F32 exp2_nonpositive(F32 t) {
#if HUNCH_LEVEL >= 2
  const F32 f = past_round(t), n = t - f;
#else
  t = max(set1(-150.0f), t);  // b where NaN, see max
  const F32 n = round(t), f = t - n;
#endif
  F32 p = set1(1.33336498402e-3f);
  p = fma(p, f, set1(9.61812910763e-3f));
  p = fma(p, f, set1(5.55041086648e-2f));
  p = fma(p, f, set1(2.40226506959e-1f));
  p = fma(p, f, set1(6.93147180559e-1f));
  p = fma(p, f, set1(1.0f));
  return scale2(p, n);
}

// e^x to about 1 ulp: x = n ln 2 + f, ln 2 in two parts so that n ln2_hi is exact. -inf gives 0, +inf and overflow +inf, NaN NaN.
HUNCH_SIMD F32 exp(F32 x) {
  x = min(set1(89.0f), max(set1(-104.0f), x));
  const F32 n = round(x * set1(1.44269504089f));
  F32 f = fma(n, set1(-0.693359375f), x);
  f = fma(n, set1(2.12194440e-4f), f);
  F32 p = set1(1.9875691500e-4f);
  p = fma(p, f, set1(1.3981999507e-3f));
  p = fma(p, f, set1(8.3334519073e-3f));
  p = fma(p, f, set1(4.1665795894e-2f));
  p = fma(p, f, set1(1.6666665459e-1f));
  p = fma(p, f, set1(5.0000001201e-1f));
  p = fma(p, f * f, f) + set1(1.0f);
  return scale2(p, n);
}

// Natural logarithm to about 1 ulp for normal x > 0; 0 gives -inf, negative NaN, +inf +inf, NaN NaN. Denormals are scaled first.
HUNCH_SIMD F32 log(F32 x) {
  const F32 zero_ = zero(), inf = set1(kInf);
  const Mask tiny = less(x, set1(1.17549435e-38f));
  const F32 y = select(tiny, x * set1(8388608.0f), x);
  // y = 2^e m with m in [sqrt(1/2), sqrt(2))
  const I32 shifted = bits_of(y) - set1_i32(0x3f3504f3);
  const I32 e = shift_right_sign<23>(shifted);
  const F32 m = float_of((shifted & set1_i32(0x007fffff)) + set1_i32(0x3f3504f3)) - set1(1.0f);
  const F32 n = to_f32(e) - select(tiny, set1(23.0f), zero_);
  F32 p = set1(7.0376836292e-2f);
  p = fma(p, m, set1(-1.1514610310e-1f));
  p = fma(p, m, set1(1.1676998740e-1f));
  p = fma(p, m, set1(-1.2420140846e-1f));
  p = fma(p, m, set1(1.4249322787e-1f));
  p = fma(p, m, set1(-1.6668057665e-1f));
  p = fma(p, m, set1(2.0000714765e-1f));
  p = fma(p, m, set1(-2.4999993993e-1f));
  p = fma(p, m, set1(3.3333331174e-1f));
  const F32 m2 = m * m;
  F32 r = fma(n, set1(-2.12194440e-4f), p * m * m2);
  r = fma(m2, set1(-0.5f), r);
  r = fma(n, set1(0.693359375f), m + r);
  r = select(equal(x, zero_), set1(-kInf), r);
  r = select(less(x, zero_), set1(__builtin_nanf("")), r);
  return select(less(x, inf), r, select(equal(x, inf), inf, x + x));  // x + x: a NaN stays one
}

}
