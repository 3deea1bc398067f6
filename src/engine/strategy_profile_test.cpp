#include "engine/strategy_profile.h"

#include "base/test_results.h"

namespace hunch {
namespace {

const ModelIdentity kModel{"m", "0123456789abcdef", 1000, 6};

StrategyProfile::Row row(std::vector<RankedStrategy> ranked) { return {"strict", 0, 4096, std::move(ranked)}; }

// Rounds of these acceptances, each of so many milliseconds; the strategy at hand after each.
std::string walk(StrategyGuard& guard, std::initializer_list<int> accepted, double ms) {
  std::string out;
  for (const int a : accepted) guard.record(a, ms), out += std::to_string(guard.now().depth);
  return out;
}

TEST(StrategyGuard, StaysWhileWhatWasExpectedComes) {
  const auto ranked = row({{4, 4, 1, 1, false, 50, 2.0}, {2, 2, 1, 1, false, 40, 1.0}, {0, 0, 1, 1, false, 30, 0}});
  StrategyGuard guard;
  guard.enter(ranked);
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(guard.record(2, 20));
  EXPECT_EQ(guard.changes(), 0);
}

TEST(StrategyGuard, GoesDownTwiceAfterWarmUpAndPatienceThenTakesTheBestSeen) {
  const auto ranked = row({{5, 5, 1, 1, false, 60, 4.0}, {4, 4, 1, 1, false, 50, 3.0}, {3, 3, 1, 1, false, 45, 2.0}, {}});
  StrategyGuard guard;
  guard.enter(ranked);
  // Eight rounds without a verdict, five below: the thirteenth is the last.
  EXPECT_EQ(walk(guard, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 10), "5555555555554");
  // A round as expected in between begins the patience anew.
  for (int i = 0; i < 12; ++i) EXPECT_FALSE(guard.record(0, 5));
  EXPECT_TRUE(guard.record(0, 5));
  EXPECT_EQ(guard.now().depth, 3);
  EXPECT_EQ(guard.changes(), 2);
  for (int i = 0; i < 12; ++i) EXPECT_FALSE(guard.record(0, 10));
  EXPECT_TRUE(guard.record(0, 10));  // no third change: of those seen the second was the fastest
  EXPECT_EQ(guard.now().depth, 4);
  EXPECT_EQ(guard.changes(), 2);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(guard.record(0, 50));
}

TEST(StrategyGuard, CountsRoundsBelowInARowOnly) {
  const auto ranked = row({{1, 1, 1, 1, false, 60, 1.0}, {}});
  StrategyGuard guard({.alpha = 1});
  guard.enter(ranked);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(guard.record(i % 5 == 0, 1));
  EXPECT_EQ(guard.now().depth, 1);
}

TEST(StrategyGuard, FallsBackToPlainDecodingWhereItIsSlower) {
  const auto ranked = row({{4, 4, 1, 1, false, 120, 2.0}, {0, 0, 1, 1, false, 100, 0}});
  StrategyGuard guard;
  guard.enter(ranked);
  for (int i = 0; i < 13; ++i) guard.record(2, 60);  // as many as expected, at 50 tokens a second
  EXPECT_EQ(guard.now().depth, 0);
  EXPECT_EQ(guard.changes(), 1);
}

TEST(StrategyGuard, TakesPlainDecodingThatDidNotRunForWhatItWasProfiledInEveryRange) {
  const auto ranked = row(
      {{3, 3, 1, 1, false, 60, 4.0}, {2, 2, 1, 1, false, 50, 3.0}, {1, 1, 1, 1, false, 45, 2.0}, {0, 0, 1, 1, false, 200, 0}});
  StrategyGuard guard;
  for (int range = 0; range < 2; ++range) {
    guard.enter(ranked);
    EXPECT_EQ(guard.now().depth, 3);
    for (int i = 0; i < 39; ++i) guard.record(0, 10);
    EXPECT_EQ(guard.now().depth, 0);
  }
}

TEST(StrategyGuard, EntersAnotherRangeWithoutAChange) {
  const auto first = row({{4, 4, 1, 1, false, 50, 4.0}, {2, 2, 1, 1, false, 40, 1.0}, {}}), second = row({{7, 7}, {}});
  StrategyGuard guard;
  guard.enter(first);
  for (int i = 0; i < 13; ++i) guard.record(0, 1);
  EXPECT_EQ(guard.now().depth, 2);
  guard.enter(second);
  EXPECT_EQ(guard.now().depth, 7);
  EXPECT_EQ(guard.changes(), 1);
}

TEST(StrategyProfile, ReadsBackAndFindsTheRangeOfAContext) {
  StrategyProfile profile{.model = kModel, .drafter = "eagle3", .reuse_layers = {2, 3}};
  profile.rows = {
      {"strict", 0, 4096, {{4, 12, 4, 1, false, 50, 2.5}, {}}},
      {"strict", 4096, 8192, {{}, {2, 2}}},
      {"approx", 0, 4096, {{4, 12, 4, 8, true, 55, 2.4}, {}}},
  };
  const auto read = test::good(StrategyProfile::from_json(profile.to_json(), kModel));
  EXPECT_EQ(read.to_json(), profile.to_json());
  EXPECT_EQ(read.row_for("strict", 4096)->last_len, 4096);
  EXPECT_EQ(read.row_for("strict", 4097)->last_len, 8192);
  EXPECT_EQ(read.row_for("strict", 99999)->last_len, 8192);
  EXPECT_TRUE(read.row_for("approx", 5000)->ranked[0].depth_first);
  EXPECT_EQ(read.row_for("reuse", 1), nullptr);
  EXPECT_EQ(read.most(&RankedStrategy::depth), 4);
  EXPECT_EQ(read.most(&RankedStrategy::nodes), 12);
  EXPECT_EQ(strategy_regimes(40000), (std::vector<int64_t>{4096, 8192, 12288, 16384, 32768, 65536}));
}

TEST(StrategyProfile, RefusesDamageAndOtherModels) {
  StrategyProfile profile{.model = kModel, .drafter = "eagle3"};
  profile.rows = {{"strict", 0, 4096, {{4, 4}, {}}}};
  const auto good = profile.to_json();
  ASSERT_TRUE(StrategyProfile::from_json(good, kModel).ok());
  ModelIdentity other = kModel;
  other.hash = "fedcba9876543210";
  const auto foreign = StrategyProfile::from_json(good, other);
  for (const std::string& said : {kModel.hash, other.hash, std::string("hunch tune --profile")})
    test::expect_error(foreign, said);
  const auto refused = [&] { return !StrategyProfile::from_json(profile.to_json(), kModel).ok(); };
  profile.rows.push_back(profile.rows[0]);  // the same range again
  EXPECT_TRUE(refused());
  profile.rows.resize(1), profile.rows[0].ranked.resize(kRankedStrategies + 2);
  EXPECT_TRUE(refused());
  profile.rows[0].ranked.resize(1);  // without plain decoding there is nothing to fall back to
  EXPECT_TRUE(refused());
  profile.rows.clear();
  EXPECT_TRUE(refused());
  test::expect_error(StrategyProfile::load(testing::TempDir() + "/none.json", kModel), "there is no such file");
  for (size_t cut = 0; cut < good.size(); cut += 7) EXPECT_FALSE(StrategyProfile::from_json(good.substr(0, cut), kModel).ok());
  for (const auto& [from, to] : {std::pair("\"depth\":4", "\"depth\":-1"), {"\"nodes\":4", "\"nodes\":3"},
           {"\"group_rows\":1", "\"group_rows\":0"}, {"4096", "0"}, {"[]", "[0]"}, {"[]", "[6]"}, {"\"depth\":4", "\"depth\":0"},
           {"\"top_k\":1", "\"top_k\":17"}, {"\"accepted\":0", "\"accepted\":-1"}, {"\"first_len\":0", "\"first_len\":4096"}}) {
    std::string bad = good;
    bad.replace(bad.find(from), std::string_view(from).size(), to);
    EXPECT_FALSE(StrategyProfile::from_json(bad, kModel).ok()) << to;
  }
}

}
}
