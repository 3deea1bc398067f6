// The alarm for a drafter that is never right: a wrong pairing of models costs only speed, so results have to say it.

#include "engine/test_engines.h"

namespace hunch {
namespace {

using namespace test;

constexpr int32_t kSaid = 40, kNeverSaid = 41;  // requests of this test allow ids up to the first

// Stands in for a learned drafter that was loaded: guesses one token a round.
class Stubborn final : public Proposer {
 public:
  explicit Stubborn(int32_t guess) : guess(guess) {}
  void propose(std::span<const DraftTask> tasks) override {
    for (const DraftTask& task : tasks) {
      task.tree->size = 0, task.tree->law = DraftLaw::Point;
      if (task.limits.max_tokens <= 0 || guess < 0) continue;
      task.tree->tokens(0) = guess;
      task.tree->make_chain(1);
    }
  }
  int32_t guess;
};

class Alarm : public testing::Test {
 protected:
  Alarm() : engine(tiny_engine("qwen3-tied", "cpu", 1)) {
    EngineParts& parts = engine->parts();
    parts.options.drafters = {{.method = "eagle3", .path = "the-folder"}};
    auto made = std::make_unique<Stubborn>(kNeverSaid);
    drafter = made.get();
    parts.learned.push_back({.name = "eagle3", .path = "the-folder", .proposer = std::move(made)});
  }
  // A request in which the drafter guesses `rounds` times: the first token comes of the prompt, the last of a round without room
  // for a guess.
  std::string warning_after(int rounds, const char* proposer = "eagle3") {
    auto request = ask(random_prompt(20, 256, 3), rounds + 2);
    guess(request, proposer, 1);
    request.sampling.allowed_token_ids = {kSaid};
    const auto run = generate(*engine, request);
    EXPECT_TRUE(run.lossless);
    EXPECT_EQ(run.tokens, Ints(rounds + 2, kSaid));
    if (proposer == std::string("eagle3") && drafter->guess == kNeverSaid) { EXPECT_EQ(run.rounds, rounds); }
    return run.warning;
  }
  // One token kept.
  void be_right_once() {
    drafter->guess = kSaid;
    EXPECT_EQ(warning_after(1), "");
    drafter->guess = kNeverSaid;
  }

  std::unique_ptr<Engine> engine;
  Stubborn* drafter = nullptr;
};

TEST_F(Alarm, Sounds64RoundsAfterTheLastKeptTokenAndNamesWhoItWas) {
  const std::string said = "eagle3 has drafted 64 rounds without one token being kept: was it made for this model? (the-folder)";
  EXPECT_EQ(warning_after(64), said) << "within one request";
  be_right_once();
  EXPECT_EQ(warning_after(63), "");
  EXPECT_EQ(warning_after(1), said) << "over two requests";
  expect_part(warning_after(5), "drafted 69 rounds");  // as long as it lasts
  be_right_once();
  EXPECT_EQ(warning_after(63), "") << "one kept token is enough";
}

TEST_F(Alarm, LooksAtRoundsInWhichTheDrafterGuessed) {
  EXPECT_EQ(warning_after(70, "none"), "");
  EXPECT_EQ(warning_after(70, "ngram"), "");
  EXPECT_EQ(engine->parts().learned[0].luckless, 0);
  EXPECT_EQ(warning_after(63), "");
  EXPECT_EQ(warning_after(70, "none"), "") << "somebody else's rounds";
  EXPECT_EQ(engine->parts().learned[0].luckless, 63);
  drafter->guess = -1;
  EXPECT_EQ(warning_after(70), "") << "it has nothing to say";
  drafter->guess = kNeverSaid;
  EXPECT_NE(warning_after(1), "");
}

// As under `auto`, which has several at hand.
TEST_F(Alarm, EveryDrafterOfARequestHasItsOwnCount) {
  EngineParts& parts = engine->parts();
  auto plan = good(plan_request(ask({1}, 10), {}, 16));
  plan.proposer = "auto", plan.drafters = {"eagle3", "ngram"}, plan.gamma = plan.nodes = 1;
  auto request = ask(random_prompt(20, 256, 3), 20);
  request.sampling.allowed_token_ids = {kSaid};
  auto run = Solo::make(parts, plan, request);
  ASSERT_TRUE(run.ok() && (*run)->prefill(nullptr).ok());
  Running& who = (*run)->running();
  for (int round = 0; round < 10; ++round) {
    who.decide_as_asked();
    who.chosen = who.want_drafts > 0 && round % 2 ? 0 : -1;
    drafter->guess = round == 5 ? kSaid : kNeverSaid;
    const StepPlan& step = (*run)->scheduler().next();
    (*run)->hot_loop().run(step);
    ASSERT_TRUE(who.failure.ok());
  }
  EXPECT_EQ(who.drafters[0].rounds, 5);
  EXPECT_EQ(who.drafters[0].kept, 1);
  EXPECT_EQ(who.drafters[1].rounds, 0);
}

}
}
