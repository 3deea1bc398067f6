// Cheaper draft passes (layers left out, selections shared between layers, guessed rows): the stream stays plain decoding's, and
// guessed rows change how many passes a draft takes, not the draft.
#include "engine/toy_parts.h"
#include "equality.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kPromptLen = 170, kNewTokens = 80;

struct Light {
  const char *name, *skip;
  int layer_step;
  const char* lookup;
};
constexpr Light kLight[] = {{"skip", "1,", 1, ""}, {"step 2", "", 2, ""}, {"n-grams along", "", 1, "ngram"},
    {"suffixes along", "", 1, "suffix"}, {"step 64", "", 64, "ngram"}, {"all", "0,", 2, "ngram"}};

void set(SpeculationOptions& o, const Light& light) {
  o.draft_skip_layers = light.skip, o.layer_step = light.layer_step, o.self_lookup = light.lookup;
  o.ngram_min = 1, o.ngram_max = 4;  // random weights repeat little
}

TEST(LightDrafts, StreamsEqualPlainDecoding) {
  int turn = 0;
  for (const char* model : {"qwen3-tied", "qwen2-window", "llama-yarn", "mistral"}) {
    const char* device = std::string(model) < "n" ? "cpu" : "reference";
    auto engine = tiny_engine(model, device);
    Equality equality(*engine);
    const auto prompt = random_prompt(kPromptLen, 256, 4);
    for (const Light& light : kLight)
      for (const auto& policy : Register<SparsePolicy>::all()) {
        auto request = ask(prompt, kNewTokens);
        auto& s = request.speculation;
        s.policy = policy.name, s.min_tokens = 12, s.num_tokens = kGammas[turn % 5];
        s.rows = turn % 4 == 1 ? "last" : turn % 4 == 3 ? "accepted" : "all";
        set(s, light);
        equality.expect_plain_stream(request, turn++, fmt::format("{} {} {} {}", model, device, light.name, policy.name));
      }
    equality.expect_kept_and_dropped(model);
  }
}

// Under rule ratio another noise decides, so only the promise is looked at: the run is lossless and drafts.
TEST(LightDrafts, RunUnderRuleRatio) {
  auto engine = tiny_engine("qwen3-tied", "cpu");
  for (const Light& light : kLight) {
    auto request = ask(random_prompt(kPromptLen, 256, 4), kNewTokens);
    set_sampling(request, 1);
    request.speculation.rule = "ratio";
    set(request.speculation, light);
    const auto run = generate_by("self", *engine, request);
    EXPECT_TRUE(run.lossless);
    EXPECT_GT(run.drafted, 0);
    EXPECT_EQ(run.draft_passes, run.drafted) << light.name;  // no look-up runs along here
  }
}

struct Drafts {
  std::vector<Ints> rounds;    // the tokens of every draft
  std::vector<Ints> selected;  // and the positions that every round chose, layer 1
  int64_t passes = 0, drafted = 0;
  Ints stream;
};

Drafts drafts_of(Engine& engine, const Request& request, float stop_below) {
  Drafts out;
  auto step = make_step(engine, request);
  HUNCH_CHECK(step->prefill(nullptr).ok());
  step->hot_loop().after_drafts = [&](Running& who) {
    out.rounds.emplace_back(who.tree().tokens.data, who.tree().tokens.data + who.tree().size);
  };
  while (step->sequence().len() < step->sequence().max_len) {
    HUNCH_CHECK(step->round(stop_below).ok());
    const auto list = step->policy() ? step->policy()->selected(0, 1) : View<const int32_t, 2>{};
    if (list.data) out.selected.emplace_back(&list(0, 0), &list(0, 0) + list.extent[1]);
  }
  out.passes = step->stats().draft_passes, out.drafted = step->stats().drafted;
  out.stream = step->sequence().tokens;
  return out;
}

// The passes that the look-up saved.
int64_t saved_by_a_lookup(
    Engine& engine, Request request, const char* lookup, float stop_below, const std::string& what, bool staged = false) {
  request.speculation.proposer = "self";
  const Drafts plain = drafts_of(engine, request, stop_below);
  if (staged) request.speculation.proposer = "staged", request.speculation.cascade_first = lookup;
  else request.speculation.self_lookup = lookup;
  const Drafts guessed = drafts_of(engine, request, stop_below);
  EXPECT_EQ(guessed.rounds, plain.rounds) << what;
  EXPECT_EQ(guessed.selected, plain.selected) << what;
  EXPECT_EQ(guessed.stream, plain.stream) << what;
  EXPECT_EQ(plain.passes, plain.drafted) << what;
  EXPECT_LE(guessed.passes, plain.passes) << what;
  return plain.passes - guessed.passes;
}

// A stretch again and again: look-ups find something in every round.
Ints again_and_again() {
  const auto stretch = random_prompt(17, 256, 5);
  Ints prompt;
  while (prompt.size() < kPromptLen) append(prompt, stretch);
  return prompt;
}

TEST(LightDrafts, GuessedRowsMakeTheSameDraftsInFewerPasses) {
  int turn = 0;
  int64_t saved = 0;
  for (const char* device : kHosts)
    for (const char* policy : {"vegas", "sparsespec", "last_accepted", "snapkv", "streamingllm", "full"})
      for (const char* lookup : {"ngram", "suffix"})
        for (const float stop_below : {0.0f, 0.6f}) {
          auto engine = tiny_engine("qwen3-tied", device);
          auto request = ask(again_and_again(), 70);
          set_sampling(request, turn);
          auto& s = request.speculation;
          s.policy = policy, s.min_tokens = 12, s.ratio = 0.3, s.num_tokens = turn % 2 ? 5 : 12;
          s.ngram_min = 1, s.ngram_max = 3;
          if (turn % 3 == 2) request.sampling.repetition_penalty = 1.1, request.sampling.min_tokens = 60;
          ++turn;
          saved += saved_by_a_lookup(
              *engine, request, lookup, stop_below, fmt::format("{} {} {} {}", device, policy, lookup, stop_below));
        }
  EXPECT_GT(saved, 100);
}

TEST(LightDrafts, GuessedRowsMakeTheSameDraftsOnTheShippedModel) {
  auto engine = load({.model = wren_path(), .threads = 2, .context_len = 4608});
  auto request = self_drafting(copying_prompt(engine->tokenizer(), 4096, 7), 96, 0.03, 9);
  for (int sampling = 0; sampling < 2; ++sampling) {
    set_sampling(request, sampling);
    EXPECT_GT(saved_by_a_lookup(*engine, request, "ngram", 0.4f, fmt::format("sampling {}", sampling)), 20);
  }
}

// Behind every pass's choices, also where drafts draw for themselves (rule ratio): every row has the coins and the law of its own
// step. So it has where passes leave blocks and channels out.
TEST(LightDrafts, StagesMakeTheSameDraftsInFewerPasses) {
  int turn = 0;
  int64_t saved = 0;
  for (const char* device : kHosts)
    for (const char* rule : {"match", "ratio"})
      for (const char* lookup : {"ngram", "suffix"})
        for (const bool thinned : {false, true}) {
          auto engine = tiny_engine("qwen3-tied", device);
          auto request = ask(again_and_again(), 70);
          set_sampling(request, turn++);
          auto& s = request.speculation;
          s.rule = rule, s.min_tokens = 12, s.ratio = 0.3, s.num_tokens = 9, s.ngram_min = 1, s.ngram_max = 3;
          if (thinned) s.sparse = {.drafts = true, .ratio = 0.3, .dense_len = 24, .block = 8, .channel_threshold = 0.02};
          saved +=
              saved_by_a_lookup(*engine, request, lookup, 0, fmt::format("{} {} {} {}", device, rule, lookup, thinned), true);
        }
  EXPECT_GT(saved, 100);
}

// A model that counts, and a context that counted once: 5 guesses and a choice, then 4 and one, then the last.
TEST(LightDrafts, StagesLookUpBehindTheirOwnChoices) {
  const toy::Table count = [](int64_t, int32_t token, float* logits) {
    for (int i = 0; i < 5; ++i) logits[i] = i == (token + 1) % 5 ? 9 : 0;
  };
  auto parts = toy::make_parts({5, count, count}, "reference", 64);
  Request request = toy::request({0, 1, 2, 3, 4, 0, 1}, 12, "match");
  request.sampling.temperature = 0;
  request.speculation.proposer = "staged", request.speculation.ngram_min = 1, request.speculation.ngram_max = 2;
  auto plan = good(plan_request(request, {}, 64));
  auto step = Solo::make(*parts, plan, request);
  ASSERT_TRUE(step.ok() && (*step)->prefill(nullptr).ok() && (*step)->round().ok());
  EXPECT_EQ((*step)->stats().accepted, 12);
  EXPECT_EQ((*step)->stats().draft_passes, 3);
}

TEST(LightDrafts, ASkippedLayersCompactCopyIsNeverRead) {
  auto engine = tiny_engine("qwen2-window", "reference");
  auto request = ask(random_prompt(kPromptLen, 256, 4), 20);
  request.speculation.proposer = "self", request.speculation.draft_skip_layers = "0,";
  auto step = make_step(*engine, request);
  ASSERT_TRUE(step->prefill(nullptr).ok());
  ASSERT_TRUE(step->round().ok());
  EXPECT_EQ(step->policy()->select(0, {}, {.sequence = &step->sequence(), .draft = true}).grain, Selection::Grain::All);
  EXPECT_GT(step->stats().drafted, 0);
}

}
}
