// The suffix proposer is bound to its definition: counts of substrings by looking at every position, no tree.
#include <map>
#include <numeric>

#include "draft/test_drafts.h"

namespace hunch {
namespace {

using namespace test;

struct Guess {
  double score = 0;
  Tokens tokens;
};

// Tokens that follow `string` in `texts`, with counts; `total` counts the string itself. Nothing longer than `depth` is known.
std::map<int32_t, int> followers(const std::vector<Tokens>& texts, const Tokens& string, int depth, int& total) {
  std::map<int32_t, int> next;
  total = 0;
  for (const Tokens& text : texts)
    for (size_t at = 0; at + string.size() <= text.size(); ++at) {
      if (!std::equal(string.begin(), string.end(), text.begin() + at)) continue;
      ++total;
      if (at + string.size() < text.size() && int(string.size()) < depth) ++next[text[at + string.size()]];
    }
  return next;
}

Guess by_definition(const std::vector<Tokens>& texts, const Tokens& context, const ProposerOptions& o, int max_tokens) {
  Guess best;
  for (int match = 1; match <= int(std::min(context.size(), size_t(o.suffix_depth))); ++match) {
    Tokens string(context.end() - match, context.end());
    int total = 0;
    followers(texts, string, o.suffix_depth, total);
    if (total == 0) break;
    const int limit = int(std::min(double(max_tokens), std::floor(match * o.suffix_factor + o.suffix_offset + 1e-6)));
    Guess guess;
    double probability = 1;
    while (int(guess.tokens.size()) < limit) {
      const auto next = followers(texts, string, o.suffix_depth, total);
      int32_t token = -1;
      for (const auto& [id, count] : next)
        if (token < 0 || count > next.at(token)) token = id;
      if (token < 0) break;
      probability *= double(next.at(token)) / total;
      if (probability < o.suffix_min_probability) break;
      guess.tokens.push_back(token), string.push_back(token);
      guess.score += probability;
    }
    if (guess.score >= best.score) best = guess;
  }
  return best;
}

// A request from its prompt to its end: what is guessed first; `output` comes instead.
Tokens serve(Proposer& suffix, Sequence& sequence, const Tokens& output = {}) {
  suffix.open(sequence);
  const Tokens guessed = draft(suffix, sequence, 2);
  sequence.tokens.insert(sequence.tokens.end(), output.begin(), output.end());
  suffix.observe(sequence, {});
  suffix.close(sequence.slot);
  return guessed;
}

TEST(Suffix, FollowsTheDefinitionWithOwnTokensAndEarlierOutputs) {
  Dice dice(1);
  int found = 0, rounds = 0, from_outputs = 0;
  for (int trial = 0; trial < 60; ++trial) {
    ProposerOptions o;
    o.suffix_depth = 1 + dice.below(12);
    o.suffix_cached_requests = dice.below(4);
    o.suffix_factor = 0.5 * dice.below(5), o.suffix_offset = dice.below(3) - 1;
    o.suffix_min_probability = 0.1 * dice.below(6);
    const int alphabet = 2 + dice.below(5);
    auto suffix = make_proposer("suffix", o, 2);
    std::vector<Tokens> outputs;
    for (int request = 0; request < 6; ++request) {
      Sequence sequence = sequence_of(random_stream(1 + dice.below(20), alphabet, dice), request % 2);
      suffix->open(sequence);
      int64_t copy_from = 0;
      while (sequence.len() < 70) {
        const int max_tokens = dice.below(8);
        const Guess own = by_definition({sequence.tokens}, sequence.tokens, o, max_tokens);
        const Guess others = by_definition(outputs, sequence.tokens, o, max_tokens);
        const Guess& wanted = others.score > own.score ? others : own;
        ASSERT_EQ(draft(*suffix, sequence, max_tokens), wanted.tokens) << "depth " << o.suffix_depth << ", request " << request;
        found += !wanted.tokens.empty(), from_outputs += others.score > own.score, ++rounds;
        for (int step = dice.below(5); step >= 0; --step) grow(sequence.tokens, alphabet, dice, copy_from);
        suffix->observe(sequence, {});
      }
      suffix->close(sequence.slot);
      outputs.push_back(Tokens(sequence.tokens.begin() + sequence.prompt_len, sequence.tokens.end()));
      if (int(outputs.size()) > o.suffix_cached_requests) outputs.erase(outputs.begin());
    }
  }
  EXPECT_GT(found, rounds / 4);
  EXPECT_LT(found, rounds);
  EXPECT_GT(from_outputs, rounds / 50);
}

TEST(Suffix, TreesOfBranchesHoldTheMostProbableNodesParentsFirst) {
  // After 5: 6 three times, 7 twice, 8 once; after 5 6 always 9.
  const Tokens tokens = {5, 6, 9, 5, 6, 9, 5, 6, 9, 5, 7, 1, 5, 7, 2, 5, 8, 3, 5};
  auto suffix = make_proposer("suffix", {.suffix_depth = 3, .suffix_factor = 4, .suffix_min_probability = 0.2});
  const Sequence sequence = sequence_of(tokens);
  suffix->open(sequence);
  const Tree out(*suffix, sequence, {.max_tokens = 3, .may_branch = true});
  ASSERT_EQ(out.tokens(), (Tokens{6, 9, 7}));  // 3/7 of seven fives, 3/7, 2/7
  EXPECT_NEAR(out.tree.worth, 8 / 7., 1e-6);
  EXPECT_EQ(Tokens(out.tree.parents.begin(), out.tree.parents.begin() + 3), (Tokens{-1, 0, -1}));
  EXPECT_EQ(draft(*suffix, sequence, 3), (Tokens{6, 9}));  // deeper than three nothing is known
}

// The probability of every node of a branching draft is what counts say, none is below the least, siblings differ, and no chain
// among its candidates was passed over: the score is at least the chain's.
TEST(Suffix, BranchesAreWorthAtLeastAChain) {
  Dice dice(3);
  int wider = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const ProposerOptions o{.suffix_depth = 8, .suffix_factor = 2};
    auto suffix = make_proposer("suffix", o);
    const Sequence sequence = sequence_of(random_stream(10 + dice.below(60), 4, dice));
    suffix->open(sequence);
    const int limit = 1 + dice.below(9);
    const Tree out(*suffix, sequence, {.max_tokens = limit, .may_branch = true});
    ASSERT_LE(out.tree.size, limit);
    // Some match length explains the tree; its score is recomputed from counts.
    double best = 0;
    for (int match = 1; match < o.suffix_depth && match <= int(sequence.len()); ++match) {
      double score = 0;
      std::vector<double> chance;
      std::vector<Tokens> paths;
      for (int node = 0; node < out.tree.size; ++node) {
        const int parent = out.tree.parents[node];
        ASSERT_LT(parent, node);
        Tokens path = parent < 0 ? Tokens(sequence.tokens.end() - match, sequence.tokens.end()) : paths[parent];
        int total = 0;
        const auto next = followers({sequence.tokens}, path, o.suffix_depth, total);
        const auto at = next.find(out.ids[node]);
        const double share = at == next.end() ? 0 : double(at->second) / total;
        chance.push_back((parent < 0 ? 1 : chance[parent]) * share);
        path.push_back(out.ids[node]);
        paths.push_back(path);
        score += chance.back() < o.suffix_min_probability - 1e-9 ? -100 : chance.back();
        for (int other = 0; other < node; ++other)
          EXPECT_FALSE(out.tree.parents[other] == parent && out.ids[other] == out.ids[node]);
        wider += parent != node - 1;
      }
      best = std::max(best, score);
    }
    EXPECT_GE(best, by_definition({sequence.tokens}, sequence.tokens, o, limit).score - 1e-9);
  }
  EXPECT_GT(wider, 50);
}

TEST(Suffix, KeepsRequestsWithASaltToThemselves) {
  auto suffix = make_proposer("suffix", {.suffix_factor = 4}, 2);
  const auto say = [&](Tokens prompt, const char* salt, const Tokens& output) {
    Sequence sequence = sequence_of(std::move(prompt));
    sequence.cache_salt = salt;
    return serve(*suffix, sequence, output);
  };
  say({1}, "a", {21, 22, 23});
  say({1}, "", {31, 32, 33});
  EXPECT_EQ(say({22}, "", {}), Tokens{}) << "others do not see what it said";
  EXPECT_EQ(say({32}, "a", {}), Tokens{}) << "nor it what others said";
  EXPECT_EQ(say({32}, "", {}), Tokens{33});
  EXPECT_EQ(say({41, 42, 41}, "a", {}), (Tokens{42, 41})) << "its own tokens it knows";
}

TEST(Suffix, NeverLearnsPromptsOrAPreemptedOutputTwice) {
  auto suffix = make_proposer("suffix", {.suffix_factor = 4}, 3);
  Sequence first = sequence_of({1, 2, 3, 4, 5, 6}, 0), second = sequence_of({1}, 0);
  serve(*suffix, first, {21, 22, 23});
  first.slot = 2;  // preempted, and back elsewhere
  serve(*suffix, first, {24, 25, 26});

  const auto draft_after = [&](Tokens prompt) {
    Sequence sequence = sequence_of(std::move(prompt), 1);
    return serve(*suffix, sequence);
  };
  EXPECT_EQ(draft_after({1, 2}), Tokens{});
  EXPECT_EQ(draft_after({22}), (Tokens{23}));
  serve(*suffix, second, {22, 11});
  EXPECT_EQ(draft_after({22}), (Tokens{11}));  // once each: the lower id, unless 23 counted twice
  EXPECT_EQ(draft_after({21}), (Tokens{22, 23}));
  EXPECT_EQ(draft_after({24}), (Tokens{25, 26}));
}

TEST(Suffix, ForgetsTheOldestOutputWhereBytesOrRequestsRunOut) {
  const ProposerOptions by_bytes{.suffix_cache_bytes = 64 * 96}, by_requests{.suffix_cached_requests = 2}, roomy{};
  for (const ProposerOptions& o : {by_bytes, by_requests, roomy}) {
    auto suffix = make_proposer("suffix", o);
    for (int request = 0; request < 3; ++request) {  // 30 tokens each; two fit
      Sequence sequence = sequence_of({1});
      Tokens output(30);
      std::iota(output.begin(), output.end(), 100 * (request + 1));
      serve(*suffix, sequence, output);
    }
    for (int request = 0; request < 3; ++request) {
      Sequence sequence = sequence_of({100 * (request + 1), 100 * (request + 1) + 1});
      suffix->open(sequence);
      const bool known = request > 0 ||
          o.suffix_cached_requests + o.suffix_cache_bytes == roomy.suffix_cached_requests + roomy.suffix_cache_bytes;
      EXPECT_EQ(draft(*suffix, sequence, 4).size(), known ? 2u : 0u) << request;
    }
  }
  auto suffix = make_proposer("suffix", by_bytes);
  Sequence first = sequence_of({1}), late = sequence_of({168});
  Tokens longer(70);
  std::iota(longer.begin(), longer.end(), 100);
  serve(*suffix, first, longer);
  EXPECT_EQ(serve(*suffix, late), Tokens{169}) << "the end of one that is too long stays";
}

// Long requests that begin alike, one after the other: each guesses what it would if it were the first.
TEST(Suffix, TakesUpWhatALongRequestLeftBehind) {
  for (const int letters : {3, 40}) {
    Dice dice(7);
    const ProposerOptions o{.suffix_depth = 6, .suffix_factor = 2};
    auto one = make_proposer("suffix", o, 2);
    Tokens text = random_stream(900, letters, dice);
    int guesses = 0;
    for (int request = 0; request < 40; ++request) {
      text.resize(text.size() - dice.below(int(text.size()) / (request % 4 ? 9 : 1) + 1));
      const Tokens before(text.end() - int64_t(std::min<size_t>(text.size(), 4)), text.end());
      for (const int32_t token : random_stream(std::max(20, 700 - int(text.size())), letters, dice)) text.push_back(token);
      text.insert(text.end(), before.begin(), before.end());  // what followed it in the last request is forgotten
      Sequence sequence = sequence_of(text, dice.below(2));
      sequence.cache_salt = "mine";
      auto fresh = make_proposer("suffix", o, 2);
      for (auto* suffix : {one.get(), fresh.get()}) suffix->open(sequence);
      for (int round = 0; round < 20; ++round) {
        const Tokens expected = draft(*fresh, sequence, 6);
        ASSERT_EQ(draft(*one, sequence, 6), expected);
        guesses += int(expected.size());
        for (int more = dice.below(9); more >= 0; --more) sequence.tokens.push_back(dice.below(letters));
        for (auto* suffix : {one.get(), fresh.get()}) suffix->observe(sequence, {});
      }
      one->close(sequence.slot);
      text = sequence.tokens;
    }
    EXPECT_GT(guesses, 300);
  }
}

TEST(Suffix, SurvivesManyStreamsAtItsBounds) {
  Dice dice(5);
  const ProposerOptions o{.suffix_depth = 24, .suffix_cached_requests = 50, .suffix_cache_bytes = 4096 * 96};
  auto suffix = make_proposer("suffix", o, 40);
  std::vector<Sequence> running(40);
  std::vector<int64_t> copy_from(40, 0), ends(40, 0);
  Tree trees[40];
  int closed = 0;
  for (int round = 0; round < 600; ++round) {
    std::vector<DraftTask> tasks;
    for (size_t i = 0; i < 40; ++i) {
      Sequence& sequence = running[i];
      if (sequence.len() >= ends[i]) {
        if (sequence.len() > 0) suffix->close(sequence.slot), ++closed;
        sequence = sequence_of(random_stream(5 + dice.below(100), 50, dice), Slot(i));
        ends[i] = sequence.len() + dice.below(200) + 1;
        suffix->open(sequence);
      }
      tasks.push_back({.sequence = &sequence,
          .limits = {.max_tokens = dice.below(17), .may_branch = dice.below(2) == 0},
          .tree = &trees[i].tree});
    }
    suffix->propose(tasks);
    for (size_t i = 0; i < 40; ++i) {
      ASSERT_LE(tasks[i].tree->size, tasks[i].limits.max_tokens);
      for (int more = dice.below(4); more >= 0; --more) grow(running[i].tokens, 50, dice, copy_from[i]);
      suffix->observe(running[i], {});
    }
  }
  EXPECT_GT(closed, 300);
}

TEST(Suffix, RefusesSettingsThatMakeNoSense) {
  const double nan = std::nan("");
  const std::pair<ProposerOptions, const char*> cases[] = {{{.suffix_depth = 0}, "[1, 64]"}, {{.suffix_depth = 65}, "[1, 64]"},
      {{.suffix_cached_requests = -1}, "is -1"}, {{.suffix_cache_bytes = -5}, "-5 bytes"},
      {{.suffix_factor = -1}, "factor is -1"}, {{.suffix_offset = nan}, "offset is nan"},
      {{.suffix_min_probability = 1.5}, "is 1.5"}};
  for (const auto& [options, message] : cases)
    expect_error(Register<Proposer>::find("suffix")->make({.options = options}), message);
}

}
}
