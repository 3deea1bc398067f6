#include "text/bpe.h"
#include "base/test_results.h"

#include <algorithm>
#include <random>

#include "text/byte_alphabet.h"
#include "text/unicode.h"

namespace hunch {
namespace {

// The definition, word for word: find the best-ranked adjacent pair, the leftmost of equals, merge it, start again.
std::vector<std::string> merged_by_definition(
    const std::string& word, const std::vector<std::pair<std::string, std::string>>& merges) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t i = 0; i < merges.size(); ++i) ranks[merges[i]] = i;
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (;;) {
    size_t best = 0, best_rank = merges.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found != ranks.end() && found->second < best_rank) {
        best = i;
        best_rank = found->second;
      }
    }
    if (best_rank == merges.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + best + 1);
  }
}

TEST(Bpe, MergesWordsOfAnyLengthAsTheDefinitionDoes) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    Bpe bpe;
    std::map<std::string, int32_t> ids;
    const auto add = [&](const std::string& token) {
      if (!ids.emplace(token, int32_t(ids.size())).second) return;
      ASSERT_TRUE(bpe.add_token(ids[token], spell_bytes(token)).ok());
    };
    for (int b = 0; b < 256; ++b) add(std::string(1, char(b)));
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> merges;
    while (tokens.size() < 40) {  // in no sensible order: a merge may make a pair that ranks before it
      const std::string left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
      if (left.size() + right.size() > 9 || ids.count(left + right)) continue;
      tokens.push_back(left + right);
      add(left + right);
      merges.emplace_back(left, right);
    }
    std::ranges::shuffle(merges, random);
    merges.push_back(merges[0]);  // the last rank counts
    for (const auto& [left, right] : merges) ASSERT_TRUE(bpe.add_merge(spell_bytes(left), spell_bytes(right)).ok());
    ASSERT_TRUE(bpe.finish(false).ok());
    for (const size_t length : {1, 2, 3, 7, 23, 24, 25, 26, 60, 300}) {
      std::string word;
      for (size_t i = 0; i < length; ++i) word += "abc"[random() % (round % 2 ? 3 : 2)];
      Ints got;
      bpe.encode_word(word, got);
      Ints expected;
      for (const std::string& part : merged_by_definition(word, merges)) expected.push_back(ids[part]);
      EXPECT_EQ(got, expected) << word;
    }
  }
}

TEST(ByteAlphabet, SpellsEachByteAsOneCharacterAndBack) {
  std::string all;
  for (int b = 0; b < 256; ++b) all += char(b);
  const auto spelt = spell_bytes(all);
  EXPECT_FALSE(first_invalid_utf8(spelt));
  std::string back;
  EXPECT_TRUE(append_spelt_bytes(spelt, back));
  EXPECT_EQ(back, all);
  EXPECT_EQ(spell_bytes(" \n"), "ĠĊ");
  for (const std::string_view foreign : {" ", "\n", "ńn", "｜", "\xC4", "\xC4x", "\xFF"}) {
    EXPECT_FALSE(append_spelt_bytes(foreign, back)) << foreign;
    EXPECT_EQ(back, all);
  }
}

}
}
