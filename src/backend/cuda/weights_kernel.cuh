// Elements of packed records, one at a time: what embedding look-ups read, by the formulas of checkpoint/quantise.h. For kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/ptx.h"
#include "backend/cuda/weights.h"

namespace hunch {

struct PackedPosition {
  int part, thread, step, reg, half;  // of an element of a record
};
HUNCH_DEVICE PackedPosition position_of(int feature, int input) {
  const int part = input / 64, step = input % 64 / 16, in_step = input % 16;
  const int thread = feature / 16 * 32 + feature % 8 * 4 + in_step % 8 / 2;
  return {part, thread, step, (feature % 16) / 8 + 2 * (in_step / 8), in_step % 2};
}

// Of sums of decoded weights.
constexpr float unit_of(DType t) {
  return t == DType::BF16 ? 1.0f : t == DType::MXFP4 || t == DType::F8_E4M3 ? 0x1p22f : 0x1p29f;
}
// Scales are multiplied by that, over unit_of(): decode.cuh. `below`: of an odd register, whose nibbles lie 4 bits higher.
constexpr float code_scale(DType t, int below) { return below && (t == DType::Q4_0 || t == DType::Q4_K) ? 0x1p100f : 0x1p104f; }

HUNCH_DEVICE float half_at(const std::byte* p) { return __half2float(*reinterpret_cast<const __half*>(p)); }
HUNCH_DEVICE uint32_t word_at(const std::byte* p) { return *reinterpret_cast<const uint32_t*>(p); }

// Offset of element (feature, input) in a record of bf16.
HUNCH_DEVICE int swizzled(int feature, int input) { return feature * 128 + ((input / 8) ^ (feature % 8)) * 16 + input % 8 * 2; }

// Two codes of E2M1, for register i, out of a word of eight: their bits where bf16 has sign, low exponent and high mantissa.
// Four such patterns do not fit into 16 bits: that of register 3 is in two pieces.
HUNCH_DEVICE uint32_t mxfp4_bits(uint32_t word, int i) {
  if (i == 3) return (word << 6 & 0x80c080c0u) | (word >> 2 & 0x01000100u);
  return (i == 0 ? word : i == 1 ? word << 4 : __funnelshift_r(word, word, 6)) & 0x81c081c0u;
}
// The same of one code, back to where the word has it.
HUNCH_DEVICE uint32_t mxfp4_place(uint32_t code, int i, int half) {
  const uint32_t bits = ((code & 8) << 12 | (code & 7) << 6) << (16 * half);
  if (i == 3) return (bits & 0x80c080c0u) >> 6 | (bits & 0x01000100u) << 2;
  return i == 0 ? bits : i == 1 ? bits >> 4 : __funnelshift_l(bits, bits, 6);
}

// Two codes of E4M3, for an even or odd register, out of a word of four: sign, exponent and mantissa where bf16 has their low
// bits.
HUNCH_DEVICE uint32_t f8_bits(uint32_t word, int odd) {
  return odd ? (word << 4 & 0x80f080f0u) | (word >> 4 & 0x07000700u) : word & 0x87f087f0u;
}
HUNCH_DEVICE uint32_t f8_place(uint32_t code, int odd, int half) {
  const uint32_t bits = odd ? (code & 15) | (code & 112) << 8 | (code & 128) << 4 : (code & 127) << 4 | (code & 128) << 8;
  return bits << (16 * half);
}

// Element (feature < 64, input < record's inputs) of a coded record: dequantise_row's, of scales as the record has them.
template <DType kType>
__device__ float coded_element(const std::byte* record, int feature, int input) {
  constexpr RecordShape kShape = record_shape(kType);
  const PackedPosition at = position_of(feature, input);
  const int row = feature / 16 * 8 + feature % 8, below = feature % 16 / 8, block = input % 64 / 32;  // [32][2]
  const std::byte* scales = record + kShape.scales + (at.part * 32 + row) * pair_scale_bytes(kType);
  if constexpr (has_byte_codes(kType)) {
    const uint32_t word =
        word_at(record + (((at.part * 2 + at.step / 2) * 128 + at.thread) * 4 + 2 * (at.step % 2) + at.reg / 2) * 4);
    if constexpr (kType == DType::F8_E4M3) {
      const auto* two = reinterpret_cast<const __nv_bfloat16*>(scales) + below * 2;
      const float value = __uint_as_float(f8_bits(word, at.reg % 2) >> (16 * at.half) << 16);
      return value * 0x1p22f * __bfloat162float(two[0]) + value * 0x1p22f * __bfloat162float(two[1]);
    }
    const int code = int(word >> (8 * (2 * (at.reg % 2) + at.half)) & 255) - 128;
    return half_at(scales + (below * 2 + block) * 2) * float(code);
  } else {
    constexpr int kMore = kType == DType::Q6_K ? 2 : 1;  // words
    const auto word = [&](int i) {
      return word_at(i < 4 ? record + ((at.part * 128 + at.thread) * 4 + i) * 4
                           : record + kShape.high + ((at.part * 128 + at.thread) * kMore + i - 4) * 4);
    };
    if constexpr (kType == DType::MXFP4) {
      const uint32_t bits = mxfp4_bits(word(at.step), at.reg) >> (16 * at.half);
      const int exponent = int(bits >> 7 & 3), mantissa = int(bits >> 6 & 1);
      const int doubled = exponent ? (2 + mantissa) << (exponent - 1) : mantissa;
      const uint32_t scale = *reinterpret_cast<const uint16_t*>(scales + (below * 2 + block) * 2);
      return __uint_as_float(scale << 16) * 0x1p-105f * float(bits & 0x8000 ? -doubled : doubled);
    }
    const int reg = 4 * at.step + at.reg;
    uint32_t code = 0;
    for (int i = 0; i < code_pieces(kType, reg); ++i) {
      const CodePiece piece = code_piece(kType, reg, i);
      code |= (word(piece.word) >> (piece.from + 16 * at.half) & ((1u << piece.bits) - 1)) << piece.to;
    }
    if constexpr (kType == DType::Q4_0) return half_at(scales + (below * 2 + block) * 2) * float(int(code) - 8);
    const auto* k_scales = reinterpret_cast<const __nv_bfloat16*>(scales) + below * 4;
    const auto scale = [&](int i) { return __bfloat162float(k_scales[i]) / code_scale(kType, below); };
    if constexpr (kType == DType::Q6_K) return scale(at.step) * float(int(code) - 32);
    return scale(2 * block) * float(code) + __bfloat162float(k_scales[2 * block + 1]) * unit_of(kType);
  }
}

}
