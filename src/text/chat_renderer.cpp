#include "text/chat_renderer.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/failure.h"

namespace hunch {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kReserved[] = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
    "chat_template", "conversation", "bos_token", "eos_token", "unk_token", "pad_token", "raise_exception", "strftime_now",
    "namespace", "range", "loop", "self", "caller", "tokenize"};
constexpr int kMaxKwargsDepth = 16;
constexpr size_t kMaxKwargsBytes = size_t(64) << 10;

constexpr std::pair<std::string_view, std::string_view> kNamed[] = {
    {"chatml",
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% "
        "endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"llama3",
        "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
        "message['content']|trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"}};

// Marks that end the model's turn in the templates that write them. <|end|> ends a message only where there is <|return|> too.
constexpr std::string_view kTurnEnds[] = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|end_of_turn|>", "<|end|>", "</s>"};

int depth_of(const Json& json, int most) {
  if (!json.is_structured() || most == 0) return 0;
  int deepest = 0;
  for (const Json& item : json) deepest = std::max(deepest, depth_of(item, most - 1));
  return deepest + 1;
}

bool contains(std::string_view text, std::string_view wanted) { return text.find(wanted) != text.npos; }

}

std::span<const std::string_view> reserved_template_names() { return kReserved; }

Status check_template_kwargs(const Json& kwargs) {
  if (!kwargs.is_object()) return usage_error("chat_template_kwargs must be an object");
  if (depth_of(kwargs, kMaxKwargsDepth + 1) > kMaxKwargsDepth)
    return usage_error("chat_template_kwargs is nested deeper than {}", kMaxKwargsDepth);
  if (kwargs.dump(-1, ' ', false, Json::error_handler_t::replace).size() > kMaxKwargsBytes)
    return usage_error("chat_template_kwargs is longer than {} KiB", kMaxKwargsBytes >> 10);
  for (const auto& [name, value] : kwargs.items())
    if (std::ranges::find(kReserved, name) != std::end(kReserved))
      return usage_error("chat_template_kwargs must not set a variable of the request itself: {}", name);
  return {};
}

std::optional<std::string_view> named_chat_template(std::string_view name) {
  for (const auto& [known, source] : kNamed)
    if (known == name) return source;
  return {};
}

std::string known_chat_templates() {
  std::vector<std::string_view> names;
  for (const auto& [name, source] : kNamed) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<ChatRenderer> ChatRenderer::make(std::string_view source, const Tokenizer& tokenizer, const TemplateLimits& limits) {
  if (source.empty())
    return failure(
        "the model brings no chat template: send plain prompts (/v1/completions), or name one with "
        "--chat-template ({}) or --chat-template-file",
        known_chat_templates());
  HUNCH_TRY(ChatTemplate compiled, ChatTemplate::compile(source));
  ChatRenderer out(std::move(compiled), tokenizer, limits);
  if (tokenizer.bos_id()) out.marks_.push_back({"bos_token", std::string(tokenizer.token_bytes(*tokenizer.bos_id()))});
  if (!tokenizer.eos_ids().empty())
    out.marks_.push_back({"eos_token", std::string(tokenizer.token_bytes(tokenizer.eos_ids()[0]))});
  const auto add = [&](int32_t id) {
    if (std::ranges::find(out.stop_ids_, id) == out.stop_ids_.end()) out.stop_ids_.push_back(id);
  };
  for (const std::string_view mark : kTurnEnds) {
    const auto id = tokenizer.token_id(mark);
    if (!id || !tokenizer.is_special(*id) || !contains(source, mark)) continue;
    if (mark != "<|end|>" || !contains(source, "<|return|>")) add(*id);
  }
  for (const int32_t id : tokenizer.eos_ids()) add(id);
  return out;
}

Result<ChatPrompt> ChatRenderer::render(const Conversation& conversation) const {
  if (!conversation.messages || !conversation.messages->is_array() || conversation.messages->empty())
    return usage_error("a chat needs at least one turn");
  Json variables = conversation.kwargs ? *conversation.kwargs : Json::object();
  variables["messages"] = *conversation.messages;
  variables["tools"] = conversation.tools ? *conversation.tools : Json();
  variables["documents"] = conversation.documents ? *conversation.documents : Json();
  variables["add_generation_prompt"] = conversation.add_generation_prompt;
  HUNCH_TRY(RenderedChat rendered, template_.render(variables, marks_, limits_));
  HUNCH_TRY(std::vector<int32_t> ids, encode_rendered(*tokenizer_, rendered));
  return ChatPrompt{std::move(rendered.text), std::move(ids)};
}

Result<std::vector<int32_t>> encode_rendered(const Tokenizer& tokenizer, const RenderedChat& rendered) {
  return tokenizer.encode(rendered.text, {.parse_special = true, .add_bos = false, .special_in = &rendered.trusted});
}

}
