// ChatRenderer: a request's conversation to the ids of a prompt, by the model's chat template and tokenizer. Marks in contents
// stay plain text: only the template's own bytes become special tokens. Called by the programs and the API.
#pragma once

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hunch {

// Variables that a request's chat_template_kwargs must not set: the renderer sets them.
std::span<const std::string_view> reserved_template_names();
// Refuses (as usage errors) what is no object, is nested deeper than 16, longer than 64 KiB, or sets a reserved name.
Status check_template_kwargs(const nlohmann::ordered_json& kwargs);
// Templates by name, for models without one: "chatml", "llama3". Nothing: there is none of this name.
std::optional<std::string_view> named_chat_template(std::string_view name);
std::string known_chat_templates();  // "chatml, llama3" for messages

// What one prompt is made of. All JSON is borrowed for the call; null: absent.
struct Conversation {
  const nlohmann::ordered_json* messages = nullptr;  // a list of {role, content, ...}; must be there
  const nlohmann::ordered_json* tools = nullptr;
  const nlohmann::ordered_json* documents = nullptr;
  const nlohmann::ordered_json* kwargs = nullptr;  // checked by check_template_kwargs
  bool add_generation_prompt = true;
};

struct ChatPrompt {
  std::string text;  // as the template wrote it
  std::vector<int32_t> ids;
};

class ChatRenderer {
 public:
  // `source`: the template's text. The tokenizer must outlive the renderer. Errors: no template (says what to do), one that is
  // not supported (names line and construct).
  static Result<ChatRenderer> make(std::string_view source, const Tokenizer& tokenizer, const TemplateLimits& limits = {});

  // Errors are usage errors: the template refuses the conversation, a limit, messages that are no list.
  Result<ChatPrompt> render(const Conversation& conversation) const;

  // Ids that end the model's turn: marks of the template first, then the tokenizer's ends of text.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }

 private:
  ChatRenderer(ChatTemplate compiled, const Tokenizer& tokenizer, const TemplateLimits& limits)
      : template_(std::move(compiled)), tokenizer_(&tokenizer), limits_(limits) {}

  ChatTemplate template_;
  const Tokenizer* tokenizer_;
  TemplateLimits limits_;
  std::vector<std::pair<std::string, std::string>> marks_;  // bos_token, eos_token
  std::vector<int32_t> stop_ids_;
};

// Ids of a rendered text: special tokens inside of its trusted ranges only, and no BOS but the template's own.
Result<std::vector<int32_t>> encode_rendered(const Tokenizer& tokenizer, const RenderedChat& rendered);

}
