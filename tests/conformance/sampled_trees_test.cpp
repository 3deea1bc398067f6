// Trees of sampled nodes (rule ratio, `self`) in whole engines: the output is in the target's support and of the right length,
// counts add up, and a sibling makes it likelier that a round keeps something.
#include "methods.h"

namespace hunch {
namespace {

using namespace test;

Request sampled_request(const char* policy, int gamma, int tree, uint64_t seed, int64_t max_tokens) {
  auto request = ask(phrases(120, 60, seed % 4), max_tokens);
  set_method(request, {"self", tree, policy}, gamma);
  request.speculation.rule = "ratio";
  request.sampling.temperature = 1.0, request.sampling.seed = seed;
  return request;
}

TEST(SampledTrees, StayInTheTargetsSupportAndCountWhatTheyDid) {
  int turn = 0;
  int64_t beside = 0;
  for (const char* device : kHosts)
    for (const char* kv : kKvTypes)
      for (const char* policy : {"vegas", "quest"}) {
        static constexpr const char* kModels[] = {"qwen3-tied", "llama", "qwen2-window"};
        const auto model = tiny_path(kModels[turn % 3]);
        auto engine = load({.model = model, .device = device, .threads = 1 + turn % 2, .kv_dtype = kv, .context_len = 256});
        Request request = sampled_request(policy, 1 + turn % 6, 1 + 3 * (turn % 4), turn, 60);
        // Three tokens are possible, and log-probabilities name them. Penalties would make them others.
        request.sampling.top_k = 3, request.sampling.logprobs = 3;
        SCOPED_TRACE(fmt::format(
            "{} {} {} gamma {} tree {}", device, kv, policy, request.speculation.num_tokens, request.speculation.tree_tokens));
        ++turn;
        const auto run = generate(*engine, request);
        EXPECT_TRUE(run.lossless);
        ASSERT_EQ(run.tokens.size(), 60u);
        ASSERT_EQ(run.top.size(), 60u);
        for (size_t i = 0; i < run.tokens.size(); ++i)
          EXPECT_TRUE(std::ranges::any_of(run.top[i], [&](const auto& t) { return t.id == run.tokens[i]; }))
              << "token " << i << " is impossible";
        for (size_t i = 1; i < run.drafted_by_position.size(); ++i)
          EXPECT_LE(run.drafted_by_position[i], run.drafted_by_position[i - 1]);
        beside += guesses_beside(run);
      }
  EXPECT_GT(beside, 100) << "nothing branches";
}

// Rounds that keep their first token or its sibling, of all rounds that drafted.
struct Kept {
  double rounds = 0, first = 0, tokens = 0, beside = 0;
  double share() const { return first / rounds; }
};
Kept kept_by(Engine& engine, int gamma, int tree) {
  Kept kept;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    Request request = sampled_request("vegas", gamma, tree, seed, 100);
    request.speculation.ratio = 0.05, request.speculation.min_tokens = 4;
    const auto run = generate(engine, request);
    kept.rounds += double(run.drafted_by_position[0]), kept.first += double(run.accepted_by_position[0]);
    kept.tokens += double(run.accepted), kept.beside += double(guesses_beside(run));
  }
  return kept;
}

TEST(SampledTrees, ASiblingMakesARoundKeepMore) {
  auto engine = tiny_engine("llama", "cpu", 2);
  const Kept chain = kept_by(*engine, 2, 0), tree = kept_by(*engine, 2, 4), longer = kept_by(*engine, 6, 0);
  EXPECT_GT(tree.share(), chain.share());
  // At equal nodes, where chains die young.
  EXPECT_GT(tree.tokens / tree.rounds, longer.tokens / longer.rounds - 0.05);
  EXPECT_GT(tree.beside, tree.rounds) << "it does not branch";
}

}
}
