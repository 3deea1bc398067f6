// Sparse verification of whole engines: exact where nothing is left out, else labelled and apart from everybody else.
#include "engine/verify_check.h"

#include "engine/approximation.h"
#include "engine/reuse_schedule.h"
#include "engine/test_engines.h"

namespace hunch {
namespace {

using namespace test;

Request sparse(Request request, SparseVerification how) {
  how.on = true;
  request.speculation.sparse = how;
  return request;
}

std::unique_ptr<Engine> tiny(const std::string& name, int64_t context_len) { return tiny_engine(name, "cpu", 2, context_len); }

std::unique_ptr<Engine> wren() { return load({.model = wren_path(), .threads = 2, .context_len = 1024}); }
Request random_request(Engine& engine, int prompt_len, uint64_t seed, int64_t max_tokens) {
  return ask(random_prompt(prompt_len, int(shape_of(engine).vocab_size), seed), max_tokens);
}

// A calibration by which half of what it speaks of passes.
VerifyCalibration made_up(Engine& engine) {
  const ModelShape& shape = shape_of(engine);
  VerifyCalibration out{.model = identity_of(*engine.parts().checkpoint).text(), .layers = shape.layers, .anchors = {0}};
  out.channel_sizes.assign(shape.layers, std::vector<float>(19, 0.01f));
  out.expert_betas.assign(shape.layers, std::vector<float>(std::max(1, shape.experts_per_token), 2.0f));
  return out;
}

TEST(SparseVerification, ThatLeavesOutNothingIsExactBitForBit) {
  for (const std::string& name : tiny_models()) {
    const auto engine = tiny(name, 256);
    const Request request = random_request(*engine, 120, 3, 40);
    const auto plain = plain_stream(*engine, request);
    for (const char* proposer : {"none", "ngram"})
      for (const SparseVerification& how : {SparseVerification{.ratio = 1}, SparseVerification{.ratio = 0.01, .dense_len = 256},
               SparseVerification{.ratio = 0.99, .dense_len = 0, .block = 200, .recent_blocks = 9}}) {
        const auto g = generate_by(proposer, *engine, sparse(request, how));
        EXPECT_EQ(g.tokens, plain) << name << " " << how.ratio;
        EXPECT_TRUE(g.lossless);
        EXPECT_EQ(g.approximation.passes, 0);
        EXPECT_EQ(g.approximation.since_token, -1);
      }
  }
}

TEST(SparseVerification, SaysWhatAttentionLeftOut) {
  for (const char* device : kHosts)
    for (const char* scope : {"per_head", "joint"}) {
      const auto engine = tiny_engine("llama", device, 2, 512);
      const Request request = random_request(*engine, 300, 4, 24);
      const SparseVerification how{.ratio = 0.1, .dense_len = 64, .block = 16, .scope = scope};
      for (const char* proposer : {"none", "ngram", "suffix", "auto"}) {
        const auto g = generate_by(proposer, *engine, sparse(request, how));
        EXPECT_EQ(g.tokens.size(), 24u);
        EXPECT_FALSE(g.lossless);
        const Approximation& a = g.approximation;
        EXPECT_EQ(a.since_token, 1) << "the first came of the prompt's exact pass";
        EXPECT_GT(a.passes, 0);
        // (300 x 0.1 + 64 x 0.9) / 16 = 5.5 blocks of 19, and the last may be short.
        EXPECT_NEAR(double(a.entries_read) / a.entries, 90.0 / 305, 0.06) << scope;
        EXPECT_TRUE(approximation_text(a).starts_with("LOSSY: the check read ")) << approximation_text(a);
      }
    }
}

TEST(SparseVerification, LayersBehindAnAnchorReadItsBlocks) {
  const auto engine = tiny("llama", 512);
  const int layers = shape_of(*engine).layers;
  const Request request = random_request(*engine, 300, 4, 8);
  const SparseVerification how{.dense_len = 64, .block = 16, .reuse_layers = true};
  expect_error(engine->generate(sparse(request, how)), "--verify-reuse calibrated needs a calibration");
  engine->parts().calibration = made_up(*engine);
  const auto g = generate(*engine, sparse(request, how));
  EXPECT_EQ(int(g.approximation.reuse_layers.size()), layers - 1);
  engine->parts().calibration->anchors.clear();
  expect_error(engine->generate(sparse(request, how)), "has no anchors");
}

TEST(SparseVerification, LeavesOutChannelsAndExperts) {
  const auto dense = tiny("llama", 256);
  const auto thin = generate(*dense, sparse(random_request(*dense, 60, 5, 16), {.ratio = 1, .channel_threshold = 0.05}));
  EXPECT_FALSE(thin.lossless);
  EXPECT_GT(thin.approximation.channels_skipped, 0);
  EXPECT_EQ(thin.approximation.channels_skipped, thin.approximation.channel_rows_below)
      << "one row a pass: the union is the row's";
  for (const char* name : {"qwen3-moe", "gpt-oss"}) {
    const auto engine = tiny(name, 256);
    const Request asked = random_request(*engine, 60, 5, 16);
    const auto plain = generate(*engine, asked);
    for (const char* mode : {"literal", "graded"})
      expect_error(engine->generate(sparse(asked, {.ratio = 1, .skip_experts = 1, .expert_mode = mode})), "--calibrate-verify");
    engine->parts().calibration = made_up(*engine);
    for (const char* mode : {"literal", "graded", "tail_mass", "union_aware"}) {
      const Generation g =
          generate(*engine, sparse(asked, {.ratio = 1, .skip_experts = 1, .expert_mode = mode, .expert_mass = 0.99}));
      EXPECT_FALSE(g.lossless) << name << " " << mode;
      EXPECT_GT(g.approximation.experts_skipped, 0);
      EXPECT_LT(g.experts_read, plain.experts_read) << name << " " << mode;
    }
    const SparseVerification none{.ratio = 1, .skip_experts = 0, .expert_mode = "tail_mass", .expert_mass = 0.99};
    EXPECT_EQ(generate(*engine, sparse(asked, none)).tokens, plain.tokens);
  }
}

// Lossy K and V never serve an exact request, and an exact request beside a lossy one says what it says alone.
TEST(SparseVerification, KeepsToItself) {
  const auto engine = wren();
  const auto exact = ask(copying_prompt(engine->tokenizer(), 500, 3), 24);
  const auto expected = generate(*wren(), exact).tokens;
  const auto lossy = sparse(exact, {.ratio = 0.1, .dense_len = 64, .block = 16, .channel_threshold = 0.05});
  const auto first = generate(*engine, lossy);
  EXPECT_FALSE(first.lossless);
  Request longer = exact;  // a next turn behind the lossy answer
  append(longer.prompt, first.tokens);
  EXPECT_EQ(generate(*engine, longer).reused_tokens, 0) << "what the lossy request left behind";
  const auto after = generate(*engine, exact);
  EXPECT_GT(after.reused_tokens, 0) << "of the exact one";
  EXPECT_EQ(after.tokens, expected);
  EXPECT_EQ(generate(*engine, lossy).reused_tokens, 0);
  EXPECT_EQ(generate(*engine, lossy).tokens, first.tokens);

  auto a = engine->submit(lossy), b = engine->submit(exact), c = engine->submit(lossy);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  auto beside = good((*b)->result());
  EXPECT_EQ(beside.tokens, expected);
  EXPECT_TRUE(beside.lossless);
}

// The same left out of passes that draft: the check is exact, and so is all that is said and kept.
TEST(ThinnedDrafts, LeaveTheStreamAsItIs) {
  const SparseVerification ways[] = {{.ratio = 0.1, .dense_len = 32, .block = 8},
      {.ratio = 0.2, .dense_len = 0, .block = 8, .scope = "joint", .reuse_layers = true}, {.ratio = 1, .channel_threshold = 0.05},
      {.ratio = 0.2, .dense_len = 16, .block = 8, .channel_share = 0.5}, {.ratio = 1, .skip_experts = 1, .expert_mode = "graded"},
      {.ratio = 0.3, .dense_len = 16, .block = 8, .skip_experts = 1, .expert_mode = "union_aware"}};
  Tally kept;
  for (const char* name : {"llama", "qwen2-window", "qwen3-moe"}) {
    const char* device = std::string(name) == "qwen2-window" ? "reference" : "cpu";
    const auto engine = tiny_engine(name, device, 1);
    engine->parts().calibration = made_up(*engine);
    const bool experts = shape_of(*engine).num_experts > 0;
    Request request = random_request(*engine, 90, 3, 24);
    for (size_t i = 40; i < 90; ++i) request.prompt[i] = request.prompt[i % 20];
    const auto plain = plain_stream(*engine, request);
    request.speculation.ngram_min = 1, request.speculation.ngram_max = 3;
    for (SparseVerification how : ways) {
      if (how.skip_experts > 0 ? !experts : experts && how.ratio == 1) continue;
      if (experts) how.channel_share = 0;
      how.drafts = true;
      request.speculation.sparse = how;
      for (const char* proposer : {"self", "staged", "cascade"}) {
        const auto g = generate_by(proposer, *engine, request);
        EXPECT_EQ(g.tokens, plain) << name << " " << proposer;
        EXPECT_TRUE(g.lossless);
        EXPECT_FALSE(g.approximation.any());
        if (proposer != std::string("cascade")) {
          EXPECT_GT(g.thinned.passes, 0) << name << " " << proposer;
          EXPECT_GT(g.draft_passes, 0);
        }
        kept.add(g);
      }
    }
  }
  kept.expect_kept_and_dropped();
}

// What such a request leaves in the cache is exact: others build on it, as it on theirs, and its company stays as it is.
TEST(ThinnedDrafts, ShareTheirPagesWithExactRequests) {
  const auto engine = wren();
  const auto exact = ask(copying_prompt(engine->tokenizer(), 360, 3), 48);
  const auto expected = generate(*wren(), exact).tokens;
  Request thin = exact;
  guess(thin, "staged", 12);
  thin.speculation.sparse = {.drafts = true, .dense_len = 64, .block = 16, .channel_threshold = 0.05};
  const auto first = generate(*engine, thin);
  EXPECT_EQ(first.tokens, expected);
  EXPECT_TRUE(first.lossless);
  EXPECT_GT(first.accepted, first.rounds) << "copying is easy";
  EXPECT_LT(first.draft_passes, first.drafted) << "some passes checked more than one guess";
  EXPECT_LT(first.thinned.entries_read, first.thinned.entries / 2);
  EXPECT_EQ(generate(*engine, thin).tokens, expected) << "on pages of its own";
  Request next = exact;
  append(next.prompt, first.tokens);
  const auto longer = generate(*engine, next);
  EXPECT_GT(longer.reused_tokens, std::ssize(exact.prompt)) << "what the thinned drafts' request left behind";
  EXPECT_EQ(longer.tokens, generate(*wren(), next).tokens);
  const auto lossy = sparse(exact, {.ratio = 0.1, .dense_len = 64, .block = 16});
  auto a = engine->submit(thin), b = engine->submit(lossy), c = engine->submit(exact), d = engine->submit(thin);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok() && d.ok());
  for (auto* stream : {&a, &c, &d}) {
    auto beside = good((**stream)->result());
    EXPECT_EQ(beside.tokens, expected);
    EXPECT_TRUE(beside.lossless);
  }
}

TEST(SparseVerification, RefusesWhatIsNotThere) {
  const auto llama = tiny("llama", 128), nsa = tiny("nsa-std", 128), moe = tiny("qwen3-moe", 128);
  auto request = ask({1, 2, 3}, 4);
  const auto expect = [&](Engine& engine, SparseVerification how, const std::string& part) {
    expect_error(engine.generate(sparse(request, how)), part);
  };
  expect(*llama, {.ratio = 0}, "the ratio of entries is 0");
  expect(*llama, {.block = 0}, "the block is 0");
  expect(*llama, {.scope = "heads"}, "per_head or joint");
  expect(*llama, {.channel_threshold = 0.1, .channel_share = 0.5}, "say one");
  expect(*llama, {.channel_share = 0.5}, "--verify-channel-share needs a calibration");
  expect(*llama, {.skip_experts = 1}, "has no experts");
  expect(*moe, {.channel_threshold = 0.1}, "channels inside experts");
  expect(*moe, {.skip_experts = 99}, "at most");
  expect(*moe, {.skip_experts = 1, .expert_mode = "best"}, "tail_mass");
  expect(*nsa, {}, "sparse as trained");
  for (const std::string proposer : {"self", "staged"}) {
    request.speculation.proposer = proposer;
    expect(*llama, {}, "method " + proposer + " guesses by what a check of all entries learns");
  }
  Request thin = request;
  thin.speculation.sparse = {.drafts = true};
  for (const std::string proposer : {"none", "ngram", "suffix"}) {
    thin.speculation.proposer = proposer;
    expect_error(llama->generate(thin), "method " + proposer + " has none");
  }
  thin.speculation.proposer = "self";
  expect_error(nsa->generate(thin), "sparse as trained");
  thin.speculation.sparse.channel_share = 0.5;
  expect_error(llama->generate(thin), "needs a calibration");
  thin.speculation.policy = "streamingllm", thin.speculation.verify = false;
  expect_error(llama->generate(thin), "unverified decoding checks nothing");
  request.speculation.proposer = "self";
  request.speculation.policy = "streamingllm", request.speculation.verify = false;
  expect(*llama, {}, "unverified decoding checks nothing");
}

TEST(Anchors, AreTheLayersLeastLikeTheOneBefore) {
  // Six layers whose neighbours' likeness is .9 .2 .8 .1 .9.
  const double near[] = {0.9, 0.2, 0.8, 0.1, 0.9};
  std::vector<double> likeness(36, 0.7);
  for (int i = 0; i < 6; ++i) likeness[i * 7] = 1;
  for (int i = 0; i < 5; ++i) likeness[i * 6 + i + 1] = likeness[(i + 1) * 6 + i] = near[i];
  EXPECT_EQ(choose_anchors(likeness, 6, 1, 1), (Ints{0})) << "the first always";
  EXPECT_EQ(choose_anchors(likeness, 6, 3, 3), (Ints{0, 2, 4}));
  likeness[5 * 6 + 4] = 0.5;  // layer 5 drifted from the anchor that serves it
  EXPECT_EQ(choose_anchors(likeness, 6, 3, 3), (Ints{0, 2, 4})) << "no more than asked for";
  EXPECT_EQ(choose_anchors(likeness, 6, 3, 6), (Ints{0, 2, 4, 5}));
  EXPECT_EQ(choose_anchors(likeness, 6, 9, 9).size(), 6u);
}

TEST(VerifyCalibration, OfOtherWeightsIsRefusedByBothNames) {
  const std::string name = "qwen3-q8_0.gguf", path = testing::TempDir() + "calibration.json";
  const auto engine = tiny_engine(name, "cpu", 1, 128);
  ASSERT_TRUE(made_up(*engine).save(path).ok());
  EngineOptions options{.model = tiny_path(name), .threads = 1, .context_len = 128, .verify_calibration = path};
  EXPECT_EQ(load(options)->parts().calibration->anchors, Ints{0});
  options.model = spoiled_copy(name, 1);
  const auto refused = error_of(Engine::load(options));
  expect_part(refused, identity_of(*engine->parts().checkpoint).text());
  options.verify_calibration.clear();
  expect_part(refused, identity_of(*load(options)->parts().checkpoint).text());
  options.verify_calibration = tiny_path("llama") + "/config.json";
  expect_error(Engine::load(options), "is no calibration");
}

}
}
