// Codes of packed weights to operands of the tensor cores: what a thread needs of 64 inputs from shared memory, and its registers
// as wgmma.h has them. For the kernels of products; the layout of records is in weights.h.
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/cuda/weights_kernel.cuh"
#include "backend/cuda/wgmma.h"

namespace hunch {

// Of sums of decoded weights.
constexpr float unit_of(DType type) { return type == DType::Q4_0 || type == DType::MXFP4 ? 0x1p22f : 1.0f; }

// What thread t of the warpgroup needs of a part of a coded tile, as it lies there.
template <DType kType>
struct PartCodes {
  uint4 codes[has_byte_codes(kType) ? 2 : 1];
  uint2 scales, high, super;  // high: fifth bits (x), Q6_K's high bits
};
template <DType kType>
HUNCH_DEVICE PartCodes<kType> load_part(uint32_t record, int part, int t) {
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
HUNCH_DEVICE uint32_t f8_halves(uint32_t word) {
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
HUNCH_DEVICE void decode_part(const PartCodes<kType>& p, uint32_t (&a)[kSteps][4]) {
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
    float d[2][2], offset[2][2];
    for (int below = 0; below < 2; ++below) {
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(below ? &scales.y : &scales.x));
      d[below][0] = both.x, d[below][1] = both.y;
      offset[below][0] = both.x * -32896.0f, offset[below][1] = both.y * -32896.0f;
    }
#pragma unroll
    for (int h = kFirst / 2; h < (kFirst + kSteps) / 2; ++h) {
      const uint4 codes = p.codes[h];
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // step 2h + i / 4, register i % 4
        const uint32_t word = words[i / 2];
        // A byte in the mantissa of 2^15; (2^15 + code) d - (2^15 + 128) d is exact, and so is either term.
        const float low = __uint_as_float(__byte_perm(word, 0x47000000u, i % 2 ? 0x7624 : 0x7604));
        const float high = __uint_as_float(__byte_perm(word, 0x47000000u, i % 2 ? 0x7634 : 0x7614));
        a[2 * h + i / 4 - kFirst][i % 4] =
            bf16x2_of(__fmaf_rn(low, d[i % 2][h], offset[i % 2][h]), __fmaf_rn(high, d[i % 2][h], offset[i % 2][h]));
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
  } else if constexpr (kType == DType::MXFP4) {
    // Bits at the places of bf16 are the code's value times 2^-126 (subnormal or not), and scales 2^(e - 127) 2^104: exact, in
    // the unit of Q4_0.
    const uint32_t words[4] = {p.codes[0].x, p.codes[0].y, p.codes[0].z, p.codes[0].w};
#pragma unroll
    for (int block = kFirst / 2; block < (kFirst + kSteps) / 2; ++block) {
      const uint32_t scale[2] = {
          __byte_perm(scales.x, 0, block ? 0x3232 : 0x1010), __byte_perm(scales.y, 0, block ? 0x3232 : 0x1010)};  // of features
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // step 2 block + i / 4, register i % 4
        const uint32_t word = words[2 * block + i / 4];
        a[2 * block + i / 4 - kFirst][i % 4] = bf16x2_fma(mxfp4_bits(word, i % 4), scale[i % 2], 0x80008000u);  // plus -0
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

}
