// See chat.h. Role and content are encoded as one stretch of plain text wherever the template has no mark between them, so that
// words are cut exactly as in the rendered text ("user\n" + "\nHi" has the word "\n\n").
#include "text/chat.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/excerpt.h"
#include "text/unicode.h"

namespace hunch {
namespace {

constexpr std::string_view kChatMlOpen = "<|im_start|>", kChatMlClose = "<|im_end|>";
constexpr std::string_view kLlamaOpen = "<|start_header_id|>", kLlamaRoleEnd = "<|end_header_id|>", kLlamaClose = "<|eot_id|>";

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

Result<int32_t> mark_id(const Tokenizer& tokenizer, std::string_view mark) {
  const auto id = tokenizer.token_id(mark);
  if (!id || !tokenizer.is_special(*id))
    return Error{fmt::format("the chat template uses a mark that is no special token of the vocabulary: {}", mark)};
  return *id;
}

// Qwen2's and Qwen2.5's templates write a system turn of their own when the chat has none: one literal that holds the whole turn,
// '<|im_start|>system\nTEXT<|im_end|>\n'. Newlines stand as \n in the template's source, or as themselves.
std::string default_system_of(std::string_view source) {
  for (const std::string_view newline : {"\\n", "\n"}) {
    const std::string opening = fmt::format("'{}system{}", kChatMlOpen, newline);
    const std::string closing = fmt::format("{}{}'", kChatMlClose, newline);
    for (size_t at = source.find(opening); at != std::string_view::npos; at = source.find(opening, at + 1)) {
      const std::string_view rest = source.substr(at + opening.size());
      const std::string_view text = rest.substr(0, rest.find(closing));
      // Quotes, escapes and braces mean that the literal ends before, or holds what we do not read.
      if (!text.empty() && text.size() < rest.size() && text.find_first_of("'\"\\{}<") == std::string_view::npos)
        return std::string(text);
    }
  }
  return {};
}

// Python's str.strip() over the white space that occurs in text files; what the templates' `trim` filter does.
std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? std::string_view{} : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

class Writer {
 public:
  Writer(const ChatFormat& format, const Tokenizer& tokenizer) : format_(format), tokenizer_(tokenizer) {}

  void mark(int32_t id) { ids_.push_back(id); }

  Status plain(std::string_view text) {
    HUNCH_TRY(const auto ids, tokenizer_.encode(text, {.parse_special = false, .add_bos = false}));
    // Guards against vocabularies whose merges lead to a special token.
    if (std::any_of(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer_.is_special(id); }))
      return Error{"a special token came out of plain chat text: the tokenizer's merges are not safe for chat"};
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    return {};
  }

  Status open(std::string_view role, std::string_view content) {
    mark(format_.open_id);
    if (format_.kind == ChatFormat::Kind::ChatMl) return plain(fmt::format("{}\n{}", role, content));
    HUNCH_OK(plain(role));
    mark(format_.role_end_id);
    return plain(fmt::format("\n\n{}", content));
  }

  Status close() {
    mark(format_.close_id);
    return format_.kind == ChatFormat::Kind::ChatMl ? plain("\n") : Status{};
  }

  Status turn(const ChatTurn& turn) {
    if (turn.role != "system" && turn.role != "user" && turn.role != "assistant")
      return usage_error(fmt::format("unknown chat role (system, user and assistant are known): {}", excerpt(turn.role)));
    if (const auto at = first_invalid_utf8(turn.content))
      return usage_error(fmt::format("chat turn of role {} is not valid UTF-8: at byte {}", turn.role, *at));
    if (auto opened = open(turn.role, format_.trim_content ? trimmed(turn.content) : turn.content); !opened.ok())
      return Error{fmt::format("chat turn of role {}: {}", turn.role, opened.error().message), opened.error().kind};
    return close();
  }

  std::vector<int32_t> take() { return std::move(ids_); }

 private:
  const ChatFormat& format_;
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
};

}  // namespace

Result<ChatFormat> recognise_chat(std::string_view source, const Tokenizer& tokenizer) {
  if (source.empty()) return Error{"the model brings no chat template: use it with plain prompts"};
  ChatFormat format;
  const bool chat_ml = contains(source, kChatMlOpen) && contains(source, kChatMlClose);
  const bool llama3 = contains(source, kLlamaOpen) && contains(source, kLlamaRoleEnd) && contains(source, kLlamaClose);
  if (chat_ml == llama3)
    return Error{fmt::format("the chat template is {} (ChatML and Llama-3 are supported); it begins with {}",
                             chat_ml ? "of two forms at once" : "of no known form", excerpt(source))};
  if (chat_ml) {
    format.kind = ChatFormat::Kind::ChatMl;
    HUNCH_TRY(format.open_id, mark_id(tokenizer, kChatMlOpen));
    HUNCH_TRY(format.close_id, mark_id(tokenizer, kChatMlClose));
    format.default_system = default_system_of(source);
  } else {
    format.kind = ChatFormat::Kind::Llama3;
    HUNCH_TRY(format.open_id, mark_id(tokenizer, kLlamaOpen));
    HUNCH_TRY(format.role_end_id, mark_id(tokenizer, kLlamaRoleEnd));
    HUNCH_TRY(format.close_id, mark_id(tokenizer, kLlamaClose));
    format.trim_content = contains(source, "| trim") || contains(source, "|trim");
  }
  format.stop_ids.push_back(format.close_id);
  for (const int32_t id : tokenizer.eos_ids())
    if (id != format.close_id) format.stop_ids.push_back(id);
  return format;
}

Result<std::vector<int32_t>> encode_chat(const ChatFormat& format, const Tokenizer& tokenizer, std::span<const ChatTurn> turns,
                                         bool add_generation_prompt) {
  if (turns.empty()) return usage_error("a chat needs at least one turn");
  Writer writer(format, tokenizer);
  if (format.kind == ChatFormat::Kind::Llama3 && tokenizer.bos_id()) writer.mark(*tokenizer.bos_id());
  if (!format.default_system.empty() && turns[0].role != "system") HUNCH_OK(writer.turn({"system", format.default_system}));
  for (const ChatTurn& turn : turns) HUNCH_OK(writer.turn(turn));
  if (add_generation_prompt) HUNCH_OK(writer.open("assistant", {}));
  return writer.take();
}

Result<std::vector<int32_t>> encode_chat_continuation(const ChatFormat& format, const Tokenizer& tokenizer,
                                                      std::span<const ChatTurn> turns, bool reply_closed) {
  if (turns.empty()) return usage_error("a chat needs at least one turn");
  Writer writer(format, tokenizer);
  if (!reply_closed) writer.mark(format.close_id);
  if (format.kind == ChatFormat::Kind::ChatMl) HUNCH_OK(writer.plain("\n"));
  for (const ChatTurn& turn : turns) HUNCH_OK(writer.turn(turn));
  HUNCH_OK(writer.open("assistant", {}));
  return writer.take();
}

}  // namespace hunch
