// What the output must look like, in the words of OpenAI (response_format), of vLLM (structured_outputs, and guided_* before it)
// and of llama.cpp (grammar, json_schema); and the tools that the model may call.
#include <algorithm>
#include <utility>

#include "api/body_keys.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using Kind = StructuredOutput::Kind;

constexpr size_t kMaxChoiceTexts = 10000, kMostNameBytes = 256;

Status set(BodyReader& in, StructuredOutput structured) {
  if (std::exchange(in.out.constrained, true))
    return usage_error("the output is constrained twice: say one of response_format and structured_outputs, and one form in it");
  in.out.request.structured = std::move(structured);
  return {};
}

Status set_schema(const Field& v, BodyReader& in) {
  // A schema comes as an object, from some clients as the text of one; true and false are schemas too.
  if (v.is_string()) {
    HUNCH_TRY(std::string text, text_value(v));
    simdjson::dom::parser parser;
    if (const auto parsed = parse_json(parser, text); !parsed.ok())
      return coded(in, "invalid_schema", wrong(v, ": {}", parsed.error().message));
    return set(in, {.kind = Kind::JsonSchema, .text = std::move(text)});
  }
  if (!v.is_object() && !v.is_bool()) return coded(in, "invalid_schema", wanted(v, "a JSON schema, an object"));
  return set(in, {.kind = Kind::JsonSchema, .text = simdjson::minify(v)});
}

Status set_text(const Field& v, Kind kind, BodyReader& in) {
  HUNCH_TRY(std::string text, text_value(v));
  if (text.empty()) return wrong(v, " is empty: leave it out");
  return set(in, {.kind = kind, .text = std::move(text)});
}

Status set_choice(const Field& v, BodyReader& in) {
  HUNCH_TRY(std::vector<std::string> choices, texts_value(v, kMaxChoiceTexts));
  if (choices.empty()) return wrong(v, " is empty: give at least one text");
  return set(in, {.kind = Kind::Choice, .choices = std::move(choices)});
}

}

Status read_response_format(const Field& v, BodyReader& in) {
  in.out.structure_key = v.key;
  std::string_view type;
  object format;
  if (v.get(format) != SUCCESS || v["type"].get(type) != SUCCESS)
    return wrong(v, " must be an object with a \"type\": text, json_object or json_schema");
  HUNCH_OK(check_keys(format, in.fault));
  if (type == "text") {
    if (!in.out.constrained) in.out.request.structured = {};
    return {};
  }
  element inner, schema;
  if (type == "json_object") {
    // An older shape has the schema right here.
    if (v["schema"].get(schema) == SUCCESS && !schema.is_null()) return set_schema({schema, "schema"}, in);
    return set(in, {.kind = Kind::JsonObject});
  }
  if (type == "json_schema") {
    const bool nested = v["json_schema"].get(inner) == SUCCESS && inner.is_object();
    if ((nested && inner["schema"].get(schema) == SUCCESS) || v["schema"].get(schema) == SUCCESS)
      return set_schema({schema, "schema"}, in);
    return wrong(v, " of type json_schema needs \"json_schema\": {{\"name\": ..., \"schema\": {{...}}}}");
  }
  return wrong(v, ": type {} is not available; there are text, json_object, json_schema", excerpt(type));
}

Status read_structured_outputs(const Field& v, BodyReader& in) {
  in.out.structure_key = v.key;
  object fields;
  if (v.get(fields) != SUCCESS) return wanted(v, "an object");
  HUNCH_OK(check_keys(fields, in.fault));
  for (const auto& [name, value] : fields) {
    if (value.is_null()) continue;
    if (name == "json") HUNCH_OK(set_schema({value, name}, in));
    else if (name == "regex") HUNCH_OK(set_text({value, name}, Kind::Regex, in));
    else if (name == "grammar") HUNCH_OK(set_text({value, name}, Kind::Grammar, in));
    else if (name == "choice") HUNCH_OK(set_choice({value, name}, in));
    else if (name == "json_object") {
      HUNCH_TRY(const bool on, truth_value({value, name}));
      if (on) HUNCH_OK(set(in, {.kind = Kind::JsonObject}));
    } else if (name == "structural_tag") {
      return wrong(v, ": \"structural_tag\" is not available; there are json, regex, choice, grammar, json_object");
    } else if (bool on = true; name != "disable_fallback" && !name.starts_with('_') && (value.get(on) != SUCCESS || on)) {
      return wrong(v, ": the key {} is not available; leave it out", excerpt(name));  // it may change the output
    }
  }
  if (!in.out.constrained) return wrong(v, " says no form: give one of json, regex, choice, grammar, json_object");
  return {};
}

Status read_guided(const Field& v, BodyReader& in) {
  in.out.structure_key = v.key;
  if (v.key == "guided_json" || v.key == "json_schema") return set_schema(v, in);
  if (v.key == "guided_choice") return set_choice(v, in);
  if (v.key == "grammar" && v.is_string() && std::string_view(v).empty()) return {};  // llama.cpp's own default
  return set_text(v, v.key == "guided_regex" ? Kind::Regex : Kind::Grammar, in);
}

Status read_tools(const Field& v, BodyReader& in) {
  array list;
  if (v.get(list) != SUCCESS) return wanted(v, "a list of tools");
  if (list.begin() == list.end()) return {};  // none, as some clients write it
  size_t total = 0, largest = 0;
  std::string largest_name;
  std::vector<std::string> names;
  for (const element tool : list) {
    std::string_view type, name;
    element parameters;
    if (tool["type"].get(type) != SUCCESS || type != "function" || tool["function"]["name"].get(name) != SUCCESS || name.empty())
      return wrong(v, ": item {} must be {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}", names.size());
    if (object function; tool["function"].get(function) == SUCCESS) HUNCH_OK(check_keys(function, in.fault));
    if (tool["function"]["parameters"].get(parameters) == SUCCESS && !parameters.is_null() && !parameters.is_object())
      return wanted({parameters, "parameters"}, "a JSON schema, an object");
    if (element kind;
        tool["function"]["parameters"]["type"].get(kind) == SUCCESS && (kind.get(type) != SUCCESS || type != "object"))
      return wanted({kind, "parameters"}, "a schema of type \"object\"");
    if (name.size() > kMostNameBytes)
      return wrong(v, ": a function's name has {} bytes; at most {}", name.size(), kMostNameBytes);
    if (std::ranges::find(names, name) != names.end()) return wrong(v, ": two functions are called {}", excerpt(name));
    if (names.size() == kMaxIdList) return wrong(v, " has more than {} tools", kMaxIdList);
    names.emplace_back(name);
    const size_t bytes = std::string(simdjson::minify(tool)).size();
    total += bytes;
    if (bytes > largest) largest = bytes, largest_name = std::string(name);
  }
  if (total > kMaxToolsBytes)
    return wrong(v, " has {} bytes; at most {} are allowed (the largest is {} with {})", total, kMaxToolsBytes,
        excerpt(largest_name), largest);
  in.out.tools = copy_of(v);
  return {};
}

Status read_tool_choice(const Field& v, BodyReader& in) {
  using Choice = Body::ToolChoice;
  std::string_view word;
  if (v.get(word) == SUCCESS) {
    if (word == "none") return in.out.tool_choice = Choice::None, Status();
    if (word == "auto") return in.out.tool_choice = Choice::Auto, Status();
    if (word == "required" || word == "any") return in.out.tool_choice = Choice::Required, Status();
  } else if (v.is_object() && v["function"]["name"].get(word) == SUCCESS && !word.empty()) {
    in.out.tool_choice = Choice::Named, in.out.tool_name = std::string(word);
    return {};
  }
  return wrong(v, " must be none, auto, required or {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}");
}

}
