// 300 schemas: every output that comes to an end is valid, every one that is cut is the beginning of a valid one, and whoever
// drafts, the output is that of plain decoding.

#include "schemas.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kSchemas = 300;

// A model that knows nothing would fill its outputs with blanks.
void ban_blanks(const Engine& engine, Request& request) {
  for (const char* blank : {" ", "\n", "\r", "\t"})
    request.sampling.logit_bias.push_back({good(engine.tokenizer().encode(blank, {.add_bos = false}))[0], -4.0f});
}

class Schemas : public testing::Test {
 protected:
  void SetUp() override {
    if (!grammars_available()) GTEST_SKIP() << "built without xgrammar";
    engine = load({
        .model = tiny_path("qwen3-deep"),
        .threads = 2,
        .context_len = 256,
        .max_num_seqs = 1,
        .drafters = {{.path = tiny_path("eagle3")}},
    });
  }
  // By the tokens, with an automaton of its own; of an output that came to its end also by its text.
  void expect_kept(const StructuredOutput& wanted, const Generation& run) {
    auto compiler = good(engine->parts().grammars());
    GrammarState state(good(compiler->compile(wanted)), *compiler);
    const std::string what = wanted.text + " gave " + run.text;
    for (const int32_t id : run.tokens) ASSERT_TRUE(state.accept(id)) << what;
    if (run.finish != FinishReason::Stop) return;
    ++ended;
    EXPECT_TRUE(state.complete()) << what;
    const Json schema = Json::parse(wanted.text), value = Json::parse(run.text, nullptr, false);
    EXPECT_TRUE(!value.is_discarded() && fits(value, schema, schema)) << what;
  }
  std::unique_ptr<Engine> engine;
  int ended = 0;
};

TEST_F(Schemas, AreKeptByEveryProposerAndTheOutputIsThatOfPlainDecoding) {
  const auto schemas = test::schemas(kSchemas);
  struct Method {
    const char* proposer;
    int tree_tokens;
  };
  constexpr Method kMethods[] = {{"self", 0}, {"self", 6}, {"ngram", 0}, {"suffix", 0}, {"eagle3", 0}, {"eagle3", 6}};
  int64_t drafted = 0, accepted = 0;
  for (int i = 0; i < kSchemas; ++i) {
    auto request = ask(random_prompt(20 + i % 7, 256, uint64_t(i)), 60);
    request.sampling.temperature = i % 3 == 0 ? 0.0 : 0.9;
    request.sampling.seed = uint64_t(i);
    ban_blanks(*engine, request);
    request.structured = {.kind = StructuredOutput::Kind::JsonSchema, .text = schemas[i]};
    const auto plain = generate(*engine, request);
    const auto what = fmt::format("schema {}: {}", i, schemas[i]);
    expect_kept(request.structured, plain);
    EXPECT_EQ(plain.drafted, 0) << what;
    for (const Method& method : kMethods) {
      SpeculationOptions& o = request.speculation;
      o.proposer = method.proposer, o.tree_tokens = method.tree_tokens;
      o.num_tokens = 2 + i % 5;
      o.ngram_min = 1, o.ngram_max = 2, o.suffix_factor = 3, o.ratio = 0.4;
      const auto run = generate(*engine, request);
      SCOPED_TRACE(what + " " + method.proposer);
      ASSERT_EQ(run.text, plain.text);
      ASSERT_EQ(run.tokens, plain.tokens);
      ASSERT_EQ(run.finish, plain.finish);
      drafted += run.drafted, accepted += run.accepted;
    }
  }
  EXPECT_GT(ended, kSchemas * 2 / 3);
  EXPECT_GT(accepted, 1000);
  EXPECT_LT(accepted, drafted);
}

// The same without seeds and shared noise: other outputs than plain decoding's, and just as valid.
TEST_F(Schemas, AreKeptUnderRuleRatio) {
  const auto schemas = test::schemas(60);
  for (size_t i = 0; i < schemas.size(); ++i)
    for (const char* proposer : {"self", "eagle3", "ngram"}) {
      auto request = ask(random_prompt(20, 256, i), 60);
      request.sampling.temperature = 1, request.sampling.seed = i;
      ban_blanks(*engine, request);
      request.structured = {.kind = StructuredOutput::Kind::JsonSchema, .text = schemas[i]};
      SpeculationOptions& o = request.speculation;
      o.proposer = proposer, o.rule = "ratio", o.num_tokens = 3, o.tree_tokens = i % 2 ? 5 : 0, o.ngram_min = 1, o.ratio = 0.4;
      expect_kept(request.structured, generate(*engine, request));
    }
  EXPECT_GT(ended, 100);
}

}
}
