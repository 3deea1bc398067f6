// What bodies are refused, how, and what is read from those that are not.
#include "api/call.h"

#include <fmt/format.h>

#include <tuple>

#include "api/api_testing.h"

namespace hunch {
namespace {

using namespace test;
using enum StructuredOutput::Kind;

struct Case {
  std::string fields;
  std::string_view param, message;
};

// Fields stand behind `base`, or are a body of their own where they begin with something else than a key.
void expect_refused(Endpoint endpoint, std::string_view base, const Case& c) {
  const std::string body = c.fields.starts_with('"') ? fmt::format("{{{},{}}}", base, c.fields) : c.fields;
  SCOPED_TRACE(body);
  const ApiError error = refusal(endpoint, body);
  EXPECT_EQ(std::tie(error.status, error.type, error.param), std::tuple(400, "invalid_request_error", c.param)) << error.message;
  expect_part(error.message, c.message);
}

// What a completion of "x" with these fields asks for.
Request request_of(json fields) {
  fields["prompt"] = "x";
  return call(kText, fields)->request(0);
}

TEST(Call, RefusesWhatIsNoJsonAndSaysWhere) {
  for (const auto& [body, message] :
      {std::pair("", "not JSON"), {"nope", "(byte 1)"}, {R"({"prompt":"x","seed":NaN})", "(byte 21"},
          {R"({"prompt":"x",})", "(byte 14"}, {R"({"prompt":"x" /* c */})", "(byte 14"}, {R"({"prompt":"x")", "where it ends"},
          {"\xef\xbb\xbf{\"prompt\":\"x\"}", "not JSON"}, {"{\"prompt\":\"\xff\"}", "(byte 11"}, {"[1]", "must be an object"},
          {"7", "must be an object"}})
    expect_refused(kText, "", {body, "", message});
}

TEST(Call, RefusesDeepNestingAndKeysWithoutBound) {
  std::string open, close;
  for (int i = 0; i < 100000; ++i) open += R"({"a":)", close += '}';
  for (const std::string& deep :
      {R"({"prompt":)" + std::string(100000, '[') + std::string(100000, ']') + "}", open + "1" + close})
    expect_part(refusal(kText, deep).message, "deeper than 64");
  for (const std::string& cut : {R"({"prompt":)" + std::string(100000, '['), open}) EXPECT_EQ(refusal(kText, cut).status, 400);
  std::string many = R"({"prompt":"x")";
  for (int i = 0; i < 2000; ++i) many += ",\"k" + std::to_string(i) + "\":1";
  const ApiError error = refusal(kText, many + "}");
  EXPECT_EQ(std::tie(error.status, error.code), std::tuple(400, "too_many_fields"));
}

TEST(Call, NamesTheFieldAtFault) {
  const std::string_view prompt = R"("prompt":"x")";
  const Case bodies[] = {
      {R"("prompt":"y")", "prompt", "twice"},
      {R"("stream":true,"stream_options":{"include_usage":true,"include_usage":false})", "include_usage", "twice"},
      {R"("response_format":{"type":"text","type":"json_object"})", "type", "twice"},
      {R"("logit_bias":{"5":1,"5":2})", "5", "twice"},
      {R"("structured_outputs":{"regex":"a","regex":"b"})", "regex", "twice"},
      {R"({"max_tokens":1})", "prompt", "no \"prompt\""},
      {R"({"prompt":[[1],"a"],"n":200})", "n", "in 1..64"},
      {R"({"prompt":{"a":1}})", "prompt", "must be a string"},
      {R"({"messages":[],"prompt":"x"})", "messages", "chat/completions"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options", "true or false"},
      {R"("guided_regex":"a","guided_grammar":"b")", "guided_grammar", "constrained twice"},
  };
  for (const Case& c : bodies) expect_refused(kText, prompt, c);
  const struct {
    std::string key;
    std::vector<std::pair<std::string, std::string_view>> refused;  // values, and what is said of each
  } fields[] = {
      {"max_tokens",
          {{"-1", "whole number in 0.."}, {"9223372036854775808", "whole number"}, {"1e308", "whole number"},
              {R"("16")", "not a string"}, {"1.5", "whole number"}, {"5000", "context holds 1024"}}},
      {"min_tokens",
          {{"20", "more than the 16"}, {R"(20,"max_tokens":null)", "more than the 16"},
              {R"(5,"max_tokens":4)", "more than \"max_tokens\""}}},
      {"temperature", {{"-0.1", "in 0..100"}, {"1e38", "in 0..100"}, {R"("0")", "a number"}}},
      {"top_p", {{"0", "above 0"}, {"1.01", "at most 1"}}},
      {"min_p", {{"-0.1", "in 0..1"}}},
      {"top_k", {{"-2", "whole number"}}},
      {"presence_penalty", {{"2.1", "in -2..2"}}},
      {"frequency_penalty", {{"-2.1", "in -2..2"}}},
      {"repetition_penalty", {{"0", "0.01..100"}}},
      {"repeat_last_n", {{R"(64,"repeat_penalty":1.1)", "the whole text"}, {"-2", "whole number"}}},
      {"n", {{"0", "in 1..64"}, {"1000000", "in 1..64"}}},
      {"best_of", {{"5", "must equal \"n\""}}},
      {"suffix", {{R"("y")", "not available"}}},
      {"seed", {{"1.5", "whole number"}, {"9223372036854775808", "whole number"}}},
      {"stop", {{R"("")", "empty string"}, {R"(["a",""])", "empty string"}, {"7", "a string or a list"}}},
      {"logit_bias",
          {{R"({"a":1})", "no token id"}, {R"({"-1":1})", "no token id"}, {R"({"5":101})", "in -100..100"},
              {R"({"5":1e308})", "in -100..100"}, {R"({"99999":1})", "ids of this model"}}},
      {"stop_token_ids", {{"[99999]", "item 0 is 99999"}}},
      {"logprobs", {{"21", "in 0..20"}}},
      {"n_probs", {{"1000000000", "in 0..20"}}},
      {"top_logprobs", {{"3", "needs \"logprobs\""}}},
      {"prompt_logprobs", {{R"(1,"stream":true)", "\"stream\" to false"}}},
      {"echo", {{R"(true,"logprobs":1,"stream":true)", "\"stream\" to false"}}},
      {"stream_options", {{R"({"include_usage":true})", "needs \"stream\""}}},
      {"priority", {{"9223372036854775807", "whole number"}}},
      {"id_slot", {{"-2", "whole number"}}},
      {"timeout", {{"0", "above 0"}, {"1e12", "at most 86400"}}},
      {"allowed_token_ids", {{"[]", "leave it out"}}},
      {"request_id", {{R"("a b")", "printable"}}},
      {"use_beam_search", {{"true", "not available"}}},
      {"prompt_embeds", {{R"("x")", "not available"}}},
      {"response_format",
          {{R"({"type":"xml"})", "text, json_object, json_schema"}, {R"({"type":"json_schema"})", "needs \"json_schema\""}}},
      {"guided_regex", {{R"("")", "is empty"}}},
      {"guided_choice", {{"[]", "is empty"}}},
      {"structured_outputs",
          {{"{}", "says no form"}, {R"({"json_object":false})", "says no form"},
              {R"({"regex":"a","json_object":true})", "constrained twice"},
              {R"({"regex":"a","disable_any_whitespace":true})", "not available"}}},
      {"guided_json", {{R"("{no")", "not JSON"}}},
      {"speculative_config",
          {{R"({"metod":"self"})", "did you mean method?"}, {R"("slf")", "did you mean self?"},
              {R"({"method":"eagle3"})", "needs a drafter"}, {"[1]", "an object, or a word"},
              {R"({"method":"self","sparse_attn_metric":"logit","sparse_attn_spread":1})",
                  "\"sparse_attn_spread\" needs \"sparse_attn_metric\""}}},
      {"speculative_confg", {{R"("off")", "did you mean speculative_config?"}}},
      {"sepculative_config", {{"{}", "did you mean speculative_config?"}}},
      {"speculation", {{"{}", "speculative_config"}}},
      {"losless", {{"\"required\"", "did you mean lossless?"}}},
      {"verify_attn_rato", {{"1", "as \"verify_attn_ratio\""}}},
      {"num_speculative_tokens", {{"3", "inside \"speculative_config\""}}},
      {"draft_model", {{R"("x")", "inside \"speculative_config\""}}},
      {"lossless", {{R"("never")", "\"required\""}}},
      {"model", {{"7", "a string"}}},
      {"cache_salt", {{"7", "a string"}}},
  };
  for (const auto& [key, refused] : fields)
    for (const auto& [value, message] : refused) expect_refused(kText, prompt, {"\"" + key + "\":" + value, key, message});
  for (const auto& [value, message] :
      {std::pair("null", "no \"prompt\""), {"[]", "empty"}, {R"("")", "empty"}, {R"(["a",""])", "item 1 is empty"},
          {"[[]]", "empty list"}, {"[1,-1]", "item 1"}, {"[1,2.5]", "item 1"}, {"[1,2.0]", "item 1"}, {"[1,true]", "item 1"},
          {"[9223372036854775808]", "item 0"}, {"[3,16384]", "prompt token 1 is 16384"}})
    expect_refused(kText, "", {fmt::format("{{\"prompt\":{}}}", value), "prompt", message});
}

TEST(Call, BoundsEveryList) {
  using Texts = std::vector<std::string>;
  json biases;
  for (int i = 0; i < 1025; ++i) biases[std::to_string(i)] = 1;
  const std::pair<const char*, json> fields[] = {{"stop", Texts(33, "a")}, {"stop", Texts{std::string(1025, 'a')}},
      {"stop_token_ids", std::vector<int>(129, 5)}, {"cache_salt", std::string(257, 'a')}, {"request_id", std::string(129, 'a')},
      {"logit_bias", biases}, {"bad_words", Texts{std::string(1025, 'a')}}, {"prompt", Texts(257, "a")}, {"n", 64}};
  for (const auto& [key, value] : fields)
    EXPECT_EQ(refusal(kText, json{{key, value}, {"prompt", Texts(5, "a")}}.dump()).param, key);
  EXPECT_EQ(call(kText, {{"n", 64}, {"prompt", Texts(4, "a")}})->choices(), 256u);
  const std::vector<std::vector<int>> prompts(4, std::vector<int>(900, 7));
  EXPECT_EQ(refusal(kText, json{{"n", 64}, {"prompt", prompts}, {"prompt_logprobs", 20}}.dump()).param, "prompt_logprobs");
}

TEST(Call, TellsBothNumbersWhereThePromptIsTooLong) {
  const auto message_of = [](const json& body) {
    const ApiError error = refusal(kText, body.dump());
    EXPECT_EQ(error.code, "context_length_exceeded");
    return error.message;
  };
  const std::string message = message_of({{"prompt", std::vector<int>(1500, 7)}});
  expect_part(message, "1500");
  expect_part(message, "1024");
  // Refused by its size, before any token is made.
  expect_part(message_of({{"prompt", std::string(size_t(4) << 20, 'a')}}), "more than 1024");
  for (const size_t length : {size_t(1), size_t(4) << 20}) {
    const json turn{{"role", "user"}, {"content", std::string(length, 'a')}};
    const json chat{{"messages", json::array_t(length == 1 ? 1025 : 1, turn)}};
    const ApiError error = refusal(kChat, chat.dump());
    EXPECT_EQ(std::tie(error.code, error.param), std::tuple("context_length_exceeded", "messages"));
    expect_part(error.message, "more than 1024");
  }
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    const json body{{"prompt", std::vector<int>(1000, 7)}, {key, 30}};
    expect_part(message_of(body), key);
    EXPECT_EQ(refusal(kText, body.dump()).param, key);
  }
  json body{{"prompt", std::vector<int>(1000, 7)}, {"max_tokens", 30}};
  body["max_tokens"] = 24;
  call(kText, body);
}

TEST(Call, RefusesChatsThatCannotBeRead) {
  expect_refused(kChat, "", {R"({"prompt":"x"})", "prompt", "/v1/completions"});
  expect_refused(kChat, "", {R"({"messages":"x"})", "messages", "a list of messages"});
  const std::pair<std::string, std::string_view> fields[] = {
      {R"("echo":true)", "not available"},
      {R"("continue_final_message":true)", "not available"},
      {R"("top_logprobs":21,"logprobs":true)", "in 0..20"},
      {R"("chat_template":"{{ x }}")", "not available"},
      {R"("tool_choice":"maybe")", "none, auto, required"},
      {R"("tools":[{"type":"function"}])", "item 0"},
      {R"("tools":[{"type":"function","function":{"name":"a","parameters":{"type":"array"}}}])", "of type \"object\""},
      {R"("tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}])", "two"},
      {R"("chat_template_kwargs":{"messages":[]})", "must not set"},
      {R"("chat_template_kwargs":[])", "an object"},
  };
  for (const auto& [field, words] : fields)
    expect_refused(
        kChat, R"("messages":[{"role":"user","content":"x"}])", {field, field.substr(1, field.find('"', 1) - 1), words});
  for (const auto& [message, words] :
      {std::pair("", "empty"), {R"({"role":"user"})", "lacks \"content\""}, {R"({"content":"x"})", "lacks \"role\""},
          {R"({"role":"wizard","content":"x"})", "wizard"}, {R"({"role":"user","content":7})", "a string"},
          {R"({"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]})", "text only"}})
    expect_refused(kChat, "", {fmt::format(R"({{"messages":[{}]}})", message), "messages", words});
  EXPECT_EQ(refusal(kChat, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})").code, "text_only");
  const json tools{{{"type", "function"}, {"function", {{"name", "big"}, {"description", std::string(1100000, 'x')}}}}};
  const ApiError large = refusal(kChat, json{{"messages", kHello}, {"tools", tools}}.dump());
  EXPECT_EQ(large.param, "tools");
  expect_part(large.message, "\"big\"");
}

TEST(Call, FindsModelsByTheirNamesOnly) {
  EXPECT_EQ(call(kText, {{"prompt", "x"}, {"model", "gpt-wren"}})->model().id, "wren");
  EXPECT_EQ(call(kText, {{"prompt", "x"}})->model().id, "wren");
  const ApiError error = refusal(kText, R"({"prompt":"x","model":"Wren"})");
  EXPECT_EQ(std::tie(error.status, error.code, error.type), std::tuple(404, "model_not_found", "not_found_error"));
  expect_part(error.message, "there are: wren");
}

TEST(Call, FillsInTheDefaultsOfEachEndpoint) {
  const Request text = request_of({{"max_tokens", nullptr}, {"temperature", nullptr}, {"stop", nullptr}});
  EXPECT_EQ(text.max_tokens, 16);
  EXPECT_EQ(request_of({{"n_predict", -1}}).max_tokens, -1);
  EXPECT_FALSE(text.sampling.temperature.has_value());
  const auto of_chat = [](std::string_view more) {
    const auto made = Call::parse(kChat, fmt::format(R"({{"messages":{}{}}})", kHello.dump(), more), served_models(), {});
    return std::get<0>(made)->request(0).max_tokens;
  };
  EXPECT_EQ(of_chat(""), -1);
  for (const char* both : {R"(,"max_tokens":9,"max_completion_tokens":5)", R"(,"max_completion_tokens":5,"max_tokens":9)"})
    EXPECT_EQ(of_chat(both), 5) << both;
}

TEST(Call, ReadsTheNamesOfEveryDialect) {
  const auto made =
      call(kText, R"({"prompt":"x","temperature":1e-06,"top_k":-1,"repeat_penalty":1.5,"n_predict":7,"seed":-5,"n_probs":3,
    "cache_salt":"s","priority":-3,"min_p":0.1,"skip_special_tokens":false,"stop_token_ids":[5],
    "logit_bias":{"9":-100},"user":"u","vendor_field":[1,2],"other":null,"speculative_config":"off",
    "request_id":"abc","guided_regex":"[ab]+"})"_json);
  const Request r = made->request(0);
  const SamplingOptions& s = r.sampling;
  EXPECT_EQ(std::tie(s.temperature, s.top_k, s.repetition_penalty, s.seed), std::tuple(0.0, 0, 1.5, uint64_t(-5)));
  EXPECT_EQ(std::tie(s.logprobs, r.max_tokens, r.priority, r.cache_salt), std::tuple(3, 7, -3, "s"));
  EXPECT_EQ(request_of({{"seed", INT64_MAX}}).sampling.seed, INT64_MAX);
  EXPECT_EQ(std::tie(r.skip_special_tokens, r.stop_ids, r.speculation.proposer, r.structured.kind, r.structured.text, made->id()),
      std::tuple(false, Ints{5}, "none", Regex, "[ab]+", "cmpl-abc"));
  EXPECT_EQ(made->unknown_fields(), 2);
}

TEST(Call, ReadsEveryShapeOfStructuredOutput) {
  const json schema{{"type", "object"}};
  const std::string text = schema.dump();
  const struct {
    json fields;
    StructuredOutput::Kind kind;
    std::string text;
  } cases[] = {
      {{{"response_format", {{"type", "text"}}}}, None, ""},
      {{{"response_format", {{"type", "json_object"}}}}, JsonObject, ""},
      {{{"response_format", {{"type", "json_object"}, {"schema", schema}}}}, JsonSchema, text},
      {{{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "a"}, {"schema", schema}, {"strict", true}}}}}},
          JsonSchema, text},
      {{{"structured_outputs", {{"json", schema}}}}, JsonSchema, text},
      {{{"structured_outputs", {{"json", text}, {"regex", nullptr}}}}, JsonSchema, text},
      {{{"structured_outputs", {{"grammar", "root ::= \"a\""}}}}, Grammar, "root ::= \"a\""},
      {{{"guided_json", schema}}, JsonSchema, text},
      {{{"json_schema", schema}}, JsonSchema, text},
      {{{"grammar", ""}}, None, ""},
      {{{"structured_outputs", {{"choice", {"a", "b"}}}}}, Choice, ""},
  };
  for (const auto& c : cases) {
    const StructuredOutput made = request_of(c.fields).structured;
    EXPECT_EQ(std::tie(made.kind, made.text), std::tie(c.kind, c.text)) << c.fields;
    if (c.kind == Choice) { EXPECT_EQ(made.choices, (std::vector<std::string>{"a", "b"})); }
  }
}

TEST(Call, TakesLosslessRequiredWithAndWithoutAMethod) {
  EXPECT_EQ(call(kText, {{"prompt", "x"}, {"lossless", "required"}})->choices(), 1u);
  EXPECT_EQ(request_of({{"speculative_config", {{"method", "self"}, {"lossless", "required"}}}}).speculation.proposer, "self");
  Request defaults;
  defaults.speculation.proposer = "self", defaults.speculation.policy = "streamingllm", defaults.speculation.verify = false;
  const auto lossy = models_of({.defaults = defaults});
  const auto refused = [&](const std::string& fields) { return refusal(kText, R"({"prompt":"x",)" + fields + "}", *lossy); };
  EXPECT_EQ(refused(R"("lossless":"required")").param, "lossless");
  for (const char* fields : {R"("speculative_config":{"method":"suffix","precision_class":"approx","lossless":"required"})",
           R"("lossless":true,"speculative_config":{"verify":"sparse"})"})
    expect_part(refused(fields).message, "is lossy");
  EXPECT_EQ(refused(R"("lossless":true,"speculative_config":"off")").message, "accepted");
}

TEST(Call, PutsTheConstraintOfABodyInPlaceOfTheServers) {
  Request defaults;
  defaults.structured = {Regex, "a", {}}, defaults.stop = {"a"}, defaults.sampling.logit_bias = {{5, 1}};
  const auto models = models_of({.defaults = defaults});
  const auto request = [&](json fields) {
    fields["prompt"] = "x";
    return call(kText, fields, {}, *models)->request(0);
  };
  const Request said = request({{"stop", json::array()}, {"logit_bias", {{"7", 2}}}});
  EXPECT_EQ(std::tuple(said.stop.size(), said.sampling.logit_bias), std::tuple(0u, std::vector{std::pair(7, 2.0f)}));
  const auto kind = [&](const json& fields) { return request(fields).structured.kind; };
  const json text{{"type", "text"}};
  EXPECT_EQ(kind(json::object()), Regex);
  EXPECT_EQ(kind({{"response_format", {{"type", "json_object"}}}}), JsonObject);
  EXPECT_EQ(kind({{"response_format", text}}), None);
  EXPECT_EQ(kind({{"guided_choice", {"b"}}, {"response_format", text}}), Choice);
}

TEST(Call, ReadsValuesThatMeanNothingAndTheEndOfPrompts) {
  EXPECT_EQ(request_of({{"repeat_last_n", 0}, {"repeat_penalty", 1.1}}).sampling.repetition_penalty, 1);
  EXPECT_EQ(request_of({{"n_probs", 0}, {"typical_p", 1}, {"top_n_sigma", -1}}).sampling.logprobs, -1);
  EXPECT_FALSE(request_of({{"cache_prompt", false}}).cache_prompt);
  EXPECT_FALSE(request_of({{"seed", -1}}).sampling.seed);
  EXPECT_EQ(request_of({{"bad_words", {"sea"}}}).sampling.bad_words.size(), 2u) << "at the beginning, and behind a blank";
  EXPECT_EQ(request_of({{"logprobs", 5}, {"top_logprobs", 2}}).sampling.logprobs, 5);
  EXPECT_EQ(call(kText, {{"prompt", {1, 2, 3}}, {"truncate_prompt_tokens", 2}})->request(0).prompt, (Ints{2, 3}));
  EXPECT_TRUE(call(kText, {{"prompt", "x"}, {"n", 2}, {"temperature", 1}})->request(0).sampling.seed);
}

TEST(Call, NumbersChoicesByPromptAndSample) {
  const auto made = call(kText, {{"prompt", {{1, 2}, {3}}}, {"n", 2}});
  ASSERT_EQ(made->choices(), 4u);
  EXPECT_EQ(made->prompt_tokens(), 3);
  EXPECT_EQ(made->request(1).prompt, (Ints{1, 2}));
  EXPECT_EQ(made->request(2).prompt, Ints{3});
  EXPECT_EQ(made->request(3).sample_index, 1u);
}

TEST(ApiError, KnowsTheEnginesWords) {
  for (const auto& [word, status] : {std::pair("grammar_dead_end", 400), {"numerical_error", 500}, {"device_lost", 503}}) {
    const ApiError error = api_error(Error{std::string(word) + ": why"});
    EXPECT_EQ(std::tie(error.status, error.code), std::tie(status, word));
  }
}

TEST(ApiError, HasOpenAisShape) {
  EXPECT_EQ(error_body({.message = "m", .param = "p"}),
      R"({"error":{"message":"m","type":"invalid_request_error","param":"p","code":400}})");
  EXPECT_EQ(error_body(api_error(503, "busy", "overloaded")),
      R"({"error":{"message":"busy","type":"unavailable_error","param":null,"code":"overloaded"}})");
  for (const auto& [status, type] : {std::pair(403, "authentication_error"), {501, "not_supported_error"}})
    EXPECT_EQ(api_error(status, "").type, type);
  EXPECT_EQ(api_error(usage_error("x")).status, 400);
  const ApiError full = api_error(Error{"4096 requests are waiting, no more are taken: try again later"});
  EXPECT_EQ(full.status, 429);
  EXPECT_GT(full.retry_after_seconds, 0);
  EXPECT_EQ(api_error(Error{"the device failed"}).status, 500);
}

}
}
