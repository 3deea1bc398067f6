#include "cli/chat_form.h"

#include "text/excerpt.h"

namespace hunch {
namespace {

using Json = nlohmann::ordered_json;

// The user waits for one conversation of their own; templates of strangers are bounded all the same.
TemplateLimits limits() { return {.time = std::chrono::seconds(10), .output_bytes = kMaxTextBytes}; }

}

Result<std::string> chat_template_text(const ChatTemplateFlags& flags) {
  if (flags.name_or_text && flags.file) return usage_error("--chat-template and --chat-template-file exclude each other");
  if (flags.file) return read_text_file(*flags.file);
  if (!flags.name_or_text) return std::string();
  if (const auto named = named_chat_template(*flags.name_or_text)) return std::string(*named);
  if (flags.name_or_text->find("{{") != std::string::npos || flags.name_or_text->find("{%") != std::string::npos)
    return *flags.name_or_text;
  return usage_error("--chat-template: {} is neither a known name ({}) nor a template; a file goes behind --chat-template-file",
      excerpt(*flags.name_or_text), known_chat_templates());
}

void add_chat_template_flags(FlagSet& set, ChatTemplateFlags& flags) {
  set.text({"--chat-template"}, "NAME|TEXT", "how conversations are written: chatml, llama3 or a Jinja text (the model's)",
      flags.name_or_text);
  set.text({"--chat-template-file"}, "FILE", "a file with such a text", flags.file);
  set.text({"--chat-template-kwargs"}, "JSON", "variables for the template, such as {\"enable_thinking\":false}", flags.kwargs);
}

Result<Json> chat_template_kwargs(const ChatTemplateFlags& flags) {
  Json kwargs = Json::object();
  if (flags.kwargs) {
    kwargs = Json::parse(*flags.kwargs, nullptr, false);
    if (kwargs.is_discarded()) return usage_error("--chat-template-kwargs is not JSON: {}", excerpt(*flags.kwargs));
    HUNCH_OK(check_template_kwargs(kwargs));
  }
  return kwargs;
}

Result<ChatForm> ChatForm::make(const Engine& engine, const ChatTemplateFlags& flags) {
  HUNCH_TRY(Json kwargs, chat_template_kwargs(flags));
  HUNCH_TRY(const std::string source, chat_template_text(flags));
  HUNCH_TRY(
      ChatRenderer renderer, ChatRenderer::make(source.empty() ? engine.chat_template() : source, engine.tokenizer(), limits()));
  return ChatForm(std::move(renderer), std::move(kwargs));
}

Result<Tokens> ChatForm::prompt(std::span<const ChatTurn> turns) const {
  Json messages = Json::array();
  for (const ChatTurn& turn : turns) messages.push_back({{"role", turn.role}, {"content", turn.content}});
  HUNCH_TRY(ChatPrompt prompt, renderer_.render({.messages = &messages, .kwargs = &kwargs_}));
  return std::move(prompt.ids);
}

}
