// The life of a request: limits, ends, refusals, interruption, NaN; with the toy model, whose next token a test dictates, and a
// tiny one.

#include <numeric>

#include "engine/defaults.h"
#include "engine/test_engines.h"
#include "engine/toy_parts.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kVocab = 32;

// A target that counts: the token after t is t + 1; the drafter errs where `wrong` says.
toy::Tables counting(std::function<bool(int64_t position)> wrong = [](int64_t) { return false; }) {
  const auto count = [](int64_t, int32_t token, float* logits) {
    std::fill_n(logits, kVocab, 0.0f);
    logits[(token + 1) % kVocab] = 50;
  };
  const auto draft = [count, wrong](int64_t position, int32_t token, float* logits) {
    count(position, wrong(position + 1) ? token + 5 : token, logits);
  };
  return {kVocab, count, draft};
}

Request ask(int64_t max_tokens, const char* rule = "match") {
  Request request = toy::request({0}, 4, rule);
  request.max_tokens = max_tokens;
  return request;
}

TEST(EngineLimits, BoundSteps) {
  EngineOptions options{.model = tiny_path("llama"), .threads = 1, .context_len = 64, .max_num_seqs = 4};
  options.chunk_len = 100, options.max_num_batched_tokens = INT32_MAX;
  EXPECT_EQ(Engine::load(options).value()->parts().limits.rows, 400);
  options.chunk_len = 1 << 30;
  EXPECT_FALSE(Engine::load(options).ok());
}

TEST(Engine, LooksAtEveryWeightWhereAsked) {
  EngineOptions options{.model = spoiled_copy("qwen3-q8_0.gguf", '\xff'), .threads = 1, .context_len = 64};
  EXPECT_TRUE(Engine::load(options).ok());
  options.check_tensors = true;
  const std::string message = error_of(Engine::load(options));
  EXPECT_TRUE(message.starts_with(options.model + ": tensor ")) << message;
  options.model = tiny_path("qwen3-q8_0.gguf");
  EXPECT_TRUE(Engine::load(options).ok());
}

// The tokens of a request on the toy model, and the number of positions each round drafted.
struct Life {
  Ints tokens;
  std::vector<int64_t> lens;  // after prefill and after each round
  Generation stats;
};

std::unique_ptr<Solo> begun(EngineParts& parts, const Request& request) {
  auto step = good(Solo::make(parts, good(plan_request(request, {}, 64)), request));
  HUNCH_CHECK(step->prefill(nullptr).ok());
  return step;
}

Life live(toy::Tables tables, int context_len, const Request& request) {
  auto parts = toy::make_parts(std::move(tables), "reference", context_len);
  auto step = begun(*parts, request);
  Life life;
  Sequence& sequence = step->sequence();
  life.lens.push_back(sequence.len());
  while (sequence.len() < sequence.max_len) {
    HUNCH_CHECK(step->round().ok());
    EXPECT_EQ(sequence.len(), sequence.committed_len + 1);
    EXPECT_LE(sequence.len(), sequence.max_len);
    life.lens.push_back(sequence.len());
  }
  life.tokens = sequence.tokens;
  life.stats = std::move(step->stats());
  return life;
}

int64_t sum(const std::vector<int64_t>& v) { return std::accumulate(v.begin(), v.end(), int64_t(0)); }

Ints counted(int32_t from, int64_t count) {
  Ints out;
  for (int64_t i = 0; i < count; ++i) out.push_back((from + i) % kVocab);
  return out;
}

TEST(Step, EmitsDraftsAndBonusAndStopsExactlyAtTheLimit) {
  for (const int max_tokens : {1, 2, 3, 4, 5, 8, 9, 10, 23}) {
    const Life life = live(counting(), 64, ask(max_tokens));
    EXPECT_EQ(life.tokens, counted(0, 1 + max_tokens)) << max_tokens;
    for (size_t i = 1; i + 1 < life.lens.size(); ++i) EXPECT_EQ(life.lens[i] - life.lens[i - 1], 5) << "four drafts and a bonus";
    EXPECT_EQ(life.stats.accepted, life.stats.drafted);
  }
}

TEST(Step, FillsTheContextExactly) {
  for (const int context : {6, 7, 8, 9, 64, 65, 128}) {
    Request request = toy::request({0, 1, 2}, 5, "match");
    EXPECT_EQ(live(counting(), context, request).tokens, counted(0, context)) << context;
    request.max_tokens = INT64_MAX;  // does not overflow
    EXPECT_EQ(live(counting(), context, request).tokens, counted(0, context)) << context;
  }
}

// Four guesses behind every node of the right path, the right one the third of them; as deep as is allowed.
class Bushy final : public Proposer {
 public:
  void propose(std::span<const DraftTask> tasks) override {
    for (const DraftTask& task : tasks) {
      DraftTree& tree = *task.tree;
      tree.size = 0, tree.law = DraftLaw::Point;
      int parent = -1;
      for (int depth = 1; depth <= task.limits.longest(); ++depth) {
        const int first = tree.size;
        for (int i = 0; i < 4 && tree.size < task.limits.max_tokens; ++i) {
          tree.tokens(tree.size) = (task.sequence->pending() + depth + 4 * (i - 2)) & (kVocab - 1);
          tree.parents[tree.size++] = parent;
        }
        parent = first + 2;
        if (tree.size <= parent) break;
      }
    }
  }
};
const Register<Proposer> bushy{"bushy", "for tests", make_proposer<Bushy>};

// Guesses of a level share their place in the text: only a tree's depth has to end where the request does, only its nodes where
// the context does.
TEST(Step, ATreeIsAsWideAsEverWhereFewTokensAreLeft) {
  for (const int context : {64, 128})
    for (const int max_tokens : {1, 2, 3, 5, 6, 7, 26, 63}) {
      auto request = ask(max_tokens);
      guess(request, "bushy", 4, 12);
      const Life life = live(counting(), context, request);
      const int64_t end = std::min(context, 1 + max_tokens);
      EXPECT_EQ(life.tokens, counted(0, end)) << context << " " << max_tokens;
      // The first token, then rounds of up to four kept guesses and a bonus: none is lost to nodes that find no room.
      int64_t len = 2;
      for (size_t i = 0; i < life.lens.size(); ++i) {
        EXPECT_EQ(life.lens[i], len) << context << " " << max_tokens << " round " << i;
        const int64_t depth = std::min<int64_t>({4, end - len - 1, (context - len + 1) / 4});
        len += 1 + depth;
      }
      if (max_tokens == 5) { EXPECT_EQ(life.stats.drafted, 12) << "three levels of four"; }
    }
}

TEST(Step, StopsAtTheFirstRejectionAndEmitsTheCorrection) {
  for (const char* rule : {"match", "ratio"}) {
    const Life life = live(counting([](int64_t position) { return position % 4 == 0; }), 64, ask(20, rule));
    EXPECT_EQ(life.tokens, counted(0, 21)) << rule;
    EXPECT_GT(life.stats.accepted, 0);
    EXPECT_LT(life.stats.accepted, life.stats.drafted);
  }
}

TEST(Step, CountsEveryPositionOfEveryRound) {
  const Life life = live(counting([](int64_t position) { return position % 7 == 3; }), 64, ask(40));
  EXPECT_EQ(sum(life.stats.drafted_by_position), life.stats.drafted);
  EXPECT_EQ(sum(life.stats.accepted_by_position), life.stats.accepted);
  ASSERT_EQ(std::ssize(life.stats.draft_rounds), life.stats.rounds);
  int64_t drafted = 0, accepted = 0;
  for (const DraftRound& round : life.stats.draft_rounds) drafted += round.drafted, accepted += round.accepted;
  EXPECT_EQ(drafted, life.stats.drafted);
  EXPECT_EQ(accepted, life.stats.accepted);
  EXPECT_EQ(life.stats.drafted_by_position[0], life.stats.rounds);
  for (size_t i = 0; i < 4; ++i) EXPECT_LE(life.stats.accepted_by_position[i], life.stats.drafted_by_position[i]);
  // Tokens = the first one + one a round + accepted drafts; rounds without drafts (at the end) count as tokens only.
  EXPECT_EQ(
      std::ssize(life.tokens) - 1, 1 + life.stats.accepted + life.stats.rounds + (std::ssize(life.lens) - 1 - life.stats.rounds));
}

TEST(Step, ReturnsEveryPage) {
  auto parts = toy::make_parts(counting(), "reference", 256);
  const int64_t pages = parts->pool->num_free();
  {
    auto step = begun(*parts, toy::request({0}, 4, "match"));
    while (step->sequence().len() < 200) ASSERT_TRUE(step->round().ok());
    EXPECT_LT(parts->pool->num_free(), pages);
  }
  EXPECT_EQ(parts->pool->num_free(), pages);
}

TEST(Step, ADraftRowWithoutValidNumbersCostsOnlyItsGuesses) {
  toy::Tables tables = counting();
  tables.drafter = [plain = tables.drafter](int64_t position, int32_t token, float* logits) {
    if (token < 0) return std::fill_n(logits, kVocab, 0.0f), void();
    plain(position, token, logits);
    if (position % 5 == 4) logits[3] = NAN;
  };
  for (const char* rule : {"match", "ratio"}) EXPECT_EQ(live(tables, 64, ask(30, rule)).tokens, counted(0, 31)) << rule;
}

// As a grammar adds what it leaves no choice about.
TEST(Step, WhatWasAddedBehindGuessesIsNoChoiceOfTheDrafter) {
  auto parts = toy::make_parts(counting(), "reference", 256);
  auto step = begun(*parts, toy::request({0}, 40, "match"));
  step->hot_loop().after_drafts = [](Running& who) {
    DraftTree& tree = who.drafters[who.chosen].tree;
    EXPECT_EQ(tree.size, 1);
    for (int node = 1; node < 40; ++node) tree.tokens(node) = (tree.tokens(node - 1) + 1) % kVocab;
    tree.make_chain(40);
  };
  ASSERT_TRUE(step->round(0.999f).ok());
  EXPECT_EQ(step->stats().accepted, 40);
}

// A tiny model through the public API.
class Whole : public testing::Test {
 protected:
  static std::unique_ptr<Engine> load(int chunk_len = 64, int64_t context = 256) {
    return test::load({.model = tiny_path("qwen3-tied"), .threads = 1, .context_len = context, .chunk_len = chunk_len});
  }
  static Request request(int prompt_len, int64_t max_tokens, const char* proposer = "self") {
    auto request = test::ask(random_prompt(prompt_len, 256, 5), max_tokens, 0.8);
    guess(request, proposer, 5);
    request.speculation.ratio = 0.05;
    return request;
  }
};

TEST_F(Whole, PromptsAroundTheChunkLengthGiveTheTokensOfOneChunk) {
  auto one = load(256), chunks = load(64);
  for (const int len : {1, 2, 3, 63, 64, 65, 66, 127, 128, 129, 130}) {
    const auto r = request(len, 20);
    EXPECT_EQ(generate(*chunks, r).tokens, generate(*one, r).tokens) << len;
    EXPECT_EQ(generate(*chunks, r).tokens, plain_stream(*one, r)) << len;
  }
}

TEST_F(Whole, EmitsExactlyMaxTokensAndNamesTheReason) {
  auto engine = load();
  for (const char* proposer : {"none", "self"})
    for (const int max_tokens : {1, 2, 5, 6, 7, 40}) {
      const auto run = generate(*engine, request(50, max_tokens, proposer));
      EXPECT_EQ(int(run.tokens.size()), max_tokens);
      EXPECT_EQ(run.finish, FinishReason::Length);
    }
}

TEST_F(Whole, StopsWhereTheContextIsFull) {
  auto engine = load(64, 96);
  for (const char* proposer : {"none", "self"}) {
    EXPECT_EQ(generate(*engine, request(50, -1, proposer)).tokens.size(), 46u);
    EXPECT_EQ(generate(*engine, request(95, -1, proposer)).tokens.size(), 1u);
  }
}

TEST_F(Whole, EndOfTextInsideAnAcceptedRunEndsTheRequestThere) {
  auto engine = load();
  const auto all = plain_stream(*engine, request(150, 60));
  int inside = 0;
  for (size_t at = 3; at < 40; at += 4) {
    const int32_t stop = all[at];
    const size_t first = std::ranges::find(all, stop) - all.begin();
    auto r = request(150, 60);
    r.speculation.policy = "full";  // every draft is kept, so most stops fall inside a run
    r.stop_ids = {stop};
    std::vector<TokenEvent> events;
    auto run = good(engine->generate(r, [&](const TokenEvent& event) { return events.push_back(event), true; }));
    EXPECT_EQ(run.tokens, Ints(all.begin(), all.begin() + first));
    EXPECT_EQ(run.finish, FinishReason::Stop);
    EXPECT_EQ(events.size(), first);
    EXPECT_EQ(sum(run.accepted_by_position), run.accepted);
    int64_t accepted = 0;
    for (const DraftRound& round : run.draft_rounds) accepted += round.accepted;
    EXPECT_EQ(accepted, run.accepted);
    inside += first > 0 && events.back().from == TokenEvent::From::Draft;
  }
  EXPECT_GE(inside, 3);
}

TEST_F(Whole, IgnoreEosTreatsItAsAnOrdinaryToken) {
  auto engine = load();
  auto r = request(60, 12);
  r.sampling.temperature = 0.0;
  const auto all = plain_stream(*engine, r);
  // The model's own end ids stop a request unless ignored: make one of its tokens an end id by the request.
  r.stop_ids = {all[4]};
  EXPECT_LE(generate(*engine, r).tokens.size(), 4u);
  r.stop_ids.clear();
  EXPECT_EQ(generate(*engine, r).tokens, all);
}

TEST_F(Whole, RefusesRequestsThatCannotRunWithTheNumbers) {
  auto engine = load(64, 96);
  auto empty = request(1, 5), outside = request(5, 5), negative = request(5, 5), none = request(5, 5);
  empty.prompt.clear(), outside.prompt[2] = 260, negative.prompt[0] = -1, none.max_tokens = 0;
  auto metric = request(50, 5), spread = request(50, 5);
  metric.speculation.metric = "entropy";
  spread.speculation.metric = "logit";
  const std::pair<const char*, Request> cases[] = {
      {"the prompt is empty", empty},
      {"prompt token 2 is 260; ids must lie in [0, 260)", outside},
      {"prompt token 0 is -1", negative},
      {"max tokens is 0", none},
      {"the prompt has 96 tokens, the context holds 96", request(96, 5)},
      {"unknown metric 'entropy'", metric},
      {"spread needs a weight metric", spread},
  };
  for (const auto& [message, bad] : cases) expect_error(engine->generate(bad), message);
  EXPECT_EQ(generate(*engine, request(50, 5)).tokens.size(), 5u) << "the engine still works";
}

TEST_F(Whole, RefusesEngineOptionsThatCannotWork) {
  const auto model = tiny_path("qwen3-tied");
  const std::pair<const char*, EngineOptions> cases[] = {
      {"unknown device 'gpu'; known: cpu, reference", {.model = model, .device = "gpu"}},
      {"unknown KV type 'q4_0'; known: f32, f16, bf16, i16, q8_0, fp8", {.model = model, .kv_dtype = "q4_0"}},
      {"the context size is negative", {.model = model, .context_len = -1}},
      {"the model was trained for 256", {.model = model, .context_len = int64_t(1) << 40}},
      {"KV memory too small", {.model = model, .context_len = 256, .kv_memory_bytes = 1000}},
      {"prompt chunks of 1 rows", {.model = model, .chunk_len = 1}},
      {"max draft is 0", {.model = model, .max_draft = 0}},
      {"max draft is 257; it must lie in [1, 256]", {.model = model, .max_draft = 257}},
  };
  for (const auto& [message, options] : cases) expect_error(Engine::load(options), message);
}

TEST_F(Whole, AnInterruptedRunKeepsWhatItHasAndTheEngineGoesOn) {
  auto engine = load();
  const auto all = plain_stream(*engine, request(50, 30));
  std::atomic<bool> interrupted = false;
  const auto some = good(engine->generate(
      request(50, 30), [&](const TokenEvent& e) { return interrupted = e.index >= 8, true; }, &interrupted));
  EXPECT_EQ(some.finish, FinishReason::Interrupted);
  ASSERT_GE(some.tokens.size(), 9u);
  EXPECT_LT(some.tokens.size(), 30u);
  EXPECT_TRUE(std::equal(some.tokens.begin(), some.tokens.end(), all.begin()));
  interrupted = true;
  EXPECT_TRUE(good(engine->generate(request(50, 30), {}, &interrupted)).tokens.empty());
  EXPECT_EQ(good(engine->generate(request(50, 30), [](const TokenEvent& e) { return e.index < 3; })).tokens.size(), 4u);
  EXPECT_EQ(generate(*engine, request(50, 30)).tokens, all);
}

TEST_F(Whole, SameSeedSameTokensOtherSeedOtherTokens) {
  auto engine = load();
  for (const char* rule : {"match", "ratio"}) {
    auto r = request(50, 30);
    r.speculation.rule = rule;
    const auto a = generate(*engine, r).tokens;
    EXPECT_EQ(generate(*engine, r).tokens, a) << rule;
    r.sampling.seed = 8;
    EXPECT_NE(generate(*engine, r).tokens, a) << rule;
  }
}

TEST_F(Whole, UnverifiedDecodingIsLabelledLossyAndEmitsDraftsOnly) {
  auto engine = load();
  auto r = request(150, 30);
  r.speculation.policy = "streamingllm";
  r.speculation.verify = false;
  const auto run = generate(*engine, r);
  EXPECT_FALSE(run.lossless);
  EXPECT_EQ(run.tokens.size(), 30u);
  EXPECT_NE(run.tokens, plain_stream(*engine, r)) << "this model forgets";
}

TEST_F(Whole, UnverifiedDecodingKeepsToTheRules) {
  auto engine = load();
  auto r = request(50, 40);
  r.sampling.temperature = 0, r.sampling.presence_penalty = 2, r.sampling.frequency_penalty = 2;
  r.speculation.verify = false, r.speculation.policy = "streamingllm", r.speculation.ratio = 1;
  auto plain = r;
  plain.speculation = {.proposer = "none"};
  EXPECT_EQ(generate(*engine, r).tokens, generate(*engine, plain).tokens);
}

TEST_F(Whole, TreesEndWithTheContext) {
  auto engine = load(64, 128);
  auto r = request(100, -1, "suffix");
  for (size_t i = 0; i < r.prompt.size(); ++i) r.prompt[i] = int32_t(i * i % 3);
  r.speculation.tree_tokens = 11, r.speculation.suffix_factor = 10, r.speculation.suffix_min_probability = 0;
  r.ignore_eos = true;
  EXPECT_EQ(generate(*engine, r).tokens.size(), 28u);
}

TEST(Experts, ThatAStepReadsAreCounted) {
  auto engine = tiny_engine("qwen3-moe", "cpu", 1);
  auto request = test::ask(random_prompt(60, 256, 1), 20);
  const auto plain = generate(*engine, request);
  EXPECT_GT(plain.steps, 0);
  EXPECT_EQ(plain.experts_per_step(), 6);  // two layers with experts, three of each
  const auto drafted = generate_by("self", *engine, request);
  EXPECT_GT(drafted.experts_per_step(), 6);
  EXPECT_GT(engine->stats().experts_read, plain.experts_read + drafted.experts_read);  // the prompts' as well
}

TEST_F(Whole, CountsFewerKeyBytesForSparseDraftsThanForFullOnes) {
  auto engine = load();
  auto sparse = request(200, 20), full = request(200, 20);
  full.speculation.policy = "full";
  const auto a = generate(*engine, sparse), b = generate(*engine, full);
  EXPECT_LT(double(a.kv_bytes_read) / a.rounds, double(b.kv_bytes_read) / b.rounds);
}

// The model counts up to 3 and stays there.
TEST(Cascade, DraftsWhereALookUpFindsNoTwoTokens) {
  const toy::Table count = [](int64_t, int32_t token, float* logits) {
    std::fill_n(logits, 4, 0), logits[std::min(token + 1, 3)] = 90;
  };
  const auto passes = [&](Ints prompt, int gamma) {
    auto parts = toy::make_parts({4, count, count}, "reference", 64);
    Request request = toy::request(std::move(prompt), gamma, "match");
    request.speculation.proposer = "cascade", request.speculation.ngram_min = 1;
    const auto step = begun(*parts, request);
    HUNCH_CHECK(step->round().ok());
    return step->stats().draft_passes;
  };
  EXPECT_GT(passes({0, 3}, 5), 0);
  EXPECT_EQ(passes({0, 3}, 1), 0);
  EXPECT_EQ(passes({3, 1, 2}, 5), 0);
}

TEST(SelfDrafts, RunNoSkippedLayer) {
  const auto engine = tiny_engine("qwen2-window", "reference");
  for (const char* skip : {"", "0,"}) {
    Request request = test::ask(random_prompt(60, 256, 4), 20);
    request.speculation.proposer = "self", request.speculation.policy = "full", request.speculation.draft_skip_layers = skip;
    const Generation run = generate(*engine, request);
    EXPECT_EQ(run.accepted == run.drafted, !*skip);
  }
}

}
}
