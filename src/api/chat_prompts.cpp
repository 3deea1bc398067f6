#include "api/chat_prompts.h"

#include "engine/parts.h"

namespace hunch {

ChatPrompts::ChatPrompts(Engine& engine, std::string_view chat_template)
    : tokenizer_(engine.parts().tokenizer ? &*engine.parts().tokenizer : nullptr),
      source_(chat_template.empty() ? engine.chat_template() : std::string(chat_template)) {
  if (!tokenizer_) {
    trouble_ = "this model has no tokenizer: use /v1/completions with token ids";
    return;
  }
  auto format = recognise_chat(source_, *tokenizer_);
  if (format.ok()) format_ = std::move(*format);
  else trouble_ = format.error().message;
}

Result<ChatPrompts::Prompt> ChatPrompts::encode(const Body& body) const {
  if (!format_) return usage_error(trouble_);
  Prompt prompt{.stop_ids = format_->stop_ids};
  HUNCH_TRY(prompt.ids, encode_chat(*format_, *tokenizer_, body.turns, body.add_generation_prompt));
  return prompt;
}

}  // namespace hunch
