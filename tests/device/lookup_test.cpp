#include "draft/test_drafts.h"

namespace hunch {
namespace {

using namespace test;

class DeviceLookUp : public testing::Test {
 protected:
  std::unique_ptr<Proposer> suffix(Backend* backend, int sequences = 1) {
    return good(Register<Proposer>::find("suffix")->make({.backend = backend, .max_sequences = sequences}));
  }
  const std::unique_ptr<Backend> late = good(Register<Backend>::find("late")->make({.threads = 1}));
  Dice dice{3};
};

// A long prompt enters the index a slice a round, beside the device's work; then guesses are those of an index made at once.
TEST_F(DeviceLookUp, FindsWhatALongPromptHoldsOnceItIsIndexed) {
  auto at_once = suffix(nullptr), in_slices = suffix(late.get());
  Tokens tokens(6000);
  for (int32_t& token : tokens) token = dice.below(250);
  std::copy_n(tokens.begin() + 5000, 20, tokens.end() - 20);
  const Sequence sequence = sequence_of(tokens, 0, 7000);
  at_once->open(sequence), in_slices->open(sequence);
  const auto wanted = draft(*at_once, sequence, 8);
  EXPECT_GE(wanted.size(), 4u);
  int rounds = 0;
  while (draft(*in_slices, sequence, 8) != wanted) ASSERT_LT(++rounds, 7);
  EXPECT_GE(rounds, 4);
  in_slices->close(sequence.slot);  // whatever is still in the works
}

// In a crowd all that is new enters there: a round later guesses are the same.
TEST_F(DeviceLookUp, FindsInACrowdARoundLaterWhatItFindsAlone) {
  constexpr int kCrowd = 6;
  auto alone = suffix(nullptr, kCrowd), crowd = suffix(late.get(), kCrowd);
  std::vector<Sequence> sequences;
  for (int slot = 0; slot < kCrowd; ++slot) sequences.push_back(sequence_of(random_stream(80, 9, dice), slot));
  std::vector<Tree> trees(kCrowd);
  std::vector<DraftTask> tasks;
  for (size_t i = 0; i < kCrowd; ++i) {
    alone->open(sequences[i]), crowd->open(sequences[i]);
    tasks.push_back({.sequence = &sequences[i], .limits = {.max_tokens = 8}, .tree = &trees[i].tree});
  }
  for (int round = 0; round < 2; ++round) crowd->propose(tasks);
  for (size_t i = 0; i < kCrowd; ++i) EXPECT_EQ(trees[i].tokens(), draft(*alone, sequences[i], 8)) << i;
}

TEST_F(DeviceLookUp, LearnsWhatACrowdSaidARoundLater) {
  auto alone = suffix(nullptr, 6), crowd = suffix(late.get(), 6);
  const Tokens said = random_stream(30, 1000, dice);
  for (Proposer* proposer : {alone.get(), crowd.get()}) {
    std::vector<Sequence> sequences;
    for (int slot = 0; slot < 6; ++slot) sequences.push_back(sequence_of({1}, slot, 100)), proposer->open(sequences[slot]);
    for (Sequence& sequence : sequences) {
      append(sequence.tokens, said);
      proposer->observe(sequence, {}), proposer->close(sequence.slot);
    }
  }
  const Sequence next = sequence_of(Tokens(said.begin(), said.begin() + 10));
  alone->open(next), crowd->open(next);
  const Tokens wanted = draft(*alone, next, 8);
  EXPECT_GE(wanted.size(), 4u);
  EXPECT_NE(draft(*crowd, next, 8), wanted);
  EXPECT_EQ(draft(*crowd, next, 8), wanted);
}

}
}
