// Tokenizer::from_json: Hugging Face's tokenizer.json (and two keys of tokenizer_config.json) of byte-level BPE of the supported
// families. Whatever else a file asks for is refused by name: a pipeline that is nearly right makes wrong ids silently.
// `truncation` and `padding` are left alone, as transformers sets them per call.
#include <simdjson.h>

#include "base/failure.h"
#include "text/excerpt.h"
#include "text/tokenizer_parts.h"

namespace hunch {
namespace {

using simdjson::SUCCESS;
using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr size_t kMaxJsonBytes = size_t(64) << 20;
constexpr size_t kMaxJsonDepth = 64;

// A member, or nothing where it is absent or null.
std::optional<element> member(const element& of, std::string_view key) {
  element value;
  if (of[key].get(value) != SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

// False: there is no such member, or none of this type.
template <class T>
bool read(const element& of, std::string_view key, T& value) {
  const auto found = member(of, key);
  return found && found->get(value) == SUCCESS;
}

std::string_view text_of(const element& of, std::string_view key) {
  std::string_view value;
  return read(of, key, value) ? value : std::string_view{};
}

bool flag_of(const element& of, std::string_view key, bool otherwise) {
  bool value = otherwise;
  return read(of, key, value) ? value : otherwise;
}

template <class... T>
Error wrong(std::string_view where, fmt::format_string<T...> what, T&&... values) {
  return failure("tokenizer.json: {}: {}", where, fmt::format(what, std::forward<T>(values)...));
}

Error unsupported(std::string_view where, std::string_view type) {
  return wrong(where, "this type is not supported: {}", excerpt(type));
}

// The steps of a pipeline stage: the members of `list` of a Sequence, else the stage itself.
Result<std::vector<element>> steps_of(const element& stage, std::string_view where, std::string_view list) {
  std::vector<element> steps;
  if (text_of(stage, "type") != "Sequence") return std::vector<element>{stage};
  array members;
  if (!read(stage, list, members)) return wrong(where, "Sequence has no array {}", list);
  for (const element step : members) steps.push_back(step);
  return steps;
}

Status read_normalizer(const element& root, TokenizerParts& parts) {
  const auto stage = member(root, "normalizer");
  if (!stage) return {};
  HUNCH_TRY(const auto steps, steps_of(*stage, "normalizer", "normalizers"));
  for (const element& step : steps) {
    if (text_of(step, "type") != "NFC") return unsupported("normalizer", text_of(step, "type"));
    parts.nfc = true;
  }
  return {};
}

Status read_pre_tokenizer(const element& root, TokenizerParts& parts) {
  constexpr std::string_view where = "pre_tokenizer";
  const auto stage = member(root, where);
  if (!stage) return wrong(where, "missing; byte-level BPE needs one");
  HUNCH_TRY(const auto steps, steps_of(*stage, where, "pretokenizers"));
  bool split = false, byte_level = false;
  for (const element& step : steps) {
    const std::string_view type = text_of(step, "type");
    if (byte_level) return wrong(where, "nothing may follow ByteLevel: {}", excerpt(type));
    if (type == "Split") {
      if (split) return wrong(where, "more than one Split is not supported");
      const auto pattern = member(step, "pattern");
      const std::string_view regex = pattern ? text_of(*pattern, "Regex") : "";
      if (regex.empty()) return wrong(where, "Split without a Regex pattern is not supported");
      if (text_of(step, "behavior") != "Isolated" || flag_of(step, "invert", false))
        return wrong(where,

            "Split is supported with behavior Isolated and without invert only: {}", excerpt(text_of(step, "behavior")));
      const auto family = pre_family_of_pattern(regex);
      if (!family)
        return wrong(where, "this split pattern is not known (those of GPT-2, Llama-3 and Qwen2/3 are): {}", excerpt(regex));
      parts.family = *family;
      split = true;
    } else if (type == "ByteLevel") {
      if (flag_of(step, "add_prefix_space", true)) return wrong(where, "ByteLevel with add_prefix_space is not supported");
      if (flag_of(step, "use_regex", true) == split)
        return wrong(where, "{}",
            split ? "Split followed by ByteLevel with use_regex is not supported"
                  : "ByteLevel without use_regex needs a Split before it");
      if (!split) parts.family = PreFamily::Gpt2;
      byte_level = true;
    } else {
      return unsupported(where, type);
    }
  }
  if (!byte_level) return wrong(where, "ByteLevel is missing: only byte-level BPE is supported");
  return {};
}

// Template "single": BOS, then the text, is all that is supported.
Status read_template(const element& step, TokenizerParts& parts) {
  constexpr std::string_view where = "post_processor";
  array single;
  if (!read(step, "single", single)) return wrong(where, "TemplateProcessing has no array single");
  bool text_seen = false;
  for (const element part : single) {
    if (member(part, "Sequence")) {
      if (text_seen) return wrong(where, "TemplateProcessing that repeats the text is not supported");
      text_seen = true;
      continue;
    }
    const auto special = member(part, "SpecialToken");
    if (!special) return wrong(where, "TemplateProcessing holds what is neither Sequence nor SpecialToken");
    const std::string_view name = text_of(*special, "id");
    if (text_seen || parts.adds_bos)
      return wrong(where, "TemplateProcessing may add one token, before the text: {}", excerpt(name));
    const auto table = member(step, "special_tokens");
    const auto entry = table ? member(*table, name) : std::nullopt;
    array ids;
    int64_t id = -1;
    if (!entry || !read(*entry, "ids", ids) || ids.size() != 1 || ids.at(0).get(id) != SUCCESS || id < 0 || id >= kMaxVocab)
      return wrong(where, "TemplateProcessing gives no single id for its token: {}", excerpt(name));
    parts.bos_id = int32_t(id);
    parts.adds_bos = true;
  }
  return {};
}

Status read_post_processor(const element& root, TokenizerParts& parts) {
  const auto stage = member(root, "post_processor");
  if (!stage) return {};
  HUNCH_TRY(const auto steps, steps_of(*stage, "post_processor", "processors"));
  for (const element& step : steps) {
    const std::string_view type = text_of(step, "type");
    if (type == "TemplateProcessing") HUNCH_OK(read_template(step, parts));
    else if (type != "ByteLevel") return unsupported("post_processor", type);  // ByteLevel concerns offsets only
  }
  return {};
}

Status read_decoder(const element& root) {
  const auto stage = member(root, "decoder");
  if (stage && text_of(*stage, "type") != "ByteLevel") return unsupported("decoder", text_of(*stage, "type"));
  return {};
}

Status check_model(const element& model) {
  const std::string_view type = text_of(model, "type");  // absent in files as old as GPT-2's
  if (!type.empty() && type != "BPE") return unsupported("model", type);
  if (flag_of(model, "byte_fallback", false)) return wrong("model", "byte_fallback is not supported");
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!text_of(model, key).empty()) return wrong("model", "{} is not supported: {}", key, excerpt(text_of(model, key)));
  if (double dropout = 0; member(model, "dropout") && (!read(model, "dropout", dropout) || dropout != 0))
    return wrong("model", "dropout is not supported");
  return {};
}

Status read_vocab(const element& model, Bpe& bpe, size_t num_merges) {
  object vocab;
  if (!read(model, "vocab", vocab)) return wrong("model", "vocab is missing or not an object");
  size_t num_bytes = 0, num_tokens = 0;
  for (const auto entry : vocab) num_bytes += entry.key.size(), ++num_tokens;
  if (num_tokens > size_t(kMaxVocab)) return wrong("model.vocab", "more than {} tokens: {}", kMaxVocab, num_tokens);
  bpe.reserve(num_tokens, num_bytes, num_merges);
  for (const auto entry : vocab) {
    int64_t id = -1;
    if (entry.value.get(id) != SUCCESS || id < 0 || id >= kMaxVocab)
      return wrong("model.vocab", "the id of a token is not an integer from 0 to {}: {}", kMaxVocab - 1, excerpt(entry.key));
    if (const Status added = bpe.add_token(int32_t(id), entry.key); !added.ok())
      return wrong("model.vocab", "{}", added.error().message);
  }
  return {};
}

Status read_merges(const array& merges, Bpe& bpe) {
  size_t index = 0;
  for (const element merge : merges) {
    std::string_view left, right, both;
    array pair;
    if (merge.get(both) == SUCCESS) {
      const size_t space = both.find(' ');
      if (space != both.npos && both.find(' ', space + 1) == both.npos) {
        left = both.substr(0, space), right = both.substr(space + 1);
      }
    } else if (merge.get(pair) == SUCCESS && pair.size() == 2) {
      if (pair.at(0).get(left) != SUCCESS || pair.at(1).get(right) != SUCCESS) left = {};
    }
    if (left.empty() || right.empty()) return wrong("model.merges", "not two tokens: merge {}", index);
    if (const Status added = bpe.add_merge(left, right); !added.ok()) return wrong("model.merges", "{}", added.error().message);
    ++index;
  }
  return {};
}

Status read_model(const element& root, TokenizerParts& parts) {
  const auto model = member(root, "model");
  if (!model || !model->is_object()) return wrong("model", "missing or not an object");
  HUNCH_OK(check_model(*model));
  array merges;
  if (!read(*model, "merges", merges)) return wrong("model", "merges is missing or not an array");
  size_t num_merges = 0;  // counted: simdjson's own count saturates at 2^24
  for (const element merge : merges) num_merges += !merge.is_null();
  if (num_merges > kMaxMerges) return wrong("model.merges", "more than {} merges: {}", kMaxMerges, num_merges);
  HUNCH_OK(read_vocab(*model, parts.bpe, num_merges));
  HUNCH_OK(read_merges(merges, parts.bpe));
  parts.whole_words = flag_of(*model, "ignore_merges", false);
  return {};
}

Status read_added_tokens(const element& root, TokenizerParts& parts) {
  const auto found = member(root, "added_tokens");
  if (!found) return {};
  array list;
  if (found->get(list) != SUCCESS) return wrong("added_tokens", "not an array");
  for (const element entry : list) {
    AddedToken token;
    int64_t id = -1;
    token.content = text_of(entry, "content");
    if (!read(entry, "id", id) || id < 0 || id >= kMaxVocab)
      return wrong("added_tokens", "the id of a token is not an integer from 0 to {}: {}", kMaxVocab - 1, excerpt(token.content));
    token.id = int32_t(id);
    token.special = flag_of(entry, "special", false);
    token.single_word = flag_of(entry, "single_word", false);
    token.lstrip = flag_of(entry, "lstrip", false);
    token.rstrip = flag_of(entry, "rstrip", false);
    parts.added.push_back(std::move(token));
    parts.added_normalized.push_back(flag_of(entry, "normalized", !parts.added.back().special));
  }
  return {};
}

// A token that tokenizer_config.json names: "text" or {"content": "text"}.
Result<std::optional<int32_t>> named_token(const element& config, std::string_view key, const TokenizerParts& parts) {
  const auto value = member(config, key);
  std::string_view text;
  if (!value || (value->get(text) != SUCCESS && (text = text_of(*value, "content")).empty())) return std::optional<int32_t>();
  for (const AddedToken& token : parts.added)
    if (token.content == text) return std::optional(token.id);
  const auto id = parts.bpe.find_spelling(text);
  if (!id) return failure("tokenizer_config.json: {} is not in the vocabulary: {}", key, excerpt(text));
  return id;
}

Status read_config(const element& config, TokenizerParts& parts) {
  if (!config.is_object()) return Error{"tokenizer_config.json: not a JSON object"};
  HUNCH_TRY(const auto bos_id, named_token(config, "bos_token", parts));
  HUNCH_TRY(parts.eos_id, named_token(config, "eos_token", parts));
  if (parts.adds_bos) return {};  // the template of tokenizer.json has the last word
  parts.bos_id = bos_id;
  parts.adds_bos = bos_id && flag_of(config, "add_bos_token", false);
  return {};
}

// Parses with bounds on size and depth; the element lives as long as the parser.
Result<element> parse(simdjson::dom::parser& parser, std::string_view json, std::string_view file) {
  if (json.size() > kMaxJsonBytes) return failure("{}: larger than {} MiB: {} bytes", file, kMaxJsonBytes >> 20, json.size());
  element root;
  simdjson::error_code error = parser.allocate(std::max<size_t>(json.size(), 64), kMaxJsonDepth);
  if (error == SUCCESS) error = parser.parse(json.data(), json.size(), true).get(root);
  if (error != SUCCESS) return failure("{}: not valid JSON: {}", file, simdjson::error_message(error));
  return root;
}

}

Result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  TokenizerParts parts;
  {
    simdjson::dom::parser parser;
    HUNCH_TRY(const element root, parse(parser, tokenizer_json, "tokenizer.json"));
    if (!root.is_object()) return Error{"tokenizer.json: not a JSON object"};
    HUNCH_OK(read_normalizer(root, parts));
    HUNCH_OK(read_pre_tokenizer(root, parts));
    HUNCH_OK(read_post_processor(root, parts));
    HUNCH_OK(read_decoder(root));
    HUNCH_OK(read_added_tokens(root, parts));
    HUNCH_OK(read_model(root, parts));
  }
  if (!tokenizer_config_json.empty()) {
    simdjson::dom::parser parser;
    HUNCH_TRY(const element config, parse(parser, tokenizer_config_json, "tokenizer_config.json"));
    HUNCH_OK(read_config(config, parts));
  }
  auto tokenizer = std::move(parts).assemble();
  if (!tokenizer.ok()) return Error{"tokenizer.json: " + tokenizer.error().message};
  return tokenizer;
}

}
