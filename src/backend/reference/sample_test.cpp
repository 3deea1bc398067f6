// Sampling by definition: the support of every filter, the law of the tokens, and the noise behind them.

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backend/reference/reference_backend.h"

namespace hunch {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

struct Sampled {
  int32_t token = -2;
  std::vector<float> probs;
};

Sampled sample(const std::vector<float>& logits, const SamplingParams& params, uint64_t seed = 1, int32_t position = 0,
               NoiseStream stream = NoiseStream::Target, uint32_t sample_index = 0) {
  static ReferenceBackend backend;
  Sampled out;
  out.probs.resize(logits.size());
  const int64_t vocab = int64_t(logits.size());
  backend.sample({View<const float, 2>(logits.data(), 1, vocab), params, NoiseKey{seed, sample_index}, stream,
                  View<const int32_t, 1>(&position, 1), View<int32_t, 1>(&out.token, 1),
                  View<float, 2>(out.probs.data(), 1, vocab)});
  return out;
}

std::vector<int32_t> support(const std::vector<float>& logits, const SamplingParams& params) {
  const Sampled sampled = sample(logits, params);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < sampled.probs.size(); ++i)
    if (sampled.probs[i] > 0) ids.push_back(int32_t(i));
  return ids;
}

using Ids = std::vector<int32_t>;

TEST(Philox, EqualsThePublishedVectors) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t f = 0xffffffff;
  EXPECT_EQ(philox4x32({f, f, f, f}, {f, f}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sample, GreedyTakesTheLowestIdOfEquals) {
  const Sampled sampled = sample({1, 3, 2, 3}, {0, 0, 1, 0});
  EXPECT_EQ(sampled.token, 1);
  EXPECT_EQ(sampled.probs, (std::vector<float>{0, 1, 0, 0}));
  EXPECT_EQ(sample({-0.0f, 0.0f}, {0.9e-5f, 0, 1, 0}).token, 0);
}

TEST(Sample, RefusesRowsWithNanOrWithoutAFiniteLogit) {
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplingParams params{temperature, 0, 1, 0};
    EXPECT_EQ(sample({1, kNan, 2}, params).token, -1);
    EXPECT_EQ(sample({-kInf, -kInf}, params).token, -1);
    EXPECT_EQ(sample({kInf, -kInf}, params).token, -1);
    EXPECT_EQ(sample({-kInf, 4, -kInf}, params).token, 1);
    EXPECT_EQ(sample({1, kInf, 2}, params).token, 1);
  }
}

TEST(Sample, TopKBreaksTiesByTheLowerId) {
  EXPECT_EQ(support({1, 2, 2, 2, 3}, {1, 3, 1, 0}), (Ids{1, 2, 4}));
  EXPECT_EQ(support({1, 1, 1, 1}, {1, 1, 1, 0}), (Ids{0}));
  EXPECT_EQ(support({1, 2, 3}, {1, 100, 1, 0}), (Ids{0, 1, 2}));
}

TEST(Sample, TopPTakesTheSmallestSetThatReachesIt) {
  EXPECT_EQ(support({0, 0, 0, 0}, {1, 0, 0.5f, 0}), (Ids{0, 1}));  // reached exactly
  EXPECT_EQ(support({0, 0, 0, 0}, {1, 0, std::nextafter(0.5f, 1.0f), 0}), (Ids{0, 1, 2}));
  EXPECT_EQ(support({0, 5, 0}, {1, 0, 0, 0}), (Ids{1}));  // never empty
  // Top-k first: of {4, 2, 1, 1} / 8 the best two are renormalised to 2/3 and 1/3.
  const std::vector<float> logits = {std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(1.0f)};
  EXPECT_EQ(support(logits, {1, 0, 0.6f, 0}), (Ids{1, 2}));
  EXPECT_EQ(support(logits, {1, 2, 0.6f, 0}), (Ids{1}));
}

TEST(Sample, MinPIsRelativeToTheBestAndComesAfterTheTemperature) {
  const std::vector<float> logits = {0, std::log(4.0f), std::log(2.0f)};
  EXPECT_EQ(support(logits, {1, 0, 1, 0.4f}), (Ids{1, 2}));
  EXPECT_EQ(support(logits, {0.5f, 0, 1, 0.4f}), (Ids{1}));
  EXPECT_EQ(support(logits, {1, 0, 1, 5}), (Ids{1}));
  EXPECT_EQ(support({0, 0}, {1, 0, 1, 1}), (Ids{0, 1}));
}

TEST(Sample, ProbabilitiesAreTheSoftmaxOfTheSurvivors) {
  const Sampled sampled = sample({0, std::log(6.0f), std::log(2.0f)}, {1, 2, 1, 0});
  EXPECT_EQ(sampled.probs[0], 0);
  EXPECT_FLOAT_EQ(sampled.probs[1], 0.75f);
  EXPECT_FLOAT_EQ(sampled.probs[2], 0.25f);
}

TEST(Sample, TheTokenIsTheArgMaxOfLogProbabilityPlusNoise) {
  const std::vector<float> logits = {0.5f, -1, 0.25f, 0.75f, 0};
  const NoiseKey key{99, 3};
  for (int32_t position = 0; position < 200; ++position) {
    const Sampled sampled = sample(logits, {0.7f, 4, 1, 0}, key.seed, position, NoiseStream::Draft, key.sample);
    int32_t best = -1;
    double greatest = -1e300;
    for (int32_t id = 0; id < 5; ++id) {
      if (sampled.probs[size_t(id)] == 0) continue;
      const double u = (noise_bits(key, NoiseStream::Draft, uint32_t(position), uint32_t(id)) + 0.5) / 4294967296.0;
      const double score = std::log(double(sampled.probs[size_t(id)])) - std::log(-std::log(u));
      if (score > greatest) greatest = score, best = id;
    }
    EXPECT_EQ(sampled.token, best);
  }
}

// Pearson's statistic against the probabilities, and its distance from the mean of its law in standard deviations.
double chi_square_deviation(const std::vector<float>& logits, const SamplingParams& params, NoiseStream stream) {
  constexpr int kDraws = 100'000;
  const std::vector<float> probs = sample(logits, params).probs;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) {  // seeds and positions both vary
    const int32_t token = sample(logits, params, uint64_t(i / 1000) * 0x123456789, i % 1000, stream).token;
    ++counts[size_t(token)];
  }
  double statistic = 0, cells = 0;
  for (size_t i = 0; i < probs.size(); ++i) {
    if (probs[i] == 0) {
      EXPECT_EQ(counts[i], 0);
      continue;
    }
    const double expected = double(probs[i]) * kDraws;
    statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  return (statistic - (cells - 1)) / std::sqrt(2 * (cells - 1));
}

TEST(Sample, TokensFollowTheProbabilities) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 1.5f);
  std::vector<float> logits(50);
  for (float& x : logits) x = normal(random);
  EXPECT_LT(chi_square_deviation(logits, {1, 0, 1, 0}, NoiseStream::Target), 4);
  EXPECT_LT(chi_square_deviation(logits, {0.7f, 10, 1, 0}, NoiseStream::Draft), 4);
  EXPECT_LT(chi_square_deviation(logits, {1.5f, 0, 0.8f, 0.02f}, NoiseStream::Residual), 4);
}

}  // namespace
}  // namespace hunch
