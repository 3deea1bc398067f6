#include "api/chat_prompts.h"

#include "base/failure.h"
#include "engine/parts.h"

namespace hunch {
namespace {

// Of text 16 bytes a token are more than fit; templates of models that read long contexts may take a while.
TemplateLimits limits_of(const Engine& engine) {
  constexpr size_t kBytesPerToken = 16, kLeastBytes = size_t(1) << 20;
  return {.output_bytes = std::max(kLeastBytes, kBytesPerToken * size_t(engine.context_len()))};
}

}

ChatPrompts::ChatPrompts(Engine& engine, std::string_view chat_template, nlohmann::ordered_json kwargs, bool trust_bodies)
    : engine_(engine), kwargs_(std::move(kwargs)), trust_bodies_(trust_bodies) {
  plain_ = make_form(chat_template.empty() ? engine.chat_template() : std::string(chat_template));
  if (chat_template.empty() && !engine.tool_template().empty()) tools_ = make_form(engine.tool_template());
}

ChatPrompts::Form ChatPrompts::make_form(std::string source) const {
  Form out{.source = std::move(source)};
  if (!engine_.parts().tokenizer) {
    out.trouble = "this model has no tokenizer: use /v1/completions with token ids";
    return out;
  }
  auto renderer = ChatRenderer::make(out.source, *engine_.parts().tokenizer, limits_of(engine_));
  if (renderer.ok()) out.renderer.emplace(std::move(renderer).value());
  else out.trouble = renderer.error().message;
  return out;
}

Result<ChatPrompts::Prompt> ChatPrompts::encode(const Body& body, BodyFault& fault) const {
  // No work on what cannot fit: a message has at least a token.
  size_t tokens = body.messages.size(), bytes = 0;
  for (const auto& message : body.messages)
    if (const auto content = message.find("content"); content != message.end() && content->is_string())
      bytes += content->get_ref<const std::string&>().size();
  if (const auto& tokenizer = engine_.parts().tokenizer) tokens = std::max(tokens, bytes / tokenizer->longest_token_bytes());
  fault.param = "messages";
  if (tokens > size_t(engine_.context_len())) {
    fault.code = "context_length_exceeded";
    return usage_error("the chat has more than {0} tokens, the context holds {0}: shorten the prompt", engine_.context_len());
  }
  if (!body.chat_template.empty()) fault.param = "chat_template";
  Form brought;
  if (!body.chat_template.empty()) {
    if (!trust_bodies_)
      return usage_error("\"chat_template\" is not available: the server was started without --trust-request-chat-template");
    brought = make_form(body.chat_template);
  }
  const Form& form = body.chat_template.empty() ? this->form(!body.tools.is_null()) : brought;
  if (!form.renderer) return usage_error(form.trouble);
  nlohmann::ordered_json kwargs = kwargs_;
  if (!body.template_kwargs.is_null()) kwargs.update(body.template_kwargs);  // checked where they were read
  HUNCH_TRY(ChatPrompt prompt,
      form.renderer->render({.messages = &body.messages,
          .tools = body.tools.is_null() ? nullptr : &body.tools,
          .kwargs = &kwargs,
          .add_generation_prompt = body.add_generation_prompt}));
  return Prompt{.ids = std::move(prompt.ids), .stop_ids = form.renderer->stop_ids()};
}

}
