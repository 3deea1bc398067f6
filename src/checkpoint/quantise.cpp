// Block encodings, written for clarity: these loops define what the words in quantise.h mean.
#include "checkpoint/quantise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/failure.h"
#include "base/half.h"

namespace hunch {
namespace {

using enum DType;

uint8_t u8(std::byte b) { return std::to_integer<uint8_t>(b); }

uint16_t load_u16(const std::byte* at) {
  uint16_t value;
  std::memcpy(&value, at, 2);
  return value;
}

void store_u16(std::byte* at, uint16_t value) { std::memcpy(at, &value, 2); }

constexpr int kGroups = 8, kGroup = 32;  // of a Q4_K block

struct SixBits {
  uint8_t scale, min;
};

// Q4_K's 12 bytes: groups 0..3 have scale and minimum in the low 6 bits of bytes g and g + 4; groups 4..7 have their low 4 bits
// in byte g + 4 (scale low nibble, minimum high) and their upper 2 bits in the top of bytes g - 4 and g.
SixBits unpack_scales(const std::byte* s, int g) {
  if (g < 4) return {uint8_t(u8(s[g]) & 63), uint8_t(u8(s[g + 4]) & 63)};
  return {uint8_t((u8(s[g + 4]) & 15) | ((u8(s[g - 4]) >> 6) << 4)), uint8_t((u8(s[g + 4]) >> 4) | ((u8(s[g]) >> 6) << 4))};
}

void pack_scales(const std::array<SixBits, kGroups>& groups, std::byte* s) {
  for (int g = 0; g < 4; ++g) {
    s[g] = std::byte(groups[g].scale | ((groups[g + 4].scale >> 4) << 6));
    s[g + 4] = std::byte(groups[g].min | ((groups[g + 4].min >> 4) << 6));
    s[g + 8] = std::byte((groups[g + 4].scale & 15) | ((groups[g + 4].min & 15) << 4));
  }
}

void dequantise_q8_0(const std::byte* in, float* out) {
  const float d = f16_to_f32(load_u16(in));
  for (int i = 0; i < 32; ++i) out[i] = d * float(int8_t(u8(in[2 + i])));
}

void dequantise_q4_0(const std::byte* in, float* out) {
  const float d = f16_to_f32(load_u16(in));
  for (int i = 0; i < 16; ++i) {
    out[i] = d * float(int(u8(in[2 + i]) & 15) - 8);
    out[i + 16] = d * float(int(u8(in[2 + i]) >> 4) - 8);
  }
}

float mxfp4_scale(std::byte e) { return std::ldexp(1.0f, int(u8(e)) - 128); }

void dequantise_mxfp4(const std::byte* in, float* out) {
  const float d = mxfp4_scale(in[0]);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * float(kMxfp4Doubled[u8(in[1 + i]) & 15]);
    out[i + 16] = d * float(kMxfp4Doubled[u8(in[1 + i]) >> 4]);
  }
}

// Nibbles: 4 runs of 32 bytes, a run holds group 2r in its low nibbles and group 2r + 1 in its high ones. Q5_K has the fifth bit
// of group g in bit g of 32 bytes before them.
template <bool kFifth>
void dequantise_k(const std::byte* in, float* out) {
  const float d = f16_to_f32(load_u16(in)), dmin = f16_to_f32(load_u16(in + 2));
  const std::byte *high = in + 16, *nibbles = high + (kFifth ? kGroup : 0);
  for (int g = 0; g < kGroups; ++g) {
    const SixBits six = unpack_scales(in + 4, g);
    const float scale = d * float(six.scale), min = dmin * float(six.min);
    for (int i = 0; i < kGroup; ++i) {
      const int code = ((u8(nibbles[g / 2 * kGroup + i]) >> (g % 2 * 4)) & 15) | (kFifth ? ((u8(high[i]) >> g) & 1) << 4 : 0);
      out[g * kGroup + i] = scale * float(code) - min;
    }
  }
}

// Halves of 128: group of 32 number g of a half has its low nibbles in 64 bytes (g & 1 chooses 32 of them, g >> 1 the nibble) and
// its two high bits in 32 bytes at shift 2 g; one int8 scale per 16 elements.
void dequantise_q6_k(const std::byte* in, float* out) {
  const std::byte *low = in, *high = in + 128, *scales = in + 192;
  const float d = f16_to_f32(load_u16(in + 208));
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, g = i % 128 / 32, lane = i % 32;
    const int nibble = (u8(low[half * 64 + (g & 1) * 32 + lane]) >> (g >> 1) * 4) & 15;
    const int top = (u8(high[half * 32 + lane]) >> 2 * g) & 3;
    out[i] = d * float(int8_t(u8(scales[i / 16]))) * float((nibble | top << 4) - 32);
  }
}

void quantise_q8_0(const float* in, std::byte* out) {
  float most = 0;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(in[i]));
  const float d = most / 127, inverse = d == 0 ? 0 : 1 / d;
  store_u16(out, f32_to_f16(d));
  // A subnormal scale has an infinite inverse; the clamp keeps the cast defined.
  for (int i = 0; i < 32; ++i)
    out[2 + i] = std::byte(int8_t(std::isfinite(inverse) ? std::clamp(std::round(in[i] * inverse), -127.f, 127.f) : 0.f));
}

// The element of largest magnitude, with its sign, becomes -8: the one value that has no positive counterpart is used.
void quantise_q4_0(const float* in, std::byte* out) {
  // Loops that compilers vectorise: magnitudes compare as their bits do.
  const auto magnitude = [](float x) { return std::bit_cast<int32_t>(x) & 0x7fffffff; };
  int32_t greatest = 0;
  for (int i = 0; i < 32; ++i) greatest = std::max(greatest, magnitude(in[i]));
  const float most = greatest == 0 ? 0 : *std::find_if(in, in + 32, [&](float x) { return magnitude(x) == greatest; });
  const float d = most / -8, inverse = d == 0 ? 0 : 1 / d;
  store_u16(out, f32_to_f16(d));
  int32_t codes[32];
  if (!std::isfinite(inverse)) std::fill(codes, codes + 32, 8);
  else
    for (int i = 0; i < 32; ++i) codes[i] = int32_t(std::min(std::max(in[i] * inverse + 8.5f, 0.f), 15.f));
  for (int i = 0; i < 16; ++i) out[2 + i] = std::byte(codes[i] | codes[i + 16] << 4);
}

// The exponent puts the greatest magnitude between 4 and 8: what is past 6 becomes that. Ties to the code that comes first.
void quantise_mxfp4(const float* in, std::byte* out) {
  float most = 0;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(in[i]));
  out[0] = std::byte(most > 0 ? std::clamp(int(std::floor(std::log2(most))) + 125, 0, 254) : 0);
  const float d = mxfp4_scale(out[0]);
  const auto code = [&](float x) {
    int best = 0;
    for (int c = 1; c < 16; ++c)
      if (std::fabs(d * float(kMxfp4Doubled[c]) - x) < std::fabs(d * float(kMxfp4Doubled[best]) - x)) best = c;
    return best;
  };
  for (int i = 0; i < 16; ++i) out[1 + i] = std::byte(code(in[i]) | code(in[i + 16]) << 4);
}

// x is approximated by scale * code - min with codes 0..15 and min >= 0.
struct GroupFit {
  float scale = 0, min = 0;
};

// Importance of an element: products are dominated by large weights.
float importance(float x, float mean_square) { return std::sqrt(mean_square) + std::fabs(x); }

// The code nearest to v, 0..15. Adding 1.5 * 2^23 rounds to an integer without a call, so the loops below vectorise.
float code_of(float v) {
  constexpr float kRound = 0x1.8p23f;
  return std::min(std::max(v, 0.f), 15.f) + kRound - kRound;
}

// Sums over a group for the codes at (scale, min), in 8 lanes.
struct GroupSums {
  float c, cc, cx, error;  // w c, w c c, w c x, w (scale c - min - x)^2
};

GroupSums sum_group(const float* x, const float* w, float scale, float min) {
  constexpr int kLanes = 8;
  float c_sum[kLanes]{}, cc_sum[kLanes]{}, cx_sum[kLanes]{}, error_sum[kLanes]{};
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (int i = 0; i < kGroup; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = x[i + lane], weight = w[i + lane], c = code_of((value + min) * inverse), off = scale * c - min - value;
      c_sum[lane] += weight * c;
      cc_sum[lane] += weight * c * c;
      cx_sum[lane] += weight * c * value;
      error_sum[lane] += weight * off * off;
    }
  GroupSums out{};
  for (int lane = 0; lane < kLanes; ++lane)
    out.c += c_sum[lane], out.cc += cc_sum[lane], out.cx += cx_sum[lane], out.error += error_sum[lane];
  return out;
}

// Weighted least squares of scale and min for the codes of several trial scales; the best wins. For given codes c the error
// sum w (scale c - min - x)^2 is quadratic in (scale, min): two normal equations.
GroupFit fit_group(const float* x, const float* w) {
  float low = x[0], high = x[0];
  double w_sum = 0, x_sum = 0;
  for (int i = 0; i < kGroup; ++i) {
    low = std::min(low, x[i]), high = std::max(high, x[i]);
    w_sum += w[i], x_sum += double(w[i]) * x[i];
  }
  low = std::min(low, 0.f);  // the minimum is stored unsigned
  if (high <= low) return {0, -low};
  GroupFit best{(high - low) / 15, -low};
  float best_error = sum_group(x, w, best.scale, best.min).error;
  for (int trial = 0; trial <= 8; ++trial) {
    // Trial ranges from 14 to 18 steps over the span: a little clipping of the extremes often pays.
    float scale = (high - low) / (14 + 0.5f * float(trial)), min = -low;
    for (int pass = 0; pass < 3; ++pass) {
      const GroupSums sums = sum_group(x, w, scale, min);
      if (sums.error < best_error) best_error = sums.error, best = {scale, min};
      const double det = w_sum * sums.cc - double(sums.c) * sums.c;
      if (det <= 0) break;
      double next_scale = (w_sum * sums.cx - sums.c * x_sum) / det, next_min = (double(sums.c) * sums.cx - sums.cc * x_sum) / det;
      if (next_min < 0) next_min = 0, next_scale = double(sums.cx) / sums.cc;
      if (!(next_scale > 0)) break;
      scale = float(next_scale), min = float(next_min);
    }
  }
  return best;
}

void quantise_q4_k(const float* in, std::byte* out) {
  std::array<float, kGroups * kGroup> weight;
  std::array<GroupFit, kGroups> fit;
  float most_scale = 0, most_min = 0;
  for (int g = 0; g < kGroups; ++g) {
    const float* x = in + g * kGroup;
    float square = 0;
    for (int i = 0; i < kGroup; ++i) square += x[i] * x[i];
    for (int i = 0; i < kGroup; ++i) weight[g * kGroup + i] = importance(x[i], square / kGroup);
    fit[g] = fit_group(x, &weight[g * kGroup]);
    most_scale = std::max(most_scale, fit[g].scale), most_min = std::max(most_min, fit[g].min);
  }
  const uint16_t d_bits = f32_to_f16(most_scale / 63), dmin_bits = f32_to_f16(most_min / 63);
  const float d = f16_to_f32(d_bits), dmin = f16_to_f32(dmin_bits);
  std::array<SixBits, kGroups> six{};
  store_u16(out, d_bits), store_u16(out + 2, dmin_bits);
  std::fill(out + 16, out + 144, std::byte(0));
  for (int g = 0; g < kGroups; ++g) {
    const float *x = in + g * kGroup, *w = &weight[g * kGroup];
    // Rounding scale and minimum to 6 bits separately is not optimal: the neighbours are tried together.
    const int s0 = d > 0 ? int(std::lround(fit[g].scale / d)) : 0, m0 = dmin > 0 ? int(std::lround(fit[g].min / dmin)) : 0;
    float best_error = INFINITY;
    for (int s = std::clamp(s0 - 1, 0, 63); s <= std::clamp(s0 + 1, 0, 63); ++s)
      for (int m = std::clamp(m0 - 1, 0, 63); m <= std::clamp(m0 + 1, 0, 63); ++m)
        if (const float error = sum_group(x, w, d * float(s), dmin * float(m)).error; error < best_error)
          best_error = error, six[g] = {uint8_t(s), uint8_t(m)};
    const float scale = d * six[g].scale, min = dmin * six[g].min, inverse = scale > 0 ? 1 / scale : 0;
    for (int i = 0; i < kGroup; ++i) {
      const int code = int(code_of((x[i] + min) * inverse));
      out[16 + g / 2 * kGroup + i] |= std::byte(code << (g % 2 * 4));
    }
  }
  pack_scales(six, out + 4);
}

}

void dequantise_row(DType dtype, const std::byte* in, float* out, int64_t count) {
  const DTypeInfo info = dtype_info(dtype);
  HUNCH_CHECK(count % info.block == 0);
  switch (dtype) {
    case F32: std::memcpy(out, in, count * 4); return;
    case F16:
      for (int64_t i = 0; i < count; ++i) out[i] = f16_to_f32(load_u16(in + 2 * i));
      return;
    case BF16:
      for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_f32(load_u16(in + 2 * i));
      return;
    case F8_E4M3:
      for (int64_t i = 0; i < count; ++i) out[i] = f8_to_f32(u8(in[i]));
      return;
    default: break;
  }
  for (int64_t at = 0; at < count; at += info.block, in += info.block_bytes, out += info.block) {
    if (dtype == Q8_0) dequantise_q8_0(in, out);
    if (dtype == Q4_0) dequantise_q4_0(in, out);
    if (dtype == Q4_K) dequantise_k<false>(in, out);
    if (dtype == Q5_K) dequantise_k<true>(in, out);
    if (dtype == Q6_K) dequantise_q6_k(in, out);
    if (dtype == MXFP4) dequantise_mxfp4(in, out);
  }
}

void dequantise_row(const Tensor& matrix, int64_t row, float* out) {
  const int64_t columns = matrix.shape.back();
  if (matrix.split.scales) {
    std::vector<std::byte> blocks(dtype_bytes(matrix.dtype, columns));
    pack_blocks(matrix, row, blocks.data());
    return dequantise_row(matrix.dtype, blocks.data(), out, columns);
  }
  dequantise_row(matrix.dtype, matrix.data + row * dtype_bytes(matrix.dtype, columns), out, columns);
  const WeightScales& s = matrix.scales;
  if (!s.values) return;
  const float* scale = s.values + row / s.rows * ((columns + s.columns - 1) / s.columns);
  for (int64_t first = 0; first < columns; first += s.columns, ++scale)
    for (int64_t i = first; i < std::min(columns, first + s.columns); ++i) out[i] = *scale * out[i];
}

Status check_values(const Tensor& tensor) {
  std::vector<float> row(tensor.shape.back());
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  for (int64_t r = 0; tensor.data && r < rows; ++r) {
    dequantise_row(tensor, r, row.data());
    const auto bad = std::ranges::find_if(row, [](float x) { return !std::isfinite(x); });
    if (bad != row.end())
      return failure("tensor {}: element {} of row {} is {}: the file is damaged, fetch or convert it again", tensor.name,
          bad - row.begin(), r, *bad);
  }
  return {};
}

void pack_blocks(const Tensor& matrix, int64_t row, std::byte* out) {
  const int64_t columns = matrix.shape.back();
  if (!matrix.split.scales) {
    const size_t bytes = dtype_bytes(matrix.dtype, columns);
    std::memcpy(out, matrix.data + row * bytes, bytes);
    return;
  }
  const std::byte *codes = matrix.data + row * matrix.split.step * (columns / 2),
                  *scales = matrix.split.scales + row * matrix.split.step * (columns / 32);
  for (int64_t b = 0; b < columns / 32; ++b, codes += 16, out += 17) {
    out[0] = scales[b];
    for (int i = 0; i < 16; ++i) {  // elements i and i + 16 out of pairs 2j, 2j + 1
      const int shift = i % 2 * 4;
      out[1 + i] = std::byte((u8(codes[i / 2]) >> shift & 15) | (u8(codes[8 + i / 2]) >> shift & 15) << 4);
    }
  }
}

bool can_quantise(DType dtype) { return dtype != Q5_K && dtype != Q6_K && dtype != I16; }

void quantise_row(DType dtype, const float* in, std::byte* out, int64_t count) {
  const DTypeInfo info = dtype_info(dtype);
  HUNCH_CHECK(can_quantise(dtype) && count % info.block == 0);
  switch (dtype) {
    case F32: std::memcpy(out, in, count * 4); return;
    case F16:
      for (int64_t i = 0; i < count; ++i) store_u16(out + 2 * i, f32_to_f16(in[i]));
      return;
    case BF16:
      for (int64_t i = 0; i < count; ++i) store_u16(out + 2 * i, f32_to_bf16(in[i]));
      return;
    case F8_E4M3:
      for (int64_t i = 0; i < count; ++i) out[i] = std::byte(f32_to_f8(in[i]));
      return;
    default: break;
  }
  for (int64_t at = 0; at < count; at += info.block, in += info.block, out += info.block_bytes) {
    if (dtype == Q8_0) quantise_q8_0(in, out);
    if (dtype == Q4_0) quantise_q4_0(in, out);
    if (dtype == Q4_K) quantise_q4_k(in, out);
    if (dtype == MXFP4) quantise_mxfp4(in, out);
  }
}

}
