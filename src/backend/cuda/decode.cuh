// Codes of packed weights to operands of the tensor cores: what a thread needs of 64 inputs from shared memory, and its registers
// as wgmma.h has them. For the kernels of products; the layout of records is in weights.h.
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/cuda/weights_kernel.cuh"
#include "backend/cuda/wgmma.h"

namespace hunch {

// What thread t of the warpgroup needs of a part of a coded tile, as it lies there.
template <DType kType>
struct PartCodes {
  uint4 codes[has_byte_codes(kType) ? 2 : 1];
  uint4 scales;  // of codes without minima or 16 by 16, x and y
  uint2 high;    // Q5_K: x
};
template <DType kType>
HUNCH_DEVICE PartCodes<kType> load_part(uint32_t record, int part, int t) {
  constexpr RecordShape kShape = record_shape(kType);
  const uint32_t scales = record + uint32_t(kShape.scales + (part * 32 + t / 32 * 8 + t % 32 / 4) * pair_scale_bytes(kType));
  PartCodes<kType> p{};
  if constexpr (is_k_quant(kType)) {
    p.scales = load_16(scales);
  } else {
    const uint2 two = load_8(scales);
    p.scales = make_uint4(two.x, two.y, 0, 0);
  }
  constexpr int kWords = has_byte_codes(kType) ? 2 : 1;
#pragma unroll
  for (int h = 0; h < kWords; ++h) p.codes[h] = load_16(record + uint32_t(((part * kWords + h) * 128 + t) * 16));
  if constexpr (kType == DType::Q5_K) p.high.x = load_4(record + uint32_t(kShape.high + (part * 128 + t) * 4));
  if constexpr (kType == DType::Q6_K) p.high = load_8(record + uint32_t(kShape.high + (part * 128 + t) * 8));
  return p;
}

// Operands of the part: a[i] of step kFirst + i, an even number of them.
template <DType kType, int kFirst, int kSteps>
HUNCH_DEVICE void decode_part(const PartCodes<kType>& p, uint32_t (&a)[kSteps][4]) {
  const uint4 scales = p.scales;
  if constexpr (kType == DType::F8_E4M3) {
    // Bits at the places of bf16 are the code's value times 2^-120; scales are the sum of two.
    uint32_t scale[2][2];  // [feature]: most of it and the rest
#pragma unroll
    for (int i = 0; i < 4; ++i) scale[i / 2][i % 2] = __byte_perm(i / 2 ? scales.y : scales.x, 0, i % 2 ? 0x3232 : 0x1010);
#pragma unroll
    for (int h = kFirst / 2; h < (kFirst + kSteps) / 2; ++h) {
      const uint32_t words[4] = {p.codes[h].x, p.codes[h].y, p.codes[h].z, p.codes[h].w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // step 2h + i / 4, register i % 4
        const uint32_t value = f8_bits(words[i / 2], i % 2);
        a[2 * h + i / 4 - kFirst][i % 4] = bf16x2_fma(value, scale[i % 2][0], bf16x2_mul(value, scale[i % 2][1]));
      }
    }
  } else if constexpr (kType == DType::Q8_0 || kType == DType::Q4_0) {
    // A byte in a bf16 that is nothing else is that integer times 2^-133 (from 128 on the exponent counts as it does below). One
    // instruction makes it (code - 128) d / unit_of(), rounded as (code - 128) d would be; sums are in that unit. Of nibbles odd
    // registers have theirs 4 bits higher.
    constexpr bool kBytes = kType == DType::Q8_0;
#pragma unroll
    for (int block = kFirst / 2; block < (kFirst + kSteps) / 2; ++block) {
      uint32_t scale[2], zero[2];  // of features
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const float2 both = __half22float2(*reinterpret_cast<const __half2*>(below ? &scales.y : &scales.x));
        const uint32_t d = block ? bf16x2_of(both.y, both.y) : bf16x2_of(both.x, both.x);
        scale[below] = bf16x2_mul(d, below && !kBytes ? 0x71807180u : 0x73807380u);  // 2^100, 2^104
        zero[below] = bf16x2_mul(d, kBytes ? 0xb480b480u : 0xb280b280u);             // -128 2^-29, -8 2^-29
      }
      const uint4 codes = p.codes[kBytes ? block : 0];
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // step 2 block + i / 4, register i % 4
        const uint32_t value = kBytes ? __byte_perm(words[i / 2], 0, i % 2 ? 0x4342 : 0x4140)
                                      : words[2 * block + i / 4] >> (i % 4 / 2 * 8) & (i % 2 ? 0x00f000f0u : 0x000f000fu);
        a[2 * block + i / 4 - kFirst][i % 4] = bf16x2_fma(value, scale[i % 2], zero[i % 2]);
      }
    }
  } else if constexpr (kType == DType::MXFP4) {
    // Bits at the places of bf16 are the code's value times 2^-126 (subnormal or not), and scales 2^(e - 127) 2^104: exact.
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
    // As Q8_0.
    const uint32_t words[6] = {p.codes[0].x, p.codes[0].y, p.codes[0].z, p.codes[0].w, p.high.x, p.high.y};
    const uint32_t two[4] = {scales.x, scales.y, scales.z, scales.w};
    uint32_t scale[2][4], min[2][4];  // [feature][16 inputs]
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t &s = scale[i / 4][i % 4], &m = min[i / 4][i % 4];
      if constexpr (kType == DType::Q6_K) {
        s = __byte_perm(two[i / 2], 0, i % 2 ? 0x3232 : 0x1010);
        m = bf16x2_mul(s, 0x80208020u);  // -32 2^-133
      } else {
        s = __byte_perm(two[i / 2], 0, 0x1010), m = __byte_perm(two[i / 2], 0, 0x3232);
      }
    }
#pragma unroll
    for (int reg = 4 * kFirst; reg < 4 * (kFirst + kSteps); ++reg) {
      uint32_t value = 0;
#pragma unroll
      for (int i = 0; i < code_pieces(kType, reg); ++i) {
        const CodePiece piece = code_piece(kType, reg, i);
        const int to = kType == DType::Q4_K ? reg % 2 * 4 : piece.to;
        value |= words[piece.word] >> (piece.from - to) & ((1u << piece.bits) - 1) * 0x10001u << to;
      }
      a[reg / 4 - kFirst][reg % 4] = bf16x2_fma(value, scale[reg % 2][reg / 4], min[reg % 2][reg / 4]);
    }
  }
}

}
