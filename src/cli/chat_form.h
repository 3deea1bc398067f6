// How the command line writes conversations: the model's chat template or another one, and its variables. Used by chat, run,
// batch and serve.
#pragma once

#include "cli/request_flags.h"
#include "text/chat.h"
#include "text/chat_renderer.h"

namespace hunch {

// The template that the flags name, from its file or by its name; empty: the model's own. Errors: neither a name nor a template.
Result<std::string> chat_template_text(const ChatTemplateFlags& flags);
// The variables of the flags, an object; checked.
Result<nlohmann::ordered_json> chat_template_kwargs(const ChatTemplateFlags& flags);

class ChatForm {
 public:
  // The template of the flags, else the engine's. The engine must outlive the form. Errors: none there, one not readable or
  // supported, kwargs that are no object or set what the program sets.
  static Result<ChatForm> make(const Engine& engine, const ChatTemplateFlags& flags);

  // The prompt of a conversation that the model is to go on with.
  Result<Tokens> prompt(std::span<const ChatTurn> turns) const;
  const Tokens& stop_ids() const { return renderer_.stop_ids(); }

 private:
  ChatForm(ChatRenderer renderer, nlohmann::ordered_json kwargs) : renderer_(std::move(renderer)), kwargs_(std::move(kwargs)) {}
  ChatRenderer renderer_;
  nlohmann::ordered_json kwargs_;
};

}
