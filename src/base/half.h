// Scalar conversions between fp32, fp16, bf16 and fp8 (E4M3): round to nearest even, NaN stays NaN. Kernels have their own vector
// forms.
#pragma once

#include <bit>
#include <cstdint>

namespace hunch {

inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(uint32_t(h) << 16); }

inline uint16_t f32_to_bf16(float f) {
  uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40);  // quiet the NaN
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa 2^-24 is exact in fp32
    const float magnitude = float(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t f32_to_f16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f), sign = (u >> 16) & 0x8000, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00);
  if (magnitude >= 0x47800000u) return uint16_t(sign | 0x7c00);  // at least 2^16
  if (magnitude < 0x38800000u) {                                 // below 2^-14: add 2^-1 so that the bits fall out rounded
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1)) >> 13));
}

inline float f8_to_f32(uint8_t code) {
  const uint32_t magnitude = code & 127u;
  if (magnitude == 127) return std::bit_cast<float>(uint32_t(code & 128u) << 24 | 0x7fc00000u);
  // The bits of fp16 with the exponent's bias of 15 instead of 7: 2^8 too small, subnormals included.
  return f16_to_f32(uint16_t((code & 128u) << 8 | magnitude << 7)) * 256;
}

// Values past the greatest, 448, become it; infinities too.
inline uint8_t f32_to_f8(float f) {
  constexpr float kMost = 448;
  const uint32_t u = std::bit_cast<uint32_t>(f), sign = (u >> 24) & 128, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint8_t(sign | 127);
  if (magnitude >= std::bit_cast<uint32_t>(kMost)) return uint8_t(sign | 126);
  if (magnitude < 0x3c800000u) {  // below 2^-6: steps of 2^-9; adding 2^14 lets the bits fall out rounded
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return uint8_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  return uint8_t(sign | ((magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1)) >> 20));
}

}
