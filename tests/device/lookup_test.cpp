#include "draft/test_drafts.h"

namespace hunch {
namespace {

// A long prompt enters the index a slice a round, beside the device's work; then guesses are those of an index made at once.
TEST(DeviceLookUp, FindsWhatALongPromptHoldsOnceItIsIndexed) {
  const auto backend = std::move(*Register<Backend>::find("late")->make({.threads = 1}));
  const auto made = [](Backend* backend) {
    return std::move(*Register<Proposer>::find("suffix")->make({.backend = backend, .max_sequences = 1}));
  };
  auto at_once = made(nullptr), in_slices = made(backend.get());
  test::Dice dice(3);
  test::Tokens tokens(6000);
  for (int32_t& token : tokens) token = dice.below(250);
  std::copy_n(tokens.begin() + 5000, 20, tokens.end() - 20);
  const Sequence sequence = test::sequence_of(tokens, 0, 7000);
  at_once->open(sequence), in_slices->open(sequence);
  const auto wanted = test::draft(*at_once, sequence, 8);
  EXPECT_GE(wanted.size(), 4u);
  int rounds = 0;
  while (test::draft(*in_slices, sequence, 8) != wanted) ASSERT_LT(++rounds, 7);
  EXPECT_GE(rounds, 4);
  in_slices->close(sequence.slot);  // whatever is still in the works
}

}
}
