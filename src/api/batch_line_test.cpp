#include "api/batch_line.h"

#include <fmt/format.h>

#include <tuple>

#include "api/batch_answer.h"
#include "base/test_results.h"

namespace hunch {
namespace {

using namespace test;

BatchLine parsed(std::string_view json) {
  BatchLine line;
  const Status status = parse_batch_line(json, line);
  EXPECT_TRUE(status.ok()) << json << ": " << status.error().message;
  return line;
}

std::string refused(std::string_view json, BatchLine* out = nullptr) {
  BatchLine line;
  const Status status = parse_batch_line(json, out ? *out : line);
  EXPECT_TRUE(!status.ok() && status.error().kind == Error::Kind::Usage) << json;
  return error_of(status);
}

TEST(BatchLine, ReadsEveryParameterUnderTheNamesOfOpenAiAndVllm) {
  const BatchLine line = parsed(
      R"({"id": "a", "prompt": "Once", "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "seed": 9223372036854775807,
          "stop": ["x", "yz"], "stop_token_ids": [3, 4], "logprobs": 5, "prompt_logprobs": 2, "n": 3, "ignore_eos": true,
          "presence_penalty": 0.25, "frequency_penalty": -0.5, "repetition_penalty": 1.5, "logit_bias": {"7": -100, "8": 2.5},
          "bad_words": ["no"], "allowed_token_ids": [1, 2], "min_tokens": 4, "priority": -3, "echo": true, "add_special_tokens": false, "model": "m", "user": "u",
          "speculative_config": {"method": "self", "num_speculative_tokens": 3}})");
  const Body& b = line.body;
  const Request& r = b.request;
  const SamplingOptions& s = r.sampling;
  EXPECT_EQ(std::tie(line.id, b.input, b.prompts[0].text, b.samples, b.echo, b.add_special_tokens, b.speculation),
      std::tuple(R"("a")", Body::Input::Prompts, "Once", 3, true, false, R"({"method":"self","num_speculative_tokens":3})"));
  EXPECT_EQ(b.bad_words, std::vector<std::string>{"no"});
  EXPECT_EQ(std::tie(r.max_tokens, r.ignore_eos, r.priority), std::tuple(9, true, -3));
  EXPECT_EQ(r.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(r.stop_ids, (Ints{3, 4}));
  EXPECT_EQ(std::tie(s.temperature, s.top_p, s.top_k, s.min_p, s.seed), std::tuple(0.5, 0.9, 20, 0.1, INT64_MAX));
  EXPECT_EQ(std::tie(s.logprobs, s.prompt_logprobs, s.min_tokens, s.presence_penalty, s.frequency_penalty, s.repetition_penalty),
      std::tuple(5, 2, 4, 0.25, -0.5, 1.5));
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{7, -100.0f}, {8, 2.5f}}));
  EXPECT_EQ(s.allowed_token_ids, (Ints{1, 2}));
}

TEST(BatchLine, KeepsDefaultsWhereAKeyIsAbsentOrNull) {
  BatchLine line;
  line.body.request.max_tokens = 77, line.body.request.sampling.temperature = 0.25;
  ASSERT_TRUE(parse_batch_line(R"({"id": 1, "prompt": [5], "max_tokens": null, "tools": null})", line).ok());
  const Request& r = line.body.request;
  EXPECT_EQ(
      std::tie(r.max_tokens, r.sampling.temperature, line.body.prompts[0].ids, line.id), std::tuple(77, 0.25, Ints{5}, "1"));
}

TEST(BatchLine, ReadsMessagesAndPartsOfText) {
  const BatchLine line = parsed(
      R"({"id": "a", "messages": [{"role": "developer", "content": "Be brief."},
          {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]})");
  const auto& turns = line.body.turns;
  EXPECT_EQ(std::tuple(turns.size(), turns.at(0).role, turns.at(1).content), std::tuple(2u, "system", "Hello"));
}

TEST(BatchLine, ReadsLogprobsInBothDialects) {
  for (const auto& [fields, logprobs] : {std::pair(R"("logprobs":true,"top_logprobs":4)", 4),
           {R"("top_logprobs":4,"logprobs":true)", 4}, {R"("logprobs":true)", 0}, {R"("logprobs":false)", -1}})
    EXPECT_EQ(parsed(fmt::format(R"({{"id":1,"prompt":"x",{}}})", fields)).body.request.sampling.logprobs, logprobs) << fields;
}

TEST(BatchLine, ReadsOpenAisEnvelope) {
  const BatchLine line = parsed(
      R"({"id": 3, "custom_id": "r-1", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x", "max_tokens": 2}})");
  EXPECT_EQ(std::tie(line.wrapped, line.id, line.body.request.max_tokens), std::tuple(true, R"("r-1")", 2));
}

// Most keys are read by what reads those of the server's bodies (call_test.cpp).
TEST(BatchLine, NamesTheKeyAtFault) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {R"(no json)", "not JSON"},
      {R"([1])", "an object"},
      {R"({"prompt":"x"})", "no \"id\""},
      {R"({"id":[1],"prompt":"x"})", "\"id\" must be"},
      {R"({"id":1})", "no \"prompt\""},
      {R"("messages":[])", "exclude each other"},
      {R"({"id":1,"prompt":["x","y"]})", "one prompt a line"},
      {R"({"id":1,"prompt":[1,2.5]})", "item 1 must be a token id"},
      {R"({"id":1,"prompt":[-1]})", "item 0 must be a token id"},
      {R"("temprature":1)", "did you mean temperature?"},
      {R"("temperature":-1)", "\"temperature\" must be a number in 0..100"},
      {R"("max_tokens":-1)", "\"max_tokens\""},
      {R"("max_tokens":2,"min_tokens":3)", "more than \"max_tokens\""},
      {R"("seed":-2)", "\"seed\""},
      {R"("stop":null,"n":0)", "\"n\""},
      {R"("top_logprobs":3)", "needs \"logprobs\""},
      {R"("prompt":"y")", "twice"},
      {R"("stream":true)", "\"stream\" is not available"},
      {R"("speculative_config":[])", "an object"},
      {R"({"id":1,"messages":[{"role":"user"}]})", "lacks \"content\""},
      {R"({"id":1,"messages":[{"role":"user","content":"x","tool_calls":[]}]})", "tool_calls"},
      {R"({"id":1,"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "text only"},
      {R"({"custom_id":"a","url":"/v1/embeddings","body":{"prompt":"x"}})", "/v1/embeddings"},
      {R"({"custom_id":"a","method":"POST"})", "\"body\" is missing"},
      {R"({"custom_id":"a","bod":1,"body":{"prompt":"x"}})", "did you mean body?"},
      {"{\"id\":1,\"prompt\":\"\xff\"}", "not JSON"},
  };
  for (const auto& [text, words] : cases) {
    // A key alone stands behind a good id and a good prompt.
    const std::string json = text.starts_with('"') ? R"({"id":1,"prompt":"x",)" + std::string(text) + "}" : std::string(text);
    expect_part(refused(json), words);
  }
}

TEST(BatchLine, KeepsTheIdOfALineThatIsRefused) {
  BatchLine line;
  refused(R"({"id":"a","prompt":3})", &line);
  EXPECT_EQ(line.id, R"("a")");
  refused(R"({"custom_id":"b","body":{"prompt":3}})", &line);
  EXPECT_EQ(line.id, R"("b")");
  EXPECT_TRUE(line.wrapped);
}

TEST(BatchLine, RefusesNestingWithoutBound) {
  refused(R"({"id":1,"prompt":)" + std::string(100000, '[') + std::string(100000, ']') + "}");
}

TEST(BatchAnswer, BlamesTheLineOrTheEngine) {
  EXPECT_EQ(batch_error({}, "7", Error{"why"}, 2), R"({"id":7,"error":{"message":"why","type":"engine_error","line":2}})");
  expect_part(batch_error({}, "7", usage_error("why"), 2), R"("type":"invalid_request_error")");
}

TEST(BatchAnswer, SumsWhatTheSamplesTook) {
  BatchLine line = parsed(R"({"id":"a","prompt":"x","n":2})");
  std::vector<BatchSample> samples(2);
  Generation &first = samples[0].generation, &second = samples[1].generation;
  first.prompt_tokens = second.prompt_tokens = 5, first.reused_tokens = 4, second.reused_tokens = 3;
  first.tokens = {1, 2, 3}, second.tokens = {4}, first.text = "\"\n";
  const std::string answer = batch_answer(line, samples, "m", nullptr);
  EXPECT_TRUE(answer.starts_with(R"({"id":"a",)")) << answer;
  EXPECT_EQ(answer.find('\n'), std::string::npos);
  expect_part(
      answer, R"("usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":3})");
  expect_part(answer, R"("index":1)");
  EXPECT_EQ(answer.find("approx"), std::string::npos);
  first.lossless = false;
  first.approximation = second.approximation = {
      .precision_class = "approx", .group_rows = 4, .traversal = "bfs", .own_choices = 3, .shared_choices = 9};
  expect_part(batch_answer(line, samples, "m", nullptr),
      R"("lossless":false,"approx":{"precision_class":"approx","group_rows":4,"traversal":"bfs",)"
      R"("choices":{"own":6,"shared":18,"reused":0}})");
}

}
}
