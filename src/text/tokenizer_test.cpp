#include "text/tokenizer.h"

#include <thread>

#include "base/clock.h"
#include "text/detokenizer.h"
#include "text/test_data.h"

namespace hunch {
namespace {

using nlohmann::json;
using namespace test;

json gpt2_json() { return json::parse(read_data("gpt2.json")); }
Result<Tokenizer> read(const json& file, const std::string& config = {}) { return Tokenizer::from_json(file.dump(), config); }

TEST(Tokenizer, GgufVocabularyGivesTheIdsOfTokenizerJson) {
  for (const auto& [name, pre] : {std::pair("wren", "qwen2"), {"gpt2", "gpt-2"}, {"gpt2", "default"}, {"llama3", "llama-bpe"}}) {
    const Tokenizer from_json = load(name);
    GgufCopy copy(name);
    GgufVocab vocab = copy.vocab(pre);
    vocab.bos_id = from_json.bos_id();
    const Tokenizer from_gguf = good(Tokenizer::from_gguf(vocab));
    EXPECT_EQ(from_gguf.vocab_size(), from_json.vocab_size());
    EXPECT_EQ(from_gguf.adds_bos(), from_json.adds_bos());
    for (int32_t id = -1; id <= from_json.vocab_size(); ++id) {
      EXPECT_EQ(from_gguf.token_bytes(id), from_json.token_bytes(id)) << id;
      EXPECT_EQ(from_gguf.is_special(id), from_json.is_special(id)) << id;
    }
    for (const std::string line : json::parse(read_data("lines.json"))) {
      // GGUF has no flags of added tokens: the lines that hold a flagged one may differ.
      if (line.find("hunch") + 1 || line.find("<mask>") + 1 || line.find("<word>") + 1) continue;
      EXPECT_EQ(encode(from_gguf, line), encode(from_json, line)) << line;
    }
  }
}

TEST(Tokenizer, GgufRowsThatAreNoWordsSpellNothing) {
  GgufCopy copy("gpt2");
  const size_t n = copy.tokens.size();
  copy.put(n, "<unk>", 2), copy.put(n + 1, "[PAD]", 5), copy.put(n + 2, "", 1), copy.put(n + 3, "", 1);
  const Tokenizer tokenizer = good(Tokenizer::from_gguf(copy.vocab("llama-bpe")));
  EXPECT_TRUE(tokenizer.is_special(int32_t(n)));
  EXPECT_EQ(tokenizer.token_bytes(int32_t(n + 1)), "");
  EXPECT_FALSE(tokenizer.adds_bos()) << "it names none";
}

TEST(Tokenizer, RefusesAnUnknownGgufPreAndListsTheKnown) {
  const GgufCopy copy("gpt2");
  for (const std::string_view word : {"tokenizer.ggml.pre", "tekken", "gpt-2", "llama-bpe", "qwen2"})
    expect_error(Tokenizer::from_gguf(copy.vocab("tekken")), word);
}

TEST(Tokenizer, RefusesBrokenGgufVocabulariesByKey) {
  const auto expect = [](std::string_view words, auto spoil) {
    GgufCopy copy("gpt2");
    GgufVocab vocab = copy.vocab("gpt-2");
    spoil(copy, vocab);
    vocab.tokens = copy.tokens;
    vocab.merges = copy.merges;
    vocab.token_types = copy.types;
    expect_error(Tokenizer::from_gguf(vocab), words);
  };
  expect("tokenizer.ggml.model", [](auto&, auto& v) { v.model = "llama"; });
  expect("tokenizer.ggml.token_type", [](auto& c, auto&) { c.types.pop_back(); });
  expect("not known (1 to 6 are): 7", [](auto& c, auto&) { c.types[3] = 7; });
  expect("byte tokens", [](auto& c, auto&) { c.types[3] = 6; });
  expect("tokenizer.ggml.tokens", [](auto& c, auto&) { c.tokens.clear(), c.types.clear(); });
  expect("merges is missing", [](auto& c, auto&) { c.merges.clear(); });
  expect("given twice", [](auto& c, auto&) { c.tokens[5] = c.tokens[4]; });
  expect("no token for byte 0x00", [](auto& c, auto&) { *std::ranges::find(c.tokens, "Ā") = "zzzz"; });
  expect("merge 5 names a token that the vocabulary lacks: \"zebra\"", [](auto& c, auto&) { c.merges[5] = "q zebra"; });
  for (const char* merge : {"a", "a b c", ""}) expect("not two tokens", [=](auto& c, auto&) { c.merges[5] = merge; });
  expect("longer than 8192 bytes", [](auto& c, auto&) { c.tokens[9].assign(100'000'000, 'x'); });
  expect("lacks", [](auto& c, auto&) { c.merges[9] = "a " + std::string(100'000'000, 'x'); });
  expect("EOS id", [](auto&, auto& v) { v.eos_id = 1 << 30; });
  expect("BOS id", [](auto&, auto& v) { v.bos_id = 1 << 30; });
  expect("not UTF-8", [](auto& c, auto&) { c.put(c.tokens.size(), "\xFF", 3); });
  expect("BOS", [](auto&, auto& v) { v.add_bos = true; });
}

TEST(Tokenizer, GgufAddBosFollowsTheKeyAndElseTheFamily) {
  const GgufCopy copy("llama3");
  GgufVocab vocab = copy.vocab("llama-bpe");
  vocab.bos_id = 600;
  const auto adds = [&] { return Tokenizer::from_gguf(vocab).value().adds_bos(); };
  EXPECT_TRUE(adds());
  vocab.add_bos = false;
  EXPECT_FALSE(adds());
  vocab.add_bos = std::nullopt;
  vocab.pre = "qwen2";
  EXPECT_FALSE(adds());
}

TEST(Tokenizer, RefusesTokenizerJsonConstructsByName) {
  const json good = gpt2_json();
  ASSERT_TRUE(read(good).ok());
  const auto refuses = [&](std::string_view pointer, const json& value, std::string_view words) {
    json file = good;
    file[json::json_pointer(std::string(pointer))] = value;
    expect_error(read(file), words);
  };
  refuses("/normalizer", {{"type", "Lowercase"}}, "Lowercase");
  refuses("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "NFKC"}}}}}, "NFKC");
  refuses("/pre_tokenizer", {{"type", "Metaspace"}}, "Metaspace");
  refuses("/pre_tokenizer", nullptr, "pre_tokenizer");
  refuses("/pre_tokenizer/add_prefix_space", true, "add_prefix_space");
  refuses("/pre_tokenizer/use_regex", false, "use_regex");
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto split = [&](const json& pattern, std::string_view behavior) {
    return json{
        {"type", "Sequence"}, {"pretokenizers", {{{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}}, byte_level}}};
  };
  refuses("/pre_tokenizer", split({{"Regex", "(a+)+b"}}, "Isolated"), "(a+)+b");
  refuses("/pre_tokenizer", split({{"String", " "}}, "Isolated"), "Regex");
  refuses("/pre_tokenizer", split({{"Regex", "x"}}, "Removed"), "Removed");
  json known = split({{"Regex", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"}}, "Isolated");
  json& steps = known["pretokenizers"];
  steps.push_back(byte_level);
  refuses("/pre_tokenizer", known, "nothing may follow");
  steps[1] = steps[0];
  refuses("/pre_tokenizer", known, "more than one Split");
  steps.erase(1), steps[0]["invert"] = true;
  refuses("/pre_tokenizer", known, "without invert");
  refuses("/pre_tokenizer", {{"type", "ByteLevel"}}, "add_prefix_space");
  refuses("/post_processor", {{"type", "BertProcessing"}}, "BertProcessing");
  const json text = {{"Sequence", {{"id", "A"}}}}, special = {{"SpecialToken", {{"id", "<|endoftext|>"}}}};
  const auto refuses_template = [&](const json& single, std::string_view words, const json& tokens = json::object()) {
    refuses("/post_processor", {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}}, words);
  };
  refuses_template({text, special}, "<|endoftext|>");
  refuses_template({special, text}, "no single id");
  refuses_template({text, text}, "repeats");
  refuses_template({special, special, text}, "one token, before the text", {{"<|endoftext|>", {{"ids", {600}}}}});
  refuses("/decoder", {{"type", "WordPiece"}}, "WordPiece");
  refuses("/model/type", "Unigram", "Unigram");
  refuses("/model/byte_fallback", true, "byte_fallback");
  refuses("/model/dropout", 0.1, "dropout");
  for (const char* key : {"end_of_word_suffix", "continuing_subword_prefix"})
    refuses(std::string("/model/") + key, "</w>", "</w>");
  refuses("/model/vocab", json::array(), "vocab");
  refuses("/model/vocab/a", -1, "not an integer");
  refuses("/model/vocab/a", 1e300, "not an integer");
  refuses("/model/vocab/a", (1 << 20), "not an integer");
  refuses("/model/vocab/a", 7, "one id");
  for (const char* merge : {"a", "a b c"}) refuses("/model/merges/0", merge, "not two tokens");
  refuses("/model/merges/0", {"a", 1}, "merge 0");
  refuses("/model/merges/0", {"a", "Zebra"}, "Zebra");
  refuses("/added_tokens/0/id", 3, "added token");
  refuses("/added_tokens/0/content", "", "empty");
  refuses("/added_tokens/0/content", std::string(600, 'x'), "longer than 512");
}

TEST(Tokenizer, DefaultsAreThoseOfHuggingFace) {
  json file = gpt2_json();
  file["pre_tokenizer"].erase("use_regex"), file["model"].erase("ignore_merges"), file["model"]["vocab"]["qz"] = 700;
  file["post_processor"] = {{"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "B"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"B", {{"ids", {5}}}}}}};
  file["added_tokens"].push_back({{"id", 701}, {"content", "<|eot_id|>"}});
  const char* config = R"({"bos_token":"a"})";
  const Tokenizer with = good(read(file, config));
  EXPECT_EQ(encode(with, "qz").size(), 3u);
  EXPECT_EQ(encode(with, "qz")[0], 5) << "the template has the last word";
  EXPECT_TRUE(with.eos_ids().size() == 1 && !with.is_special(701)) << "no end mark";
  EXPECT_FALSE(good(read(gpt2_json(), config)).adds_bos());
}

// Which of them are found before NFC, and in which ranges of a chat.
TEST(Tokenizer, AddedTokensAreNormalizedUnlessSpecial) {
  json file = gpt2_json();
  file["normalizer"] = {{"type", "NFC"}};
  auto& added = file["added_tokens"];
  added.push_back({{"id", 701}, {"content", "e\u0301"}});
  added.push_back({{"id", 702}, {"content", "o\u0301"}, {"special", true}});
  added.push_back({{"id", 703}, {"content", "<x>"}, {"special", true}, {"normalized", true}});
  added.push_back({{"id", file["model"]["vocab"]["a"]}, {"content", "a"}, {"special", true}});
  const Tokenizer tokenizer = good(read(file));
  EXPECT_EQ(encode(tokenizer, "\u00e9"), Ints{701});
  EXPECT_EQ(std::ranges::count(encode(tokenizer, "\u00f3"), 702), 0);
  const std::string cut = "<x><|endoftext|><x><x>";
  const auto marks = [&](const std::string& text, const AddedTokens::Ranges& in) {
    return std::ranges::count(encode(tokenizer, text, {.special_in = &in}), 703);
  };
  EXPECT_EQ(marks(cut, {{0, 16}, {19, 22}}), 2);
  EXPECT_EQ(marks(cut, {{0, 3}, {3, 22}}), 3);
  EXPECT_EQ(marks("e\u0301<x>", {{1, 6}}), 0) << "no place stands for what composes across a border";
  const AddedTokens::Ranges none;
  expect_error(tokenizer.encode("a", {.special_in = &none}), "not safe for chat");
}

TEST(Tokenizer, LooksForShorterMarksWhereALongerOneLeavesItsRange) {
  const AddedTokens tokens({{.id = 1, .content = "<a", .special = true}, {.id = 2, .content = "<a>", .special = true},
      {.id = 3, .content = "><", .special = true}, {.id = 4, .content = "+<a>", .special = true}});
  using Case = std::tuple<std::string, AddedTokens::Ranges, int, size_t>;
  for (const auto& [text, ranges, id, at] : {Case{"<a>", {{0, 2}}, 1, 0}, {"+<a>", {{0, 3}}, 1, 1}, {"<a><", {{2, 4}}, 3, 2}}) {
    const auto pieces = tokens.split(text, true, &ranges);
    const auto found = std::ranges::find(pieces, id, &AddedTokens::Piece::id);
    ASSERT_NE(found, pieces.end()) << text;
    EXPECT_EQ(found->begin, at);
  }
}

TEST(Tokenizer, RefusesHostileJsonQuickly) {
  const auto start = Clock::now();
  for (const std::string_view bracket : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 100'000; ++i) deep += bracket;
    expect_error(Tokenizer::from_json(deep), "JSON");
  }
  for (const std::string_view text : {"", "null", "[]", "{}", "{\"model\":{}}", "{\"a\":1,}", "\xFF", "{\"model\":\"\\ud800\"}"})
    EXPECT_FALSE(Tokenizer::from_json(text).ok()) << text;
  EXPECT_FALSE(read(gpt2_json(), "{").ok());
  expect_error(read(gpt2_json(), R"({"eos_token":"<none>"})"), "eos_token");

  json file = gpt2_json();
  file["model"]["vocab"][std::string(50'000'000, 'x')] = 700;
  expect_error(read(file), "longer than");
  expect_error(Tokenizer::from_json(std::string(100'000'000, ' ')), "larger than");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(60));  // seconds under sanitizers, fewer without
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8OrBeyondTheLimit) {
  const Tokenizer tokenizer = load("gpt2");
  expect_error(tokenizer.encode("abc\xC3("), "at byte 3");
  expect_error(tokenizer.encode(std::string(kMaxTextBytes + 1, 'a')), "too long");
}

TEST(Tokenizer, TakesLongWordsAndLongRunsInGoodTime) {
  const Tokenizer tokenizer = load("wren");
  const auto start = Clock::now();
  for (const std::string_view unit : {"e", "=", " ", "\n", " \n", "\xE2\x80\x8B", "\xCC\x81\xCC\x96", "<|im_", "ethanol"}) {
    std::string text;
    while (text.size() < (1 << 18)) text += unit;
    EXPECT_FALSE(encode(tokenizer, text).empty());
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));  // 0.2 s in a release build
}

TEST(Tokenizer, ParsesSpecialTokensOnlyWhenAsked) {
  const Tokenizer tokenizer = load("wren");
  const int32_t open = *tokenizer.token_id("<|im_start|>");
  const std::string text = "a<|im_start|>b";
  EXPECT_EQ(encode(tokenizer, text)[1], open);
  const auto plain = encode(tokenizer, text, {.parse_special = false});
  EXPECT_EQ(std::ranges::count(plain, open), 0);
  EXPECT_EQ(detokenize(tokenizer, plain), text);
  // Assembled from pieces, nested, or cut short, it is never more than text.
  for (const std::string_view trick : {"<|im_<|im_start|>start|>", "<|im_start|", "<\xC2\xAD|im_start|>"}) {
    const auto ids = encode(tokenizer, trick, {.parse_special = false});
    for (const int32_t id : ids) EXPECT_FALSE(tokenizer.is_special(id)) << trick;
  }
}

TEST(Tokenizer, KnowsItsTokensAndIsSilentAboutOthers) {
  const Tokenizer tokenizer = load("wren", R"({"eos_token":{"content":"<|im_end|>"},"bos_token":null,"add_bos_token":false})");
  EXPECT_EQ(tokenizer.vocab_size(), 16384);
  EXPECT_EQ(tokenizer.token_id("<|im_end|>"), 16370);
  EXPECT_EQ(tokenizer.eos_ids(), (Ints{16370, 16368}));
  EXPECT_FALSE(tokenizer.bos_id().has_value());
  EXPECT_FALSE(tokenizer.token_id("no such token").has_value());
  EXPECT_EQ(tokenizer.token_bytes(16370), "<|im_end|>");
  EXPECT_EQ(tokenizer.token_bytes(*tokenizer.token_id(" the")), " the");
  EXPECT_EQ(tokenizer.token_bytes(16384), "");
  EXPECT_EQ(tokenizer.token_bytes(-1), "");
  EXPECT_TRUE(tokenizer.is_special(16369));
  EXPECT_FALSE(tokenizer.is_special(5));
  EXPECT_FALSE(tokenizer.is_special(1 << 30));
  size_t longest = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) longest = std::max(longest, tokenizer.token_bytes(id).size());
  EXPECT_EQ(tokenizer.longest_token_bytes(), longest);
}

TEST(Tokenizer, ConfigMayAskForBos) {
  const Tokenizer with = good(read(gpt2_json(), R"({"bos_token":"<|endoftext|>","add_bos_token":true})"));
  EXPECT_EQ(encode(with, "a")[0], *with.token_id("<|endoftext|>"));
  EXPECT_EQ(encode(with, "a", {.add_bos = false}).size(), 1u);
}

TEST(Tokenizer, EncodesFromManyThreadsAtOnce) {
  const Tokenizer tokenizer = load("wren");
  const std::string text = json::parse(read_data("lines.json")).dump();
  const auto expected = encode(tokenizer, text);
  std::vector<Ints> got(4);
  std::vector<std::thread> threads;
  for (auto& ids : got) threads.emplace_back([&] { ids = encode(tokenizer, text); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& ids : got) EXPECT_EQ(ids, expected);
}

}
}
