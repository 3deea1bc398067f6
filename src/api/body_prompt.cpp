// What the model reads: prompts in their four forms, or messages of a chat.
#include <algorithm>

#include "api/body_keys.h"
#include "text/chat_renderer.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

Status take_prompt(const Field& v, Body& out) {
  Body::Prompt prompt;
  if (v.is_string()) {
    prompt.is_text = true;
    HUNCH_TRY(prompt.text, text_value(v));
  } else {
    HUNCH_TRY(prompt.ids, ids_value(v));
    if (prompt.ids.empty()) return wrong(v, " holds an empty list: give at least one token");
  }
  out.prompts.push_back(std::move(prompt));
  return {};
}

// The text of a message: a string, or OpenAI's list of parts where all are texts.
Result<std::string> content_text(const element& v, BodyReader& in) {
  array parts;
  if (v.get(parts) != SUCCESS) return text_value({v, "content"});
  std::string all;
  for (const element part : parts) {
    std::string_view type;
    element words;
    if (part["type"].get(type) != SUCCESS || type != "text" || part["text"].get(words) != SUCCESS)
      return coded(in, "text_only", usage_error("\"content\" holds a part that is no text: this engine reads text only"));
    HUNCH_TRY(const std::string text, text_value({words, "content"}));
    all += text;
  }
  return all;
}

// Templates write the arguments of a call as an object; in messages they are its JSON.
void open_arguments(ordered_json& calls) {
  if (!calls.is_array()) return;
  for (ordered_json& call : calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    ordered_json& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    // Read by the parser with a bound on depth: this text is as foreign as the body around it.
    simdjson::dom::parser parser;
    const std::string text = function["arguments"].get<std::string>();
    if (const auto parsed = parse_json(parser, text.empty() ? "{}" : text); parsed.ok() && parsed.value().is_object())
      function["arguments"] = copy_of(parsed.value());
  }
}

Status take_message(const element& message, BodyReader& in) {
  object fields;
  if (message.get(fields) != SUCCESS) return wanted({message, "messages"}, "a list of objects with \"role\" and \"content\"");
  const size_t number = in.out.turns.size();
  ChatTurn turn;
  ordered_json copy = ordered_json::object();
  bool role = false, content = false, calls = false;
  size_t keys = 0;
  for (const auto& [name, value] : fields) {
    if (++keys > 64) return usage_error("message {} has more than 64 keys", number);
    if (name == "role" && !role) {
      role = true;
      HUNCH_TRY(turn.role, text_value({value, "role"}));
      if (turn.role == "developer") turn.role = "system";  // OpenAI's newer word
      copy["role"] = turn.role;
    } else if (name == "content" && !content && !value.is_null()) {
      content = true;
      HUNCH_TRY(turn.content, content_text(value, in));
      copy["content"] = turn.content;
    } else if (name == "role" || (name == "content" && content) || (in.kind == BodyKind::Batch && !value.is_null())) {
      return usage_error("a message's {} cannot be used: it has \"role\" and \"content\", once each", excerpt(name));
    } else if (!value.is_null()) {
      copy[std::string(name)] = copy_of(value);
      calls |= name == "tool_calls" && value.is_array() && array(value).size() > 0;
    }
  }
  static constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool"};
  if (role && in.kind != BodyKind::Batch && std::find(std::begin(kRoles), std::end(kRoles), turn.role) == std::end(kRoles))
    return usage_error("message {} has role {}; known are system, developer, user, assistant, tool", number, excerpt(turn.role));
  // A call needs no words.
  if (!role || (!content && !calls)) return usage_error("message {} lacks \"{}\"", number, role ? "content" : "role");
  if (!content) copy["content"] = "";
  if (copy.contains("tool_calls")) open_arguments(copy["tool_calls"]);
  in.out.messages.push_back(std::move(copy));
  in.out.turns.push_back(std::move(turn));
  return {};
}

}

Status read_prompt(const Field& v, BodyReader& in) {
  Body& out = in.out;
  if (out.input != Body::Input::None) return usage_error("\"prompt\" and \"messages\" exclude each other");
  out.input = Body::Input::Prompts;
  array list;
  if (v.is_string()) return out.one_prompt = true, take_prompt(v, out);
  if (v.get(list) != SUCCESS) return wanted(v, "a string, a list of token ids, or a list of those");
  bool nested = false;
  if (list.begin() != list.end()) {
    const element first = *list.begin();
    nested = first.is_string() || first.is_array();
  }
  if (nested && in.kind == BodyKind::Batch) return usage_error("\"prompt\" is a list of prompts: write one prompt a line");
  if (!nested) return out.one_prompt = true, take_prompt(v, out);
  for (const element item : list) {
    if (out.prompts.size() == kMaxChoices)
      return coded(in, "too_many_prompts", wrong(v, " holds more than {} prompts", kMaxChoices));
    if (!item.is_string() && !item.is_array())
      return wrong(
          v, ": item {} must be a string or a list of token ids like the first, not {}", out.prompts.size(), kind_name(item));
    HUNCH_OK(take_prompt({item, v.key}, out));
  }
  return {};
}

Status read_messages(const Field& v, BodyReader& in) {
  Body& out = in.out;
  if (out.input != Body::Input::None) return usage_error("\"prompt\" and \"messages\" exclude each other");
  array list;
  if (v.get(list) != SUCCESS) return wanted(v, "a list of messages");
  out.input = Body::Input::Chat;
  out.messages = ordered_json::array();
  for (const element message : list) HUNCH_OK(take_message(message, in));
  if (out.turns.empty()) return wrong(v, " is empty: give at least one message");
  return {};
}

Status read_template_kwargs(const Field& v, BodyReader& in) {
  ordered_json& kwargs = in.out.template_kwargs;
  if (kwargs.is_null()) kwargs = ordered_json::object();
  if (v.key == "reasoning_effort") {
    HUNCH_TRY(std::string effort, text_value(v));
    kwargs["reasoning_effort"] = std::move(effort);
    return {};
  }
  const ordered_json said = copy_of(v);
  HUNCH_OK(check_template_kwargs(said));
  kwargs.update(said);
  return {};
}

}
