// Frequencies after scaling, against values computed by hand from the published formulas.
#include "model/rope_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace hunch {
namespace {

using Kind = RopeScaling::Kind;

ModelShape shape(int dim, double theta) {
  ModelShape shape;
  shape.head_dim = shape.rope_dim = dim;
  shape.rope_theta = theta;
  return shape;
}

void expect_frequencies(const ModelShape& s, const std::vector<float>& expected) {
  const RopeFrequencies rope = rope_frequencies(s);
  ASSERT_EQ(rope.inv_freq.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_FLOAT_EQ(rope.inv_freq[i], expected[i]);
}

TEST(RopeFrequencies, FallAsPowersOfTheta) {
  expect_frequencies(shape(8, 10000), {1.0f, 0.1f, 0.01f, 0.001f});
  EXPECT_EQ(rope_frequencies(shape(8, 10000)).magnitude, 1.0f);
}

TEST(RopeFrequencies, LinearDividesAllByTheFactor) {
  ModelShape s = shape(8, 10000);
  s.rope_scaling = {.kind = Kind::Linear, .factor = 4};
  expect_frequencies(s, {0.25f, 0.025f, 0.0025f, 0.00025f});
}

TEST(RopeFrequencies, Llama3KeepsShortWavesDividesLongOnesAndBlendsBetween) {
  // Wavelengths 6.28, 62.8, 628, 6283; original context 1000: short below 250, long above 1000.
  ModelShape s = shape(8, 10000);
  s.rope_scaling = {.kind = Kind::Llama3, .factor = 8, .original_context = 1000, .low_freq_factor = 1, .high_freq_factor = 4};
  const RopeFrequencies rope = rope_frequencies(s);
  EXPECT_FLOAT_EQ(rope.inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(rope.inv_freq[1], 0.1f);
  const double smooth = (1000 / (2 * std::numbers::pi / 0.01) - 1) / 3;  // 0.19718
  EXPECT_NEAR(smooth, 0.19718, 1e-5);
  EXPECT_FLOAT_EQ(rope.inv_freq[2], float((1 - smooth) * 0.01 / 8 + smooth * 0.01));
  EXPECT_FLOAT_EQ(rope.inv_freq[3], 0.001f / 8);
}

TEST(RopeFrequencies, YarnBlendsByDimensionAndScalesTheMagnitude) {
  // theta 10000, 16 dimensions, context 4096: beta 32 turns at dimension 16 ln(4096 / 64 pi) / (2 ln 10000) = 2.617 -> 2,
  // beta 1 at 5.628 -> 6. Pairs up to 2 keep their frequency, 3, 4 and 5 blend by 1/4, 1/2 and 3/4, the rest is divided by 4.
  ModelShape s = shape(16, 10000);
  s.rope_scaling = {.kind = Kind::Yarn, .factor = 4, .original_context = 4096, .beta_fast = 32, .beta_slow = 1};
  const RopeFrequencies rope = rope_frequencies(s);
  const double ramps[] = {0, 0, 0, 0.25, 0.5, 0.75, 1, 1};
  for (int i = 0; i < 8; ++i) {
    const double plain = std::pow(10000, -i / 8.0), ramp = ramps[i];
    EXPECT_FLOAT_EQ(rope.inv_freq[i], float(plain / 4 * ramp + plain * (1 - ramp))) << i;
  }
  EXPECT_FLOAT_EQ(rope.magnitude, 1.1386294f);  // 0.1 ln 4 + 1
  s.rope_scaling.attention_factor = 1.5;
  EXPECT_FLOAT_EQ(rope_frequencies(s).magnitude, 1.5f);
}

// Dimensions 0 to 2, 1 to 7 (not 8), 0 to 0.
TEST(RopeFrequencies, YarnsRangeStaysWithinTheHead) {
  for (const auto& [context, fast, pair, expected] :
      {std::tuple(64, 32, 0, 1.0), {64, 32, 1, 0.0625}, {1 << 27, 1000000, 2, 0.01 * (1 / 24.0 + 5 / 6.0)}, {4, 32, 0, 1.0}}) {
    ModelShape s = shape(8, 10000);
    s.rope_scaling = {.kind = Kind::Yarn, .factor = 4, .original_context = double(context), .beta_fast = double(fast)};
    EXPECT_FLOAT_EQ(rope_frequencies(s).inv_freq[pair], float(expected)) << context;
  }
}

// gpt-oss: the correction range 8.093 to 17.398 is not rounded, cosine and sine are 1.34657 times themselves.
TEST(RopeFrequencies, YarnWithoutRoundingKeepsItsRange) {
  ModelShape s = shape(64, 150000);
  s.rope_scaling = {
      .kind = Kind::Yarn, .factor = 32, .original_context = 4096, .beta_fast = 32, .beta_slow = 1, .truncate = false};
  const RopeFrequencies rope = rope_frequencies(s);
  EXPECT_NEAR(rope.magnitude, 1.34657, 1e-5);
  for (int i = 0; i < 32; ++i) {
    const double plain = std::pow(150000, -i / 32.0), ramp = std::clamp((i - 8.0928) / (17.3980 - 8.0928), 0.0, 1.0);
    EXPECT_NEAR(rope.inv_freq[i], plain / 32 * ramp + plain * (1 - ramp), 2e-5 * plain) << i;
  }
}

TEST(RopeFrequencies, FactorsOfTheFileDivideEachFrequency) {
  ModelShape s = shape(8, 10000);
  s.rope_factors = {1, 2, 4, 8};
  expect_frequencies(s, {1.0f, 0.05f, 0.0025f, 0.000125f});
  s.rope_scaling = {.kind = Kind::Linear, .factor = 2};
  EXPECT_FLOAT_EQ(rope_frequencies(s).inv_freq[1], 0.025f);
}

}
}
