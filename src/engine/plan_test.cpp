// Requests become plans: defaults, and every value that is refused with the option, the value and what is allowed.
#include "engine/plan.h"

#include <limits>
#include <tuple>

#include "base/test_results.h"

namespace hunch {
namespace {

TEST(Plan, FillsInTheDefaults) {
  auto plan = test::good(plan_request({.prompt = {1}}, {}, 64));
  EXPECT_FLOAT_EQ(plan.sampling.temperature, 0.8f);
  EXPECT_EQ(plan.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(plan.sampling.top_p, 0.95f);
  EXPECT_FLOAT_EQ(plan.sampling.min_p, 0.05f);
  EXPECT_EQ(std::tie(plan.proposer, plan.policy_name, plan.gamma), std::tuple("auto", "vegas", 16));
  EXPECT_DOUBLE_EQ(plan.policy.ratio, 0.03);
  EXPECT_EQ(std::tie(plan.policy.min_tokens, plan.policy.spread, plan.policy.sinks), std::tuple(16, 16, 0));
  EXPECT_TRUE(plan.verify);
  EXPECT_FALSE(plan.draft_weights.has_value());
}

TEST(Plan, SelfIsPacedWhereItIsAskedForNoNumberAndNothingElseDecides) {
  const auto paced = [](Request request, int max_draft = 64) {
    request.prompt = {1};
    auto plan = test::good(plan_request(request, {}, max_draft));
    const int asked = plan.gamma;
    pace(request, max_draft, plan);
    EXPECT_TRUE(plan.paced || plan.gamma == asked);
    return plan.paced ? plan.gamma : 0;
  };
  const Request self{.speculation = {.proposer = "self"}};
  EXPECT_EQ(paced(self), 16);
  EXPECT_EQ(paced(self, 9), 9);
  for (const SpeculationOptions& decided : {SpeculationOptions{.proposer = "self", .num_tokens = 5},
           {.proposer = "self", .tree_tokens = 5}, {.proposer = "self", .policy = "quest"}, {.proposer = "self", .ratio = 0.2},
           {.proposer = "self", .self_lookup = "suffix"}, {.proposer = "suffix"},
           {.proposer = "self", .policy = "streamingllm", .verify = false}})
    EXPECT_EQ(paced({.speculation = decided}), 0);
  Request structured = self;
  structured.structured.kind = StructuredOutput::Kind::JsonObject;
  EXPECT_EQ(paced(structured), 0);
}

TEST(Plan, TakesTheModelsSamplingDefaultsKeyByKey) {
  Request request{.prompt = {1}};
  request.sampling.top_k = 5;
  auto plan = test::good(plan_request(request, {.temperature = 0.6, .top_k = 20}, 64));
  EXPECT_FLOAT_EQ(plan.sampling.temperature, 0.6f);
  EXPECT_EQ(plan.sampling.top_k, 5);
  EXPECT_FLOAT_EQ(plan.sampling.top_p, 0.95f);
}

TEST(Plan, ChoosesMatchForGreedyAndSeededRequestsElseRatio) {
  struct Case {
    double temperature;
    std::optional<uint64_t> seed;
    const char *rule, *wanted;
  };
  const Case cases[] = {{0, {}, "", "match"}, {0.8, 1, "", "match"}, {0.8, {}, "", "ratio"}, {0.8, 1, "ratio", "ratio"},
      {0.8, {}, "match", "match"}, {1e-6, {}, "", "match"}};
  for (const Case& c : cases) {
    Request request{.prompt = {1}};
    request.sampling.temperature = c.temperature, request.sampling.seed = c.seed;
    request.speculation.rule = c.rule;
    auto plan = test::good(plan_request(request, {}, 64));
    EXPECT_EQ(plan.rule, c.wanted);
  }
}

TEST(Plan, DrawsANewSeedForEveryUnseededRequest) {
  const Request request{.prompt = {1}};
  EXPECT_NE(plan_request(request, {}, 64)->noise.seed, plan_request(request, {}, 64)->noise.seed);
}

TEST(Plan, KeepsFourSinksForStreamingLlmUnlessTold) {
  Request request{.prompt = {1}};
  request.speculation.policy = "streamingllm";
  EXPECT_EQ(plan_request(request, {}, 64)->policy.sinks, 4);
  request.speculation.sinks = 0;
  EXPECT_EQ(plan_request(request, {}, 64)->policy.sinks, 0);
}

TEST(Plan, RefusesWhatIsOutOfRangeAndSaysWhatIsAllowed) {
  struct Case {
    const char* message;
    SamplingOptions sampling;
    SpeculationOptions speculation;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Case cases[] = {
      {"temperature is -0.1", {.temperature = -0.1}},
      {"temperature is nan", {.temperature = nan}},
      {"top-p is 0", {.top_p = 0}},
      {"top-p is 1.5", {.top_p = 1.5}},
      {"min-p is -1", {.min_p = -1}},
      {"min-p is 2", {.min_p = 2}},
      {"top-k is -1", {.top_k = -1}},
      {"unknown rule 'typical'; known: match, point, ratio", {}, {.rule = "typical"}},
      {"unknown proposer 'dflash'; known: auto, ", {}, {.proposer = "dflash"}},
      {"unknown policy 'nosuch'; known: full, ", {}, {.policy = "nosuch"}},
      {"drafts of -1 tokens: the length must lie in [1, 64]", {}, {.num_tokens = -1}},
      {"drafts of 65 tokens", {}, {.num_tokens = 65}},
      {"kept ratio is 1.5", {}, {.ratio = 1.5}},
      {"kept ratio is -0.1", {}, {.ratio = -0.1}},
      {"kept ratio is nan", {}, {.ratio = nan}},
      {"minimum budget is 0", {}, {.min_tokens = 0}},
      {"spread is -1", {}, {.spread = -1}},
      {"spread is 2000", {}, {.spread = 2000}},
      {"sinks and recent", {}, {.recent = -1}},
      {"sinks and recent", {}, {.sinks = -2}},
      {"unknown draft weights 'q6_k'; known: auto, target, q4_0, q8_0", {}, {.draft_weights = "q6_k"}},
      {"unverified (lossy) decoding", {}, {.proposer = "self", .policy = "vegas", .verify = false}},
      {"unverified (lossy) decoding", {}, {.policy = "streamingllm", .verify = false}},
      {"a layer step of 0", {}, {.layer_step = 0}},
      {"unknown look-up 'self' for self; known: ngram, suffix", {}, {.self_lookup = "self"}},
      {"the 17 likeliest tokens of each node", {}, {.tree_top_k = 17}},
      {"5 layers to skip: the model has 8", {}, {.draft_skip_layers = "5"}},
      {"layer 8 to skip: the model has 8", {}, {.draft_skip_layers = "8,"}},
      {"unverified (lossy) decoding runs every layer", {},
          {.proposer = "self", .policy = "streamingllm", .draft_skip_layers = "1", .verify = false}},
  };
  for (const Case& c : cases) {
    auto plan = plan_request({.prompt = {1}, .sampling = c.sampling, .speculation = c.speculation}, {}, 64, 8);
    test::expect_error(plan, c.message);
    EXPECT_TRUE(!plan.ok() && plan.error().kind == Error::Kind::Usage) << c.message;
  }
}

}
}
