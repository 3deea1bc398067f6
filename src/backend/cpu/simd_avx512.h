// F32, I32 and Mask in one 512-bit register each (levels avx512 and above). Contract: simd.h.
#pragma once

namespace hunch::HUNCH_ISA {

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

// One instruction.
#define HUNCH_UNARY(To, name, From, op) \
  HUNCH_SIMD To name(From a) { return {op(a.v)}; }
#define HUNCH_BINARY(To, name, T, op) \
  HUNCH_SIMD To name(T a, T b) { return {op(a.v, b.v)}; }

HUNCH_SIMD F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
HUNCH_SIMD void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
HUNCH_SIMD F32 zero() { return {_mm512_setzero_ps()}; }
HUNCH_SIMD F32 set1(float a) { return {_mm512_set1_ps(a)}; }
HUNCH_BINARY(F32, operator+, F32, _mm512_add_ps)
HUNCH_BINARY(F32, operator-, F32, _mm512_sub_ps)
HUNCH_BINARY(F32, operator*, F32, _mm512_mul_ps)
HUNCH_BINARY(F32, operator/, F32, _mm512_div_ps)
HUNCH_SIMD F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
HUNCH_BINARY(F32, max, F32, _mm512_max_ps)
HUNCH_BINARY(F32, min, F32, _mm512_min_ps)
HUNCH_UNARY(F32, sqrt, F32, _mm512_sqrt_ps)
HUNCH_SIMD F32 round(F32 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
HUNCH_SIMD F32 past_round(F32 a) { return {_mm512_reduce_ps(a.v, 0)}; }  // a - round(a), exact; 0 where a is infinite
HUNCH_SIMD F32 scale2(F32 a, F32 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
HUNCH_SIMD Mask less(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
HUNCH_SIMD Mask less_equal(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
HUNCH_SIMD Mask equal(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
HUNCH_SIMD F32 select(Mask m, F32 a, F32 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }

HUNCH_SIMD I32 load_i32(const void* p) { return {_mm512_loadu_si512(p)}; }
HUNCH_SIMD void store(void* p, I32 a) { _mm512_storeu_si512(p, a.v); }
HUNCH_SIMD I32 zero_i32() { return {_mm512_setzero_si512()}; }
HUNCH_SIMD I32 set1_i32(int32_t a) { return {_mm512_set1_epi32(a)}; }
HUNCH_BINARY(I32, operator+, I32, _mm512_add_epi32)
HUNCH_BINARY(I32, operator-, I32, _mm512_sub_epi32)
HUNCH_BINARY(I32, operator*, I32, _mm512_mullo_epi32)
HUNCH_BINARY(I32, operator&, I32, _mm512_and_si512)
HUNCH_BINARY(I32, operator|, I32, _mm512_or_si512)
HUNCH_BINARY(I32, operator^, I32, _mm512_xor_si512)
template <int n>
HUNCH_SIMD I32 shift_left(I32 a) {
  return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
HUNCH_SIMD I32 shift_right(I32 a) {
  return {_mm512_srli_epi32(a.v, n)};
}
template <int n>
HUNCH_SIMD I32 shift_right_sign(I32 a) {
  return {_mm512_srai_epi32(a.v, n)};
}
HUNCH_BINARY(Mask, equal, I32, _mm512_cmpeq_epi32_mask)
HUNCH_BINARY(Mask, less, I32, _mm512_cmplt_epi32_mask)
HUNCH_BINARY(Mask, less_unsigned, I32, _mm512_cmplt_epu32_mask)
HUNCH_SIMD I32 select(Mask m, I32 a, I32 b) { return {_mm512_mask_blend_epi32(m.v, b.v, a.v)}; }
HUNCH_UNARY(F32, to_f32, I32, _mm512_cvtepi32_ps)
HUNCH_UNARY(I32, to_i32, F32, _mm512_cvtps_epi32)
HUNCH_UNARY(I32, bits_of, F32, _mm512_castps_si512)
HUNCH_UNARY(F32, float_of, I32, _mm512_castsi512_ps)
HUNCH_SIMD int32_t sum(I32 a) { return _mm512_reduce_add_epi32(a.v); }

HUNCH_SIMD Mask first_lanes(int n) { return {__mmask16(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1)}; }
HUNCH_SIMD Mask mask_of(uint32_t bits) { return {__mmask16(bits)}; }
HUNCH_SIMD uint32_t bits(Mask m) { return uint32_t(m.v); }
HUNCH_SIMD Mask both(Mask a, Mask b) { return {__mmask16(a.v & b.v)}; }
HUNCH_SIMD Mask either(Mask a, Mask b) { return {__mmask16(a.v | b.v)}; }
HUNCH_SIMD bool none_of(Mask m) { return m.v == 0; }

HUNCH_SIMD F32 load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
HUNCH_SIMD F32 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
HUNCH_SIMD F32 load_s8(const int8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
HUNCH_SIMD F32 load_f8(const std::byte* p) { return {_mm512_cvtph_ps(f8_halves(p))}; }
// As in simd_avx2.h: codes of NaN are the ones that carry into bit 14.
HUNCH_SIMD F32 load_f8_nan(const std::byte* p) {
  const __m256i halves = f8_halves(p), carried = _mm256_add_epi16(halves, _mm256_set1_epi16(0x80));
  return {_mm512_cvtph_ps(_mm256_ternarylogic_epi32(halves, carried, _mm256_set1_epi16(0x4000), 0xf8))};  // halves | carried & c
}
// Bits of the nearest bf16 in the low half of each lane. Not vcvtneps2bf16: that one flushes denormals.
HUNCH_SIMD I32 bf16_bits(F32 a) {
  const I32 u = bits_of(a), high = shift_right<16>(u);
  const I32 rounded = shift_right<16>(u + (high & set1_i32(1)) + set1_i32(0x7fff));
  return select({_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}, high | set1_i32(0x40), rounded);
}
HUNCH_SIMD void store_bf16(uint16_t* p, F32 a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(bf16_bits(a).v)); }
HUNCH_SIMD void store_f16(uint16_t* p, F32 a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// ((0+8)+(4+12)) ... : halves folded onto each other, the same tree in every register form.
HUNCH_SIMD float sum(F32 a) { return sum_of(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1))); }
HUNCH_SIMD float max_of(F32 a) { return max_of(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1))); }
HUNCH_SIMD void max_of_halves(F32 a, float* out) {
  __m512 m = _mm512_max_ps(a.v, _mm512_shuffle_f32x4(a.v, a.v, 0xb1));
  m = _mm512_max_ps(m, _mm512_permute_ps(m, 0x4e));
  m = _mm512_max_ps(m, _mm512_permute_ps(m, 0xb1));
  out[0] = _mm512_cvtss_f32(m), out[1] = _mm_cvtss_f32(_mm512_extractf32x4_ps(m, 2));
}
// vpcompressd to a register and one whole store: the memory form of the instruction is slow on some cores.
HUNCH_SIMD int compress_store(void* p, Mask m, I32 a) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(m.v, a.v));
  return __builtin_popcount(m.v);
}

#if HUNCH_LEVEL >= 3
// Written out: GCC 12 copies the accumulators of a loop of _mm512_dpbusd_epi32 to other registers and back, every time.
HUNCH_SIMD I32 dot4(I32 acc, I32 u8, I32 s8) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(u8.v), "v"(s8.v));
  return acc;
}
#else  // as in simd_avx2.h
HUNCH_SIMD I32 dot4(I32 acc, I32 u8, I32 s8) {
  acc.v = _mm512_add_epi32(acc.v, _mm512_madd_epi16(_mm512_maddubs_epi16(u8.v, s8.v), _mm512_set1_epi16(1)));
  asm("" : "+v"(acc.v));
  return acc;
}
HUNCH_SIMD I32 dot4_high(I32 acc, I32 u8, I32 s8) {
  const __m512i w = _mm512_xor_si512(u8.v, _mm512_set1_epi8(-128));
  return dot4(acc, {_mm512_abs_epi8(w)}, {_mm512_mask_sub_epi8(s8.v, _mm512_movepi8_mask(w), _mm512_setzero_si512(), s8.v)});
}
#endif

HUNCH_SIMD I32 dot2(I32 acc, I32 a, I32 b) {
#if HUNCH_LEVEL >= 3
  asm("vpdpwssd %2, %1, %0" : "+v"(acc.v) : "v"(a.v), "v"(b.v));  // written out for the same reason
  return acc;
#else
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(a.v, b.v))};
#endif
}
HUNCH_SIMD I32 even_bytes(I32 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi16(0xff))}; }
HUNCH_SIMD I32 odd_bytes(I32 a) { return {_mm512_srli_epi16(a.v, 8)}; }
HUNCH_SIMD I32 look_up(const uint8_t (&table)[16], I32 a) {
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), a.v)};
}
HUNCH_SIMD I32 widen_s8(const void* p) { return {_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p))}; }
HUNCH_BINARY(I32, max_unsigned, I32, _mm512_max_epu32)
HUNCH_SIMD uint32_t max_unsigned(I32 a) { return _mm512_reduce_max_epu32(a.v); }
// Beside 1.5 2^23 an integer stands in the low bits of the sum; one permutation takes those of 32 lanes.
HUNCH_SIMD void store_s16(int16_t* p, F32 a, F32 b, F32 f) {
  const __m512 beside = _mm512_set1_ps(12582912.0f);
  const __m512i low = _mm512_castps_si512(_mm512_fmadd_ps(a.v, f.v, beside)),
                high = _mm512_castps_si512(_mm512_fmadd_ps(b.v, f.v, beside));
  const __m512i even = _mm512_set_epi16(
      62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  _mm512_storeu_si512(p, _mm512_permutex2var_epi16(low, even, high));
}

#if HUNCH_LEVEL >= 4
// acc += even(a) even(b) + odd(a) odd(b), bf16 pairs in 32-bit lanes.
HUNCH_SIMD F32 dot_bf16(F32 acc, I32 a, I32 b) { return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)}; }
// 16 values of `low`, then 16 of `high`, rounded to bf16 (denormals become zero).
HUNCH_SIMD I32 to_bf16(F32 low, F32 high) { return {(__m512i)_mm512_cvtne2ps_pbh(high.v, low.v)}; }
#endif
#undef HUNCH_UNARY
#undef HUNCH_BINARY

}
