// RoundBench: rounds that it times are rounds that were asked for. TokenRun: no trace of what it forgot, or of itself.
#include "engine/round_bench.h"

#include "engine/test_engines.h"
#include "engine/token_run.h"

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

TEST(TokenRun, EndsWhereItIsToldToAndLeavesNothingBehind) {
  const auto engine =
      test::load({.model = test::tiny_path("qwen3-tied"), .context_len = 256, .chunk_len = 32, .max_num_seqs = 1});
  const Ints ids = test::random_prompt(100, 256, 1);
  std::atomic<bool> stopped = false;
  auto run = test::good(TokenRun::make(engine->parts(), 256, &stopped));
  test::expect_error(TokenRun::make(engine->parts(), 257), "257 tokens do not fit the context of 256");
  test::expect_error(TokenRun::make(engine->parts(), 256), "no KV pages left");
  const auto of_the_last = [&](int64_t from, int rows, TokenRun::Logits wanted) {
    std::vector<float> out;
    run->rewind(from);
    run->feed(std::span(ids).subspan(from), rows, wanted, [&](int64_t first, View<const float, 2> logits) {
      if (const int64_t row = 99 - from - first; row < logits.extent[0]) out.assign(&logits(row, 0), &logits(row, 0) + 256);
    });
    return out;
  };
  const auto all = of_the_last(0, 1000, TokenRun::Logits::All);
  EXPECT_TRUE(test::same_bits(of_the_last(60, 7, TokenRun::Logits::Last), all));
  stopped = true;
  EXPECT_TRUE(of_the_last(60, 7, TokenRun::Logits::All).empty());
  EXPECT_EQ(run->len(), 60);
  run.reset();
  EXPECT_TRUE(TokenRun::make(engine->parts(), 256).ok());
}

}
}
