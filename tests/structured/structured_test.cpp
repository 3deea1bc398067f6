// Structured output beside everything else that a request may ask for: other kinds of grammars, rules of logits, crowds that are
// preempted, dead ends, requests that ignore the end.

#include "../conformance/methods.h"
#include "schemas.h"

namespace hunch {
namespace {

using namespace test;
using enum StructuredOutput::Kind;

class Structured : public testing::Test {
 protected:
  void SetUp() override {
    if (!grammars_available()) GTEST_SKIP() << "built without xgrammar";
  }
  static EngineOptions options() {
    return {.model = tiny_path("qwen3-tied"), .threads = 2, .context_len = 256, .max_num_seqs = 1};
  }
  static Request request(StructuredOutput structured, int seed, int64_t max_tokens = 60) {
    auto out = ask(phrases(60, 30, uint64_t(seed)), max_tokens);
    out.sampling.temperature = seed % 2 ? 0.9 : 0.0;
    out.sampling.seed = uint64_t(seed);
    out.structured = std::move(structured);
    return out;
  }
  static int32_t id_of(const Engine& engine, const char* text) {
    const auto ids = good(engine.tokenizer().encode(text, {.add_bos = false}));
    HUNCH_CHECK(ids.size() == 1);
    return ids[0];
  }
};

const StructuredOutput kKinds[] = {
    {.kind = JsonObject},
    {.kind = Regex, .text = "([a-f]{3}-){2,6}end"},
    {.kind = Choice, .choices = {"yes", "yesterday", "no", "never in a hundred years"}},
    {.kind = Grammar, .text = "root ::= \"[\" item (\", \" item)* \"]\"\nitem ::= [0-9]{1,3} | \"none\" | root"},
};

TEST_F(Structured, OutputIsThatOfPlainDecodingForEveryKindAndMethod) {
  auto engine = load(options());
  int64_t accepted = 0, drafted = 0;
  for (int seed = 0; seed < 6; ++seed)
    for (const StructuredOutput& structured : kKinds) {
      auto asked = request(structured, seed);
      if (seed > 3) asked.sampling.logprobs = 2, asked.sampling.presence_penalty = 0.5;
      const auto plain = generate_plain(*engine, asked);
      for (const Method& method : kMethods) {
        set_method(asked, method, 2 + seed);
        const auto run = generate_same(*engine, asked, plain, fmt::format("{} {}", int(structured.kind), name_of(method)));
        drafted += run.drafted, accepted += run.accepted;
      }
    }
  EXPECT_GT(accepted, 300);
  EXPECT_LT(accepted, drafted);
}

// A text of which every byte is known needs no drafter: the rounds are as long as they may be and everything in them is kept.
TEST_F(Structured, WhatIsForcedIsGuessedForFree) {
  auto engine = load(options());
  for (const char* proposer : {"self", "ngram", "suffix", "auto"}) {
    auto asked = request({.kind = Choice, .choices = {"never in a hundred years"}}, 1);
    const auto plain = generate_plain(*engine, asked);
    guess(asked, proposer, 8);
    const auto run = generate(*engine, asked);
    EXPECT_EQ(run.text, "never in a hundred years");
    EXPECT_EQ(run.tokens, plain.tokens);
    EXPECT_EQ(run.finish, FinishReason::Stop);
    EXPECT_EQ(run.draft_passes, 0) << proposer;
    EXPECT_EQ(run.accepted, run.drafted) << proposer;
    if (std::string(proposer) != "auto") { EXPECT_GE(run.drafted, 16) << proposer; }
  }
}

TEST_F(Structured, GuessesHaveNoMasksInFreeText) {
  auto engine = load(options());
  auto asked = request({.kind = Regex, .text = "ab[ab1-4]e"}, 0);
  asked.ignore_eos = true;
  auto step = make_step(*engine, asked);
  GrammarMask& mask = *step->running().grammar();
  const int32_t path[] = {id_of(*engine, "a"), id_of(*engine, "b"), id_of(*engine, "a"), id_of(*engine, "e")};
  const int32_t refused = id_of(*engine, "f");
  for (const bool left_out : {true, false}) {
    mask.reset();
    mask.leave_out(left_out);
    for (size_t len = 0; len <= std::size(path); ++len)
      EXPECT_EQ(mask.after(std::span(path, len)).words == nullptr, left_out && len == 2) << len;
    int place = GrammarMask::kCommitted;
    for (const int32_t token : path) {
      EXPECT_TRUE(mask.may_say(place, token));
      EXPECT_FALSE(mask.may_say(place, refused));
      place = mask.step(place, token);
    }
    EXPECT_FALSE(mask.may_say(place, engine->tokenizer().eos_ids()[0]));
  }
}

TEST_F(Structured, CrowdsThatArePreemptedSayWhatEachSaysAlone) {
  auto alone = load(options());
  auto narrow = options();
  narrow.max_num_seqs = 5, narrow.chunk_len = 40, narrow.max_num_batched_tokens = 90;
  narrow.kv_memory_bytes = bytes_of_pages(*alone, 5);
  auto crowded = load(narrow);
  Together together(*alone);
  for (int i = 0; i < 16; ++i)
    set_method(together.add(i % 4 == 3 ? request({}, i, 90) : request(kKinds[size_t(i / 4 + i) % 4], i, 90)),
        kMethods[(i * 5 + 1) % kNumMethods], 2 + i % 5);
  together.expect_plain_outputs(*crowded, "");
  EXPECT_GT(crowded->stats().preemptions, 0);
}

// Logit rules that leave nothing of a grammar end that request, after what it could still say, and no other.
TEST_F(Structured, DeadEndsAreErrorsAfterTheTokensBefore) {
  auto two = options();
  two.max_num_seqs = 2;
  auto engine = load(two);
  for (const char* proposer : {"none", "self", "ngram", "suffix"}) {
    auto dead = request({.kind = Choice, .choices = {"abcabcabcabcX!"}}, 1);
    dead.sampling.logit_bias = {{id_of(*engine, "X"), -100.0f}};
    guess(dead, proposer, 5);
    dead.speculation.ngram_min = 1;
    auto other = request(kKinds[1], 2);
    auto stream = engine->submit(dead), beside = engine->submit(other);
    ASSERT_TRUE(stream.ok() && beside.ok());
    std::string said;
    while (auto event = (*stream)->next()) said += event->text;
    EXPECT_EQ(said, "abcabcabcabc") << proposer;
    expect_error((*stream)->result(), "grammar_dead_end");
    EXPECT_TRUE((*beside)->result().ok());
  }
}

TEST_F(Structured, AGrammarOfVeryManyReadingsEndsItsRequest) {
  auto engine = load(options());
  std::string all = "[a-z ]";
  for (std::string more = "a a"; more.size() < 160; more += " a") all = more + " | " + all;
  auto endless = request({.kind = Grammar, .text = "root ::= a\na ::= " + all}, 1);
  endless.max_tokens = 150, endless.ignore_eos = true, endless.speculation.proposer = "none";
  auto stream = good(engine->submit(endless));
  expect_error(stream->result(), "too many readings");
}

// An end that the request ignores comes only where nothing else is possible; so does one that min_tokens puts off.
TEST_F(Structured, EndsWhereNothingElseIsPossible) {
  auto engine = load(options());
  const StructuredOutput grows{.kind = Regex, .text = "a{1,12}"};
  for (const bool ignore : {true, false})
    for (const char* proposer : {"none", "self", "suffix"}) {
      auto asked = request(grows, 1);
      asked.ignore_eos = ignore;
      if (!ignore) asked.sampling.min_tokens = 30;
      guess(asked, proposer, 5);
      const auto run = generate(*engine, asked);
      EXPECT_EQ(run.text, "aaaaaaaaaaaa") << proposer << ignore;
      EXPECT_EQ(run.finish, FinishReason::Stop);
    }
}

TEST_F(Structured, RefusesWhatCannotBeCompiledBeforeTheRequestIsQueued) {
  auto engine = load(options());
  const auto stream = engine->submit(request({.kind = JsonSchema, .text = "{"}, 1));
  ASSERT_FALSE(stream.ok());
  EXPECT_EQ(stream.error().kind, Error::Kind::Usage);
}

// Guesses that no grammar allows, ids that are none among them, before a grammar that allows some: a proposer that does not know
// about grammars.
class Blind final : public Proposer {
 public:
  void propose(std::span<const DraftTask> tasks) override {
    for (const DraftTask& task : tasks) {
      DraftTree& tree = *task.tree;
      tree.size = 0, tree.law = DraftLaw::Point;
      const int64_t at = task.sequence->len() - task.sequence->prompt_len;
      for (int i = 0; i < task.limits.longest(); ++i) {
        tree.tokens(i) = dice_.below(4) ? "[12, none]"[(at + i) % 10] : dice_.below(256);
        tree.parents[i] = i - 1, ++tree.size;
      }
    }
  }

 private:
  Dice dice_{5};
};
const Register<Proposer> blind{"blind", "tests: guesses that know no grammar", make_proposer<Blind>};

TEST_F(Structured, WhatAGrammarRefusesIsNeverVerified) {
  auto engine = load(options());
  int64_t guesses = 0;
  for (int seed = 0; seed < 8; ++seed) {
    auto asked = request(kKinds[3], seed);
    const auto plain = generate_plain(*engine, asked);
    guess(asked, "blind", 6);
    auto step = make_step(*engine, asked);
    step->hot_loop().after_drafts = [&](Running& who) {
      int place = GrammarMask::kCommitted;
      for (int node = 0; node < who.tree().size; ++node, ++guesses) {
        place = who.grammar()->step(place, who.tree().tokens(node));
        ASSERT_GE(place, 0);
      }
    };
    decode_to(*step, step->sequence().prompt_len + std::ssize(plain.tokens));
    const auto& tokens = step->sequence().tokens;
    EXPECT_TRUE(std::equal(plain.tokens.begin(), plain.tokens.end(), tokens.begin() + step->sequence().prompt_len));
  }
  EXPECT_GT(guesses, 20);
}

}
}
