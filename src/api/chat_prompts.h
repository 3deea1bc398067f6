// Chats of one model to token ids: its template, the special ids that end a reply. Made once for a model, then read by all
// threads.
#pragma once

#include <nlohmann/json.hpp>

#include "api/body.h"
#include "base/result.h"
#include "hunch/hunch.h"
#include "text/chat_renderer.h"

namespace hunch {

class ChatPrompts {
 public:
  // `chat_template`: instead of the model's own; empty: those. `kwargs`: an object of variables that bodies may set anew.
  // `trust_bodies`: they may bring a template. A model without a template that can be used is no error before a chat comes.
  ChatPrompts(Engine& engine, std::string_view chat_template, nlohmann::ordered_json kwargs = nlohmann::ordered_json::object(),
      bool trust_bodies = false);

  struct Prompt {
    Tokens ids;
    Tokens stop_ids;  // besides the model's own
  };
  // The chat of a body (Body::Input::Chat). Errors are usage errors: more than the context holds, no template, variables that a
  // body must not set, and what the template refuses. `fault`: the field to blame.
  Result<Prompt> encode(const Body& body, BodyFault& fault) const;

  // The template's text, for /props and to recognise how its model writes calls and thoughts. Some models have one of its own
  // for chats with tools.
  const std::string& source(bool tools = false) const { return form(tools).source; }
  const std::string& trouble() const { return plain_.trouble; }  // why chats are refused; empty: they are not

 private:
  struct Form {
    std::string source, trouble;
    std::optional<ChatRenderer> renderer;
  };
  Form make_form(std::string source) const;
  const Form& form(bool tools) const { return tools && !tools_.source.empty() ? tools_ : plain_; }

  Engine& engine_;
  nlohmann::ordered_json kwargs_;
  bool trust_bodies_;
  Form plain_, tools_;
};

}
