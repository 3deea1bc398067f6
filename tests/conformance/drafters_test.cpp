// Learned drafters give the output of plain decoding: alone, in chains, grown and fixed trees, under every rule that promises it;
// and in a crowd with far too few pages, with and without a prefix cache, in prompt chunks of any size. A drafter joins by its
// line in kDrafters (folders: models/tiny/README.md).
#include "methods.h"

namespace hunch {
namespace {

using namespace test;

struct Drafter {
  const char *folder, *target;
  bool points = false;  // guesses under rule ratio are no samples, so that even there the stream is the plain one
};
constexpr Drafter kDrafters[] = {{"medusa", "qwen3-deep", true}, {"medusa-vllm", "qwen3-deep", true}, {"eagle1", "qwen3-deep"},
    {"eagle3", "qwen3-deep"}, {"eagle3-speculators", "qwen3-deep"}, {"mtp-deepseek", "mtp-deepseek"}, {"mtp-qwen", "mtp-qwen"},
    {"draft-llama", "qwen3-deep"}, {"deepseek-v3", "deepseek-v3"}};

class LearnedDrafter : public testing::TestWithParam<Drafter> {
 protected:
  // `drafting` false: the target alone.
  EngineOptions options(const char* device, const char* kv, bool drafting = true) const {
    EngineOptions out{.model = tiny_path(GetParam().target), .device = device, .threads = 2, .kv_dtype = kv};
    out.context_len = 256, out.max_num_seqs = 1, out.prefix_caching = false;
    if (drafting) out.drafters = {{.path = tiny_path(GetParam().folder)}};
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(
    All, LearnedDrafter, testing::ValuesIn(kDrafters), [](const auto& info) { return test_name(info.param.folder); });

// The shapes of guesses: a chain, a tree that grows, the request's own tree.
constexpr int kNumShapes = 3;
void set_shape(Request& request, const Engine& engine, int shape, int gamma) {
  SpeculationOptions& o = request.speculation;
  o.proposer = const_cast<Engine&>(engine).parts().learned.at(0).name;
  if (shape % kNumShapes < 2) o.num_tokens = gamma;
  if (shape % kNumShapes == 1) o.tree_tokens = 5 + gamma, o.tree_top_k = 2 + gamma;
  if (shape % kNumShapes == 2) o.token_tree = {{0}, {1}, {3}, {0, 0}, {0, 2}, {1, 0}, {0, 0, 1}};
}

// A few tokens to choose from: random heads are right now and then.
void narrow(Request& request) { request.sampling.allowed_token_ids = {3, 17, 40, 41, 99, 130, 200, 251}; }

TEST_P(LearnedDrafter, GivesThePlainStreamAloneInEveryShapeUnderEveryRuleThatPromisesIt) {
  int turn = 0;
  Tally kept[kNumShapes];
  for (const char* device : kHosts) {
    auto engine = load(options(device, turn == 0 ? "f32" : "bf16"));
    for (const double temperature : {0.0, 0.8})
      for (const bool narrowed : {false, true}) {
        auto request = ask(phrases(90, 30, 1), 40, temperature);
        if (narrowed) narrow(request), request.sampling.frequency_penalty = 0.4;
        const auto plain = generate_plain(*engine, request);
        for (const char* rule : {"match", "ratio"})
          for (int shape = 0; shape < kNumShapes; ++shape) {
            if (std::string(rule) == "ratio" && temperature > 0 && !GetParam().points) continue;
            Request asked = request;
            set_shape(asked, *engine, shape, 1 + turn++ % 4);
            asked.speculation.rule = rule;
            const auto what = fmt::format("{} T {} narrow {} {} shape {}", device, temperature, narrowed, rule, shape);
            const auto run = generate_same(*engine, asked, plain, what);
            EXPECT_GT(run.drafted, 0) << what;
            kept[shape].add(run);
          }
      }
  }
  for (int shape = 0; shape < kNumShapes; ++shape) kept[shape].expect_kept_and_dropped(fmt::format("shape {}", shape), 10);
}

// Pages of target and drafters for `pages` times 64 entries.
int64_t memory_of(Engine& engine, int pages) {
  EngineParts& parts = engine.parts();
  size_t bytes = parts.backend->kv_page_bytes(parts.geometry);
  for (const auto& drafter : parts.learned) {
    const Needs needs = drafter.proposer->needs();
    bytes += needs.page_floats * sizeof(float);
    if (!needs.kv) continue;
    KvGeometry own = *needs.kv;
    own.dtype = parts.geometry.dtype;
    bytes += parts.backend->kv_page_bytes(own);
  }
  return int64_t(bytes) * pages;
}

TEST_P(LearnedDrafter, GivesThePlainOutputsInACrowdWithFarTooFewPages) {
  int turn = 0;
  for (const char* device : kHosts)
    for (const bool caching : {true, false}) {
      const char* kv = turn % 2 ? "bf16" : "f32";
      auto alone = load(options(device, kv, false));
      auto crowd = crowd_of(options(device, kv), caching, turn);
      crowd.kv_memory_bytes = memory_of(*load(options(device, kv)), 7);
      auto crowded = load(crowd);

      Together together(*alone);
      for (int i = 0; i < 12; ++i) {
        Request asked = request_of_kind(*alone, i, phrases(100 + 13 * (i % 5), 70, i % 4), 60);
        if (i % 8 < 2) narrow(asked);
        Request& request = together.add(asked);
        if (i % 5 != 4) set_shape(request, *crowded, i + turn, 1 + (i + turn) % 4);  // every fifth decodes plainly
        if (GetParam().points && i % 3 == 0) request.speculation.rule = "ratio";
        request.priority = i % 3;
      }
      together.expect_plain_outputs(*crowded, fmt::format("{} cache {}", device, caching));
      expect_full_stats(crowded->stats(), caching, device);
      ++turn;
    }
}

// Rule ratio: what comes out is in the target's support, and the counts add up. The target's law: src/accept proves it, tests/law
// counts.
TEST_P(LearnedDrafter, DrawnTreesStayInTheTargetsSupportAndCountWhatTheyDid) {
  int turn = 0;
  int64_t beside = 0, accepted = 0;
  for (const char* device : kHosts)
    for (const bool narrowed : {false, true}) {
      auto engine = load(options(device, turn % 2 ? "bf16" : "f32"));
      for (int shape = 1; shape < kNumShapes; ++shape) {
        auto request = ask(phrases(90, 30, 3), 60);
        set_shape(request, *engine, shape, 1 + turn++ % 4);
        request.speculation.rule = "ratio";
        // Three tokens are possible, and log-probabilities name them: none has another bias or history.
        request.sampling.temperature = 1.0, request.sampling.top_k = 3, request.sampling.logprobs = narrowed ? 20 : 3;
        if (narrowed) narrow(request);
        SCOPED_TRACE(fmt::format("{} narrow {} shape {}", device, narrowed, shape));
        const auto run = generate(*engine, request);
        EXPECT_TRUE(run.lossless);
        ASSERT_EQ(run.tokens.size(), 60u);
        const auto& allowed = request.sampling.allowed_token_ids;
        for (size_t i = 0; i < run.tokens.size(); ++i)
          EXPECT_TRUE(narrowed ? std::ranges::count(allowed, run.tokens[i]) > 0
                               : std::ranges::any_of(run.top[i], [&](const auto& t) { return t.id == run.tokens[i]; }))
              << "token " << i << " is impossible";
        beside += guesses_beside(run), accepted += run.accepted;
      }
    }
  EXPECT_GT(beside, 100) << "nothing branches";
  EXPECT_GT(accepted, 10);
}

// What stands behind the pending token in every round: nodes of the shape in its order.
TEST_P(LearnedDrafter, ExpandsTheNodesOfARequestsOwnTreeAndNoOthers) {
  auto engine = load(options("cpu", "f32"));
  auto request = ask(phrases(60, 20, 2), 30);
  set_shape(request, *engine, 2, 1);
  const auto run = make_step(*engine, request);
  int whole = 0, rounds = 0;
  run->hot_loop().after_drafts = [&](Running& who) {
    if (!who.drafting() || who.tree().size == 0) return;
    ++rounds;
    // Level by level: (0,) (1,) (3,) | (0, 0) (0, 2) (1, 0) | (0, 0, 1), where the last rounds have room and heads are deep
    // enough.
    const int parents[] = {-1, -1, -1, 0, 0, 1, 3};
    const DraftTree& tree = who.tree();
    ASSERT_LE(tree.size, 7);
    for (int node = 0; node < tree.size; ++node) ASSERT_EQ(tree.parents[node], parents[node]);
    whole += tree.size >= 6;
  };
  decode_to_the_end(*run);
  EXPECT_GT(whole, 5);
  EXPECT_GE(rounds, whole);
}

TEST_P(LearnedDrafter, RefusesTokenTreesThatItCannotFollow) {
  auto engine = load(options("cpu", "f32"));
  const auto refusal = [&](auto&& change) {
    auto request = ask({1, 2, 3}, 4);
    set_shape(request, *engine, 2, 1);
    change(request.speculation);
    const auto run = engine->generate(request);
    EXPECT_FALSE(run.ok());
    return run.ok() ? "" : run.error().message;
  };
  EXPECT_EQ(refusal([](SpeculationOptions& o) {
    o.token_tree = {{0}, {1, 0}};
  }),
      "node (1, 0) of the token tree has no parent: add (1,)");
  EXPECT_EQ(refusal([](SpeculationOptions& o) { o.tree_tokens = 3; }),
      "a token tree says how many nodes there are: leave the tree tokens out");
  EXPECT_EQ(refusal([](SpeculationOptions& o) { o.num_tokens = 5; }),
      "drafts of 5 tokens, but the token tree has 7 nodes in 3 levels: say one of these, or leave the length out");
  EXPECT_EQ(refusal([](SpeculationOptions& o) { o.proposer = "self"; }),
      "method self does not guess by a token tree: learned drafters do");
}

}
}
