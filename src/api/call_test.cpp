// What bodies are refused, how, and what is read from those that are not.
#include "api/call.h"

#include <tuple>
#include <utility>

#include "api/api_testing.h"

namespace hunch {
namespace {

using test::call;
using test::json;
using namespace nlohmann::literals;
using test::refusal;
constexpr Endpoint kText = Endpoint::Completions, kChat = Endpoint::ChatCompletions;

struct Case {
  std::string_view fields, param, message;
};

// Behind "prompt":"x", or as a body of its own where it begins with something else than a key.
std::string body_of(std::string_view fields, std::string_view base) {
  return fields.starts_with('"') ? "{" + std::string(base) + "," + std::string(fields) + "}" : std::string(fields);
}

void expect_refused(Endpoint endpoint, std::string_view base, const Case& c) {
  const std::string body = body_of(c.fields, base);
  const ApiError error = refusal(endpoint, body);
  EXPECT_EQ(error.status, 400) << body;
  EXPECT_EQ(error.type, "invalid_request_error") << body;
  EXPECT_EQ(error.param, c.param) << body << ": " << error.message;
  EXPECT_NE(error.message.find(c.message), std::string::npos) << body << ": " << error.message;
}

TEST(Call, RefusesWhatIsNoJsonAndSaysWhere) {
  const Case cases[] = {
      {"", "", "not JSON"},
      {"nope", "", "(byte 1, near \"ope\""},
      {R"({"prompt":"x","seed":NaN})", "", "(byte 21"},
      {R"({"prompt":"x",})", "", "(byte 14"},
      {R"({"prompt":"x" /* c */})", "", "(byte 14"},
      {R"({"prompt":"x")", "", "where it ends"},
      {"\xef\xbb\xbf{\"prompt\":\"x\"}", "", "not JSON"},
      {"{\"prompt\":\"\xff\"}", "", "(byte 11"},
      {"[1]", "", "must be an object"},
      {"7", "", "must be an object"},
  };
  for (const Case& c : cases) expect_refused(kText, "", c);
}

TEST(Call, RefusesDeepNestingAndKeysWithoutBound) {
  std::string open, close;
  for (int i = 0; i < 100000; ++i) open += R"({"a":)", close += '}';
  for (const std::string& deep :
       {R"({"prompt":)" + std::string(100000, '[') + std::string(100000, ']') + "}", open + "1" + close})
    EXPECT_NE(refusal(kText, deep).message.find("deeper than 64"), std::string::npos);
  for (const std::string& cut : {R"({"prompt":)" + std::string(100000, '['), open}) EXPECT_EQ(refusal(kText, cut).status, 400);
  std::string many = R"({"prompt":"x")";
  for (int i = 0; i < 2000; ++i) many += ",\"k" + std::to_string(i) + "\":1";
  const ApiError error = refusal(kText, many + "}");
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.code, "too_many_fields");
}

TEST(Call, NamesTheFieldAtFault) {
  const Case cases[] = {
      {R"("prompt":"y")", "prompt", "twice"},
      {R"({"max_tokens":1})", "prompt", "no \"prompt\""},
      {R"({"prompt":null})", "prompt", "no \"prompt\""},
      {R"({"prompt":[]})", "prompt", "empty"},
      {R"({"prompt":""})", "prompt", "empty"},
      {R"({"prompt":["a",""]})", "prompt", "item 1 is empty"},
      {R"({"prompt":[[]]})", "prompt", "empty list"},
      {R"({"prompt":[1,-1]})", "prompt", "item 1"},
      {R"({"prompt":[1,2.5]})", "prompt", "item 1"},
      {R"({"prompt":[1,true]})", "prompt", "item 1"},
      {R"({"prompt":[9223372036854775808]})", "prompt", "item 0"},
      {R"({"prompt":[3,16384]})", "prompt", "prompt token 1 is 16384"},
      {R"({"prompt":[[1],"a"],"n":200})", "n", "in 1..64"},
      {R"({"prompt":{"a":1}})", "prompt", "must be a string"},
      {R"({"messages":[],"prompt":"x"})", "messages", "chat/completions"},
      {R"("max_tokens":-1)", "max_tokens", "whole number in 0.."},
      {R"("max_tokens":9223372036854775808)", "max_tokens", "whole number"},
      {R"("max_tokens":1e308)", "max_tokens", "whole number"},
      {R"("max_tokens":"16")", "max_tokens", "not a string"},
      {R"("max_tokens":1.5)", "max_tokens", "whole number"},
      {R"("max_tokens":5000)", "max_tokens", "context holds 1024"},
      {R"("min_tokens":20)", "min_tokens", "more than the 16"},
      {R"("min_tokens":20,"max_tokens":null)", "min_tokens", "more than the 16"},
      {R"("min_tokens":5,"max_tokens":4)", "min_tokens", "more than \"max_tokens\""},
      {R"("temperature":-0.1)", "temperature", "in 0..100"},
      {R"("temperature":1e38)", "temperature", "in 0..100"},
      {R"("temperature":"0")", "temperature", "a number"},
      {R"("top_p":0)", "top_p", "above 0"},
      {R"("top_p":1.01)", "top_p", "at most 1"},
      {R"("min_p":-0.1)", "min_p", "in 0..1"},
      {R"("top_k":-2)", "top_k", "whole number"},
      {R"("presence_penalty":2.1)", "presence_penalty", "in -2..2"},
      {R"("frequency_penalty":-2.1)", "frequency_penalty", "in -2..2"},
      {R"("repetition_penalty":0)", "repetition_penalty", "above 0"},
      {R"("n":0)", "n", "in 1..64"},
      {R"("n":1000000)", "n", "in 1..64"},
      {R"("best_of":5)", "best_of", "must equal \"n\""},
      {R"("suffix":"y")", "suffix", "not available"},
      {R"("seed":1.5)", "seed", "whole number"},
      {R"("seed":9223372036854775808)", "seed", "whole number"},
      {R"("stop":"")", "stop", "empty string"},
      {R"("stop":["a",""])", "stop", "empty string"},
      {R"("stop":7)", "stop", "a string or a list"},
      {R"("logit_bias":{"a":1})", "logit_bias", "no token id"},
      {R"("logit_bias":{"-1":1})", "logit_bias", "no token id"},
      {R"("logit_bias":{"5":101})", "logit_bias", "in -100..100"},
      {R"("logit_bias":{"5":1e308})", "logit_bias", "in -100..100"},
      {R"("logit_bias":{"99999":1})", "logit_bias", "ids of this model"},
      {R"("stop_token_ids":[99999])", "stop_token_ids", "item 0 is 99999"},
      {R"("logprobs":21)", "logprobs", "in 0..20"},
      {R"("n_probs":1000000000)", "n_probs", "in 0..20"},
      {R"("top_logprobs":3)", "top_logprobs", "needs \"logprobs\""},
      {R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs", "\"stream\" to false"},
      {R"("echo":true,"logprobs":1,"stream":true)", "echo", "\"stream\" to false"},
      {R"("stream_options":{"include_usage":true})", "stream_options", "needs \"stream\""},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options", "true or false"},
      {R"("priority":9223372036854775807)", "priority", "whole number"},
      {R"("id_slot":-2)", "id_slot", "whole number"},
      {R"("timeout":0)", "timeout", "above 0"},
      {R"("timeout":1e12)", "timeout", "at most 86400"},
      {R"("request_id":"a b")", "request_id", "printable"},
      {R"("use_beam_search":true)", "use_beam_search", "not available"},
      {R"("prompt_embeds":"x")", "prompt_embeds", "not available"},
      {R"("response_format":{"type":"xml"})", "response_format", "text, json_object, json_schema"},
      {R"("response_format":{"type":"json_schema"})", "response_format", "needs \"json_schema\""},
      {R"("guided_regex":"")", "guided_regex", "is empty"},
      {R"("guided_choice":[])", "guided_choice", "is empty"},
      {R"("structured_outputs":{})", "structured_outputs", "says no form"},
      {R"("structured_outputs":{"regex":"a","json_object":true})", "structured_outputs", "constrained twice"},
      {R"("guided_regex":"a","guided_grammar":"b")", "guided_grammar", "constrained twice"},
      {R"("guided_json":"{no")", "guided_json", "not JSON"},
      {R"("speculative_config":{"metod":"self"})", "speculative_config", "did you mean method?"},
      {R"("speculative_config":"slf")", "speculative_config", "did you mean self?"},
      {R"("speculative_config":{"method":"eagle3"})", "speculative_config", "needs a drafter"},
      {R"("speculative_config":[1])", "speculative_config", "an object, or a word"},
      {R"("speculative_confg":"off")", "speculative_confg", "did you mean speculative_config?"},
      {R"("sepculative_config":{})", "sepculative_config", "did you mean speculative_config?"},
      {R"("speculation":{})", "speculation", "speculative_config"},
      {R"("num_speculative_tokens":3)", "num_speculative_tokens", "inside \"speculative_config\""},
      {R"("draft_model":"x")", "draft_model", "inside \"speculative_config\""},
      {R"("lossless":"never")", "lossless", "\"required\""},
      {R"("model":7)", "model", "a string"},
      {R"("cache_salt":7)", "cache_salt", "a string"},
  };
  for (const Case& c : cases) expect_refused(kText, R"("prompt":"x")", c);
}

TEST(Call, BoundsEveryList) {
  const auto listed = [](const std::string& item, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += (i ? "," : "") + item;
    return out;
  };
  const auto param = [](const std::string& fields) { return refusal(kText, R"({"prompt":"x",)" + fields + "}").param; };
  EXPECT_EQ(param("\"stop\":[" + listed("\"a\"", 33) + "]"), "stop");
  EXPECT_EQ(param("\"stop\":[\"" + std::string(1025, 'a') + "\"]"), "stop");
  EXPECT_EQ(param("\"stop_token_ids\":[" + listed("5", 129) + "]"), "stop_token_ids");
  EXPECT_EQ(param("\"cache_salt\":\"" + std::string(257, 'a') + "\""), "cache_salt");
  std::string biases;
  for (int i = 0; i < 1025; ++i) biases += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
  EXPECT_EQ(param("\"logit_bias\":{" + biases + "}"), "logit_bias");
  EXPECT_EQ(refusal(kText, R"({"prompt":[)" + listed("\"a\"", 257) + "]}").param, "prompt");
  EXPECT_EQ(refusal(kText, R"({"n":64,"prompt":[)" + listed("\"a\"", 5) + "]}").param, "n");
  EXPECT_EQ(call(kText, json::parse(R"({"n":64,"prompt":[)" + listed("\"a\"", 4) + "]}"))->choices(), 256u);
}

TEST(Call, TellsBothNumbersWhereThePromptIsTooLong) {
  json body{{"prompt", std::vector<int>(1500, 7)}};
  ApiError error = refusal(kText, body.dump());
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_NE(error.message.find("1500"), std::string::npos);
  EXPECT_NE(error.message.find("1024"), std::string::npos);
  body["prompt"] = std::string(size_t(4) << 20, 'a');  // refused by its size, before any token is made
  error = refusal(kText, body.dump());
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_NE(error.message.find("more than 1024"), std::string::npos) << error.message;
  body["prompt"] = std::vector<int>(1000, 7), body["max_tokens"] = 30;
  EXPECT_EQ(refusal(kText, body.dump()).code, "context_length_exceeded");
  body["max_tokens"] = 24;
  EXPECT_EQ(refusal(kText, body.dump()).status, 200);
}

TEST(Call, RefusesChatsThatCannotBeRead) {
  const Case cases[] = {
      {R"({"messages":[]})", "messages", "empty"},
      {R"({"prompt":"x"})", "prompt", "/v1/completions"},
      {R"({"messages":"x"})", "messages", "a list of messages"},
      {R"({"messages":[{"role":"user"}]})", "messages", "lacks \"content\""},
      {R"({"messages":[{"content":"x"}]})", "messages", "lacks \"role\""},
      {R"({"messages":[{"role":"wizard","content":"x"}]})", "messages", "wizard"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages", "a string"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]})", "messages",
       "text only"},
      {R"("echo":true)", "echo", "not available"},
      {R"("top_logprobs":21,"logprobs":true)", "top_logprobs", "in 0..20"},
      {R"("chat_template":"{{ x }}")", "chat_template", "not available"},
      {R"("tool_choice":"maybe")", "tool_choice", "none, auto, required"},
      {R"("tools":[{"type":"function"}])", "tools", "item 0"},
      {R"("chat_template_kwargs":{"messages":[]})", "chat_template_kwargs", "must not set"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs", "an object"},
  };
  for (const Case& c : cases) expect_refused(kChat, R"("messages":[{"role":"user","content":"x"}])", c);
  EXPECT_EQ(refusal(kChat, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})").code, "text_only");
  json tools = json::array();
  tools.push_back({{"type", "function"}, {"function", {{"name", "big"}, {"description", std::string(1100000, 'x')}}}});
  const ApiError large = refusal(kChat, json{{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"tools", tools}}.dump());
  EXPECT_EQ(large.param, "tools");
  EXPECT_NE(large.message.find("\"big\""), std::string::npos) << large.message;
}

TEST(Call, FindsModelsByTheirNamesOnly) {
  EXPECT_EQ(call(kText, {{"prompt", "x"}, {"model", "gpt-wren"}})->model().id, "wren");
  EXPECT_EQ(call(kText, {{"prompt", "x"}})->model().id, "wren");
  const ApiError error = refusal(kText, R"({"prompt":"x","model":"Wren"})");
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  EXPECT_EQ(error.type, "not_found_error");
  EXPECT_NE(error.message.find("there are: wren"), std::string::npos);
}

TEST(Call, FillsInTheDefaultsOfEachEndpoint) {
  const auto text = call(kText, {{"prompt", "x"}, {"max_tokens", nullptr}, {"temperature", nullptr}, {"stop", nullptr}});
  EXPECT_EQ(text->request(0).max_tokens, 16);
  EXPECT_FALSE(text->request(0).sampling.temperature.has_value());
  const json messages{{{"role", "user"}, {"content", "x"}}};
  EXPECT_EQ(call(kChat, {{"messages", messages}})->request(0).max_tokens, -1);
  EXPECT_EQ(call(kChat, {{"messages", messages}, {"max_tokens", 9}, {"max_completion_tokens", 5}})->request(0).max_tokens, 5);
  EXPECT_EQ(call(kChat, {{"messages", messages}, {"max_completion_tokens", 5}, {"max_tokens", 9}})->request(0).max_tokens, 5);
}

TEST(Call, ReadsTheNamesOfEveryDialect) {
  const auto made =
      call(kText, R"({"prompt":"x","temperature":1e-06,"top_k":-1,"repeat_penalty":1.5,"n_predict":7,"seed":-5,"n_probs":3,
    "cache_salt":"s","priority":-3,"min_p":0.1,"skip_special_tokens":false,"stop_token_ids":[5],
    "logit_bias":{"9":-100},"user":"u","vendor_field":[1,2],"other":null,"speculative_config":"off",
    "request_id":"abc","guided_regex":"[ab]+"})"_json);
  const Request r = made->request(0);
  EXPECT_EQ(r.sampling.temperature, 0.0);
  EXPECT_EQ(r.sampling.top_k, 0);
  EXPECT_EQ(r.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_EQ(r.sampling.seed, uint64_t(-5));
  EXPECT_EQ(r.sampling.logprobs, 3);
  EXPECT_EQ(r.cache_salt, "s");
  EXPECT_EQ(r.priority, -3);
  EXPECT_FALSE(r.skip_special_tokens);
  EXPECT_EQ(r.stop_ids, std::vector<int32_t>{5});
  EXPECT_EQ(r.speculation.proposer, "none");
  EXPECT_EQ(r.structured.kind, StructuredOutput::Kind::Regex);
  EXPECT_EQ(r.structured.text, "[ab]+");
  EXPECT_EQ(made->id(), "cmpl-abc");
  EXPECT_EQ(made->unknown_fields(), 2);
}

TEST(Call, ReadsEveryShapeOfStructuredOutput) {
  using Kind = StructuredOutput::Kind;
  const json schema{{"type", "object"}};
  const struct {
    json fields;
    Kind kind;
    std::string text;
  } cases[] = {
      {{{"response_format", {{"type", "text"}}}}, Kind::None, ""},
      {{{"response_format", {{"type", "json_object"}}}}, Kind::JsonObject, ""},
      {{{"response_format", {{"type", "json_object"}, {"schema", schema}}}}, Kind::JsonSchema, schema.dump()},
      {{{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "a"}, {"schema", schema}, {"strict", true}}}}}},
       Kind::JsonSchema,
       schema.dump()},
      {{{"structured_outputs", {{"json", schema}}}}, Kind::JsonSchema, schema.dump()},
      {{{"structured_outputs", {{"json", schema.dump()}, {"regex", nullptr}}}}, Kind::JsonSchema, schema.dump()},
      {{{"structured_outputs", {{"grammar", "root ::= \"a\""}}}}, Kind::Grammar, "root ::= \"a\""},
      {{{"guided_json", schema}}, Kind::JsonSchema, schema.dump()},
      {{{"json_schema", schema}}, Kind::JsonSchema, schema.dump()},
      {{{"grammar", ""}}, Kind::None, ""},
      {{{"structured_outputs", {{"choice", {"a", "b"}}}}}, Kind::Choice, ""},
  };
  for (const auto& c : cases) {
    json body = c.fields;
    body["prompt"] = "x";
    const StructuredOutput made = call(kText, body)->request(0).structured;
    EXPECT_EQ(made.kind, c.kind) << body;
    EXPECT_EQ(made.text, c.text) << body;
    if (c.kind == Kind::Choice) { EXPECT_EQ(made.choices, (std::vector<std::string>{"a", "b"})); }
  }
}

TEST(Call, TakesLosslessRequiredWithAndWithoutAMethod) {
  EXPECT_EQ(call(kText, {{"prompt", "x"}, {"lossless", "required"}})->choices(), 1u);
  const auto made = call(kText, {{"prompt", "x"}, {"speculative_config", {{"method", "self"}, {"lossless", "required"}}}});
  EXPECT_EQ(made->request(0).speculation.proposer, "self");
  ServedModels lossy;
  Request defaults;
  defaults.speculation.proposer = "self", defaults.speculation.policy = "streamingllm", defaults.speculation.verify = false;
  ASSERT_TRUE(lossy.add({.id = "lossy", .engine = &test::served_engine(), .defaults = defaults}).ok());
  const auto refused = Call::parse(kText, R"({"prompt":"x","lossless":"required"})", lossy, {});
  ASSERT_TRUE(std::holds_alternative<ApiError>(refused));
  EXPECT_EQ(std::get<ApiError>(refused).param, "lossless");
  const auto approximate = Call::parse(
      kText, R"({"prompt":"x","speculative_config":{"method":"suffix","precision_class":"approx","lossless":"required"}})", lossy,
      {});
  ASSERT_TRUE(std::holds_alternative<ApiError>(approximate));
  EXPECT_NE(std::get<ApiError>(approximate).message.find("is lossy"), std::string::npos);
  const auto sparse = Call::parse(kText, R"({"prompt":"x","lossless":true,"speculative_config":{"verify":"sparse"}})", lossy, {});
  ASSERT_TRUE(std::holds_alternative<ApiError>(sparse));
  EXPECT_NE(std::get<ApiError>(sparse).message.find("is lossy"), std::string::npos);
  const auto own = Call::parse(kText, R"({"prompt":"x","lossless":true,"speculative_config":"off"})", lossy, {});
  EXPECT_TRUE(std::holds_alternative<std::unique_ptr<Call>>(own));
}

TEST(Call, NumbersChoicesByPromptAndSample) {
  const auto made = call(kText, {{"prompt", {{1, 2}, {3}}}, {"n", 2}});
  ASSERT_EQ(made->choices(), 4u);
  EXPECT_EQ(made->prompt_tokens(), 3);
  EXPECT_EQ(made->request(1).prompt, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(made->request(2).prompt, std::vector<int32_t>{3});
  EXPECT_EQ(made->request(3).sample_index, 1u);
}

TEST(ApiError, KnowsTheEnginesWords) {
  for (const auto& [word, status] :
       {std::pair("grammar_dead_end", 400), std::pair("numerical_error", 500), std::pair("device_lost", 503)}) {
    const ApiError error = api_error(Error{std::string(word) + ": why"});
    EXPECT_EQ(std::tie(error.status, error.code), std::tuple(status, word));
  }
}

TEST(ApiError, HasOpenAisShape) {
  EXPECT_EQ(error_body({.message = "m", .param = "p"}),
            R"({"error":{"message":"m","type":"invalid_request_error","param":"p","code":400}})");
  EXPECT_EQ(error_body(api_error(503, "busy", "overloaded")),
            R"({"error":{"message":"busy","type":"unavailable_error","param":null,"code":"overloaded"}})");
  EXPECT_EQ(api_error(usage_error("x")).status, 400);
  EXPECT_EQ(api_error(Error{"4096 requests are waiting, no more are taken: try again later"}).status, 429);
  EXPECT_GT(api_error(Error{"4096 requests are waiting, no more are taken: try again later"}).retry_after_seconds, 0);
  EXPECT_EQ(api_error(Error{"the device failed"}).status, 500);
}

}  // namespace
}  // namespace hunch
