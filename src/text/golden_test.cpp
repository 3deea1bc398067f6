// Every line of models/golden/text/lines.json against what the PyPI package `tokenizers` made of it
// (models/golden/make_text_golden.py).

#include "text/detokenizer.h"
#include "text/test_data.h"
#include "text/unicode.h"

namespace hunch {
namespace {

using test::encode;
using test::read_data;

uint32_t sum_of(const Ints& ids) {
  uint32_t sum = 0;
  for (size_t j = 0; j < ids.size(); ++j) sum += uint32_t(j + 1) * uint32_t(ids[j]);
  return sum & 0xFFFFFF;
}

class Golden : public testing::TestWithParam<std::string> {
 protected:
  Golden() : lines_(nlohmann::json::parse(read_data("lines.json")).get<std::vector<std::string>>()) {
    golden_ = nlohmann::json::parse(read_data("golden.json"))["tokenizers"][GetParam()];
  }

  std::vector<std::string> lines_;
  nlohmann::json golden_;
  const Tokenizer tokenizer_ = test::load(GetParam());
};

TEST_P(Golden, IdsEqualThoseOfHuggingFaceOnEveryLine) {
  ASSERT_GE(lines_.size(), 1300u);
  const std::string sums = golden_["crcs"];
  for (size_t i = 0; i < lines_.size(); ++i) {
    const uint32_t parsed = uint32_t(std::stoul(sums.substr(6 * i, 6), nullptr, 16));
    const auto key = std::to_string(i);
    const uint32_t plain = golden_["plain"].value(key, parsed);
    const auto ids = encode(tokenizer_, lines_[i], {.parse_special = true, .add_bos = false});
    EXPECT_EQ(sum_of(ids), parsed) << "line " << i << ": " << lines_[i];
    EXPECT_EQ(sum_of(encode(tokenizer_, lines_[i], {.parse_special = false, .add_bos = false})), plain)
        << "line " << i << ": " << lines_[i];
    if (golden_["ids"].contains(key)) { EXPECT_EQ(ids, golden_["ids"][key].get<Ints>()) << "line " << i; }
  }
}

TEST_P(Golden, BosAndVocabularySizeEqualThoseOfHuggingFace) {
  EXPECT_EQ(tokenizer_.vocab_size(), golden_["vocab"].get<int>());
  const auto bos = golden_["bos"].get<Ints>();
  EXPECT_EQ(tokenizer_.adds_bos(), !bos.empty());
  auto with = encode(tokenizer_, "a", {}), without = encode(tokenizer_, "a", {.add_bos = false});
  without.insert(without.begin(), bos.begin(), bos.end());
  EXPECT_EQ(with, without);
}

TEST_P(Golden, DecodedTextEqualsThatOfHuggingFaceAlsoWhereCharactersBreak) {
  for (const auto& [key, text] : golden_["decoded"].items()) {
    const auto ids = golden_["ids"][key].get<Ints>();
    Ints every_second;
    for (size_t i = 1; i < ids.size(); i += 2) every_second.push_back(ids[i]);
    EXPECT_EQ(detokenize(tokenizer_, every_second), text.get<std::string>()) << "line " << key;
  }
}

TEST_P(Golden, DecodingGivesBackTheNormalizedText) {
  const bool strips = tokenizer_.token_id("<mask>").has_value();
  const bool normalizes = GetParam() == "wren" || GetParam() == "qwen2";
  for (const std::string& line : lines_) {
    if (strips && (line.find("<mask>") != line.npos || line.find("<word>") != line.npos)) continue;
    std::string expected;
    if (normalizes) append_nfc(line, expected);
    else expected = line;
    EXPECT_EQ(detokenize(tokenizer_, encode(tokenizer_, line, {.add_bos = false}), false), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizers, Golden, testing::Values("llama3", "gpt2", "qwen2", "wren"), [](const auto& info) { return info.param; });

}
}
