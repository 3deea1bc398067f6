// Encodings against blocks recorded with the gguf package (models/golden/make_blocks.py), and the quality of Q4_K.
#include "checkpoint/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/test_results.h"
#include "checkpoint/tiny_model.h"

namespace hunch {
namespace {

using namespace tiny;

using enum DType;

using test::expect_part;

Bytes from_hex(const std::string& hex) {
  Bytes out;
  for (size_t i = 0; i < hex.size(); i += 2) out.push_back(std::byte(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

double relative_rms(const Floats& x, DType dtype) {
  const Bytes packed = encoded(dtype, x);
  Floats back(x.size());
  dequantise_row(dtype, packed.data(), back.data(), std::ssize(x));
  double off = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) off += std::pow(double(back[i]) - x[i], 2), all += std::pow(double(x[i]), 2);
  return std::sqrt(off / all);
}

struct Recorded {
  DType dtype;
  Bytes blocks;
  Floats values;
};
std::vector<Recorded> recorded(const char* which) {
  const auto all = nlohmann::json::parse(std::ifstream(HUNCH_ROOT "/models/golden/blocks.json"));
  std::vector<Recorded> out;
  for (const auto& entry : all[which]) {
    const auto values = from_hex(entry["values"]);
    out.push_back({dtype_named(entry["type"].get<std::string>()).value(), from_hex(entry["blocks"]), {}});
    out.back().values.resize(values.size() / 4);
    std::memcpy(out.back().values.data(), values.data(), values.size());
  }
  return out;
}

TEST(Quantise, DecodesEveryBlockTypeToTheRecordedBits) {
  const auto all = recorded("decode");
  EXPECT_EQ(all.size(), 5u);
  for (const auto& [dtype, blocks, expected] : all) {
    Floats values(expected.size());
    dequantise_row(dtype, blocks.data(), values.data(), std::ssize(values));
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), 4 * expected.size()), 0) << dtype_info(dtype).name;
  }
}

TEST(Quantise, EncodesQ8AndQ4ToTheRecordedBytes) {
  for (const auto& [dtype, expected, values] : recorded("encode"))
    EXPECT_EQ(encoded(dtype, values), expected) << dtype_info(dtype).name;
}

TEST(Quantise, Q4KLosesLessThanQ40OnTheSameRow) {
  auto x = tiny::values(4096, 3);
  EXPECT_LT(relative_rms(x, Q4_K), 0.95 * relative_rms(x, Q4_0));
  EXPECT_LT(relative_rms(x, Q8_0), 0.01);
  for (float& value : x) value += 0.8f;  // one-sided rows are what the minimum is for
  EXPECT_LT(relative_rms(x, Q4_K), 0.6 * relative_rms(x, Q4_0));
}

TEST(Quantise, Q4KKeepsRowsThatItCanRepresent) {
  EXPECT_LT(relative_rms(Floats(256, -1.f), Q4_K), 1e-3);
  Floats ramp(256);
  for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = float(i % 16) - 4;
  EXPECT_LT(relative_rms(ramp, Q4_K), 2e-3);
}

// The format by its definition (OCP 8-bit floating point, 2023): no infinity, one NaN a sign, subnormals.
TEST(Quantise, Fp8CodesAreTheirDefinition) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    const std::byte in{uint8_t(code)};
    float value;
    dequantise_row(F8_E4M3, &in, &value, 1);
    if ((code & 127) == 127) EXPECT_TRUE(std::isnan(value)) << code;
    else EXPECT_EQ(value, code & 128 ? -magnitude : magnitude) << code;
    EXPECT_EQ(std::signbit(value), code > 127) << code;
  }
}

TEST(Quantise, Fp8IsTheNearestCodeWithTiesToTheEvenOne) {
  const auto codes = [](const Floats& x) {
    std::vector<int> out;
    for (const std::byte code : encoded(F8_E4M3, x)) out.push_back(int(code));
    return out;
  };
  for (int code = 0; code < 126; ++code) {
    const std::byte pair[] = {std::byte(code), std::byte(code + 1)};
    float low_high[2];
    dequantise_row(F8_E4M3, pair, low_high, 2);
    const float middle = (low_high[0] + low_high[1]) / 2;
    const float below = std::nextafter(middle, 0.f), above = std::nextafter(middle, 500.f);
    EXPECT_EQ(codes({low_high[0], below, middle, above, -below}),
        (std::vector<int>{code, code, code + code % 2, code + 1, code + 128}));
  }
  EXPECT_EQ(codes({449, 1e30f, -1e30f}), (std::vector<int>{126, 126, 254}));
}

// E2M1 codes and E8M0 scales by their definition (OCP Microscaling Formats v1.0): every byte under scales from end to end.
TEST(Quantise, Mxfp4CodesAreTheirDefinition) {
  for (const int scale : {0, 1, 127, 128, 254})
    for (int byte = 0; byte < 256; ++byte) {
      std::byte block[17];
      std::fill_n(block + 1, 16, std::byte(byte)), block[0] = std::byte(scale);
      float out[32];
      dequantise_row(MXFP4, block, out, 32);
      for (int i = 0; i < 32; ++i) {
        const int code = byte >> (i < 16 ? 0 : 4) & 15, exponent = code >> 1 & 3, mantissa = code & 1;
        const double value = exponent == 0 ? mantissa * 0.5 : std::ldexp(1 + mantissa * 0.5, exponent - 1);
        EXPECT_EQ(out[i], float(std::ldexp(code & 8 ? -value : value, scale - 127))) << scale << " " << byte << " " << i;
      }
    }
}

TEST(Quantise, Mxfp4TakesTheNearestCodeAndAGreatestOf4To8Units) {
  const float row[] = {6, -6, 0.2f, 0.3f, 0.74f, 0.76f, 2.4f, 2.6f, 3.4f, 3.6f, 4.9f, 5.1f, -0.3f, 0, 1.24f, 1.26f};
  const float want[] = {6, -6, 0, 0.5f, 0.5f, 1, 2, 3, 3, 4, 4, 6, -0.5f, 0, 1, 1.5f};
  for (const float unit : {1.0f, 0x1p-20f, 0x1p30f}) {
    Floats x(32), back(32);
    for (size_t i = 0; i < 32; ++i) x[i] = unit * row[i % 16];
    dequantise_row(MXFP4, encoded(MXFP4, x).data(), back.data(), 32);
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(back[i], unit * want[i % 16]) << unit << " " << i;
  }
}

TEST(Quantise, NamesTheFirstWeightThatIsNoNumber) {
  Floats values = tiny::values(96, 5);
  Tensor tensor{.name = "a", .dtype = F32, .shape = {2, 3, 16}, .data = reinterpret_cast<const std::byte*>(values.data())};
  EXPECT_TRUE(check_values(tensor).ok());
  values[95] = -INFINITY;
  EXPECT_EQ(check_values(tensor).error().message,
      "tensor a: element 15 of row 5 is -inf: the file is damaged, fetch or convert it again");
  Bytes blocks(34 * 3);
  blocks[34 + 1] = std::byte(0x7e);  // the scale of a block
  tensor = {.name = "b", .dtype = Q8_0, .shape = {1, 96}, .data = blocks.data()};
  expect_part(check_values(tensor).error().message, "element 32 of row 0 is nan");
}

TEST(Quantise, ZeroRowsAndTinyScalesStayFinite) {
  for (const DType dtype : {Q8_0, Q4_0, Q4_K, MXFP4})
    for (const float scale : {0.f, 1e-42f, 1e-38f, 1e-20f}) {
      auto x = tiny::values(256, 9);
      for (float& value : x) value *= scale;
      dequantise_row(dtype, encoded(dtype, x).data(), x.data(), 256);
      for (const float value : x) EXPECT_LE(std::fabs(value), 1e-7f) << dtype_info(dtype).name << " " << scale;
    }
}

}
}
