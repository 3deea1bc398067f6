// The tree counts what a list of all substrings would count, and forgets as if it had never known.
#include "draft/suffix_tree.h"

#include <deque>
#include <map>

#include "draft/test_drafts.h"

namespace hunch {
namespace {

using namespace test;
using Counts = std::map<Tokens, int>;

struct Text {
  uint32_t at;
  Tokens tokens;
};

void forget(SuffixTree& tree, const Text& text, int depth) {
  const int len = int(text.tokens.size());
  for (int i = 0; i < len; ++i) tree.erase(text.at + i, std::min(depth, len - i));
}

Text add(SuffixTree& tree, const Tokens& tokens, int depth) {
  const Text text{tree.end(), tokens};
  for (const int32_t token : tokens) tree.append(token);
  const int len = int(tokens.size());
  for (int i = 0; i < len; ++i) tree.insert(text.at + i, std::min(depth, len - i));
  return text;
}

void count_substrings(const Tokens& tokens, int depth, Counts& counts) {
  for (size_t at = 0; at < tokens.size(); ++at)
    for (size_t len = 1; len <= size_t(depth) && at + len <= tokens.size(); ++len)
      ++counts[Tokens(tokens.begin() + at, tokens.begin() + at + len)];
}

// Everything the tree says, by walking it; also checks that best() is the best of each_next().
void read(const SuffixTree& tree, const SuffixTree::Place& place, Tokens& path, Counts& counts) {
  SuffixTree::Next best;
  std::vector<SuffixTree::Next> all;
  tree.each_next(place, [&](SuffixTree::Next next) { all.push_back(next); });
  for (const auto& next : all) {
    if (next.count > best.count || (next.count == best.count && next.token < best.token)) best = next;
    SuffixTree::Place longer = place;
    ASSERT_TRUE(tree.step(longer, next.token));
    ASSERT_EQ(tree.count(longer), next.count);
    path.push_back(next.token);
    SuffixTree::Place walked, astray;
    ASSERT_TRUE(tree.walk(walked, path) && tree.count(walked) == next.count);
    path.back() = 99;
    ASSERT_FALSE(tree.walk(astray, path));
    path.back() = next.token;
    ASSERT_TRUE(counts.emplace(path, next.count).second) << "a token twice among siblings";
    read(tree, longer, path, counts);
    path.pop_back();
  }
  if (path.empty()) return;
  EXPECT_EQ(tree.best(place).count, best.count);
  EXPECT_EQ(tree.best(place).token, best.token);
}

Counts read(const SuffixTree& tree) {
  Counts counts;
  Tokens path;
  read(tree, {}, path, counts);
  return counts;
}

TEST(SuffixTree, CountsEverySubstringUpToItsDepth) {
  Dice dice(1);
  for (int trial = 0; trial < 60; ++trial) {
    const int depth = 1 + dice.below(9);
    SuffixTree tree;
    tree.reserve(256);
    Counts wanted;
    for (int texts = dice.below(5); texts >= 0; --texts) {
      const Tokens tokens = random_stream(1 + dice.below(50), 2 + dice.below(5), dice);
      add(tree, tokens, depth);
      count_substrings(tokens, depth, wanted);
    }
    ASSERT_EQ(read(tree), wanted) << "depth " << depth;
    SuffixTree::Place place;
    EXPECT_FALSE(tree.step(place, 99));
  }
}

TEST(SuffixTree, ForgetsATextAsIfItHadNeverKnownIt) {
  Dice dice(2);
  for (int trial = 0; trial < 20; ++trial) {
    const int depth = 1 + dice.below(12), alphabet = 2 + dice.below(4);
    SuffixTree tree;
    tree.reserve(128);  // the ring wraps many times
    std::deque<Text> texts;
    int tokens = 0;
    for (int step = 0; step < 40; ++step) {
      const Tokens more = random_stream(1 + dice.below(60), alphabet, dice);
      while (!texts.empty() && (tokens + int(more.size()) > 128 || dice.below(4) == 0)) {
        forget(tree, texts[0], depth);
        tokens -= int(texts[0].tokens.size());
        texts.pop_front();
      }
      texts.push_back(add(tree, more, depth));
      tokens += int(more.size());
      SuffixTree fresh;
      fresh.reserve(128);
      for (const Text& text : texts) add(fresh, text.tokens, depth);
      ASSERT_EQ(read(tree), read(fresh));
      ASSERT_EQ(tree.num_nodes(), fresh.num_nodes()) << "nodes that were split stay split";
      ASSERT_EQ(tree.count({}), tokens);
    }
    for (const Text& text : texts) forget(tree, text, depth);
    EXPECT_EQ(tree.num_nodes(), 1);
  }
}

TEST(SuffixTree, ForgetsItsEndAsIfItHadNeverKnownIt) {
  Dice dice(6);
  for (int trial = 0; trial < 40; ++trial) {
    const int depth = 1 + dice.below(9), alphabet = 1 + dice.below(4);
    SuffixTree tree(SuffixTree::Forgets::Newest);
    tree.reserve(256);
    Tokens text;
    for (int step = 0; step < 20; ++step) {
      const int kept = dice.below(int(text.size()) + 1);
      for (int at = int(text.size()) - depth; at + depth > kept && at >= 0; --at) tree.erase(at, depth);
      const int first = std::max(0, kept - depth + 1);
      text.resize(kept);
      tree.cut(kept);
      for (const int32_t token : random_stream(dice.below(256 - kept) / 2, alphabet, dice)) {
        text.push_back(token);
        tree.append(token);
      }
      SuffixTree fresh;
      fresh.reserve(256);
      for (const int32_t token : text) fresh.append(token);
      for (int at = 0; at + depth <= int(text.size()); ++at) {
        if (at >= first) tree.insert(at, depth);
        fresh.insert(at, depth);
      }
      ASSERT_EQ(read(tree), read(fresh));
      ASSERT_EQ(tree.num_nodes(), fresh.num_nodes());
    }
  }
}

TEST(SuffixTree, GrowsWithoutForgetting) {
  Dice dice(3);
  SuffixTree tree;
  Counts wanted;
  for (int size = 16; size <= 1024; size *= 2) {
    tree.reserve(size);
    const Tokens tokens = random_stream(size / 2, 4, dice);
    add(tree, tokens, 7);
    count_substrings(tokens, 7, wanted);
    ASSERT_EQ(read(tree), wanted);
  }
  EXPECT_LE(tree.bytes(), 1024 * SuffixTree::kBytesPerToken);
}

TEST(SuffixTree, HasAtMostTwoNodesPerSuffixHoweverUniformTheText) {
  for (const int alphabet : {1, 2}) {
    SuffixTree tree;
    tree.reserve(4096);
    Dice dice(4);
    Tokens tokens;
    for (int i = 0; i < 4096; ++i) tokens.push_back(dice.below(alphabet));
    add(tree, tokens, 24);
    EXPECT_LE(tree.num_nodes(), 2 * 4096 + 1);
  }
}

}
}
