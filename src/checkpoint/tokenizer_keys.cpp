// What the two descriptions of a byte-level BPE share: the byte-to-unicode spelling of tokens and merges, so both are copied.
#include "checkpoint/tokenizer_keys.h"

#include <nlohmann/json.hpp>

#include "base/failure.h"
#include "base/json_depth.h"
#include "checkpoint/quote.h"

namespace hunch {
namespace {

using Json = nlohmann::json;

// Pre-tokeniser expressions and GGUF's names for them: contractions, words with one leading sign, digits one by one (qwen2) or
// by three (llama-bpe), signs, blanks.
constexpr std::string_view kBefore = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})";
constexpr std::string_view kAfter = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const Json& member(const Json& object, const char* key) {
  static const Json kNull;
  const auto at = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && at != object.end() ? *at : kNull;
}

std::string text_at(const Json& object, const char* key) {
  const Json& value = member(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

bool true_at(const Json& object, const char* key, bool otherwise) {
  const Json& value = member(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

// "qwen2", "llama-bpe", "gpt-2"; empty where GGUF has no name that we write. The name stands for the normalizer too: that of
// the same pattern without one is "deepseek-r1-qwen".
std::string pre_name(const Json& json) {
  const Json& pre = member(json, "pre_tokenizer");
  Json steps = text_at(pre, "type") == "Sequence" ? member(pre, "pretokenizers") : Json::array({pre});
  if (!steps.is_array() || steps.empty()) return "";
  const Json& last = steps.back();
  if (text_at(last, "type") != "ByteLevel" || true_at(last, "add_prefix_space", true)) return "";
  if (steps.size() == 1) return true_at(last, "use_regex", true) ? "gpt-2" : "";
  if (steps.size() != 2 || text_at(steps[0], "type") != "Split" || true_at(last, "use_regex", true)) return "";
  const std::string pattern = text_at(member(steps[0], "pattern"), "Regex");
  if (text_at(steps[0], "behavior") != "Isolated" || true_at(steps[0], "invert", false)) return "";
  if (pattern == fmt::format("{}{}", kBefore, kAfter)) {
    return member(json, "normalizer").dump().find("NFC") == std::string::npos ? "deepseek-r1-qwen" : "qwen2";
  }
  if (pattern == fmt::format("{}{{1,3}}{}", kBefore, kAfter)) return "llama-bpe";
  return "";
}

// The text of a special token: a string or {"content": "..."}.
std::string token_text(const Json& config, const char* key) {
  const Json& value = member(config, key);
  return value.is_string() ? value.get<std::string>() : text_at(value, "content");
}

// A template that begins with a special token adds it to every text.
bool template_adds_bos(const Json& post) {
  if (text_at(post, "type") == "Sequence") {
    for (const Json& step : member(post, "processors"))
      if (template_adds_bos(step)) return true;
    return false;
  }
  const Json& single = member(post, "single");
  return text_at(post, "type") == "TemplateProcessing" && single.is_array() && !single.empty() && single[0].is_object() &&
      single[0].contains("SpecialToken");
}

}

Result<GgufTokenizer> gguf_tokenizer(const TokenizerSource& hf, int64_t vocab_size, std::string_view source) {
  const Failing fail{[&] { return fmt::format("{}: tokenizer.json", source); }};
  if (hf.tokenizer_json.empty()) return fail("missing; it is needed to write a GGUF file");
  if (nested_deeper_than(hf.tokenizer_json, kMostJsonDepth)) return fail("nested deeper than {}", kMostJsonDepth);
  const Json json = Json::parse(hf.tokenizer_json, nullptr, false);
  if (json.is_discarded()) return fail("not valid JSON");
  const Json &model = member(json, "model"), &vocab = member(model, "vocab"), &merges = member(model, "merges");
  if (text_at(model, "type") != "BPE" || !vocab.is_object() || !merges.is_array())
    return fail("model type {} cannot be written; BPE can", quote(text_at(model, "type")));
  if (true_at(model, "byte_fallback", false)) return fail("byte fallback (SentencePiece) cannot be written; byte-level BPE can");
  GgufTokenizer out;
  TokenizerSource& t = out.source;
  t.model = "gpt2";
  t.pre = pre_name(json);
  if (t.pre.empty()) return fail("its pre-tokeniser is none of those that can be written: qwen2, llama-bpe, gpt-2");

  t.tokens.resize(vocab_size);
  t.token_types.assign(vocab_size, 0);  // 0: no token yet
  const auto place = [&](const Json& id, const std::string& text, int32_t type) -> Status {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size)
      return fail("the id of token {} is outside the vocabulary of {}", quote(text), vocab_size);
    const size_t at = id.get<size_t>();
    if (t.token_types[at] != 0 && t.tokens[at] != text)
      return fail("id {} stands for both {} and {}", at, quote(t.tokens[at]), quote(text));
    t.tokens[at] = text;
    t.token_types[at] = type;
    return {};
  };
  for (const auto& [text, id] : vocab.items()) HUNCH_OK(place(id, text, 1));
  for (const Json& added : member(json, "added_tokens"))
    HUNCH_OK(place(member(added, "id"), text_at(added, "content"), true_at(added, "special", false) ? 3 : 4));
  for (size_t id = 0; id < t.tokens.size(); ++id)
    if (t.token_types[id] == 0) t.tokens[id] = fmt::format("[PAD{}]", id), t.token_types[id] = 5;

  t.merges.reserve(merges.size());
  for (const Json& merge : merges) {  // "a b" or ["a", "b"]
    if (merge.is_string()) t.merges.push_back(merge.get<std::string>());
    else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      t.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    else return fail("a merge is neither \"a b\" nor [\"a\", \"b\"]");
  }
  t.bos_id = hf.bos_id;
  t.eos_id = hf.eos_id;
  // As from_json has it: the template has the last word.
  t.add_bos = hf.add_bos.value_or(false) || template_adds_bos(member(json, "post_processor"));
  t.chat_template = hf.chat_template;
  const Json config = Json::parse(hf.tokenizer_config_json.empty() ? "{}" : hf.tokenizer_config_json, nullptr, false);
  if (const std::string padding = token_text(config, "pad_token"); !padding.empty()) {
    const auto at = std::ranges::find(t.tokens, padding);
    if (at != t.tokens.end()) out.padding_id = int32_t(at - t.tokens.begin());
  }
  return out;
}

}
