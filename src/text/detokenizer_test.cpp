#include "text/detokenizer.h"

#include <random>

#include "text/test_data.h"
#include "text/unicode.h"

namespace hunch {
namespace {

class DetokenizerTest : public testing::Test {
 protected:
  // One token per byte: the worst splits.
  Ints byte_ids(std::string_view bytes) const {
    Ints ids;
    for (size_t i = 0; i < bytes.size(); ++i) ids.push_back(*tokenizer_.token_id(bytes.substr(i, 1)));
    return ids;
  }
  const Tokenizer tokenizer_ = test::load("wren");
};

TEST_F(DetokenizerTest, HoldsBackHalfCharactersAndGivesWholeOnes) {
  Detokenizer stream(tokenizer_);
  std::vector<std::string> out;
  for (const int32_t id : byte_ids("a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80!")) out.push_back(stream.feed(id));
  EXPECT_EQ(out, (std::vector<std::string>{"a", "", "\xC3\xA9", "", "", "\xE4\xB8\xAD", "", "", "", "\xF0\x9F\x98\x80", "!"}));
  EXPECT_EQ(stream.flush(), "");
}

TEST_F(DetokenizerTest, EveryPieceIsValidUtf8AndAllPiecesMakeTheWhole) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::string bytes;  // mostly lead and continuation bytes: broken in every way
    for (size_t i = random() % 30; i > 0; --i) bytes += char(random() % 4 ? 0x80 + random() % 0x80 : 'a');
    const auto ids = byte_ids(bytes);
    Detokenizer stream(tokenizer_);
    std::string all;
    for (const int32_t id : ids) {
      const std::string piece = stream.feed(id);
      EXPECT_FALSE(first_invalid_utf8(piece));
      all += piece;
    }
    all += stream.flush();
    EXPECT_EQ(all, detokenize(tokenizer_, ids));
  }
}

TEST_F(DetokenizerTest, WritesOneReplacementPerMaximalBrokenPart) {
  const std::string r = "\xEF\xBF\xBD";
  const auto text = [&](std::string_view bytes) { return detokenize(tokenizer_, byte_ids(bytes)); };
  EXPECT_EQ(text("a\x80z"), "a" + r + "z");
  EXPECT_EQ(text("\xE4\xB8z"), r + "z");
  EXPECT_EQ(text("\xE4\xB8\xE4\xB8\xAD"), r + "\xE4\xB8\xAD");
  EXPECT_EQ(text("\xF0\x80\x80"), r + r + r);
  EXPECT_EQ(text("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(text("\xF0\x9F\x98"), r);  // unfinished at the end
}

TEST_F(DetokenizerTest, SkipsOrShowsSpecialTokensAndIgnoresUnknownIds) {
  const int32_t end = *tokenizer_.token_id("<|im_end|>");
  auto ids = byte_ids("a");
  ids.insert(ids.end(), {end, 999'999, -1, *tokenizer_.token_id("b")});
  EXPECT_EQ(detokenize(tokenizer_, ids), "ab");
  EXPECT_EQ(detokenize(tokenizer_, ids, false), "a<|im_end|>b");
}

TEST_F(DetokenizerTest, FlushStartsAnew) {
  Detokenizer stream(tokenizer_);
  EXPECT_EQ(stream.feed(byte_ids("\xE4\xB8")), "");
  EXPECT_TRUE(stream.holds_back());
  EXPECT_EQ(stream.flush(), "\xEF\xBF\xBD");
  EXPECT_FALSE(stream.holds_back());
  EXPECT_EQ(stream.feed(byte_ids("x")), "x");
}

}
}
