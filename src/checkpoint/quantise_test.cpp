// Encodings against blocks recorded with the gguf package (tests/data/checkpoint/make_blocks.py), and the quality of Q4_K.
#include "checkpoint/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/tiny_model.h"

namespace hunch {
namespace {

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> out;
  for (size_t i = 0; i < hex.size(); i += 2) out.push_back(std::byte(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

nlohmann::json recorded() { return nlohmann::json::parse(std::ifstream(HUNCH_TEST_DATA "/checkpoint/blocks.json")); }

double relative_rms(const std::vector<float>& x, DType dtype) {
  std::vector<std::byte> packed(dtype_bytes(dtype, x.size()));
  std::vector<float> back(x.size());
  quantise_row(dtype, x.data(), packed.data(), int64_t(x.size()));
  dequantise_row(dtype, packed.data(), back.data(), int64_t(x.size()));
  double off = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) off += std::pow(double(back[i]) - x[i], 2), all += std::pow(double(x[i]), 2);
  return std::sqrt(off / all);
}

TEST(Quantise, DecodesEveryBlockTypeToTheRecordedBits) {
  int cases = 0;
  const auto all = recorded();
  for (const auto& entry : all["decode"]) {
    const auto dtype = dtype_named(entry["type"].get<std::string>());
    ASSERT_TRUE(dtype);
    const auto blocks = from_hex(entry["blocks"]), expected = from_hex(entry["values"]);
    std::vector<float> values(expected.size() / 4);
    dequantise_row(*dtype, blocks.data(), values.data(), int64_t(values.size()));
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size()), 0) << entry["type"];
    ++cases;
  }
  EXPECT_EQ(cases, 5);
}

TEST(Quantise, EncodesQ8AndQ4ToTheRecordedBytes) {
  const auto all = recorded();
  for (const auto& entry : all["encode"]) {
    const auto dtype = dtype_named(entry["type"].get<std::string>());
    ASSERT_TRUE(dtype);
    const auto expected = from_hex(entry["blocks"]), bytes = from_hex(entry["values"]);
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    std::vector<std::byte> packed(expected.size());
    quantise_row(*dtype, values.data(), packed.data(), int64_t(values.size()));
    EXPECT_EQ(packed, expected) << entry["type"];
  }
}

TEST(Quantise, Q4KLosesLessThanQ40OnTheSameRow) {
  std::vector<float> x = tiny::values(4096, 3);
  EXPECT_LT(relative_rms(x, DType::Q4_K), 0.95 * relative_rms(x, DType::Q4_0));
  EXPECT_LT(relative_rms(x, DType::Q8_0), 0.01);
  for (float& value : x) value += 0.8f;  // one-sided rows are what the minimum is for
  EXPECT_LT(relative_rms(x, DType::Q4_K), 0.6 * relative_rms(x, DType::Q4_0));
}

TEST(Quantise, Q4KKeepsRowsThatItCanRepresent) {
  EXPECT_EQ(relative_rms(std::vector<float>(256, -1.f), DType::Q4_K) < 1e-3, true);
  std::vector<float> ramp(256);
  for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = float(i % 16) - 4;
  EXPECT_LT(relative_rms(ramp, DType::Q4_K), 2e-3);
}

// The format by its definition (OCP 8-bit floating point, 2023): no infinity, one NaN a sign, subnormals.
TEST(Quantise, Fp8CodesAreTheirDefinition) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    const std::byte in{uint8_t(code)};
    float value;
    dequantise_row(DType::F8_E4M3, &in, &value, 1);
    if ((code & 127) == 127) EXPECT_TRUE(std::isnan(value)) << code;
    else EXPECT_EQ(value, code & 128 ? -magnitude : magnitude) << code;
    EXPECT_EQ(std::signbit(value), code > 127) << code;
  }
}

TEST(Quantise, Fp8IsTheNearestCodeWithTiesToTheEvenOne) {
  for (int code = 0; code < 126; ++code) {
    const std::byte pair[] = {std::byte(code), std::byte(code + 1)};
    float low_high[2];
    dequantise_row(DType::F8_E4M3, pair, low_high, 2);
    const float middle = (low_high[0] + low_high[1]) / 2;
    const float x[] = {low_high[0], std::nextafter(middle, 0.f), middle, std::nextafter(middle, 500.f),
                       -std::nextafter(middle, 0.f)};
    std::byte got[5];
    quantise_row(DType::F8_E4M3, x, got, 5);
    EXPECT_EQ(int(got[0]), code);
    EXPECT_EQ(int(got[1]), code);
    EXPECT_EQ(int(got[2]), code + code % 2);
    EXPECT_EQ(int(got[3]), code + 1);
    EXPECT_EQ(int(got[4]), code + 128);
  }
  const float past[] = {449, 1e30f, -1e30f};
  std::byte got[3];
  quantise_row(DType::F8_E4M3, past, got, 3);
  EXPECT_EQ(int(got[0]), 126);
  EXPECT_EQ(int(got[1]), 126);
  EXPECT_EQ(int(got[2]), 254);
}

TEST(Quantise, RowsOfFp8TakeTheScaleOfTheirBlock) {
  const std::vector<std::byte> ones(130 * 260, std::byte(0x38));  // 1.0
  const std::vector<float> scales{1, 2, 3, 4, 5, 6};
  Tensor matrix{.dtype = DType::F8_E4M3, .shape = {130, 260}, .data = ones.data(), .bytes = ones.size()};
  matrix.scales = {scales.data(), 128, 128};
  for (const int64_t row : {0, 127, 128, 129}) {
    std::vector<float> out(260);
    dequantise_row(matrix, row, out.data());
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], scales[size_t(row) / 128 * 3 + i / 128]) << row << " " << i;
  }
}

TEST(Quantise, ZeroRowsAndTinyScalesStayFinite) {
  for (const DType dtype : {DType::Q8_0, DType::Q4_0, DType::Q4_K})
    for (const float scale : {0.f, 1e-42f, 1e-38f, 1e-20f}) {
      std::vector<float> x = tiny::values(256, 9);
      for (float& value : x) value *= scale;
      std::vector<std::byte> packed(dtype_bytes(dtype, 256));
      quantise_row(dtype, x.data(), packed.data(), 256);
      dequantise_row(dtype, packed.data(), x.data(), 256);
      for (const float value : x) EXPECT_LE(std::fabs(value), 1e-7f) << dtype_info(dtype).name << " " << scale;
    }
}

}  // namespace
}  // namespace hunch
