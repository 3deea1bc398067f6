// RoundBench: rounds that it times are rounds that were asked for.
#include "engine/round_bench.h"

#include "engine/test_engines.h"

namespace hunch {
namespace {

Result<RoundCost> try_rounds(const std::string& drafter, const std::string& proposer, int gamma, int beside) {
  EngineOptions options{.model = test::tiny_path("echo"), .context_len = 1024, .max_num_seqs = 2};
  if (!drafter.empty()) options.drafters.push_back({.path = test::tiny_path(drafter)});
  const auto engine = test::load(options);
  Request request;
  request.sampling.temperature = 0.8, request.sampling.seed = 1;
  request.speculation.proposer = proposer, request.speculation.rule = "match";
  HUNCH_TRY(auto bench,
      RoundBench::make(engine->parts(), request,
          {.batch = 2, .gamma = gamma, .beside = beside, .rounds = 3, .depth = 100, .acceptance = {0.8, 0.5}}));
  HUNCH_TRY(const RoundCost plain, bench->run(0, 3));
  EXPECT_EQ(plain.drafted, 0);
  EXPECT_EQ(plain.tokens, 1);
  return bench->run(gamma, 3);
}

RoundCost run_rounds(const std::string& drafter, const std::string& proposer, int gamma, int beside) {
  auto cost = try_rounds(drafter, proposer, gamma, beside);
  EXPECT_TRUE(cost.ok()) << (cost.ok() ? "" : cost.error().message);
  return cost.ok() ? *cost : RoundCost{};
}

TEST(RoundBench, CountsTheTokensThatTheOddsGive) {
  const RoundCost cost = run_rounds("", "self", 3, 0);
  EXPECT_EQ(cost.drafted, 3);
  EXPECT_DOUBLE_EQ(cost.tokens, 1 + 0.8 + 0.8 * 0.5 + 0.8 * 0.5 * 0.5);
}

TEST(RoundBench, GoesOnWhereADrafterKnowsWhatItHasSeen) {
  EXPECT_EQ(run_rounds("echo-eagle3", "eagle3", 4, 0).drafted, 4);
  EXPECT_EQ(run_rounds("echo-medusa", "medusa", 2, 0).drafted, 2);
}

TEST(RoundBench, VerifiesTrees) {
  const RoundCost cost = run_rounds("echo-eagle3", "eagle3", 3, 6);
  EXPECT_GT(cost.drafted, 6);
  EXPECT_DOUBLE_EQ(cost.tokens, 1 + 0.8 + 0.8 * 0.5 + 0.8 * 0.5 * 0.5);
}

TEST(RoundBench, SaysNothingOfRoundsWithoutGuesses) {
  test::expect_error(try_rounds("", "none", 3, 0), "0.0 guesses a round were made where 3");
}

}
}
