// Plain loops over 4-byte words: packing runs at memory speed on any instruction set.
#include "backend/cpu/weights.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "checkpoint/quantise.h"

namespace hunch {
namespace {

constexpr int kStep = 4 * kPanelColumns;         // bytes
constexpr int kPair = 2 * kPanelColumns;         // bytes of one f16 per column
constexpr size_t kScaleRow = 4 * kPanelColumns;  // bytes of one f32 per column
constexpr float kScaleUnit = 256;
constexpr size_t kBlock8 = 8 * kStep + kPair, kBlock4 = 4 * kStep + kPair;
constexpr size_t kBlock5 = 5 * kStep + kPair, kBlock6 = 6 * kStep + kPair;
constexpr size_t kSuper4 = 2 * kPair + 8 * kBlock4, kSuper5 = 2 * kPair + 8 * kBlock5, kSuper6 = kPair + 8 * kBlock6;

uint32_t load_u32(const std::byte* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}
void store_u32(std::byte* p, uint32_t word) { std::memcpy(p, &word, 4); }
uint16_t load_u16(const std::byte* p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  return half;
}
float load_f16(const std::byte* p) { return f16_to_f32(load_u16(p)); }

// Scale and minimum of group j of a Q4_K or Q5_K block: 6 bits each in 12 bytes; groups 4..7 keep their high bits in the first 8
// bytes.
void six_bit_scale(const std::byte* s, int j, uint8_t& scale, uint8_t& min) {
  const auto at = [&](int i) { return uint8_t(s[i]); };
  scale = j < 4 ? at(j) & 63 : uint8_t((at(j + 4) & 15) | (at(j - 4) >> 6) << 4);
  min = j < 4 ? at(j + 4) & 63 : uint8_t((at(j + 4) >> 4) | (at(j) >> 6) << 4);
}

// A transposition in tiles of 16 inputs: whole cache lines of the source, and a target that stays in L1.
template <class T>
void pack_elements(const std::byte* rows, int columns, int64_t k, std::byte* panel) {
  constexpr int64_t kTile = 16;
  T tile[kTile][kPanelColumns] = {};
  for (int64_t first = 0; first < k; first += kTile) {
    const int64_t n = k - first < kTile ? k - first : kTile;
    for (int c = 0; c < columns; ++c) {
      T inputs[kTile] = {};
      std::memcpy(inputs, rows + size_t(c * k + first) * sizeof(T), n * sizeof(T));
      for (int64_t i = 0; i < kTile; ++i) tile[i][c] = inputs[i];
    }
    std::memcpy(panel + first * sizeof(tile[0]), tile, n * sizeof(tile[0]));
  }
}

void pack_q8_0(const std::byte* row, int c, int64_t k, std::byte* to) {
  for (int64_t b = 0; b < k / 32; ++b, row += 34, to += kBlock8) {
    for (int j = 0; j < 8; ++j) store_u32(to + j * kStep + 4 * c, load_u32(row + 2 + 4 * j) ^ 0x80808080u);
    std::memcpy(to + 8 * kStep + 2 * c, row, 2);
  }
}

void pack_q4_0(const std::byte* row, int c, int64_t k, std::byte* to) {
  for (int64_t b = 0; b < k / 32; ++b, row += 18, to += kBlock4) {
    for (int j = 0; j < 4; ++j) std::memcpy(to + j * kStep + 4 * c, row + 2 + 4 * j, 4);
    std::memcpy(to + 4 * kStep + 2 * c, row, 2);
  }
}

// `row`: GGUF's blocks.
void pack_mxfp4(const std::byte* row, int c, int64_t k, std::byte* to) {
  for (int64_t b = 0; b < k / 32; ++b, row += 17, to += kBlock4) {
    for (int j = 0; j < 4; ++j) std::memcpy(to + j * kStep + 4 * c, row + 1 + 4 * j, 4);
    const uint16_t d = f32_to_bf16(std::ldexp(1.0f, int(row[0]) - 128));
    std::memcpy(to + 4 * kStep + 2 * c, &d, 2);
  }
}

// The 32 codes of a column in one block: nibbles (inputs 4j.. low, 16 + 4j.. high), then the bits above them.
template <int kHighBits>
void store_codes(const uint32_t (&codes)[8], int c, std::byte* block) {
  for (int j = 0; j < 4; ++j) store_u32(block + j * kStep + 4 * c, (codes[j] & 0x0f0f0f0fu) | (codes[4 + j] & 0x0f0f0f0fu) << 4);
  if constexpr (kHighBits == 0) return;
  uint32_t high[2] = {};
  for (int j = 0; j < 8; ++j) {
    const uint32_t top = codes[j] >> 4 & 0x03030303u;
    if constexpr (kHighBits == 1) high[0] |= top << j;
    else high[j / 4] |= top << 2 * (j % 4);
  }
  for (int h = 0; h < kHighBits; ++h) store_u32(block + (4 + h) * kStep + 4 * c, high[h]);
}

// Q4_K and Q5_K.
template <bool kFive>
void pack_with_minimum(const std::byte* row, int c, int64_t k, std::byte* to) {
  constexpr size_t kBlock = kFive ? kBlock5 : kBlock4;
  for (int64_t s = 0; s < k / 256; ++s, row += kFive ? 176 : 144, to += 2 * kPair + 8 * kBlock) {
    std::memcpy(to + 2 * c, row, 2);
    std::memcpy(to + kPair + 2 * c, row + 2, 2);
    for (int b = 0; b < 8; ++b) {
      // The file keeps group 2i in the low and 2i + 1 in the high nibbles of 32 bytes; here a group has 16 bytes of its own.
      const std::byte* from = row + (kFive ? 48 : 16) + 32 * (b / 2);
      std::byte* block = to + 2 * kPair + size_t(b) * kBlock;
      uint32_t codes[8];
      for (int j = 0; j < 8; ++j) {
        codes[j] = load_u32(from + 4 * j) >> (4 * (b % 2)) & 0x0f0f0f0fu;
        if constexpr (kFive) codes[j] |= (load_u32(row + 16 + 4 * j) >> b & 0x01010101u) << 4;
      }
      store_codes<kFive ? 1 : 0>(codes, c, block);
      uint8_t scale, min;
      six_bit_scale(row + 4, b, scale, min);
      std::byte* scales = block + kBlock - kPair;
      scales[c] = std::byte(scale);
      scales[kPanelColumns + c] = std::byte(min);
    }
  }
}

void pack_q6_k(const std::byte* row, int c, int64_t k, std::byte* to) {
  for (int64_t s = 0; s < k / 256; ++s, row += 210, to += kSuper6) {
    std::memcpy(to + 2 * c, row + 208, 2);
    for (int b = 0; b < 8; ++b) {
      // In each half of 128 inputs, quarter q = b % 4 has its low nibbles at 32 (q % 2), shifted by 4 (q / 2), and its two high
      // bits in bits 2q, 2q + 1 of the 32 high bytes.
      const int quarter = b % 4;
      const std::byte* low = row + 64 * (b / 4) + 32 * (quarter % 2);
      const std::byte* high = row + 128 + 32 * (b / 4);
      std::byte* block = to + kPair + size_t(b) * kBlock6;
      uint32_t codes[8];
      for (int j = 0; j < 8; ++j) {
        const uint32_t nibbles = load_u32(low + 4 * j) >> (4 * (quarter / 2)) & 0x0f0f0f0fu;
        codes[j] = nibbles | (load_u32(high + 4 * j) >> (2 * quarter) & 0x03030303u) << 4;
      }
      store_codes<2>(codes, c, block);
      block[6 * kStep + c] = row[192 + 2 * b];
      block[6 * kStep + kPanelColumns + c] = row[192 + 2 * b + 1];
    }
  }
}

// Bytes of a group of n <= 128 inputs of FP8.
constexpr size_t f8_group_bytes(int64_t n) { return kScaleRow + (size_t(n) * kPanelColumns + 63) / 64 * 64; }

void pack_f8(const Tensor& matrix, int64_t first, int columns, std::byte* to) {
  const int64_t k = matrix.shape[1];
  const WeightScales& s = matrix.scales;
  for (int64_t begin = 0; begin < k; begin += kScaleGroup) {
    const int64_t n = std::min(kScaleGroup, k - begin);
    for (int c = 0; c < columns; ++c) {
      const std::byte* row = matrix.data + (first + c) * k + begin;
      float scale = !s.values ? 1 : s.values[(first + c) / s.rows * ((k + s.columns - 1) / s.columns) + begin / s.columns];
      for (int64_t i = 0; i < n; ++i) {
        // The kernel takes 0x7f for a number: what a NaN does to a sum, its group's scale does.
        if ((row[i] & std::byte(127)) == std::byte(127)) scale = NAN;
        to[kScaleRow + size_t(i) * kPanelColumns + size_t(c)] = row[i];
      }
      scale *= kScaleUnit;
      std::memcpy(to + 4 * c, &scale, 4);
    }
    to += f8_group_bytes(n);
  }
}

// Input i of column c in a block of 8-bit codes, of 4-bit codes, and of codes with `kHighBits` bits above the nibble.
int code8(const std::byte* block, int c, int i) { return int(block[i / 4 * kStep + 4 * c + i % 4]); }
int code4(const std::byte* block, int c, int i) {
  return int(block[i % 16 / 4 * kStep + 4 * c + i % 4]) >> (i < 16 ? 0 : 4) & 15;
}
template <int kHighBits>
int code_with_high_bits(const std::byte* block, int c, int i) {
  const int group = i / 4, vector = kHighBits == 1 ? 4 : 4 + group / 4, shift = kHighBits == 1 ? group : 2 * (group % 4);
  const int top = int(block[vector * kStep + 4 * c + i % 4]) >> shift & ((1 << kHighBits) - 1);
  return code4(block, c, i) | top << 4;
}

// Q4_K and Q5_K.
template <bool kFive>
void unpack_with_minimum(const std::byte* panel, int c, int64_t k, float* out) {
  constexpr size_t kBlock = kFive ? kBlock5 : kBlock4;
  for (int64_t b = 0; b < k / 32; ++b, out += 32) {
    const std::byte* super = panel + size_t(b / 8) * (2 * kPair + 8 * kBlock);
    const std::byte *block = super + 2 * kPair + size_t(b % 8) * kBlock, *scales = block + kBlock - kPair;
    const float scale = load_f16(super + 2 * c) * float(uint8_t(scales[c]));
    const float min = load_f16(super + kPair + 2 * c) * float(uint8_t(scales[kPanelColumns + c]));
    for (int i = 0; i < 32; ++i) out[i] = scale * float(kFive ? code_with_high_bits<1>(block, c, i) : code4(block, c, i)) - min;
  }
}

}

size_t panel_bytes(DType dtype, int64_t k) {
  HUNCH_CHECK(k % dtype_info(dtype).block == 0);
  switch (dtype) {
    case DType::F32: return size_t(k) * kPanelColumns * 4;
    case DType::F16:
    case DType::BF16: return size_t(k) * kPanelColumns * 2;
    case DType::Q8_0: return size_t(k / 32) * kBlock8;
    case DType::Q4_0:
    case DType::MXFP4: return size_t(k / 32) * kBlock4;
    case DType::Q4_K: return size_t(k / 256) * kSuper4;
    case DType::Q5_K: return size_t(k / 256) * kSuper5;
    case DType::Q6_K: return size_t(k / 256) * kSuper6;
    case DType::F8_E4M3: {
      const int64_t rest = k % kScaleGroup;
      return size_t(k / kScaleGroup) * f8_group_bytes(kScaleGroup) + (rest ? f8_group_bytes(rest) : 0);
    }
    case DType::I16: break;
  }
  HUNCH_CHECK(false);
}

void pack_panel(const Tensor& matrix, int64_t first, int columns, std::byte* panel) {
  const DType dtype = matrix.dtype;
  const int64_t k = matrix.shape[1];
  const std::byte* rows = matrix.data + size_t(first) * dtype_bytes(dtype, k);
  if (columns < kPanelColumns) std::memset(panel, 0, panel_bytes(dtype, k));
  if (dtype == DType::F32) return pack_elements<uint32_t>(rows, columns, k, panel);
  if (dtype == DType::F8_E4M3) return pack_f8(matrix, first, columns, panel);
  if (dtype == DType::F16 || dtype == DType::BF16) return pack_elements<uint16_t>(rows, columns, k, panel);
  if (dtype == DType::MXFP4) {
    std::vector<std::byte> blocks(dtype_bytes(dtype, k));
    for (int c = 0; c < columns; ++c) pack_blocks(matrix, first + c, blocks.data()), pack_mxfp4(blocks.data(), c, k, panel);
    return;
  }
  const auto pack = dtype == DType::Q8_0 ? pack_q8_0
      : dtype == DType::Q4_0             ? pack_q4_0
      : dtype == DType::Q4_K             ? pack_with_minimum<false>
      : dtype == DType::Q5_K             ? pack_with_minimum<true>
                                         : pack_q6_k;
  for (int c = 0; c < columns; ++c) pack(rows + size_t(c) * dtype_bytes(dtype, k), c, k, panel);
}

void unpack_column(DType dtype, const std::byte* panel, int c, int64_t k, float* out) {
  switch (dtype) {
    case DType::F32:
      for (int64_t i = 0; i < k; ++i) std::memcpy(out + i, panel + size_t(i * kPanelColumns + c) * 4, 4);
      return;
    case DType::F16:
      for (int64_t i = 0; i < k; ++i) out[i] = load_f16(panel + size_t(i * kPanelColumns + c) * 2);
      return;
    case DType::BF16:
      for (int64_t i = 0; i < k; ++i) out[i] = bf16_to_f32(load_u16(panel + size_t(i * kPanelColumns + c) * 2));
      return;
    case DType::Q8_0:
      for (int64_t b = 0; b < k / 32; ++b, panel += kBlock8, out += 32) {
        const float d = load_f16(panel + 8 * kStep + 2 * c);
        for (int i = 0; i < 32; ++i) out[i] = d * float(code8(panel, c, i) - 128);
      }
      return;
    case DType::Q4_0:
      for (int64_t b = 0; b < k / 32; ++b, panel += kBlock4, out += 32) {
        const float d = load_f16(panel + 4 * kStep + 2 * c);
        for (int i = 0; i < 32; ++i) out[i] = d * float(code4(panel, c, i) - 8);
      }
      return;
    case DType::MXFP4:
      for (int64_t b = 0; b < k / 32; ++b, panel += kBlock4, out += 32) {
        const float d = bf16_to_f32(load_u16(panel + 4 * kStep + 2 * c));
        for (int i = 0; i < 32; ++i) out[i] = d * float(kMxfp4Doubled[code4(panel, c, i)]);
      }
      return;
    case DType::Q4_K: return unpack_with_minimum<false>(panel, c, k, out);
    case DType::Q5_K: return unpack_with_minimum<true>(panel, c, k, out);
    case DType::Q6_K:
      for (int64_t b = 0; b < k / 32; ++b, out += 32) {
        const std::byte* super = panel + size_t(b / 8) * kSuper6;
        const std::byte* block = super + kPair + size_t(b % 8) * kBlock6;
        for (int i = 0; i < 32; ++i) {
          const float scale = load_f16(super + 2 * c) * float(int8_t(block[6 * kStep + i / 16 * kPanelColumns + c]));
          out[i] = scale * float(code_with_high_bits<2>(block, c, i) - 32);
        }
      }
      return;
    case DType::F8_E4M3:
      for (int64_t begin = 0; begin < k; begin += kScaleGroup) {
        const int64_t n = std::min(kScaleGroup, k - begin);
        float scale;
        std::memcpy(&scale, panel + 4 * c, 4);
        scale /= kScaleUnit;
        for (int64_t i = 0; i < n; ++i)
          out[begin + i] = scale * f8_to_f32(uint8_t(panel[kScaleRow + size_t(i) * kPanelColumns + size_t(c)]));
        panel += f8_group_bytes(n);
      }
      return;
    case DType::I16: return;
  }
}

}
