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

HUNCH_DEVICE float half_at(const std::byte* p) { return __half2float(*reinterpret_cast<const __half*>(p)); }
HUNCH_DEVICE uint32_t word_at(const std::byte* p) { return *reinterpret_cast<const uint32_t*>(p); }

// Codes of E4M3 are the bits of fp16 with an exponent's bias of 7 instead of 15. Here NaN codes are numbers: packing has made
// their scale NaN.
HUNCH_DEVICE float f8_value(uint32_t code) {
  return __half2float(__ushort_as_half(uint16_t((code & 128) << 8 | (code & 127) << 7))) * 256;
}

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

// Element (feature < 64, input < record's inputs) of a coded record: the bits of dequantise_row.
template <DType kType>
__device__ float coded_element(const std::byte* record, int feature, int input) {
  constexpr RecordShape kShape = record_shape(kType);
  const PackedPosition at = position_of(feature, input);
  const int row = feature / 16 * 8 + feature % 8, below = feature % 16 / 8, block = input % 64 / 32;  // [32][2]
  const std::byte* scales = record + kShape.scales + (at.part * 32 + row) * 8;
  if constexpr (has_byte_codes(kType)) {
    const std::byte* code = record + ((at.part * 2 + at.step / 2) * 128 + at.thread) * 16 + (2 * (at.step % 2) + at.reg / 2) * 4 +
        2 * (at.reg % 2) + at.half;
    if constexpr (kType == DType::F8_E4M3) return reinterpret_cast<const float*>(scales)[below] * f8_value(uint32_t(*code));
    return half_at(scales + (below * 2 + block) * 2) * float(int(uint8_t(*code)) - 128);
  } else {
    const uint32_t word = word_at(record + (at.part * 128 + at.thread) * 16 + at.step * 4);
    if constexpr (kType == DType::MXFP4) {
      const uint32_t bits = mxfp4_bits(word, at.reg) >> (16 * at.half);
      const int exponent = int(bits >> 7 & 3), mantissa = int(bits >> 6 & 1);
      const int doubled = exponent ? (2 + mantissa) << (exponent - 1) : mantissa;
      const uint32_t scale = *reinterpret_cast<const uint16_t*>(scales + (below * 2 + block) * 2);
      return __uint_as_float(scale << 16) * 0x1p-105f * float(bits & 0x8000 ? -doubled : doubled);
    }
    int code = word >> (4 * at.reg + 16 * at.half) & 15;
    if constexpr (kType == DType::Q4_0) return half_at(scales + (below * 2 + block) * 2) * float(code - 8);
    if constexpr (kType == DType::Q5_K)
      code |= (word_at(record + kShape.high + (at.part * 128 + at.thread) * 4) >> (4 * at.step + at.reg + 16 * at.half) & 1) << 4;
    if constexpr (kType == DType::Q6_K) {
      const uint32_t high = word_at(record + kShape.high + (at.part * 128 + at.thread) * 8 + at.step / 2 * 4);
      code |= (high >> (2 * (4 * (at.step % 2) + at.reg) + 16 * at.half) & 3) << 4;
      const float scale = half_at(record + kShape.super + (row * 2 + below) * 2) * float(int8_t(scales[below * 4 + at.step]));
      return scale * float(code - 32);
    }
    const std::byte* super = record + kShape.super + (row * 2 + below) * 4;
    const float scale = half_at(super) * float(uint8_t(scales[(below * 2 + block) * 2]));
    const float min = half_at(super + 2) * float(uint8_t(scales[(below * 2 + block) * 2 + 1]));
    return scale * float(code) - min;
  }
}

}
