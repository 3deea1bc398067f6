#include "api/chat_prompts.h"

#include <fmt/format.h>

#include "engine/parts.h"

namespace hunch {
namespace {

// A prompt of four bytes a token is as long as any that fits; templates of models that read long contexts may take a while.
TemplateLimits limits_of(const Engine& engine) {
  constexpr size_t kBytesPerToken = 4, kLeastBytes = size_t(1) << 20;
  return {.output_bytes = std::max(kLeastBytes, kBytesPerToken * size_t(engine.context_len()))};
}

}  // namespace

ChatPrompts::ChatPrompts(Engine& engine, std::string_view chat_template, nlohmann::ordered_json kwargs)
    : source_(chat_template.empty() ? engine.chat_template() : std::string(chat_template)), kwargs_(std::move(kwargs)) {
  if (!engine.parts().tokenizer) {
    trouble_ = "this model has no tokenizer: use /v1/completions with token ids";
    return;
  }
  auto renderer = ChatRenderer::make(source_, *engine.parts().tokenizer, limits_of(engine));
  if (renderer.ok()) renderer_.emplace(std::move(renderer).value());
  else trouble_ = renderer.error().message;
}

Result<ChatPrompts::Prompt> ChatPrompts::encode(const Body& body) const {
  if (!renderer_) return usage_error(trouble_);
  nlohmann::ordered_json kwargs = kwargs_;
  if (!body.template_kwargs.is_null()) kwargs.update(body.template_kwargs);  // checked where they were read
  HUNCH_TRY(ChatPrompt prompt, renderer_->render({.messages = &body.messages,
                                                  .tools = body.tools.is_null() ? nullptr : &body.tools,
                                                  .kwargs = &kwargs,
                                                  .add_generation_prompt = body.add_generation_prompt}));
  return Prompt{.ids = std::move(prompt.ids), .stop_ids = renderer_->stop_ids()};
}

}  // namespace hunch
