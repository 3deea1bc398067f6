// The n-gram proposer is bound to the definition of prompt lookup, written as three nested loops.
#include "draft/test_drafts.h"

namespace hunch {
namespace {

using namespace test;

// The longest suffix in [min_n, max_n] that starts earlier, its earliest start, at most k tokens after it.
Tokens by_definition(const Tokens& tokens, int min_n, int max_n, int k) {
  const int n = int(tokens.size());
  for (int len = max_n; len >= min_n; --len)
    for (int start = 0; start + len < n; ++start)
      if (std::equal(tokens.end() - len, tokens.end(), tokens.begin() + start))
        return Tokens(tokens.begin() + start + len, tokens.begin() + std::min(n, start + len + k));
  return {};
}

std::unique_ptr<Proposer> make(int min_n, int max_n, int sequences = 1) {
  return make_proposer("ngram", {.ngram_min = min_n, .ngram_max = max_n}, sequences);
}

Tokens first_draft(int min_n, int max_n, const Tokens& tokens, int k) {
  auto ngram = make(min_n, max_n);
  const Sequence sequence = sequence_of(tokens);
  ngram->open(sequence);
  return draft(*ngram, sequence, k);
}

TEST(Ngram, FollowsTheDefinitionOnRandomStreamsWhateverTheStep) {
  Dice dice(1);
  int found = 0, rounds = 0;
  for (int stream = 0; stream < 300; ++stream) {
    const int alphabet = 2 + dice.below(6), min_n = 1 + dice.below(12), max_n = min_n + dice.below(4), k = 1 + dice.below(9);
    auto ngram = make(min_n, max_n);
    Sequence sequence = sequence_of(random_stream(1 + dice.below(40), alphabet, dice));
    ngram->open(sequence);
    int64_t copy_from = 0;
    while (sequence.len() < 160) {
      const Tokens wanted = by_definition(sequence.tokens, min_n, max_n, k);
      ASSERT_EQ(draft(*ngram, sequence, k), wanted) << "stream " << stream << ", " << sequence.len() << " tokens";
      found += !wanted.empty(), ++rounds;
      for (int step = dice.below(6); step >= 0; --step) grow(sequence.tokens, alphabet, dice, copy_from);
    }
  }
  EXPECT_GT(found, rounds / 4);
  EXPECT_LT(found, rounds);
}

TEST(Ngram, TakesTheLongestSuffixAtItsEarliestPlace) {
  const Tokens tokens = {1, 2, 7, 3, 1, 2, 8, 3, 1, 2};  // 1 2 stands at 0 and 4; 3 1 2 at 3 only
  EXPECT_EQ(first_draft(2, 2, tokens, 1), (Tokens{7}));
  EXPECT_EQ(first_draft(2, 3, tokens, 1), (Tokens{8}));
  EXPECT_EQ(first_draft(4, 5, tokens, 1), (Tokens{}));
}

TEST(Ngram, NeverWrapsPastTheEndOfTheContext) {
  EXPECT_EQ(first_draft(2, 2, {4, 4, 4, 4}, 8), (Tokens{4, 4}));
  EXPECT_EQ(first_draft(3, 3, {4, 4, 4, 4}, 8), (Tokens{4}));  // the occurrence overlaps the suffix
  EXPECT_EQ(first_draft(4, 4, {4, 4, 4, 4}, 8), (Tokens{}));
  EXPECT_EQ(first_draft(5, 9, {4, 4}, 8), (Tokens{}));
}

TEST(Ngram, TakesFiveWhereNoLengthIsGivenAndTheOtherWhereOneIs) {
  const Tokens four = {1, 2, 3, 4, 9, 0, 1, 2, 3, 4}, five = {1, 2, 3, 4, 5, 9, 0, 1, 2, 3, 4, 5};
  EXPECT_EQ(first_draft(0, 0, four, 1), Tokens{});
  EXPECT_EQ(first_draft(0, 0, five, 1), Tokens{9});
  EXPECT_EQ(first_draft(4, 0, four, 1), Tokens{9});
  EXPECT_EQ(first_draft(0, 4, four, 1), Tokens{9});
  EXPECT_EQ(first_draft(0, 6, five, 1), Tokens{});  // the shortest is six as well
}

TEST(Ngram, RefusesLengthsThatMakeNoSense) {
  struct Case {
    int min_n, max_n;
    const char* message;
  };
  for (const Case& c : {Case{3, 2, "longer than the longest"}, Case{-1, 0, "is -1"}, Case{1, 65, "[1, 64]"}})
    expect_error(Register<Proposer>::find("ngram")->make({.options = {.ngram_min = c.min_n, .ngram_max = c.max_n}}), c.message);
}

}
}
