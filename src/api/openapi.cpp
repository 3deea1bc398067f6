// The description of all routes in OpenAPI 3.1, for clients and testers that are made from it. A test holds it against the table
// of keys.
#include <nlohmann/json.hpp>
#include <span>

#include "api/info_bodies.h"
#include "api/json_text.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

// Numbers of requests for text, or null.
struct Number {
  const char* key;
  ordered_json least, most;
  const char* about = "";
};
constexpr int64_t kMostTokens = int64_t(1) << 40, kMostId = 1 << 30;
const Number kWhole[] = {
    {"max_tokens", 0, kMostTokens},
    {"max_completion_tokens", 0, kMostTokens, "wins over max_tokens"},
    {"n_predict", -1, kMostTokens},
    {"top_k", -1, kMostId, "-1 and 0: all"},
    {"seed", INT64_MIN, INT64_MAX, "-1: random"},
    {"n", 1, 64},
    {"best_of", 1, 64, "must equal n"},
    {"min_tokens", 0, kMostTokens},
    {"n_probs", 0, 20},
    {"top_logprobs", 0, 20},
    {"prompt_logprobs", 0, 20, "not with stream; of all prompts and choices at most 4194304"},
    {"priority", -kMostId, kMostId, "lower runs first"},
    {"truncate_prompt_tokens", 1, kMostId},
    {"id_slot", -1, kMostId},
};
const Number kAny[] = {{"temperature", 0, 100}, {"min_p", 0, 1}, {"presence_penalty", -2, 2}, {"frequency_penalty", -2, 2},
    {"repetition_penalty", 0.01, 100}};

void add_numbers(ordered_json& properties, const char* type, std::span<const Number> numbers) {
  for (const auto& [key, least, most, about] : numbers) {
    properties[key] = {{"type", {type, "null"}}, {"minimum", least}, {"maximum", most}};
    if (*about) properties[key]["description"] = about;
  }
}

// The other keys of both kinds, but the switches.
constexpr std::string_view kBoth = R"({
"model":{"type":["string","null"],"description":"a served name; absent: the first model"},
"top_p":{"type":["number","null"],"exclusiveMinimum":0,"maximum":1},
"stop":{"anyOf":[{"type":"string","minLength":1},{"type":"array","items":{"type":"string","minLength":1},"maxItems":32},
  {"type":"null"}]},
"stop_token_ids":{"type":["array","null"],"items":{"type":"integer","minimum":0},"maxItems":128},
"repeat_penalty":{"type":["number","null"],"exclusiveMinimum":0,"maximum":100},
"repeat_last_n":{"type":["integer","null"],"minimum":-1,"description":"-1: penalties look at the whole text; 0: there are none"},
"logit_bias":{"type":["object","null"],"maxProperties":1024,"propertyNames":{"pattern":"^[0-9]+$"},
  "additionalProperties":{"type":"number","minimum":-100,"maximum":100}},
"bad_words":{"anyOf":[{"type":"string","minLength":1,"maxLength":1024},{"type":"array","items":{"type":"string","minLength":1,"maxLength":1024},"maxItems":128},
  {"type":"null"}]},
"allowed_token_ids":{"type":["array","null"],"items":{"type":"integer","minimum":0}},
"cache_salt":{"type":["string","null"],"maxLength":256},
"speculative_config":{"anyOf":[{"type":"object"},{"type":"string"},{"const":false},{"type":"null"}],
  "description":"keys of --speculative-config; \"off\" or a method; \"lossless\": \"required\""},
"lossless":{"enum":["required","any",true,false,null]},
"response_format":{"anyOf":[{"type":"object","required":["type"],"properties":{
  "type":{"enum":["text","json_object","json_schema"]},"json_schema":{"type":"object"},"schema":{}}},{"type":"null"}]},
"structured_outputs":{"type":["object","null"],"properties":{"json":{},"regex":{"type":["string","null"]},"choice":{},
  "grammar":{"type":["string","null"]},"json_object":{"type":["boolean","null"]}}},
"guided_json":{},
"guided_regex":{"type":["string","null"],"minLength":1},
"guided_choice":{"anyOf":[{"type":"string","minLength":1},
  {"type":"array","items":{"type":"string","minLength":1},"maxItems":4096},{"type":"null"}]},
"guided_grammar":{"type":["string","null"],"minLength":1},
"json_schema":{},
"grammar":{"type":["string","null"]},
"stream_options":{"type":["object","null"],"properties":{"include_usage":{"type":["boolean","null"]},
  "continuous_usage_stats":{"type":["boolean","null"]}}},
"request_id":{"type":["string","null"],"maxLength":128},
"timeout":{"type":["number","null"],"exclusiveMinimum":0,"maximum":86400}})";

constexpr std::string_view kCompletion = R"({
"prompt":{"anyOf":[{"type":"string","minLength":1},
  {"type":"array","minItems":1,"maxItems":256,"items":{"type":"string","minLength":1}},
  {"type":"array","minItems":1,"items":{"type":"integer","minimum":0}},
  {"type":"array","minItems":1,"maxItems":256,"items":{"type":"array","minItems":1,"items":{"type":"integer","minimum":0}}}]},
"logprobs":{"type":["integer","null"],"minimum":0,"maximum":20}})";

constexpr std::string_view kChat = R"({
"messages":{"type":"array","minItems":1,"items":{"type":"object","required":["role"],"properties":{
  "role":{"enum":["system","developer","user","assistant","tool"]},
  "content":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"object","required":["type","text"],"properties":{
    "type":{"const":"text"},"text":{"type":"string"}}}},{"type":"null"}]},
  "tool_calls":{},"tool_call_id":{},"name":{},"reasoning_content":{}}}},
"tools":{"type":["array","null"],"items":{"type":"object","required":["type","function"],"properties":{
  "type":{"const":"function"},"function":{"type":"object","required":["name"],"properties":{
    "name":{"type":"string","minLength":1,"maxLength":256},"description":{},"parameters":{}}}}},"maxItems":128},
"tool_choice":{"anyOf":[{"enum":["none","auto","required",null]},{"type":"object"}]},
"chat_template":{"type":["string","null"],"description":"taken by servers that trust their clients' templates"},
"chat_template_kwargs":{"type":["object","null"]},
"reasoning_effort":{"type":["string","null"]}})";

constexpr std::string_view kAnswers = R"({"Object":{"type":"object"},"List":{"type":"array"},
"Error":{"type":"object","required":["error"],"properties":{"error":{"type":"object",
  "required":["message","type","param","code"],"properties":{"message":{"type":"string"},"type":{"type":"string"},
  "param":{"type":["string","null"]},"code":{"type":["string","integer"]}}}}},
"Answer":{"type":"object","required":["id","object","created","model","choices","usage","timings","metrics"],"properties":{
  "object":{"enum":["text_completion","chat.completion"]},"choices":{"type":"array","minItems":1,"items":{"type":"object",
    "required":["index","finish_reason"],"properties":{"finish_reason":{"enum":["stop","length","tool_calls"]}}}},
  "usage":{"type":"object","required":["prompt_tokens","completion_tokens","total_tokens"]}}}})";

void add_switches(ordered_json& properties, std::initializer_list<const char*> names) {
  for (const char* name : names) properties[name] = {{"type", {"boolean", "null"}}};
}

ordered_json body(std::string_view own, std::initializer_list<const char*> switches, const char* required) {
  ordered_json properties = ordered_json::parse(own);
  add_switches(properties, switches);
  properties.update(ordered_json::parse(kBoth));
  add_numbers(properties, "integer", kWhole), add_numbers(properties, "number", kAny);
  add_switches(properties,
      {"ignore_eos", "cache_prompt", "skip_special_tokens", "add_special_tokens", "include_stop_str_in_output", "stream",
          "timings_per_token", "return_tokens", "return_token_ids", "return_token_sources", "return_tokens_as_token_ids"});
  return {{"type", "object"}, {"required", {required}}, {"properties", std::move(properties)}};
}

ordered_json schemas() {
  ordered_json out = ordered_json::parse(kAnswers);
  out["Completion"] = body(kCompletion, {"echo"}, "prompt");
  out["Chat"] = body(kChat, {"logprobs", "parallel_tool_calls", "include_reasoning", "add_generation_prompt"}, "messages");
  const ordered_json text{{"type", {"string", "null"}}};
  ordered_json tokenize{{"model", text}, {"content", text}, {"prompt", text}};
  add_switches(tokenize, {"add_special", "parse_special", "with_pieces", "add_special_tokens", "return_token_strs"});
  tokenize["messages"] = out["Chat"]["properties"]["messages"];
  out["Tokenize"] = {{"type", "object"}, {"properties", std::move(tokenize)}};
  out["Detokenize"] = {{"type", "object"}, {"required", {"tokens"}},
      {"properties", {{"model", text}, {"tokens", {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}}}}}};
  return out;
}

ordered_json reference(const std::string& to) { return {{"$ref", "#/components/" + to}}; }

// One route. `asks`: the schema of its body; empty: it has none. `answer`: a schema; empty: plain text.
ordered_json route(const char* summary, const std::string& asks, const std::string& answer, std::initializer_list<int> errors) {
  ordered_json out{{"summary", summary}}, content;
  if (!asks.empty())
    out["requestBody"] = {{"required", true}, {"content", {{"application/json", {{"schema", reference("schemas/" + asks)}}}}}};
  const ordered_json text{{"schema", {{"type", "string"}}}};
  if (answer.empty()) content["text/plain"] = text;
  else content["application/json"] = {{"schema", reference("schemas/" + answer)}};
  if (answer == "Answer")  // of no type: validators look at each event
    content["text/event-stream"] = {{"schema", {{"description", "events; their data is a chunk as JSON, at last [DONE]"}}}};
  out["responses"]["200"] = {{"description", "the answer"}, {"content", std::move(content)}};
  for (const int status : errors) out["responses"][std::to_string(status)] = reference("responses/Error");
  return out;
}

}

std::string openapi_body(std::string_view version) {
  ordered_json out{
      {"openapi", "3.1.0"}, {"info", {{"title", "hunch"}, {"version", version}, {"license", {{"name", "Apache-2.0"}}}}}};
  ordered_json& paths = out["paths"];
  const auto post = [&](const char* path, const char* summary, const char* asks, const char* answer) {
    paths[path]["post"] = route(summary, asks, answer, {400, 401, 404, 408, 413, 415, 429, 500, 501, 503, 504});
  };
  post("/v1/completions", "Continues prompts", "Completion", "Answer");
  post("/v1/chat/completions", "Answers a chat", "Chat", "Answer");
  post("/tokenize", "A text or a chat as token ids", "Tokenize", "Object");
  post("/detokenize", "Token ids as text", "Detokenize", "Object");
  const auto get = [&](const char* path, const char* summary, std::initializer_list<int> errors,
                       const char* answer = "Object") -> ordered_json& {
    return paths[path]["get"] = route(summary, "", answer, errors);
  };
  get("/v1/models", "The models that are served", {401, 503});
  get("/v1/models/{id}", "One of them", {400, 401, 404, 503})["parameters"] =
      ordered_json::parse(R"([{"name":"id","in":"path","required":true,"schema":{"type":"string"}}])");
  get("/health", "Whether requests would be answered; needs no key", {503})["security"] = ordered_json::array();
  get("/metrics", "Prometheus metrics", {401, 501}, "");
  get("/version", "The program's version", {401});
  get("/props", "Defaults and properties of a model", {401, 501, 503});
  get("/slots", "Seats of requests", {401, 501, 503}, "List");
  get("/openapi.json", "This description", {401});
  out["security"] = ordered_json::parse(R"([{},{"key":[]}])");
  ordered_json& components = out["components"];
  components["securitySchemes"]["key"] = {{"type", "http"}, {"scheme", "bearer"}};
  components["responses"]["Error"] = {
      {"description", "why not"}, {"content", {{"application/json", {{"schema", reference("schemas/Error")}}}}}};
  components["schemas"] = schemas();
  return json_line(out);
}

}
