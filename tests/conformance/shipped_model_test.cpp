// The same promise on the shipped model, on prompts of 4K to 16K tokens where more than half of all drafts are kept: over
// policies, ratios, gammas, samplings, instruction sets, KV types, chunks, threads, and all vegas options.
#include "equality.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kNewTokens = 64;

EngineOptions wren(int64_t context) { return {.model = wren_path(), .threads = 2, .context_len = context}; }

TEST(ShippedModel, StreamsEqualPlainDecodingForEveryRatioAndGamma) {
  auto engine = load(wren(4608));
  const auto prompt = copying_prompt(engine->tokenizer(), 4096, 1);
  ASSERT_GE(prompt.size(), 4000u);
  Equality equality(*engine);
  int turn = 0;
  for (const double ratio : kRatios)
    for (const int gamma : kGammas) {
      auto request = self_drafting(prompt, kNewTokens, ratio, gamma);
      equality.expect_plain_stream(request, turn++, fmt::format("ratio {} gamma {}", ratio, gamma));
    }
  equality.expect_mostly_kept();
}

TEST(ShippedModel, StreamsEqualPlainDecodingForEveryCombinationOfVegasOptions) {
  auto engine = load(wren(4608));
  const auto prompt = copying_prompt(engine->tokenizer(), 4096, 2);
  Equality equality(*engine);
  int turn = 0;
  for (const char* metric : {"weight", "true_weight", "logit"})
    for (const char* rows : {"all", "first_last", "last"})
      for (const char* combine : {"max", "sum"})
        for (const char* share : {"kv_head", "layer"})
          for (const int spread : {0, 16}) {
            if (std::string(metric) == "logit" && spread > 0) continue;  // refused: logits may be negative
            auto request = ask(prompt, kNewTokens);
            auto& s = request.speculation;
            s.metric = metric, s.rows = rows, s.combine = combine, s.share = share, s.spread = spread;
            s.ratio = 0.03, s.num_tokens = 4;
            s.sinks = turn % 4 == 3 ? 4 : 0, s.recent = turn % 5 == 4 ? 8 : 0;
            equality.expect_plain_stream(
                request, turn++, fmt::format("{} {} {} {} spread {}", metric, rows, combine, share, spread));
          }
  EXPECT_EQ(turn, 60);
  equality.expect_mostly_kept();
}

TEST(ShippedModel, StreamsEqualPlainDecodingOnEveryInstructionSetAndKvType) {
  static constexpr int kChunks[] = {64, 512, 96};
  static constexpr const char* kKvTypes[] = {"bf16", "f16", "f32", "q8_0", "fp8", "i16"};
  const auto isas = available_isas();
  int turn = 0;
  for (size_t level = 0; level < isas.size(); ++level)
    for (size_t type = 0; type < 6; ++type) {
      const std::string isa = isas[level], kv = kKvTypes[type];
      // All types on the best level, one on the others; portable code is slow: the tiny models must do.
      if (isa == "portable" || (level + 1 < isas.size() && type != 3 - level)) continue;
      auto options = wren(4608);
      options.isa = isa, options.kv_dtype = kv, options.threads = 1 + turn % 2, options.chunk_len = kChunks[turn % 3];
      auto engine = load(options);
      Equality equality(*engine);
      auto request = ask(copying_prompt(engine->tokenizer(), 4096, 3), kNewTokens);
      request.speculation.num_tokens = 7;
      for (const double ratio : {0.01, 0.02}) {
        request.speculation.ratio = ratio;
        equality.expect_plain_stream(request, turn, fmt::format("{} {} ratio {}", isa, kv, ratio));
      }
      ++turn;
      equality.expect_mostly_kept(isa + " " + kv);
    }
}

TEST(ShippedModel, StreamsEqualPlainDecodingForDraftsOfOtherPoliciesAndCheaperWeights) {
  auto engine = load(wren(4608));
  const auto prompt = copying_prompt(engine->tokenizer(), 4096, 4);
  Equality equality(*engine);
  int turn = 0;
  for (const char* weights : {"target", "q4_0"})
    for (const char* policy : {"full", "streamingllm", "vegas"}) {
      auto request = self_drafting(prompt, kNewTokens, 0.02, 3, policy);
      request.speculation.draft_weights = weights;
      equality.expect_plain_stream(request, turn++, std::string(policy) + " " + weights);
    }
  equality.expect_mostly_kept();
}

TEST(ShippedModel, StreamsEqualPlainDecodingAt8KAnd16K) {
  for (const int len : {8192, 16000}) {
    auto engine = load(wren(len + 512));
    Equality equality(*engine);
    const auto prompt = copying_prompt(engine->tokenizer(), len, 5);
    ASSERT_GE(prompt.size(), size_t(len) - 200);
    for (int turn = 0; turn < (len == 8192 ? 6 : 2); ++turn) {
      auto request = self_drafting(prompt, kNewTokens, turn % 2 ? 0.01 : 0.015, len == 8192 ? 7 : 4);
      equality.expect_plain_stream(request, turn, fmt::format("{} tokens", len));
    }
    equality.expect_mostly_kept(std::to_string(len));
  }
}

TEST(ShippedModel, StreamsEqualPlainDecodingWhereThePromptsEntriesAreReused) {
  auto engine = load(wren(4608));
  auto request = ask(copying_prompt(engine->tokenizer(), 4096, 6), kNewTokens);
  set_sampling(request, 1);
  const auto plain = plain_stream(*engine, request);
  request.speculation.proposer = "self", request.speculation.ratio = 0.02, request.cache_prompt = true;
  for (int repeat = 0; repeat < 4; ++repeat) {
    request.speculation.num_tokens = 3 + 4 * repeat;
    const auto run = generate(*engine, request);
    EXPECT_EQ(run.tokens, plain) << "repeat " << repeat;
    if (repeat > 0) { EXPECT_GT(run.reused_tokens, 0); }
    EXPECT_GE(run.accepted, 1);
  }
}

}
}
