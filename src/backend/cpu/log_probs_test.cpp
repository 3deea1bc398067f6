// Log-probabilities: the definition by hand, and every instruction set against it.

#include "backend/cpu/test_backends.h"
#include "backend/test_inputs.h"

namespace hunch {
namespace {

constexpr float kInf = INFINITY, kNan = NAN;

struct LogProbs {
  Floats values, top_values;
  Ints top_ids;
};

LogProbs log_probs(Backend& backend, const Floats& logits, int64_t vocab, const Ints& ids, int count) {
  const int64_t rows = std::ssize(logits) / vocab;
  LogProbs out{Floats(ids.size(), 7), Floats(rows * count, 7), Ints(rows * count, -7)};
  LogProbsArgs args{.logits = view(logits, rows, vocab), .count = count};
  if (!ids.empty()) args.ids = view(ids, rows), args.values = view(out.values, rows);
  args.top_ids = view(out.top_ids, rows, count), args.top_values = view(out.top_values, rows, count);
  backend.log_probs(args);
  return out;
}

class LogProbsOp : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backend, LogProbsOp, testing::ValuesIn(all_backends()), backend_name);

bool close(float a, float b) {
  return a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= 2e-6f * (1 + std::abs(b));
}

TEST_P(LogProbsOp, AreTheNaturalLogarithmsOfTheSoftmax) {
  const auto backend = make_backend(GetParam());
  // p = 1/8, 4/8, 2/8, 1/8
  const Floats logits = {3, 3 + std::log(4.0f), 3 + std::log(2.0f), 3};
  const LogProbs got = log_probs(*backend, logits, 4, {2}, 4);
  EXPECT_NEAR(got.values[0], std::log(0.25), 1e-6);
  EXPECT_EQ(got.top_ids, (Ints{1, 2, 0, 3}));  // equals by id
  EXPECT_NEAR(got.top_values[0], std::log(0.5), 1e-6);
  EXPECT_NEAR(got.top_values[3], std::log(0.125), 1e-6);
}

TEST_P(LogProbsOp, StayExactForHugeAndMissingLogits) {
  const auto backend = make_backend(GetParam());
  EXPECT_NEAR(log_probs(*backend, {3e38f, -3e38f, 3e38f}, 3, {0}, 0).values[0], -std::log(2.0), 1e-6);
  EXPECT_EQ(log_probs(*backend, {1, -kInf}, 2, {1}, 0).values[0], -kInf);
  EXPECT_EQ(log_probs(*backend, {1, -kInf}, 2, {0}, 0).values[0], 0);
}

TEST_P(LogProbsOp, RefuseRowsWithNanOrWithoutAFiniteLogit) {
  const auto backend = make_backend(GetParam());
  for (const Floats& row : {Floats{1, kNan, 2}, {-kInf, -kInf, -kInf}, {kInf, -kInf, -kInf}}) {
    const LogProbs got = log_probs(*backend, row, 3, {0}, 2);
    EXPECT_TRUE(std::isnan(got.values[0]));
    EXPECT_EQ(got.top_ids, (Ints{-1, -1}));
    EXPECT_TRUE(std::isnan(got.top_values[1]));
  }
}

TEST_P(LogProbsOp, EqualTheDefinitionForEverySizeAndCount) {
  const auto backend = make_backend(GetParam(), 2);
  ReferenceBackend reference;
  std::mt19937 random(3);
  for (const int64_t vocab : {1, 5, 16, 17, 255, 257, 1000, 5003}) {
    for (const bool ties : {false, true}) {
      constexpr int64_t kRows = 3;
      auto logits = gaussian(kRows * vocab, random(), 3);
      if (ties)
        for (float& x : logits) x = float(random() % 3);
      Ints ids;
      for (int64_t row = 0; row < kRows; ++row) ids.push_back(int32_t(random() % uint64_t(vocab)));
      logits[0] = -kInf;
      if (vocab > 1) logits[1] = 0;
      else logits[0] = 1;
      for (const int count : {0, 1, 5, 20, 300}) {
        const LogProbs got = log_probs(*backend, logits, vocab, ids, count);
        const LogProbs want = log_probs(reference, logits, vocab, ids, count);
        ASSERT_EQ(got.top_ids, want.top_ids) << vocab << " ids, " << count;
        for (size_t i = 0; i < want.values.size(); ++i) ASSERT_PRED2(close, got.values[i], want.values[i]);
        for (size_t i = 0; i < want.top_values.size(); ++i) ASSERT_PRED2(close, got.top_values[i], want.top_values[i]);
      }
    }
  }
}

// A token's value must not depend on speculation, on how many others are asked for, or on which list it is read from.
TEST_P(LogProbsOp, GiveARowTheSameBitsInAnyCompany) {
  constexpr int64_t kVocab = 1500, kRows = 20;
  std::mt19937 random(5);
  const auto logits = gaussian(kVocab * kRows, random(), 2);
  Ints ids;
  for (int64_t row = 0; row < kRows; ++row) ids.push_back(int32_t(random() % kVocab));
  const auto one = make_backend(GetParam(), 1), three = make_backend(GetParam(), 3);
  const LogProbs all = log_probs(*three, logits, kVocab, ids, 20);
  for (int64_t row = 0; row < kRows; ++row) {
    const auto alone = part_of(logits, row * kVocab, kVocab);
    EXPECT_EQ(log_probs(*one, alone, kVocab, {ids[row]}, 0).values[0], all.values[row]);
    const int32_t best = all.top_ids[size_t(row) * 20];
    EXPECT_EQ(log_probs(*one, alone, kVocab, {best}, 3).values[0], all.top_values[size_t(row) * 20]);
    EXPECT_EQ(log_probs(*one, alone, kVocab, {}, 1).top_ids[0], best);
  }
}

}
}
