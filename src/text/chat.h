// Chat turns to token ids, in the two forms that the supported families use. The form is recognised from the marks in the model's
// template (Jinja source, never run). Marks are written as ids and contents as plain text, so a content can never forge a mark.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace hunch {

struct ChatTurn {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// ChatMl: <|im_start|>role\ncontent<|im_end|>\n     Llama3: BOS, then
// <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>
struct ChatFormat {
  enum class Kind { ChatMl, Llama3 };
  Kind kind = Kind::ChatMl;
  int32_t open_id = -1;           // <|im_start|> or <|start_header_id|>
  int32_t role_end_id = -1;       // <|end_header_id|>; -1 in ChatML, which ends the role by a newline
  int32_t close_id = -1;          // <|im_end|> or <|eot_id|>
  std::vector<int32_t> stop_ids;  // a reply ends with one of these: close_id first, then the tokenizer's eos_ids
  bool trim_content = false;      // the template strips white space around contents
  std::string default_system;     // written as the first turn when the first turn is not a system turn; empty: none
};

// Errors: no template, a template of neither form (quoted by its first 60 characters), marks that the vocabulary lacks.
Result<ChatFormat> recognise_chat(std::string_view template_text, const Tokenizer& tokenizer);

// The ids of a chat from its start. `add_generation_prompt`: opens the assistant's turn at the end.
// Without it the ids are a prefix of those of any longer chat that starts with the same turns.
// Errors: no turns, an unknown role, text that is not UTF-8.
Result<std::vector<int32_t>> encode_chat(const ChatFormat& format, const Tokenizer& tokenizer, std::span<const ChatTurn> turns,
                                         bool add_generation_prompt);

// Incremental use: the ids to append behind a reply that the model generated after a generation prompt, so that the ids so far
// stay a prefix: the end of the reply's turn, the new turns, the next generation prompt. `reply_closed`: the ids so far end with
// close_id.
Result<std::vector<int32_t>> encode_chat_continuation(const ChatFormat& format, const Tokenizer& tokenizer,
                                                      std::span<const ChatTurn> turns, bool reply_closed);

}  // namespace hunch
