// The contract of every registered proposer that needs no model: what it offers is a function of its sequence, within limits,
// whatever happens in other slots.
#include "checkpoint/drafter_method.h"
#include "draft/test_drafts.h"

namespace hunch {
namespace {

using namespace test;

std::vector<std::string> without_model() {
  std::vector<std::string> names;
  for (const auto& part : Register<Proposer>::all())
    if (part.name != "self" && part.name != "cascade" && part.name != "staged" && !is_drafter_method(part.name))
      names.push_back(std::string(part.name));
  return names;
}

// Settings that find something in short streams, and share nothing between requests.
const ProposerOptions kEager{.ngram_min = 1, .ngram_max = 3, .suffix_depth = 9, .suffix_cached_requests = 0, .suffix_factor = 4};

class AnyProposer : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(
    WithoutModel, AnyProposer, testing::ValuesIn(without_model()), [](const auto& info) { return info.param; });

void expect_within_limits(const DraftTree& tree, const DraftLimits& limits, int vocab) {
  ASSERT_GE(tree.size, 0);
  ASSERT_LE(tree.size, limits.max_tokens);
  ASSERT_TRUE(tree.size == 0 || !limits.want_q || tree.law == DraftLaw::Point);  // nobody here has a q
  for (int node = 0; node < tree.size; ++node) {
    const int parent = tree.parents[node];
    ASSERT_GE(parent, -1);
    ASSERT_LT(parent, node);
    ASSERT_TRUE(limits.may_branch || parent == node - 1);
    int depth = 1;
    for (int at = parent; at >= 0; at = tree.parents[at]) ++depth;
    ASSERT_TRUE(limits.max_depth == 0 || depth <= limits.max_depth);
    ASSERT_GE(tree.tokens(node), 0);
    ASSERT_LT(tree.tokens(node), vocab);
    for (int other = 0; other < node; ++other)  // a sibling with the same token could never be chosen
      ASSERT_FALSE(tree.parents[other] == parent && tree.tokens(other) == tree.tokens(node));
  }
}

TEST_P(AnyProposer, KeepsItsLimitsAndLeaksNothingBetweenSlotsOfABusyBatch) {
  constexpr int kSlots = 37, kVocab = 5;
  Dice dice(1);
  const auto begun = [&](Slot slot) { return sequence_of(random_stream(1 + dice.below(30), kVocab, dice), slot, 200); };
  auto busy = make_proposer(GetParam(), kEager, kSlots);
  std::vector<Sequence> sequences(kSlots);
  std::vector<int64_t> copy_from(kSlots, 0);
  Tree trees[kSlots];
  for (Slot slot = 0; slot < kSlots; ++slot) {
    sequences[slot] = begun(slot);
    busy->open(sequences[slot]);
  }
  int found = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<DraftTask> tasks;
    for (Slot slot = 0; slot < kSlots; ++slot) {
      if (dice.below(3) == 0) continue;  // waits this round
      const int most = dice.below(12), depth = dice.below(5);
      const bool want_q = dice.below(2) == 0, branch = dice.below(2) == 0;
      DraftTree& tree = trees[slot].tree;
      tree.size = 7;  // what an earlier round left
      tasks.push_back({.sequence = &sequences[slot],
          .limits = {.max_tokens = most, .max_depth = depth, .want_q = want_q, .may_branch = branch},
          .tree = &tree});
    }
    busy->propose(tasks);
    for (const DraftTask& task : tasks) {
      expect_within_limits(*task.tree, task.limits, kVocab);
      found += task.tree->size;
      // Alone, opened for what the sequence is now.
      if (dice.below(10) > 0) continue;
      auto alone = make_proposer(GetParam(), kEager, kSlots);
      alone->open(*task.sequence);
      const Tree again(*alone, *task.sequence, task.limits);
      ASSERT_EQ(again.tokens(), Tokens(task.tree->tokens.data, task.tree->tokens.data + task.tree->size));
      for (int node = 0; node < again.tree.size; ++node) ASSERT_EQ(again.tree.parents[node], task.tree->parents[node]);
    }
    for (Slot slot = 0; slot < kSlots; ++slot) {
      Sequence& sequence = sequences[slot];
      if (dice.below(12) == 0) {  // leaves: for good, or preempted and back in the same slot or in another's
        busy->close(slot);
        const Slot other = dice.below(kSlots);
        const int fate = dice.below(3);
        if (fate == 0) sequence = begun(slot);
        if (fate == 2 && other != slot) {
          busy->close(other);
          std::swap(sequence, sequences[other]);
          sequence.slot = slot, sequences[other].slot = other;
          busy->open(sequences[other]);
        }
        busy->open(sequence);
      }
      for (int more = dice.below(4); more > 0 && sequence.len() < 200; --more)
        grow(sequence.tokens, kVocab, dice, copy_from[slot]);
      busy->observe(sequence, {});
    }
  }
  EXPECT_EQ(found > 0, busy->drafts());
}

TEST_P(AnyProposer, OffersNothingWhereNothingIsAllowed) {
  auto proposer = make_proposer(GetParam(), kEager);
  const Sequence sequence = sequence_of({3, 3, 3, 3, 3, 3});
  proposer->open(sequence);
  EXPECT_EQ(draft(*proposer, sequence, 0), Tokens{});
  EXPECT_EQ(int(draft(*proposer, sequence, 1).size()), proposer->drafts() ? 1 : 0);
  EXPECT_EQ(draft(*proposer, sequence, 0), Tokens{});
  proposer->close(0);
  proposer->close(0);
  proposer->propose({});
}

// Tokens that are guessed themselves are gone on from, and nothing is learned of them.
TEST(LookUps, GoOnBehindGuesses) {
  for (const char* name : {"ngram", "suffix"}) {
    auto proposer = make_proposer(name, kEager);
    const Sequence sequence = sequence_of({1, 2, 3, 4, 5, 6, 1, 2});
    proposer->open(sequence);
    const auto behind = [&](const Tokens& guessed) { return Tree(*proposer, sequence, {.max_tokens = 2}, guessed).tokens(); };
    EXPECT_EQ(behind({}), (Tokens{3, 4})) << name;
    EXPECT_EQ(behind({3}), (Tokens{4, 5})) << name;
    EXPECT_EQ(behind({9, 4}), (Tokens{5, 6})) << name;
    EXPECT_EQ(behind({7, 8}), (Tokens{})) << name;
    EXPECT_EQ(behind({7}), (Tokens{})) << name << ": 7 8 is not known";
    EXPECT_EQ(behind({}), (Tokens{3, 4})) << name;
  }
}

TEST(Cascade, RefusesToStartWithWhatIsNoLookUp) {
  for (const std::string name : {"cascade", "self", "none", "nothing"})
    expect_error(
        Register<Proposer>::find("cascade")->make({.options = {.cascade_first = name}}), "'" + name + "'; use ngram or suffix");
}

}
}
