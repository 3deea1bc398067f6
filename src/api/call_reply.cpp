// How a chat's reply is told apart into thoughts, words and calls: by the parsers that the server names or that the chat template
// shows, or by the form that tool_choice forces.
#include <fmt/format.h>

#include <algorithm>

#include "api/call_state.h"
#include "api/json_text.h"
#include "api/reasoning_parser.h"
#include "api/tool_parser.h"
#include "base/failure.h"
#include "text/detokenizer.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;
using ToolChoice = Body::ToolChoice;

constexpr std::array kKinds = {"type", "$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

std::string name_of(const ordered_json& tool) { return tool["function"]["name"].get<std::string>(); }

// A schema that becomes a part of another: its references follow it to its place there. Whether it has any. `names`: its keys are
// names, not keywords.
bool move_to(ordered_json& schema, const std::string& place, bool names = false) {
  bool refers = false;
  for (auto& [key, value] : schema.items()) {
    if (!names && (key == "const" || key == "enum" || key == "default" || key == "examples")) continue;  // data
    const bool of_names = key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions";
    if (value.is_structured()) {
      refers |= move_to(value, place, !names && of_names);
    } else if (!names && key == "$ref" && value.is_string() && value.get<std::string>().starts_with("#")) {
      value = place + value.get<std::string>().substr(1);
      refers = true;
    }
  }
  return refers;
}

// The schema of a function's arguments, which are an object.
ordered_json parameters_of(const ordered_json& tool) {
  const ordered_json& function = tool["function"];
  if (!function.contains("parameters") || !function["parameters"].is_object() || function["parameters"].empty())
    return {{"type", "object"}, {"properties", ordered_json::object()}};
  ordered_json parameters = function["parameters"];
  const auto has = [&](const char* key) { return parameters.contains(key); };
  if (std::ranges::none_of(kKinds, has)) parameters["type"] = "object";
  return parameters;
}

// What a forced call must look like: the arguments of one function, or a list of calls of any.
std::string forced_schema(const Body& body) {
  ordered_json schema;
  if (body.tool_choice == ToolChoice::Named) {
    for (const ordered_json& tool : body.tools)
      if (name_of(tool) == body.tool_name) schema = parameters_of(tool);
  } else {
    ordered_json calls = ordered_json::array(), defs;
    for (const ordered_json& tool : body.tools) {
      const auto id = fmt::format("{}", calls.size()), place = "#/$defs/" + id;
      ordered_json parameters = parameters_of(tool);
      if (move_to(parameters, place)) defs[id] = std::exchange(parameters, {{"$ref", place}});
      calls.push_back({
          {"type", "object"},
          {"properties", {{"name", {{"const", name_of(tool)}}}, {"parameters", std::move(parameters)}}},
          {"required", {"name", "parameters"}},
          {"additionalProperties", false},
      });
    }
    schema = {{"type", "array"}, {"minItems", 1}, {"items", {{"anyOf", std::move(calls)}}}};
    if (!defs.is_null()) schema["$defs"] = std::move(defs);
    if (!body.parallel_tool_calls) schema["maxItems"] = 1;
  }
  return json_line(schema);
}

// Drops all calls but the first, where only one was allowed, and words where calls were forced: pieces of one that was cut.
class AllowedOnly final : public ReplyReader {
 public:
  AllowedOnly(ReplyReaderPtr reader, bool one, bool forced) : reader_(std::move(reader)), one_(one), forced_(forced) {}
  void feed(std::string_view text, ReplyDelta& out) override {
    reader_->feed(text, out);
    drop(out);
  }
  void finish(ReplyDelta& out) override {
    reader_->finish(out);
    drop(out);
  }
  bool thinking() const override { return reader_->thinking(); }

 private:
  void drop(ReplyDelta& out) const {
    std::erase_if(out.calls, [&](const ReplyDelta::Call& call) { return one_ && call.index > 0; });
    if (forced_) out.content.clear();
  }
  ReplyReaderPtr reader_;
  const bool one_, forced_;
};

}

Status Call::State::settle_reply(const ServedModels& models, BodyFault& fault) {
  if (!chat()) return {};
  const std::string& source = models.chat(*served).source(!body.tools.is_null());
  reasoning_parser = served->reasoning_parser.empty() ? std::string(reasoning_parser_for(source)) : served->reasoning_parser;
  tool_parser = served->tool_parser.empty() ? std::string(tool_parser_for(source)) : served->tool_parser;
  const bool forced = body.tool_choice == ToolChoice::Required || body.tool_choice == ToolChoice::Named;
  if (body.tools.is_null()) {
    fault.param = "tool_choice";
    if (forced) return usage_error("\"tool_choice\" asks for a call, and there are no \"tools\"");
    tool_parser.clear();
  } else {
    fault.param = "tool_choice";
    const auto meant = [&](const ordered_json& tool) { return name_of(tool) == body.tool_name; };
    if (body.tool_choice == ToolChoice::Named && std::ranges::none_of(body.tools, meant))
      return usage_error("\"tool_choice\" names {}, which is none of the \"tools\"", excerpt(body.tool_name));
    fault.param = "tools";
    if (body.tool_choice == ToolChoice::Auto && tool_parser.empty() && !is_harmony(reasoning_parser))
      return usage_error(
          "\"tools\": the template of this model shows no form for calls; start the server with --tool-call-parser, "
          "or set \"tool_choice\"");
    if (forced) body.request.structured = {StructuredOutput::Kind::JsonSchema, forced_schema(body), {}};
    if (body.tool_choice != ToolChoice::Auto) tool_parser.clear();
  }
  fault.param.clear();
  // A constraint holds from the first token on: nothing is thought before it.
  if (body.request.structured.kind != StructuredOutput::Kind::None) reasoning_parser.clear();
  // Marks that are special tokens must leave text to be seen.
  if (!tool_parser.empty() || is_harmony(reasoning_parser)) body.request.skip_special_tokens = false;
  return {};
}

int64_t Call::State::thought_tokens(const Generation& g) const {
  if (!chat() || reasoning_parser.empty() || !names.tokenizer) return 0;
  const auto reader = make_reader();
  if (!reader) return 0;
  Detokenizer detokenizer(*names.tokenizer, prepared.request.skip_special_tokens);
  int64_t count = 0;
  ReplyDelta ignored;
  for (const int32_t id : g.tokens) {
    const bool before = reader->thinking();
    reader->feed(detokenizer.feed(id), ignored);
    count += before || reader->thinking();
  }
  return count;
}

ReplyReaderPtr Call::State::make_reader() const {
  if (body.tool_choice == ToolChoice::Named) return make_arguments_reader(body.tool_name);
  ReplyReaderPtr reader;
  const bool forced = body.tool_choice == ToolChoice::Required;
  if (forced) {
    reader = make_call_list_reader();
  } else {
    if (!tool_parser.empty()) {
      std::vector<std::string> functions;
      for (const ordered_json& tool : body.tools) functions.push_back(name_of(tool));
      reader = make_tool_parser(tool_parser, std::move(functions));
    }
    // Some templates open the thoughts in the prompt.
    bool thinking = false;
    if (!reasoning_parser.empty() && names.tokenizer) {
      const Tokens& prompt = prepared.prompts[0];
      const size_t last = std::min<size_t>(prompt.size(), 16);
      std::string end = detokenize(*names.tokenizer, std::span(prompt).last(last), false);
      end.resize(end.find_last_not_of(" \t\r\n") + 1);
      thinking = end.ends_with("<think>");
    }
    reader = make_reasoning_parser(reasoning_parser, thinking, std::move(reader));
  }
  if (!reader) return nullptr;
  return std::make_unique<AllowedOnly>(std::move(reader), !body.parallel_tool_calls, forced);
}

}
