// Sampling by definition: the support of every filter, the law of the tokens, and the noise behind them.

#include "backend/reference/reference_backend.h"
#include "backend/test_inputs.h"
#include "tensor/test_view.h"

namespace hunch {
namespace {

using test::view;

constexpr float kInf = INFINITY, kNan = NAN;

struct Sampled {
  int32_t token = -2;
  Floats probs;
};

Sampled sample(const Floats& logits, const SamplingParams& params, uint64_t seed = 1, int32_t position = 0,
    NoiseStream stream = NoiseStream::Target) {
  static ReferenceBackend backend;
  Sampled out;
  out.probs.resize(logits.size());
  const int64_t vocab = std::ssize(logits);
  backend.sample({view(logits, 1, vocab), params, NoiseKey{seed}, stream, View<const int32_t, 1>(&position, 1),
      View<int32_t, 1>(&out.token, 1), view(out.probs, 1, vocab)});
  return out;
}

Ints support(const Floats& logits, const SamplingParams& params) {
  const Sampled sampled = sample(logits, params);
  Ints ids;
  for (size_t i = 0; i < sampled.probs.size(); ++i)
    if (sampled.probs[i] > 0) ids.push_back(int32_t(i));
  return ids;
}

using Ids = Ints;

TEST(Sample, GreedyTakesTheLowestIdOfEquals) {
  const Sampled sampled = sample({1, 3, 2, 3}, {0, 0, 1, 0});
  EXPECT_EQ(sampled.token, 1);
  EXPECT_EQ(sampled.probs, (Floats{0, 1, 0, 0}));
  EXPECT_EQ(sample({-0.0f, 0.0f}, {0.9e-5f, 0, 1, 0}).token, 0);
}

struct Ranked {
  Ids ids;
  Floats shares;
};
// The first is the token.
Ranked rank(const Floats& logits, int64_t k, const SamplingParams& params, NoiseKey key = {.seed = 1}, int32_t position = 0) {
  ReferenceBackend backend;
  Ranked out{Ids(size_t(k), -2), Floats(size_t(k), -1.0f)};
  int32_t token = -2;
  SampleArgs args{view(logits, 1, std::ssize(logits)), params, key, NoiseStream::Draft};
  args.positions = View<const int32_t, 1>(&position, 1), args.tokens = View<int32_t, 1>(&token, 1);
  args.ranked = view(out.ids, 1, k), args.shares = view(out.shares, 1, k);
  backend.sample(args);
  EXPECT_EQ(out.ids[0], token);
  args.ranked = {}, args.shares = {};
  backend.sample(args);
  EXPECT_EQ(out.ids[0], token) << "without ranks";
  return out;
}

TEST(Ranks, GreedySharesAreTheSoftmaxOfAllLogitsWhateverTheFilters) {
  const float a = std::log(2.0f), b = std::log(5.0f);
  const Ranked ranked = rank({a, b, 0, -kInf, a}, 6, {0, 1, 0.1f, 0.9f});
  EXPECT_EQ(ranked.ids, (Ids{1, 0, 4, 2, -1, -1}));
  const Floats shares = {0.5f, 0.2f, 0.2f, 0.1f, 0, 0};
  for (size_t i = 0; i < 6; ++i) EXPECT_FLOAT_EQ(ranked.shares[i], shares[i]) << i;
}

TEST(Ranks, HaveNothingBeyondTheSupportAndInRefusedRows) {
  for (const float temperature : {0.0f, 1.0f}) {
    EXPECT_EQ(rank({1, kNan, 2}, 2, {temperature, 0, 1, 0}).ids, (Ids{-1, -1}));
    EXPECT_EQ(rank({1, kNan, 2}, 2, {temperature, 0, 1, 0}).shares, (Floats{0, 0}));
    EXPECT_EQ(rank({-kInf, 3, -kInf}, 2, {temperature, 0, 1, 0}).ids, (Ids{1, -1}));
    EXPECT_EQ(rank({-kInf, 3, -kInf}, 2, {temperature, 0, 1, 0}).shares, (Floats{1, 0}));
  }
  EXPECT_EQ(rank({1, kInf, 5, kInf}, 3, {0, 0, 1, 0}).ids, (Ids{1, 3, 2}));
  EXPECT_EQ(rank({1, kInf, 5, kInf}, 3, {0, 0, 1, 0}).shares, (Floats{0.5f, 0.5f, 0}));
  const Ranked two = rank({1, 2, 2, 2, 3}, 4, {1, 2, 1, 0});
  EXPECT_EQ(two.ids[2], -1);
  EXPECT_EQ(two.ids[0] + two.ids[1], 5);  // ids 1 and 4
  EXPECT_FLOAT_EQ(two.shares[0] + two.shares[1], 1);
}

TEST(Ranks, AreTheOrderOfLogProbabilityPlusNoise) {
  const Floats logits = {0.5f, -1, 0.25f, 0.75f, 0};
  const SamplingParams params{0.7f, 4, 1, 0};
  const NoiseKey key{99, 3};
  const auto probs = sample(logits, params).probs;
  for (int32_t position = 0; position < 200; ++position) {
    std::vector<std::pair<double, int32_t>> scores;
    double total = 0;
    for (int32_t id = 0; id < 5; ++id) {
      if (probs[id] == 0) continue;
      const double u = (noise_bits(key, NoiseStream::Draft, uint32_t(position), uint32_t(id)) + 0.5) / 4294967296.0;
      scores.push_back({std::log(double(probs[id])) - std::log(-std::log(u)), id});
      total += std::exp(scores.back().first);
    }
    std::sort(scores.rbegin(), scores.rend());
    const Ranked ranked = rank(logits, 5, params, key, position);
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ(ranked.ids[i], scores[i].second);
      EXPECT_NEAR(ranked.shares[i], std::exp(scores[i].first) / total, 1e-5);
    }
    EXPECT_EQ(ranked.ids[4], -1);
  }
}

// The law of drawing without replacement: p(i) p(j) / (1 - p(i)) for the first two.
TEST(Ranks, DrawWithoutReplacement) {
  const Floats logits = {0, std::log(2.0f), std::log(3.0f), std::log(4.0f)}, p = {0.1f, 0.2f, 0.3f, 0.4f};
  constexpr int kDraws = 40'000;
  std::vector<int> counts(16);
  for (int i = 0; i < kDraws; ++i) {
    const Ids ids = rank(logits, 2, {1, 0, 1, 0}, {uint64_t(i / 1000) * 0x123456789}, i % 1000).ids;
    ++counts[ids[0] * 4 + ids[1]];
  }
  double statistic = 0;
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 4; ++j) {
      const double expected = i == j ? 0 : double(p[i]) * double(p[j]) / (1 - double(p[i])) * kDraws;
      if (i == j) EXPECT_EQ(counts[i * 5], 0);
      else statistic += (counts[i * 4 + j] - expected) * (counts[i * 4 + j] - expected) / expected;
    }
  EXPECT_LT((statistic - 11) / std::sqrt(22.0), 4);
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
  const Floats logits = {std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(1.0f)};
  EXPECT_EQ(support(logits, {1, 0, 0.6f, 0}), (Ids{1, 2}));
  EXPECT_EQ(support(logits, {1, 2, 0.6f, 0}), (Ids{1}));
}

TEST(Sample, MinPIsRelativeToTheBestAndComesAfterTheTemperature) {
  const Floats logits = {0, std::log(4.0f), std::log(2.0f)};
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

// Pearson's statistic against the probabilities, and its distance from the mean of its law in standard deviations.
double chi_square_deviation(const Floats& logits, const SamplingParams& params, NoiseStream stream) {
  constexpr int kDraws = 100'000;
  const auto probs = sample(logits, params).probs;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) {  // seeds and positions both vary
    const int32_t token = sample(logits, params, uint64_t(i / 1000) * 0x123456789, i % 1000, stream).token;
    ++counts[token];
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
  const auto logits = test::gaussian(50, 11, 1.5f);
  EXPECT_LT(chi_square_deviation(logits, {1, 0, 1, 0}, NoiseStream::Target), 4);
  EXPECT_LT(chi_square_deviation(logits, {0.7f, 10, 1, 0}, NoiseStream::Draft), 4);
  EXPECT_LT(chi_square_deviation(logits, {1.5f, 0, 0.8f, 0.02f}, NoiseStream::Residual), 4);
}

}
}
