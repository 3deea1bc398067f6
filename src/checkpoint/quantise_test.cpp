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
