// Method auto with a learned drafter: the planner's trees reach it as trees, its chains as chains, and the stream is plain
// decoding's. Times are made up, so that choices do not depend on the machine.
#include "engine/controller.h"

#include <filesystem>

#include "engine/engine_costs.h"
#include "engine/profile.h"
#include "engine/test_engines.h"

namespace hunch {
namespace {

using namespace test;

struct Seen {
  Ints tokens;
  int trees = 0, chains = 0, widest = 0, rounds = 0, guessed = 0;
  int64_t accepted = 0;
};

class TreesUnderAuto : public testing::Test {
 protected:
  TreesUnderAuto()
      : engine(load(
            {.model = tiny_path("qwen3-deep"), .threads = 1, .context_len = 256, .drafters = {{.path = tiny_path("eagle3")}}})) {}

  // Every row costs `row_ms` more than the first one, drafts next to nothing; choosing entries for self is dear.
  Seen run(Request request, double row_ms, int tree_tokens = 0) {
    Controller controller(engine->parts());
    const bool paced = request.speculation.proposer == "self";
    if (!paced) request.speculation.proposer = "auto", request.speculation.tree_tokens = tree_tokens;
    auto plan = good(plan_request(request, {}, 64, shape_of(*engine).layers));
    if (paced) pace(request, 64, plan);
    else plan.drafters.push_back("eagle3");
    if (!paced && plan.nodes == plan.gamma) plan.planned_nodes = controller.tree_nodes();
    const auto made = good(Solo::make(engine->parts(), plan, request));
    Solo& solo = *made;
    Running& who = solo.running();
    HUNCH_CHECK(solo.prefill(nullptr).ok());
    Running* const requests[] = {&who};
    Seen seen;
    const auto record = [&](StepReport report) {
      report.pass_ms = 10 + row_ms * report.verify_rows;
      report.select_ms = report.learning > 0 ? 100 : 0;
      for (auto& drafted : report.drafted) drafted.ms = 0.05 * drafted.steps;
      controller.record(report, requests);
    };
    for (int i = 0; i < 96; ++i) { record({.decodes = 1, .verify_rows = 1 + i * 7 % 32, .learning = 1, .entries = 100}); }
    while (who.sequence.len() < who.sequence.max_len) {
      controller.decide(requests, solo.hot_loop());
      const int64_t before = who.sequence.len();
      solo.hot_loop().run(solo.scheduler().next());
      HUNCH_CHECK(who.failure.ok());
      const DraftTree& tree = who.tree();
      const bool learned = who.chosen >= 0 && who.drafters[who.chosen].name == "eagle3";
      if (learned && tree.size > 0) {
        ++(who.branch ? seen.trees : seen.chains);
        Ints children(tree.size + 1, 0);
        for (int node = 0; node < tree.size; ++node) seen.widest = std::max(seen.widest, ++children[tree.parents[node] + 1]);
        EXPECT_LE(tree.size, who.want_drafts);
        seen.accepted += who.sequence.len() - before - 1;
      }
      ++seen.rounds, seen.guessed += tree.size > 0;
      record(solo.hot_loop().report());
    }
    seen.tokens.assign(who.sequence.tokens.begin() + who.sequence.prompt_len, who.sequence.tokens.end());
    return seen;
  }
  static Request request(double temperature) {
    auto out = ask(random_prompt(60, 256, 8), 150, temperature);
    out.sampling.allowed_token_ids = {3, 17, 40, 41, 99};  // random heads are right now and then
    return out;
  }

  std::unique_ptr<Engine> engine;
};

// What is learned of passes alone: those that read a prompt too, or leave something out, would look dear or cheap.
TEST(ControllerFiles, HoldWhatWasTunedAndWhatWasLearned) {
  const auto engine = tiny_engine("qwen3-deep", "cpu", 1);
  EngineParts& parts = engine->parts();
  parts.options.keep_costs = true;
  const CostKey key = cost_key(parts);
  const auto kept = [&](const char* kind) { return std::filesystem::exists(cache_path(kind, key)); };
  for (const char* kind : {"costs", "seen-self"}) std::filesystem::remove(cache_path(kind, key));
  ASSERT_TRUE(Profile{.ratio = 0.11}.save(cache_path("profile", key), key).ok());
  for (const int passes : {0, 1, 2, 3}) {
    {
      Controller controller(parts);
      EXPECT_EQ(controller.ratio(), 0.11);
      if (passes > 0)
        controller.record(
            {.pass_ms = 9, .decodes = 1, .verify_rows = 1, .entries = 90, .chunks = passes == 1, .sparse = passes == 2}, {});
    }
    EXPECT_EQ(kept("costs") && kept("seen-self"), passes == 3) << passes;
  }
  for (const char* kind : {"costs", "seen-self", "seen-suffix", "profile"}) std::filesystem::remove(cache_path(kind, key));
}

// The next turn of a conversation finds all whole pages of the last in the drafter's cache too, even those that waited to be read
// when it ended: it guesses as if it had read everything itself.
TEST(DrafterPages, AreWholeForTheNextTurn) {
  int rounds = 0;
  for (const int answer : {40, 57, 70, 93, 111}) {
    std::vector<DraftRound> guessed[2];
    for (const bool caching : {false, true}) {
      const auto engine = load({.model = tiny_path("qwen3-deep"),
          .threads = 1,
          .context_len = 384,
          .prefix_caching = caching,
          .drafters = {{.path = tiny_path("eagle3")}}});
      auto turn = ask(random_prompt(60, 256, 8), answer);
      turn.sampling.allowed_token_ids = {3, 17, 40, 41, 99};
      guess(turn, "eagle3", 4);
      const auto first = generate(*engine, turn);
      append(turn.prompt, first.tokens);
      turn.prompt.insert(turn.prompt.end(), {5, 6, 7});
      turn.max_tokens = 60;
      const auto second = generate(*engine, turn);
      EXPECT_EQ(second.reused_tokens, caching ? (60 + answer - 1) / kPageLen * kPageLen : 0);
      guessed[caching] = second.draft_rounds;
    }
    ASSERT_EQ(guessed[0].size(), guessed[1].size()) << answer;
    for (size_t i = 0; i < guessed[0].size(); ++i, ++rounds) EXPECT_EQ(guessed[0][i].accepted, guessed[1][i].accepted) << answer;
  }
  EXPECT_GT(rounds, 100);
}

TEST(PredictionModules, ReadTheSideOfTheNormThatWasAskedFor) {
  for (const std::string side : {"post", "pre"}) {
    const auto engine = load({.model = tiny_path("mtp-qwen"), .drafters = {{.path = tiny_path("mtp-qwen"), .feed_norm = side}}});
    EXPECT_EQ(engine->parts().taps.size(), side == "pre" ? 1u : 0u);
  }
}

// A short request begins at once: nobody copies the weights of a large model for drafts that it will not make.
TEST_F(TreesUnderAuto, MakesNoWeightsForDraftsBeforeTheyPay) {
  auto asked = request(0);
  asked.speculation.draft_weights = "q4_0";
  EXPECT_EQ(generate_by("auto", *engine, asked).tokens, plain_stream(*engine, asked));
  EXPECT_FALSE(engine->parts().has_draft_weights(DType::Q4_0));
  generate_by("self", *engine, asked);
  EXPECT_TRUE(engine->parts().has_draft_weights(DType::Q4_0));
}

TEST_F(TreesUnderAuto, GiveThePlainStreamAndAreAskedForWhereRowsAreCheap) {
  for (const double temperature : {0.0, 0.8}) {
    const auto asked = request(temperature);
    const Seen seen = run(asked, 0.001);
    EXPECT_EQ(seen.tokens, plain_stream(*engine, asked));
    EXPECT_GT(seen.trees, 10);
    EXPECT_GT(seen.widest, 1);
    EXPECT_GT(seen.accepted, 5);
  }
}

TEST_F(TreesUnderAuto, StayAsDeepAsPlannedUnderGrammars) {
  for (const double temperature : {0.0, 0.8}) {
    auto asked = request(temperature);
    asked.sampling.allowed_token_ids = {64, 65, 66, 67, 68, 69, 70, 71, 72, 73};  // a to j
    asked.structured = {.kind = StructuredOutput::Kind::Regex, .text = "([a-h]{4}(ij){10}){99}"};
    EXPECT_EQ(run(asked, 0.001).tokens, plain_stream(*engine, asked));
  }
}

TEST_F(TreesUnderAuto, AreNotAskedForWhereEveryRowCostsAsMuchAsTheFirst) {
  const auto asked = request(0.8);
  const Seen seen = run(asked, 10);
  EXPECT_EQ(seen.tokens, plain_stream(*engine, asked));
  EXPECT_LE(seen.trees, seen.rounds / 10);
}

TEST_F(TreesUnderAuto, SelfThatIsPacedGuessesHoweverDearItIs) {
  auto asked = request(0.8);
  asked.speculation = {.proposer = "self", .rule = "match"};
  const Seen seen = run(asked, 10);
  EXPECT_EQ(seen.tokens, plain_stream(*engine, asked));
  EXPECT_GE(seen.guessed, seen.rounds - 1) << "the last one may have a single token to make";
}

TEST_F(TreesUnderAuto, AreDrawnUnderRuleRatioAndLeftOutUnderRulesThatTakeNone) {
  auto asked = request(0.8);
  asked.speculation.rule = "ratio";
  const Seen drawn = run(asked, 0.001);
  EXPECT_GT(drawn.trees, 10);
  EXPECT_GT(drawn.widest, 1);
  asked.speculation.rule = "point";
  const Seen points = run(asked, 0.001);
  EXPECT_EQ(points.trees, 0);
  EXPECT_EQ(points.widest, 1);
}

TEST_F(TreesUnderAuto, AreTheRequestsOwnWhereItAskedForSome) {
  const auto asked = request(0.8);
  const Seen seen = run(asked, 0.001, 7);
  EXPECT_EQ(seen.tokens, plain_stream(*engine, asked));
  EXPECT_EQ(seen.chains, 0) << "every guess of the drafter may branch";
}

}
}
