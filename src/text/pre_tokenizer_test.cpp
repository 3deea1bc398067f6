// The split of o200k (gpt-oss, GPT-4o), against what the Python package `tokenizers` makes of its published pattern; the other
// patterns are bound by whole vocabularies (golden_test.cpp).
#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

namespace hunch {
namespace {

using Words = std::vector<std::string>;

Words words_of(const PreTokenizer& pre, const std::string& text) {
  PreTokenizer::Cutter cutter(pre);
  Words out;
  for (size_t at = 0; at < text.size();) {
    auto end = cutter.next(text, at);
    EXPECT_TRUE(end.ok());
    out.push_back(text.substr(at, *end - at));
    at = *end;
  }
  return out;
}

TEST(PreTokenizer, CutsAsO200kDoes) {
  const auto family = pre_family_of_pattern(
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
      R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  ASSERT_TRUE(family.has_value());
  ASSERT_NE(find_gguf_pre("gpt-4o"), nullptr);
  EXPECT_EQ(find_gguf_pre("gpt-4o")->family, *family);
  auto pre = PreTokenizer::make(*family);
  ASSERT_TRUE(pre.ok()) << pre.error().message;
  EXPECT_EQ(words_of(*pre, "camelCase HTTPServer don't WE'LL"), (Words{"camel", "Case", " HTTPServer", " don't", " WE'LL"}));
  EXPECT_EQ(words_of(*pre, "12345 6/7 //\n\n  x"), (Words{"123", "45", " ", "6", "/", "7", " //\n\n", " ", " x"}));
  EXPECT_EQ(words_of(*pre, "cafe\u0301 \u01c5al \u4e2d\u6587abc\u02b0D"),
      (Words{"cafe\u0301", " \u01c5al", " \u4e2d\u6587abc\u02b0", "D"}));
  EXPECT_EQ(words_of(*pre, "a\u180eb \t\u3000c  "), (Words{"a", "\u180eb", " \t", "\u3000c", "  "}));
  EXPECT_EQ(words_of(*pre, "'s I'd'"), (Words{"'s", " I'd", "'"}));
}

}
}
