#include "api/batch_line.h"

#include <gtest/gtest.h>

#include "api/batch_answer.h"

namespace hunch {
namespace {

BatchLine parsed(std::string_view json) {
  BatchLine line;
  const Status status = parse_batch_line(json, line);
  EXPECT_TRUE(status.ok()) << json << ": " << status.error().message;
  return line;
}

std::string refused(std::string_view json, BatchLine* out = nullptr) {
  BatchLine line;
  const Status status = parse_batch_line(json, line);
  if (out) *out = line;
  EXPECT_FALSE(status.ok()) << json;
  if (status.ok()) return "";
  EXPECT_EQ(status.error().kind, Error::Kind::Usage) << json;
  return status.error().message;
}

TEST(BatchLine, ReadsEveryParameterUnderTheNamesOfOpenAiAndVllm) {
  const BatchLine line = parsed(
      R"({"id": "a", "prompt": "Once", "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "seed": 18446744073709551615,
          "stop": ["x", "yz"], "stop_token_ids": [3, 4], "logprobs": 5, "prompt_logprobs": 2, "n": 3, "ignore_eos": true,
          "presence_penalty": 0.25, "frequency_penalty": -0.5, "repetition_penalty": 1.5, "logit_bias": {"7": -100, "8": 2.5},
          "bad_words": ["no"], "allowed_token_ids": [1, 2], "min_tokens": 4, "priority": -3, "echo": true, "model": "m", "user": "u",
          "speculative_config": {"method": "self", "num_speculative_tokens": 3}})");
  const Request& r = line.body.request;
  const SamplingOptions& s = r.sampling;
  EXPECT_EQ(line.id, R"("a")");
  EXPECT_EQ(line.body.input, Body::Input::Prompts);
  EXPECT_EQ(line.body.prompts[0].text, "Once");
  EXPECT_EQ(line.body.samples, 3);
  EXPECT_TRUE(line.body.echo);
  EXPECT_EQ(line.body.bad_words, std::vector<std::string>{"no"});
  EXPECT_EQ(line.body.speculation, R"({"method":"self","num_speculative_tokens":3})");
  EXPECT_EQ(r.max_tokens, 9);
  EXPECT_TRUE(r.ignore_eos);
  EXPECT_EQ(r.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(r.stop_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(r.priority, -3);
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.top_p, 0.9);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(s.logprobs, 5);
  EXPECT_EQ(s.prompt_logprobs, 2);
  EXPECT_EQ(s.presence_penalty, 0.25);
  EXPECT_EQ(s.frequency_penalty, -0.5);
  EXPECT_EQ(s.repetition_penalty, 1.5);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{7, -100.0f}, {8, 2.5f}}));
  EXPECT_EQ(s.allowed_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(s.min_tokens, 4);
}

TEST(BatchLine, KeepsDefaultsWhereAKeyIsAbsentOrNull) {
  BatchLine line;
  line.body.request.max_tokens = 77, line.body.request.sampling.temperature = 0.25;
  ASSERT_TRUE(parse_batch_line(R"({"id": 1, "prompt": [5], "max_tokens": null, "tools": null})", line).ok());
  EXPECT_EQ(line.body.request.max_tokens, 77);
  EXPECT_EQ(line.body.request.sampling.temperature, 0.25);
  EXPECT_EQ(line.body.prompts[0].ids, std::vector<int32_t>{5});
  EXPECT_EQ(line.id, "1");
}

TEST(BatchLine, ReadsMessagesAndPartsOfText) {
  const BatchLine line = parsed(
      R"({"id": "a", "messages": [{"role": "developer", "content": "Be brief."},
          {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]})");
  ASSERT_EQ(line.body.turns.size(), 2u);
  EXPECT_EQ(line.body.turns[0].role, "system");
  EXPECT_EQ(line.body.turns[1].content, "Hello");
}

TEST(BatchLine, ReadsLogprobsInBothDialects) {
  EXPECT_EQ(parsed(R"({"id":1,"prompt":"x","logprobs":true,"top_logprobs":4})").body.request.sampling.logprobs, 4);
  EXPECT_EQ(parsed(R"({"id":1,"prompt":"x","top_logprobs":4,"logprobs":true})").body.request.sampling.logprobs, 4);
  EXPECT_EQ(parsed(R"({"id":1,"prompt":"x","logprobs":true})").body.request.sampling.logprobs, 0);
  EXPECT_EQ(parsed(R"({"id":1,"prompt":"x","logprobs":false})").body.request.sampling.logprobs, -1);
}

TEST(BatchLine, ReadsOpenAisEnvelope) {
  const BatchLine line = parsed(
      R"({"custom_id": "r-1", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x", "max_tokens": 2}})");
  EXPECT_TRUE(line.wrapped);
  EXPECT_EQ(line.id, R"("r-1")");
  EXPECT_EQ(line.body.request.max_tokens, 2);
}

TEST(BatchLine, NamesTheKeyAtFault) {
  const struct {
    std::string_view json, message;
  } cases[] = {
      {R"(no json)", "not JSON"},
      {R"([1])", "an object"},
      {R"({"prompt":"x"})", "no \"id\""},
      {R"({"id":[1],"prompt":"x"})", "\"id\" must be"},
      {R"({"id":1})", "no \"prompt\""},
      {R"({"id":1,"prompt":"x","messages":[]})", "exclude each other"},
      {R"({"id":1,"prompt":["x","y"]})", "one prompt a line"},
      {R"({"id":1,"prompt":[1,2.5]})", "item 1 must be a token id"},
      {R"({"id":1,"prompt":[-1]})", "item 0 must be a token id"},
      {R"({"id":1,"prompt":"x","temprature":1})", "did you mean temperature?"},
      {R"({"id":1,"prompt":"x","temperature":-1})", "\"temperature\" must be a number in 0..100"},
      {R"({"id":1,"prompt":"x","temperature":"hot"})", "not a string"},
      {R"({"id":1,"prompt":"x","max_tokens":0})", "\"max_tokens\""},
      {R"({"id":1,"prompt":"x","max_tokens":1.5})", "whole number"},
      {R"({"id":1,"prompt":"x","top_p":0})", "above 0"},
      {R"({"id":1,"prompt":"x","seed":-2})", "\"seed\""},
      {R"({"id":1,"prompt":"x","stop":[""]})", "empty string"},
      {R"({"id":1,"prompt":"x","stop":null,"n":0})", "\"n\""},
      {R"({"id":1,"prompt":"x","logit_bias":{"a":1}})", "no token id"},
      {R"({"id":1,"prompt":"x","top_logprobs":3})", "needs \"logprobs\""},
      {R"({"id":1,"prompt":"x","prompt":"y"})", "twice"},
      {R"({"id":1,"prompt":"x","stream":true})", "\"stream\" is not available"},
      {R"({"id":1,"prompt":"x","speculative_config":[]})", "an object"},
      {R"({"id":1,"messages":[{"role":"user"}]})", "lacks \"content\""},
      {R"({"id":1,"messages":[{"role":"user","content":"x","tool_calls":[]}]})", "tool_calls"},
      {R"({"id":1,"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "text only"},
      {R"({"custom_id":"a","url":"/v1/embeddings","body":{"prompt":"x"}})", "/v1/embeddings"},
      {R"({"custom_id":"a","bod":1,"body":{"prompt":"x"}})", "did you mean body?"},
      {"{\"id\":1,\"prompt\":\"\xff\"}", "not JSON"},
  };
  for (const auto& c : cases) EXPECT_NE(refused(c.json).find(c.message), std::string::npos) << c.json << ": " << refused(c.json);
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

TEST(BatchAnswer, SumsWhatTheSamplesTook) {
  BatchLine line = parsed(R"({"id":"a","prompt":"x","n":2})");
  std::vector<BatchSample> samples(2);
  samples[0].generation.tokens = {1, 2, 3}, samples[1].generation.tokens = {4};
  for (BatchSample& sample : samples) sample.generation.prompt_tokens = 5;
  samples[0].generation.text = "\"\n";
  const std::string answer = batch_answer(line, samples, "m", nullptr);
  EXPECT_TRUE(answer.starts_with(R"({"id":"a",)")) << answer;
  EXPECT_EQ(answer.find('\n'), std::string::npos);
  EXPECT_NE(answer.find(R"("usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9)"), std::string::npos) << answer;
  EXPECT_NE(answer.find(R"("index":1)"), std::string::npos);
  EXPECT_EQ(answer.find("approx"), std::string::npos);
  for (BatchSample& sample : samples)
    sample.generation.lossless = false,
    sample.generation.approximation = {
        .precision_class = "approx", .group_rows = 4, .traversal = "bfs", .own_choices = 3, .shared_choices = 9};
  EXPECT_NE(batch_answer(line, samples, "m", nullptr)
                .find(R"("lossless":false,"approx":{"precision_class":"approx","group_rows":4,"traversal":"bfs",)"
                      R"("choices":{"own":6,"shared":18,"reused":0}})"),
            std::string::npos);
}

}  // namespace
}  // namespace hunch
