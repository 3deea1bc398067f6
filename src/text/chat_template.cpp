// The language itself is in jinja/.
#include "text/chat_template.h"

#include "text/excerpt.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/lexer.h"
#include "text/unicode.h"

namespace hunch {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Heap;
using jinja::Value;

// Roles that templates put between the parts of a mark, as in '<|' + role + '|>'. They can spell nothing but the marks of turns,
// which a request may ask for anyway by choosing a role.
constexpr std::string_view kRoles[] = {
    "system", "user", "assistant", "tool", "developer", "function", "ipython", "observation", "model"};

Result<Value> convert(const Json& json, Heap& heap, int depth) {
  if (depth > jinja::kMaxDepth) return usage_error("a value for the chat template is nested deeper than {}", jinja::kMaxDepth);
  switch (json.type()) {
    case Json::value_t::null: return Value::none();
    case Json::value_t::boolean: return Value::of(json.get<bool>());
    case Json::value_t::number_integer: return Value::of(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const uint64_t value = json.get<uint64_t>();
      return value <= uint64_t(INT64_MAX) ? Value::of(int64_t(value)) : Value::of(double(value));
    }
    case Json::value_t::number_float: return Value::of(json.get<double>());
    case Json::value_t::string: {  // borrowed: the JSON outlives the rendering
      const std::string& text = json.get_ref<const std::string&>();
      if (const auto at = first_invalid_utf8(text))
        return usage_error("a text for the chat template is not valid UTF-8: at byte {} of {}", *at, excerpt(text));
      return make_text(heap, jinja::Text{.bytes = text});
    }
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) {
        HUNCH_TRY(const Value value, convert(item, heap, depth + 1));
        items.push_back(value);
      }
      return make_sequence(heap, items);
    }
    case Json::value_t::object: {
      jinja::DictBuilder dict(heap);
      for (const auto& [key, item] : json.items()) {
        HUNCH_TRY(const Value value, convert(item, heap, depth + 1));
        HUNCH_OK(dict.set(make_text(heap, jinja::Text{.bytes = key}), value));
      }
      return dict.finish();
    }
    default: return usage_error("a value for the chat template is no JSON");
  }
}

// `messages`, whose well-known roles are as good as the template's own words.
Result<Value> convert_messages(const Json& messages, Heap& heap) {
  if (!messages.is_array()) return convert(messages, heap, 1);
  std::vector<Value> out;
  for (const Json& message : messages) {
    if (!message.is_object()) {
      HUNCH_TRY(const Value value, convert(message, heap, 2));
      out.push_back(value);
      continue;
    }
    jinja::DictBuilder dict(heap);
    for (const auto& [key, item] : message.items()) {
      HUNCH_TRY(Value value, convert(item, heap, 3));
      if (key == "role" && item.is_string() && std::find(std::begin(kRoles), std::end(kRoles), value.bytes()) != std::end(kRoles))
        value = make_text(heap, jinja::Text{.bytes = value.bytes(), .trusted = true});
      HUNCH_OK(dict.set(make_text(heap, jinja::Text{.bytes = key}), value));
    }
    HUNCH_TRY(const Value made, dict.finish());
    out.push_back(made);
  }
  return make_sequence(heap, out);
}

}

struct ChatTemplate::Compiled {
  jinja::Program program;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::compile(std::string_view source) {
  if (source.size() > jinja::kMaxTemplateBytes)
    return failure("the chat template is too long: {} bytes, at most {}", source.size(), jinja::kMaxTemplateBytes);
  if (const auto at = first_invalid_utf8(source)) return failure("the chat template is not valid UTF-8: at byte {}", *at);
  HUNCH_TRY(jinja::Program program, jinja::parse(source));
  return ChatTemplate(std::make_unique<Compiled>(Compiled{std::move(program)}));
}

Result<RenderedChat> ChatTemplate::render(const Json& variables, std::span<const std::pair<std::string, std::string>> marks,
    const TemplateLimits& limits, std::time_t now) const {
  if (!variables.is_object()) return usage_error("the variables of a chat template must be an object");
  const jinja::Budget budget{.steps = limits.steps, .time = limits.time, .output_bytes = limits.output_bytes, .now = now};
  // Texts on the way add up: what a conversation builds by appending to one text again and again must fit.
  Heap heap(size_t(64) * 1024 * 1024 + 8 * limits.output_bytes);
  jinja::Interpreter interpreter(compiled_->program, heap, budget);
  for (const auto& [name, json] : variables.items()) {
    HUNCH_TRY(const Value value, name == "messages" ? convert_messages(json, heap) : convert(json, heap, 1));
    interpreter.define(name, value);
  }
  for (const auto& [name, text] : marks) interpreter.define(name, make_text(heap, jinja::Text{.bytes = text, .trusted = true}));
  jinja::TextBuilder out(limits.output_bytes);
  if (const Status done = interpreter.run(out); !done.ok())
    return usage_error(jinja::at_line(interpreter.line(), done.error().message).message);
  RenderedChat rendered;
  size_t begin = 0;
  for (const jinja::Run& run : out.runs()) {
    if (run.trusted) rendered.trusted.push_back({begin, run.end});
    begin = run.end;
  }
  rendered.text = std::move(out).take();
  return rendered;
}

}
