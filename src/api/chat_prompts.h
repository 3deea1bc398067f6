// Chats of one model to token ids: its template, the special ids that end a reply. Made once for a model, then read by all
// threads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/body.h"
#include "base/result.h"
#include "hunch/hunch.h"
#include "text/chat.h"

namespace hunch {

class ChatPrompts {
 public:
  // `chat_template`: instead of the model's own; empty: that. A model without one is no error before a chat comes.
  ChatPrompts(Engine& engine, std::string_view chat_template);

  struct Prompt {
    std::vector<int32_t> ids;
    std::vector<int32_t> stop_ids;  // besides the model's own
  };
  // The chat of a body (Body::Input::Chat).
  Result<Prompt> encode(const Body& body) const;

  // The template's text, for /props and to recognise how its model writes calls and thoughts.
  const std::string& source() const { return source_; }

 private:
  const Tokenizer* tokenizer_;  // null: the model has none
  std::string source_;
  std::optional<ChatFormat> format_;
  std::string trouble_;  // why there is no format
};

}  // namespace hunch
