#include "engine/vocab_match.h"

#include "base/test_results.h"
#include "text/byte_alphabet.h"

namespace hunch {
namespace {

using namespace test;

// All bytes, then whatever else; an empty text is a hole, "<...>" a special token.
Tokenizer tokenizer_of(std::vector<std::string> more, int first_byte = 0) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(spell_bytes(std::string(1, char(first_byte + byte))));
  Ints types(256, 1);
  std::optional<int32_t> end;
  for (const std::string& token : more) {
    const bool special = token.starts_with("<");
    if (special && !end) end = int32_t(tokens.size());
    tokens.push_back(special ? token : spell_bytes(token));
    types.push_back(special ? 3 : token.empty() ? 5 : 1);
  }
  return good(Tokenizer::from_gguf({.model = "gpt2", .pre = "qwen2", .tokens = tokens, .token_types = types, .eos_id = end}));
}

const std::vector<std::string> kUsual{"he", "ll", "<end>"};

VocabMap matched(const Vocabulary& target, const Vocabulary& draft, const char* mode) {
  return good(match_vocabularies(target, draft, mode));
}

TEST(VocabMatch, EqualVocabulariesNeedNoMap) {
  const Tokenizer a = tokenizer_of(kUsual), b = tokenizer_of(kUsual);
  for (const char* mode : {"same", "intersection"}) EXPECT_TRUE(matched({a, 259, "a"}, {b, 259, "b"}, mode).same()) << mode;
}

TEST(VocabMatch, PaddingOnEitherSideIsNeverGuessedAndAlwaysReadable) {
  const Tokenizer a = tokenizer_of(kUsual), b = tokenizer_of({"he", "ll", "<end>", "", ""});
  for (const char* mode : {"same", "intersection"})
    for (const auto& [of_target, of_draft] : {std::pair{259, 264}, {264, 261}, {264, 264}}) {
      const VocabMap map = matched({a, of_target, "a"}, {b, of_draft, "b"}, mode);
      ASSERT_EQ(map.target_ids.size(), size_t(of_draft));
      ASSERT_EQ(map.own_ids.size(), size_t(of_target));
      for (int id = 0; id < of_draft; ++id) EXPECT_EQ(map.target_ids[id], id < 259 ? id : -1) << id;
      for (int id = 0; id < of_target; ++id) EXPECT_EQ(map.own_ids[id], id < 259 ? id : 258) << id;
    }
}

TEST(VocabMatch, TokensThatOneSideLacksAreNeitherGuessedNorMissed) {
  const Tokenizer a = tokenizer_of({"he", "<end>"}), b = tokenizer_of({"he", "<end>", "llo", "<tool>"});
  VocabMap map = matched({a, 258, "a"}, {b, 260, "b"}, "same");
  EXPECT_EQ(map.target_ids[258], -1);
  EXPECT_EQ(map.own_ids[257], 257);
  map = matched({b, 260, "b"}, {a, 258, "a"}, "same");
  EXPECT_EQ(map.target_ids[257], 257);
  EXPECT_EQ(map.own_ids[258], 'o') << "the longest token that ends it";
  EXPECT_EQ(map.own_ids[259], 257) << "a special one: the end of text";
}

TEST(VocabMatch, ModeSameNamesTheFirstTokenThatDiffers) {
  const Tokenizer a = tokenizer_of(kUsual), b = tokenizer_of({"he", "wo", "<eot>"});
  const auto refused = match_vocabularies({a, 259, "big.gguf"}, {b, 259, "small.gguf"}, "same");
  for (const char* word : {"small.gguf", "token 257", "\"wo\"", "\"ll\"", "big.gguf", "intersection"})
    expect_error(refused, word);
  const Tokenizer c = tokenizer_of({"he", "ll", "<eot>"});
  EXPECT_FALSE(match_vocabularies({a, 259, "a"}, {c, 259, "c"}, "same").ok()) << "special tokens count";
}

TEST(VocabMatch, IntersectionMatchesBytesWhateverTheirIds) {
  const Tokenizer a = tokenizer_of({"he", "hello", "<end>"}), b = tokenizer_of({"<end>", "lo", "he"}, 100);
  const VocabMap map = matched({a, 259, "a"}, {b, 259, "b"}, "intersection");
  Ints times(259);
  for (int32_t own = 0; own < 259; ++own) {
    const int32_t id = map.target_ids[own];
    EXPECT_EQ(id < 0, own == 257) << own;  // "lo"
    if (id < 0) continue;
    EXPECT_EQ(a.token_bytes(id), b.token_bytes(own));
    EXPECT_EQ(map.own_ids[id], own);
    EXPECT_EQ(times[id]++, 0) << "two ids for one";
  }
  EXPECT_EQ(map.own_ids[257], 257) << "hello is read as lo";
}

TEST(VocabMatch, NoIdLiesBehindTheColumnsOfADraftModel) {
  const Tokenizer a = tokenizer_of(kUsual);
  for (const char* mode : {"same", "intersection"})
    for (const int32_t id : matched({a, 259, "a"}, {a, 258, "b"}, mode).own_ids) EXPECT_LT(id, 258) << mode;
  expect_error(match_vocabularies({a, 1, "a"}, {tokenizer_of({}, 9), 1, "b"}, "intersection"), "no token in common");
}

TEST(VocabMatch, RefusesUnknownModes) {
  const Tokenizer a = tokenizer_of({});
  expect_error(match_vocabularies({a, 256, "a"}, {a, 256, "a"}, "similar"), "known: same, intersection");
}

}
}
