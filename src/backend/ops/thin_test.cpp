// Experts that a sparse check leaves out.
#include "backend/ops/thin.h"

#include "backend/test_inputs.h"
#include "base/random.h"
#include "tensor/test_view.h"

namespace hunch {
namespace {

using test::view;

using Mode = ExpertSkip;

struct Rows {
  explicit Rows(std::vector<Floats> weights, std::vector<Ints> of = {}) : rows(std::ssize(weights)) {
    k = std::ssize(weights[0]);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < k; ++i) {
        shares.push_back(weights[r][i]);
        ids.push_back(of.empty() ? int32_t(r * k + i) : of[r][i]);
      }
  }
  int64_t skip(ThinExpertsArgs rule) {
    int64_t skipped = 0;
    rule.ids = view(ids, rows, k), rule.shares = view(shares, rows, k);
    rule.skipped = &skipped;
    thin_experts(rule);
    return skipped;
  }
  int64_t rows, k;
  Floats shares;
  Ints ids;
};

// 400 rows of 8 random weights that sum to 1.
std::vector<Floats> random_rows(uint64_t seed) {
  std::vector<Floats> out(400, Floats(8));
  uint32_t n = 0;
  for (auto& row : out) {
    float sum = 0;
    for (float& w : row)
      sum += w = std::pow(float(noise_bits({.seed = seed}, NoiseStream::Target, 0, n++)) * 0x1p-32f, 3.0f) + 1e-3f;
    for (float& w : row) w /= sum;
  }
  return out;
}

Floats medians(const std::vector<Floats>& rows) {
  Floats betas;
  for (size_t m = 0; m < 7; ++m) {
    Floats all;
    for (const auto& row : rows) all.push_back(tail_ratios(view(row, 8))[m]);
    std::nth_element(all.begin(), all.begin() + 200, all.end());
    betas.push_back(all[200]);
  }
  return betas;
}

TEST(ThinExperts, RatiosAreOfTheLeastWeights) {
  const Floats row{0.1f, 0.4f, 0.2f, 0.3f};
  const auto ratios = tail_ratios(view(row, 4));
  ASSERT_EQ(ratios.size(), 3u);
  EXPECT_NEAR(ratios[0], 0.6f, 1e-6);
  EXPECT_NEAR(ratios[1], 0.3f, 1e-6);
  EXPECT_NEAR(ratios[2], 0.1f, 1e-6);
}

TEST(ThinExperts, TheLiteralRuleIsAllOrNothingAndPassesHalfOfItsCalibration) {
  const auto rows = random_rows(5);
  const auto betas = medians(rows);
  for (const int m : {1, 2, 3, 4, 7}) {
    Rows r(rows);
    EXPECT_EQ(r.skip({.mode = Mode::Literal, .most = m, .betas = betas.data()}), 200 * m) << m;
    for (int64_t row = 0; row < 400; ++row) {
      const auto gone = std::count(r.ids.begin() + row * 8, r.ids.begin() + row * 8 + 8, -1);
      EXPECT_TRUE(gone == 0 || gone == m) << row;
      float most = 0, least = 1;  // what goes is less than what stays
      for (size_t i = 0; i < 8; ++i)
        if (r.ids[size_t(row) * 8 + i] < 0) most = std::max(most, rows[row][i]);
        else least = std::min(least, rows[row][i]);
      EXPECT_LE(most, least);
    }
    Rows graded(rows);
    EXPECT_GE(graded.skip({.mode = Mode::Graded, .most = m, .betas = betas.data()}), 200 * m)
        << "more thresholds, more that pass";
  }
}

TEST(ThinExperts, TailMassBoundsWhatGoes) {
  const std::vector<Floats> weights{{1, 0.08f, 0.8f, 0.12f}, {0.5f, 0.5f, 0.5f, 0.5f}};
  Rows r(weights);
  EXPECT_EQ(r.skip({.mode = Mode::TailMass, .most = 3, .mass = 0.11f}), 2);
  EXPECT_EQ(r.ids, (Ints{0, -1, 2, -1, 4, 5, 6, 7}));
  EXPECT_EQ(r.shares[1], 0.0f);
  EXPECT_EQ(r.shares[0], 1) << "weights that stay are what they were";
  Rows one(weights);
  EXPECT_EQ(one.skip({.mode = Mode::TailMass, .most = 1, .mass = 0.11f}), 1) << "no more than asked for";
  Rows scaled(weights);
  scaled.skip({.mode = Mode::TailMass, .most = 3, .mass = 0.11f, .renorm = true});
  EXPECT_NEAR(scaled.shares[0] + scaled.shares[2], 2, 1e-6);
  EXPECT_NEAR(scaled.shares[0] / scaled.shares[2], 1.25, 1e-6);
}

TEST(ThinExperts, UnionAwareLeavesOutWhatNobodyElseReads) {
  Rows r({{0.05f, 0.04f, 0.91f}, {0.06f, 0.02f, 0.92f}}, {{1, 2, 3}, {1, 4, 5}});
  EXPECT_EQ(r.skip({.mode = Mode::UnionAware, .most = 2, .mass = 0.2f}), 2);
  EXPECT_EQ(r.ids, (Ints{1, -1, 3, 1, -1, 5})) << "expert 1 is read anyway";
}

TEST(ThinExperts, ABudgetOfNoneChangesNothing) {
  for (const Mode mode : {Mode::Literal, Mode::Graded, Mode::TailMass, Mode::UnionAware}) {
    Rows r(random_rows(6)), same(random_rows(6));
    EXPECT_EQ(r.skip({.mode = mode, .most = 0, .mass = 0.9f, .renorm = true}), 0);
    EXPECT_EQ(r.ids, same.ids);
    EXPECT_EQ(r.shares, same.shares);
  }
}

}
}
