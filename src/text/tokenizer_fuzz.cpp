// libFuzzer target: tokenizer.json from arbitrary bytes, and arbitrary bytes through a small fixed tokenizer and back.

#include "base/check.h"
#include "text/byte_alphabet.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace hunch {
namespace {

// All bytes, a few merges, one special token and two with every flag.
Tokenizer small_tokenizer() {
  std::string vocab, json;
  for (int b = 0; b < 256; ++b) {
    const char byte = char(b);
    const std::string spelt = spell_bytes({&byte, 1});
    vocab += "\"" + std::string(spelt == "\"" || spelt == "\\" ? "\\" : "") + spelt + "\":" + std::to_string(b) + ",";
  }
  vocab += R"("aa":256,"aaaa":257,"Ġa":258,"ĊĊ":259)";
  json = R"({"normalizer":{"type":"NFC"},"added_tokens":[{"id":260,"content":"<|im_start|>","special":true,"normalized":false},
    {"id":261,"content":"<|im_end|>","special":true,"normalized":false},
    {"id":262,"content":"<x>","special":false,"normalized":true,"lstrip":true,"rstrip":true},
    {"id":263,"content":"né","special":false,"normalized":true,"single_word":true}],
    "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"model":{"type":"BPE","vocab":{)" +
      vocab + R"(},"merges":["a a",["aa","aa"],"Ġ a","Ċ Ċ"]}})";
  auto made = Tokenizer::from_json(json);
  HUNCH_CHECK(made.ok());
  return std::move(made).value();
}

void round_trip(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, {.parse_special = false, .add_bos = false});
  HUNCH_CHECK(ids.ok() == !first_invalid_utf8(text));
  if (!ids.ok()) return;
  for (const int32_t id : ids.value()) HUNCH_CHECK(!tokenizer.is_special(id));
  const std::string back = detokenize(tokenizer, ids.value());
  HUNCH_CHECK(!first_invalid_utf8(back));
  std::string normal;
  append_nfc(text, normal);
  if (text.find('<') == text.npos) HUNCH_CHECK(back == normal);  // no token that strips white space
}

}
}  // namespace hunch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hunch::Tokenizer small = hunch::small_tokenizer();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  hunch::round_trip(small, input);
  if (const auto made = hunch::Tokenizer::from_json(input); made.ok()) {
    (void)made.value().encode("The quick brown fox, 1234 <|im_start|> \xC3\xA9", {});
  }
  (void)hunch::Tokenizer::from_json("{}", input);
  return 0;
}
