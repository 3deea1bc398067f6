// F32, I32 and Mask as four 128-bit vectors of the compiler's own vector type: any machine, no intrinsics. fma() is a product and
// a sum, each rounded (in software a fused one would be a hundred times slower). Contract: simd.h.
#pragma once

namespace hunch::HUNCH_ISA {

#define HUNCH_CALL [[maybe_unused, gnu::noinline]] static  // of what is long: inlined everywhere it takes the compiler minutes

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef uint32_t Uint4 __attribute__((vector_size(16)));

struct F32 {
  Float4 v[4];
};
struct I32 {
  Int4 v[4];
};
struct Mask {  // all ones where set
  Int4 v[4];
};

#define HUNCH_EACH(T, expr) \
  T out; \
  for (int i = 0; i < 4; ++i) out.v[i] = (expr); \
  return out
#define HUNCH_LANES(T, expr) \
  T out; \
  for (int i = 0; i < 16; ++i) out.v[i / 4][i % 4] = (expr); \
  return out
HUNCH_SIMD F32 load(const float* p) {
  F32 out;
  __builtin_memcpy(&out, p, 64);
  return out;
}
HUNCH_SIMD void store(float* p, F32 a) { __builtin_memcpy(p, &a, 64); }
HUNCH_SIMD F32 set1(float a) { HUNCH_EACH(F32, (Float4{a, a, a, a})); }
HUNCH_SIMD F32 zero() { return set1(0); }
HUNCH_SIMD F32 operator+(F32 a, F32 b) { HUNCH_EACH(F32, a.v[i] + b.v[i]); }
HUNCH_SIMD F32 operator-(F32 a, F32 b) { HUNCH_EACH(F32, a.v[i] - b.v[i]); }
HUNCH_SIMD F32 operator*(F32 a, F32 b) { HUNCH_EACH(F32, a.v[i] * b.v[i]); }
HUNCH_SIMD F32 operator/(F32 a, F32 b) { HUNCH_EACH(F32, a.v[i] / b.v[i]); }
HUNCH_SIMD F32 fma(F32 a, F32 b, F32 c) { HUNCH_EACH(F32, a.v[i] * b.v[i] + c.v[i]); }
HUNCH_SIMD F32 max(F32 a, F32 b) { HUNCH_EACH(F32, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
HUNCH_SIMD F32 min(F32 a, F32 b) { HUNCH_EACH(F32, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
HUNCH_CALL F32 sqrt(F32 a) { HUNCH_LANES(F32, __builtin_sqrtf(a.v[i / 4][i % 4])); }
HUNCH_SIMD Mask less(F32 a, F32 b) { HUNCH_EACH(Mask, Int4(a.v[i] < b.v[i])); }
HUNCH_SIMD Mask less_equal(F32 a, F32 b) { HUNCH_EACH(Mask, Int4(a.v[i] <= b.v[i])); }
HUNCH_SIMD Mask equal(F32 a, F32 b) { HUNCH_EACH(Mask, Int4(a.v[i] == b.v[i])); }
HUNCH_SIMD F32 select(Mask m, F32 a, F32 b) { HUNCH_EACH(F32, m.v[i] ? a.v[i] : b.v[i]); }

HUNCH_SIMD I32 load_i32(const void* p) {
  I32 out;
  __builtin_memcpy(&out, p, 64);
  return out;
}
HUNCH_SIMD void store(void* p, I32 a) { __builtin_memcpy(p, &a, 64); }
HUNCH_SIMD I32 set1_i32(int32_t a) { HUNCH_EACH(I32, (Int4{a, a, a, a})); }
HUNCH_SIMD I32 zero_i32() { return set1_i32(0); }
// Sums and products wrap around, as in the registers of the other levels.
HUNCH_SIMD I32 operator+(I32 a, I32 b) { HUNCH_EACH(I32, Int4(Uint4(a.v[i]) + Uint4(b.v[i]))); }
HUNCH_SIMD I32 operator-(I32 a, I32 b) { HUNCH_EACH(I32, Int4(Uint4(a.v[i]) - Uint4(b.v[i]))); }
HUNCH_SIMD I32 operator*(I32 a, I32 b) { HUNCH_EACH(I32, Int4(Uint4(a.v[i]) * Uint4(b.v[i]))); }
HUNCH_SIMD I32 operator&(I32 a, I32 b) { HUNCH_EACH(I32, a.v[i] & b.v[i]); }
HUNCH_SIMD I32 operator|(I32 a, I32 b) { HUNCH_EACH(I32, a.v[i] | b.v[i]); }
HUNCH_SIMD I32 operator^(I32 a, I32 b) { HUNCH_EACH(I32, a.v[i] ^ b.v[i]); }
template <int n>
HUNCH_SIMD I32 shift_left(I32 a) {
  HUNCH_EACH(I32, Int4(Uint4(a.v[i]) << n));
}
template <int n>
HUNCH_SIMD I32 shift_right(I32 a) {
  HUNCH_EACH(I32, Int4(Uint4(a.v[i]) >> n));
}
template <int n>
HUNCH_SIMD I32 shift_right_sign(I32 a) {
  HUNCH_EACH(I32, a.v[i] >> n);
}
HUNCH_SIMD Mask equal(I32 a, I32 b) { HUNCH_EACH(Mask, Int4(a.v[i] == b.v[i])); }
HUNCH_SIMD Mask less(I32 a, I32 b) { HUNCH_EACH(Mask, Int4(a.v[i] < b.v[i])); }
HUNCH_SIMD Mask less_unsigned(I32 a, I32 b) { HUNCH_EACH(Mask, Int4(Uint4(a.v[i]) < Uint4(b.v[i]))); }
HUNCH_SIMD I32 select(Mask m, I32 a, I32 b) { HUNCH_EACH(I32, m.v[i] ? a.v[i] : b.v[i]); }
HUNCH_SIMD F32 to_f32(I32 a) { HUNCH_EACH(F32, __builtin_convertvector(a.v[i], Float4)); }
HUNCH_SIMD I32 bits_of(F32 a) { HUNCH_EACH(I32, Int4(a.v[i])); }
HUNCH_SIMD F32 float_of(I32 a) { HUNCH_EACH(F32, Float4(a.v[i])); }
HUNCH_SIMD int32_t sum(I32 a) {
  int32_t out = 0;
  for (int i = 0; i < 16; ++i) out = int32_t(uint32_t(out) + uint32_t(a.v[i / 4][i % 4]));
  return out;
}

// Adding and taking away 1.5 2^23 leaves the nearest integer, ties to even, for |a| < 2^22, all that exp asks for. Greater
// magnitudes pass through: they are integers or would lose their lowest half bit.
HUNCH_CALL F32 round(F32 a) {
  const F32 magic = set1(12582912.0f), magnitude = float_of(bits_of(a) & set1_i32(0x7fffffff));
  return select(less(magnitude, set1(4194304.0f)), (a + magic) - magic, a);
}
// The low bits of a + 1.5 2^23 are the integer; |a| < 2^22, else 0 where NaN or out of range.
HUNCH_CALL I32 to_i32(F32 a) {
  const F32 magnitude = float_of(bits_of(a) & set1_i32(0x7fffffff));
  const I32 near = bits_of(a + set1(12582912.0f)) - set1_i32(0x4b400000);
  return select(less(magnitude, set1(4194304.0f)), near, zero_i32());
}
HUNCH_CALL F32 scale2(F32 a, F32 n) {
  const I32 whole = to_i32(n), half = shift_right_sign<1>(whole), bias = set1_i32(127);
  return a * float_of(shift_left<23>(half + bias)) * float_of(shift_left<23>(whole - half + bias));
}

HUNCH_SIMD Mask first_lanes(int n) { HUNCH_EACH(Mask, Int4((Int4{0, 1, 2, 3} + 4 * i) < Int4{n, n, n, n})); }
HUNCH_SIMD Mask mask_of(uint32_t bits) { HUNCH_LANES(Mask, -int32_t((bits >> i) & 1)); }
HUNCH_SIMD uint32_t bits(Mask m) {
  uint32_t out = 0;
  for (int i = 0; i < 16; ++i) out |= uint32_t(m.v[i / 4][i % 4] & 1) << i;
  return out;
}
HUNCH_SIMD Mask both(Mask a, Mask b) { HUNCH_EACH(Mask, a.v[i] & b.v[i]); }
HUNCH_SIMD Mask either(Mask a, Mask b) { HUNCH_EACH(Mask, a.v[i] | b.v[i]); }
HUNCH_SIMD bool none_of(Mask m) {
  const Int4 any = m.v[0] | m.v[1] | m.v[2] | m.v[3];
  return (any[0] | any[1] | any[2] | any[3]) == 0;
}

HUNCH_SIMD F32 load_bf16(const uint16_t* p) { HUNCH_LANES(F32, bf16_to_f32(p[i])); }
HUNCH_CALL F32 load_f16(const uint16_t* p) { HUNCH_LANES(F32, f16_to_f32(p[i])); }
HUNCH_CALL F32 load_f8(const std::byte* p) {
  HUNCH_LANES(F32, f16_to_f32(uint16_t((uint8_t(p[i]) & 128) << 8 | (uint8_t(p[i]) & 127) << 7)));
}
// The same of any codes, NaN staying NaN.
HUNCH_CALL F32 load_f8_nan(const std::byte* p) { HUNCH_LANES(F32, f8_to_f32(uint8_t(p[i])) * 0x1p-8f); }
HUNCH_SIMD F32 load_s8(const int8_t* p) { HUNCH_LANES(F32, float(p[i])); }
HUNCH_CALL I32 bf16_bits(F32 a) { HUNCH_LANES(I32, f32_to_bf16(a.v[i / 4][i % 4])); }
HUNCH_CALL void store_bf16(uint16_t* p, F32 a) {
  for (int i = 0; i < 16; ++i) p[i] = f32_to_bf16(a.v[i / 4][i % 4]);
}
HUNCH_CALL void store_f16(uint16_t* p, F32 a) {
  for (int i = 0; i < 16; ++i) p[i] = f32_to_f16(a.v[i / 4][i % 4]);
}

HUNCH_SIMD float sum(F32 a) {
  const Float4 q = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (q[0] + q[2]) + (q[1] + q[3]);
}
HUNCH_SIMD float max_of(F32 a) {
  const F32 h = max(F32{{a.v[0], a.v[1]}}, F32{{a.v[2], a.v[3]}});
  const Float4 q = h.v[0] > h.v[1] ? h.v[0] : h.v[1];
  const float even = q[0] > q[2] ? q[0] : q[2], odd = q[1] > q[3] ? q[1] : q[3];
  return even > odd ? even : odd;
}
HUNCH_SIMD void max_of_halves(F32 a, float* out) {
  for (int half = 0; half < 2; ++half) {
    const Float4 q = a.v[2 * half] > a.v[2 * half + 1] ? a.v[2 * half] : a.v[2 * half + 1];
    const float even = q[0] > q[2] ? q[0] : q[2], odd = q[1] > q[3] ? q[1] : q[3];
    out[half] = even > odd ? even : odd;
  }
}
HUNCH_CALL int compress_store(void* p, Mask m, I32 a) {
  int n = 0;
  for (int i = 0; i < 16; ++i)
    if (m.v[i / 4][i % 4]) static_cast<int32_t*>(p)[n++] = a.v[i / 4][i % 4];
  return n;
}

HUNCH_SIMD I32 dot4(I32 acc, I32 u8, I32 s8) {
  const I32 byte = set1_i32(255);
  acc = acc + (u8 & byte) * shift_right_sign<24>(shift_left<24>(s8));
  acc = acc + (shift_right<8>(u8) & byte) * shift_right_sign<24>(shift_left<16>(s8));
  acc = acc + (shift_right<16>(u8) & byte) * shift_right_sign<24>(shift_left<8>(s8));
  return acc + shift_right<24>(u8) * shift_right_sign<24>(s8);
}
HUNCH_SIMD I32 dot2(I32 acc, I32 a, I32 b) {  // sums wrap as the registers of the other levels do
  const I32 even = shift_right_sign<16>(shift_left<16>(a)) * shift_right_sign<16>(shift_left<16>(b)),
            odd = shift_right_sign<16>(a) * shift_right_sign<16>(b);
  HUNCH_EACH(I32, Int4(Uint4(acc.v[i]) + Uint4(even.v[i]) + Uint4(odd.v[i])));
}
HUNCH_SIMD I32 even_bytes(I32 a) { return a & set1_i32(0x00ff00ff); }
HUNCH_SIMD I32 odd_bytes(I32 a) { return shift_right<8>(a) & set1_i32(0x00ff00ff); }
HUNCH_CALL I32 look_up(const uint8_t (&table)[16], I32 a) {
  uint8_t bytes[64];
  __builtin_memcpy(bytes, &a, 64);
  for (uint8_t& byte : bytes) byte = table[byte & 15];
  return load_i32(bytes);
}
HUNCH_CALL I32 widen_s8(const void* p) {
  const auto* bytes = static_cast<const int8_t*>(p);
  HUNCH_LANES(I32, int32_t(uint32_t(uint16_t(bytes[2 * i])) | uint32_t(uint16_t(bytes[2 * i + 1])) << 16));
}
HUNCH_SIMD I32 max_unsigned(I32 a, I32 b) { return select(less_unsigned(a, b), b, a); }
HUNCH_CALL uint32_t max_unsigned(I32 a) {
  uint32_t most = 0;
  for (int i = 0; i < 16; ++i) most = most < uint32_t(a.v[i / 4][i % 4]) ? uint32_t(a.v[i / 4][i % 4]) : most;
  return most;
}
HUNCH_CALL void store_s16(int16_t* p, F32 a, F32 b, F32 f) {
  const I32 low = to_i32(a * f), high = to_i32(b * f);
  for (int i = 0; i < 16; ++i) p[i] = int16_t(low.v[i / 4][i % 4]), p[16 + i] = int16_t(high.v[i / 4][i % 4]);
}
#undef HUNCH_EACH
#undef HUNCH_LANES

}
