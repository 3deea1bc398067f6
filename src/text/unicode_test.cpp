#include "text/unicode.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "text/excerpt.h"

namespace hunch {
namespace {

std::string nfc(std::string_view text) {
  std::string out;
  append_nfc(text, out);
  return out;
}

TEST(Unicode, NamesTheByteAtWhichUtf8Ends) {
  EXPECT_FALSE(first_invalid_utf8("plain"));
  EXPECT_FALSE(first_invalid_utf8("\xC2\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"));
  EXPECT_EQ(first_invalid_utf8("ab\x80"), 2u);
  EXPECT_EQ(first_invalid_utf8("a\xC0\x80"), 1u);         // overlong
  EXPECT_EQ(first_invalid_utf8("\xE0\x9F\xBF"), 0u);      // overlong
  EXPECT_EQ(first_invalid_utf8("abc\xED\xA0\x80"), 3u);   // surrogate
  EXPECT_EQ(first_invalid_utf8("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(first_invalid_utf8("x\xE4\xB8"), 1u);         // unfinished
}

TEST(Unicode, EveryCodePointMakesTheTripThroughUtf8) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(code, text);
    const Utf8Step step = utf8_step(text);
    ASSERT_TRUE(step.kind == Utf8Step::Kind::Character && step.code == code && step.length == text.size()) << code;
  }
}

TEST(Unicode, NfcEqualsUtf8procOnRandomMixesOfMarksJamoAndLetters) {
  std::mt19937 random(11);
  const std::vector<std::pair<uint32_t, uint32_t>> ranges = {{0x20, 0x7E}, {0x20, 0x7E}, {0xC0, 0x17F}, {0x300, 0x345},
      {0x300, 0x345}, {0x1100, 0x1112}, {0x1161, 0x1175}, {0x11A8, 0x11C2}, {0xAC00, 0xAC40}, {0x900, 0x9FF}, {0x1F00, 0x1FFF},
      {0x2F800, 0x2F820}, {0x1D15E, 0x1D164}, {0x3099, 0x309A}, {0x304B, 0x3060}};
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (size_t i = random() % 24; i > 0; --i) {
      const auto [low, high] = ranges[random() % ranges.size()];
      append_utf8(low + uint32_t(random() % (high - low + 1)), text);
    }
    utf8proc_uint8_t* expected = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
    EXPECT_EQ(nfc(text), reinterpret_cast<const char*>(expected)) << text;
    std::free(expected);
  }
}

TEST(Unicode, NfcOfOneLongRunOfUnorderedMarksIsNotQuadratic) {
  std::string text = "a";
  while (text.size() < (1 << 20)) text += "\xCC\x81\xCC\x96";  // classes 230 and 220 in turn: all must be reordered
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(nfc(text).size(), text.size() - 1);  // the first acute joins the letter: 3 bytes become 2
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Unicode, WhiteSpaceAndWordsAtTheEdgesOfText) {
  EXPECT_EQ(white_space_at_end("x \xE3\x80\x80\n"), 5u);
  EXPECT_EQ(white_space_at_start("\xC2\xA0\t x "), 4u);
  EXPECT_EQ(white_space_at_start("\xE1\xA0\x8E x"), 0u);  // U+180E is white space no more
  EXPECT_EQ(white_space_at_start("\xE2\x80\xAF"), 3u);
  EXPECT_TRUE(starts_with_word("\xE2\x85\xA7") && starts_with_word("\xE2\x80\x8D"));  // a Roman numeral, a joiner
  EXPECT_TRUE(ends_with_word("x_") && ends_with_word("\xC3\xA9") && starts_with_word("1"));
  EXPECT_FALSE(ends_with_word("x-") || ends_with_word("") || starts_with_word("\xE2\x80\x94"));
}

TEST(Excerpt, IsShortValidAndOnOneLine) {
  EXPECT_EQ(excerpt("ab"), "\"ab\"");
  EXPECT_EQ(excerpt("a\nb\x01\xC2\x9B\xFF"), "\"a\\nb\\x01\\xC2\\x9B\\xFF\"");
  EXPECT_EQ(excerpt("\xC3\xA9\xC3\xA9\xC3\xA9", 2), "\"\xC3\xA9\xC3\xA9...\"");
}

}
}
