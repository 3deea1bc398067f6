// F32, I32 and Mask as two 256-bit registers (level avx2, with FMA and F16C). Contract: simd.h.
#pragma once

namespace hunch::HUNCH_ISA {

struct F32 {
  __m256 lo, hi;
};
struct I32 {
  __m256i lo, hi;
};
struct Mask {  // all ones where set
  __m256i lo, hi;
};

// One instruction for each half.
#define HUNCH_UNARY(To, name, From, op) \
  HUNCH_SIMD To name(From a) { return {op(a.lo), op(a.hi)}; }
#define HUNCH_BINARY(T, name, op) \
  HUNCH_SIMD T name(T a, T b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }

HUNCH_SIMD F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
HUNCH_SIMD void store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
HUNCH_SIMD F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
HUNCH_SIMD F32 set1(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
HUNCH_BINARY(F32, operator+, _mm256_add_ps)
HUNCH_BINARY(F32, operator-, _mm256_sub_ps)
HUNCH_BINARY(F32, operator*, _mm256_mul_ps)
HUNCH_BINARY(F32, operator/, _mm256_div_ps)
HUNCH_SIMD F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
HUNCH_BINARY(F32, max, _mm256_max_ps)
HUNCH_BINARY(F32, min, _mm256_min_ps)
HUNCH_UNARY(F32, sqrt, F32, _mm256_sqrt_ps)
HUNCH_SIMD F32 round(F32 a) { return {_mm256_round_ps(a.lo, 8), _mm256_round_ps(a.hi, 8)}; }
template <int kHow>
HUNCH_SIMD Mask compare(F32 a, F32 b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, kHow)), _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, kHow))};
}
HUNCH_SIMD Mask less(F32 a, F32 b) { return compare<_CMP_LT_OQ>(a, b); }
HUNCH_SIMD Mask less_equal(F32 a, F32 b) { return compare<_CMP_LE_OQ>(a, b); }
HUNCH_SIMD Mask equal(F32 a, F32 b) { return compare<_CMP_EQ_OQ>(a, b); }
HUNCH_SIMD F32 select(Mask m, F32 a, F32 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(m.lo)), _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(m.hi))};
}

HUNCH_SIMD I32 load_i32(const void* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
HUNCH_SIMD void store(void* p, I32 a) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)p + 1, a.hi);
}
HUNCH_SIMD I32 zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
HUNCH_SIMD I32 set1_i32(int32_t a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
HUNCH_BINARY(I32, operator+, _mm256_add_epi32)
HUNCH_BINARY(I32, operator-, _mm256_sub_epi32)
HUNCH_BINARY(I32, operator*, _mm256_mullo_epi32)
HUNCH_BINARY(I32, operator&, _mm256_and_si256)
HUNCH_BINARY(I32, operator|, _mm256_or_si256)
HUNCH_BINARY(I32, operator^, _mm256_xor_si256)
template <int n>
HUNCH_SIMD I32 shift_left(I32 a) {
  return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
template <int n>
HUNCH_SIMD I32 shift_right(I32 a) {
  return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
}
template <int n>
HUNCH_SIMD I32 shift_right_sign(I32 a) {
  return {_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)};
}
HUNCH_SIMD Mask equal(I32 a, I32 b) { return {_mm256_cmpeq_epi32(a.lo, b.lo), _mm256_cmpeq_epi32(a.hi, b.hi)}; }
HUNCH_SIMD Mask less(I32 a, I32 b) { return {_mm256_cmpgt_epi32(b.lo, a.lo), _mm256_cmpgt_epi32(b.hi, a.hi)}; }
HUNCH_SIMD Mask less_unsigned(I32 a, I32 b) {
  const I32 flip = set1_i32(int32_t(0x80000000u));
  return less(a ^ flip, b ^ flip);
}
HUNCH_SIMD I32 select(Mask m, I32 a, I32 b) {
  return {_mm256_blendv_epi8(b.lo, a.lo, m.lo), _mm256_blendv_epi8(b.hi, a.hi, m.hi)};
}
HUNCH_UNARY(F32, to_f32, I32, _mm256_cvtepi32_ps)
HUNCH_UNARY(I32, to_i32, F32, _mm256_cvtps_epi32)
HUNCH_UNARY(I32, bits_of, F32, _mm256_castps_si256)
HUNCH_UNARY(F32, float_of, I32, _mm256_castsi256_ps)
HUNCH_SIMD int32_t sum(I32 a) {
  const __m256i h = _mm256_add_epi32(a.lo, a.hi);
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

HUNCH_SIMD Mask first_lanes(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane), _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane)};
}
HUNCH_SIMD Mask mask_of(uint32_t bits) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return {_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(bits)), bit), bit),
      _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(bits >> 8)), bit), bit)};
}
HUNCH_SIMD uint32_t bits(Mask m) {
  return uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(m.lo))) | uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(m.hi))) << 8;
}
HUNCH_BINARY(Mask, both, _mm256_and_si256)
HUNCH_BINARY(Mask, either, _mm256_or_si256)
HUNCH_SIMD bool none_of(Mask m) {
  const __m256i any = _mm256_or_si256(m.lo, m.hi);
  return _mm256_testz_si256(any, any);
}

// a 2^n in two exact-or-once-rounded steps, since 2^n alone may not be a normal number.
HUNCH_SIMD F32 scale2(F32 a, F32 n) {
  const I32 whole = to_i32(n), half = shift_right_sign<1>(whole), bias = set1_i32(127);
  return a * float_of(shift_left<23>(half + bias)) * float_of(shift_left<23>(whole - half + bias));
}

HUNCH_SIMD F32 load_bf16(const uint16_t* p) {
  const __m256i x = _mm256_loadu_si256((const __m256i*)p);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), 16)),
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)), 16))};
}
HUNCH_SIMD F32 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + 1))};
}
HUNCH_SIMD F32 load_s8(const int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))),
      _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
}
HUNCH_SIMD F32 f32_of_halves(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
HUNCH_SIMD F32 load_f8(const std::byte* p) { return f32_of_halves(f8_halves(p)); }
// The same of any codes: those of NaN are the ones that carry into bit 14, which makes a NaN of them.
HUNCH_SIMD F32 load_f8_nan(const std::byte* p) {
  const __m256i halves = f8_halves(p), carried = _mm256_add_epi16(halves, _mm256_set1_epi16(0x80));
  return f32_of_halves(_mm256_or_si256(halves, _mm256_and_si256(carried, _mm256_set1_epi16(0x4000))));
}
// Bits of the nearest bf16 in the low half of each lane.
HUNCH_SIMD I32 bf16_bits(F32 a) {
  const I32 u = bits_of(a), high = shift_right<16>(u);
  const I32 rounded = shift_right<16>(u + (high & set1_i32(1)) + set1_i32(0x7fff));
  return select(compare<_CMP_UNORD_Q>(a, a), high | set1_i32(0x40), rounded);
}
HUNCH_SIMD void store_bf16(uint16_t* p, F32 a) {
  const I32 b = bf16_bits(a);
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(b.lo, b.hi), 0xd8));
}
HUNCH_SIMD void store_f16(uint16_t* p, F32 a) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128((__m128i*)p + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HUNCH_SIMD float sum(F32 a) { return sum_of(_mm256_add_ps(a.lo, a.hi)); }
HUNCH_SIMD float max_of(F32 a) { return max_of(_mm256_max_ps(a.lo, a.hi)); }
HUNCH_SIMD void max_of_halves(F32 a, float* out) { out[0] = max_of(a.lo), out[1] = max_of(a.hi); }
HUNCH_SIMD int compress_store(void* p, Mask m, I32 a) {
  alignas(64) int32_t lanes[16];
  store(lanes, a);
  int n = 0;
  for (uint32_t left = bits(m); left; left &= left - 1) static_cast<int32_t*>(p)[n++] = lanes[__builtin_ctz(left)];
  return n;
}

// Two products of 7 bits fit 16. The empty asm: else GCC adds up a block's products at its end, and stores them all until then.
HUNCH_SIMD __m256i dot4_half(__m256i acc, __m256i u8, __m256i s8) {
  acc = _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u8, s8), _mm256_set1_epi16(1)));
  __asm__("" : "+x"(acc));
  return acc;
}
HUNCH_SIMD I32 dot4(I32 acc, I32 u8, I32 s8) { return {dot4_half(acc.lo, u8.lo, s8.lo), dot4_half(acc.hi, u8.hi, s8.hi)}; }
HUNCH_SIMD I32 dot4_high(I32 acc, I32 u8, I32 s8) {
  const I32 w = u8 ^ set1_i32(int32_t(0x80808080u));
  return {dot4_half(acc.lo, _mm256_abs_epi8(w.lo), _mm256_sign_epi8(s8.lo, w.lo)),
      dot4_half(acc.hi, _mm256_abs_epi8(w.hi), _mm256_sign_epi8(s8.hi, w.hi))};
}
HUNCH_SIMD I32 dot2(I32 acc, I32 a, I32 b) {
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo)), _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi))};
}
HUNCH_SIMD I32 even_bytes(I32 a) {
  const __m256i low = _mm256_set1_epi16(0xff);
  return {_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low)};
}
HUNCH_SIMD I32 odd_bytes(I32 a) { return {_mm256_srli_epi16(a.lo, 8), _mm256_srli_epi16(a.hi, 8)}; }
HUNCH_SIMD I32 look_up(const uint8_t (&table)[16], I32 a) {
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  return {_mm256_shuffle_epi8(both, a.lo), _mm256_shuffle_epi8(both, a.hi)};
}
HUNCH_SIMD I32 widen_s8(const void* p) {
  const auto* bytes = static_cast<const __m128i*>(p);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(bytes)), _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes + 1))};
}
HUNCH_BINARY(I32, max_unsigned, _mm256_max_epu32)
HUNCH_SIMD uint32_t max_unsigned(I32 a) {
  const __m256i h = _mm256_max_epu32(a.lo, a.hi);
  __m128i q = _mm_max_epu32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_max_epu32(q, _mm_shuffle_epi32(q, 0x4e));
  return uint32_t(_mm_cvtsi128_si32(_mm_max_epu32(q, _mm_shuffle_epi32(q, 0xb1))));
}
HUNCH_SIMD void store_s16(int16_t* p, F32 a, F32 b, F32 f) {
  const I32 low = to_i32(a * f), high = to_i32(b * f);
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(_mm256_packs_epi32(low.lo, low.hi), 0xd8));
  _mm256_storeu_si256((__m256i*)(p + 16), _mm256_permute4x64_epi64(_mm256_packs_epi32(high.lo, high.hi), 0xd8));
}
#undef HUNCH_UNARY
#undef HUNCH_BINARY

}
