// Answers, whole and streamed: shapes, and the same contents in both.
#include <cmath>

#include "api/api_testing.h"
#include "engine/parts.h"
#include "text/detokenizer.h"

namespace hunch {
namespace {

using namespace test;
using namespace nlohmann::literals;
constexpr Endpoint kText = Endpoint::Completions, kChat = Endpoint::ChatCompletions;
const json kHello{{{"role", "user"}, {"content", "Tell me about the sea."}}};

json choice_of(const json& body) { return answer(kText, body)["choices"][0]; }

// So many of the likeliest tokens, whatever they are.
json greedy(int max_tokens, json body) {
  body.update({{"max_tokens", max_tokens}, {"temperature", 0}, {"ignore_eos", true}});
  return body;
}

// A completion's chunks put together again.
struct Joined {
  std::string text, finish;
  std::vector<json> logprobs, offsets, tops, ids;
};
Joined joined(const std::vector<json>& chunks, size_t index = 0) {
  Joined out;
  for (const json& chunk : chunks)
    for (const json& choice : chunk["choices"]) {
      if (choice["index"] != index) continue;
      if (choice.contains("text")) out.text += choice["text"];
      else out.text += choice["delta"].value("content", "");
      EXPECT_TRUE(out.finish.empty()) << "nothing follows the finish reason";
      if (!choice["finish_reason"].is_null()) out.finish = choice["finish_reason"];
      const json& l = choice["logprobs"];
      const auto add = [](std::vector<json>& to, const json& from) { to.insert(to.end(), from.begin(), from.end()); };
      if (l.is_object())
        add(out.logprobs, l["token_logprobs"]), add(out.offsets, l["text_offset"]), add(out.tops, l["top_logprobs"]);
      if (choice.contains("token_ids")) add(out.ids, choice["token_ids"]);
    }
  return out;
}

TEST(Answer, OfACompletionHasOpenAisShape) {
  const json a = answer(kText, greedy(12, {{"prompt", "The captain"}}));
  EXPECT_TRUE(a["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_TRUE(a["created"].is_number_integer());
  ASSERT_EQ(a["choices"].size(), 1u);
  expect_at(a["choices"][0], {{"/index", 0}, {"/finish_reason", "length"}, {"/logprobs", nullptr}, {"/stop_reason", nullptr}});
  expect_at(a, {{"/object", "text_completion"}, {"/model", "wren"}, {"/metrics/lossless", true}});
  const int prompt_tokens = a["usage"]["prompt_tokens"];
  expect_at(a["usage"], {{"/completion_tokens", 12}, {"/total_tokens", 12 + prompt_tokens}});
  EXPECT_TRUE(a["usage"]["prompt_tokens_details"]["cached_tokens"].is_number());
  for (const char* key :
      {"cache_n", "prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "predicted_per_second", "draft_n", "draft_n_accepted"})
    EXPECT_TRUE(a["timings"].contains(key)) << key;
}

TEST(Answer, OfAChatHasOpenAisShape) {
  const json a = answer(kChat, greedy(8, {{"messages", kHello}, {"logprobs", true}, {"top_logprobs", 2}}));
  EXPECT_TRUE(a["id"].get<std::string>().starts_with("chatcmpl-"));
  const json& choice = a["choices"][0];
  expect_at(a, {{"/object", "chat.completion"}, {"/choices/0/message/role", "assistant"}});
  EXPECT_TRUE(choice["message"]["content"].is_string());
  ASSERT_EQ(choice["logprobs"]["content"].size(), 8u);
  for (const json& token : choice["logprobs"]["content"]) {
    EXPECT_TRUE(token["token"].is_string() && token["bytes"].is_array());
    ASSERT_EQ(token["top_logprobs"].size(), 2u);
    EXPECT_EQ(token["logprob"], token["top_logprobs"][0]["logprob"]) << "greedy takes the best, and its value is the same float";
  }
}

TEST(Answer, CountsSpeculationInVllmsWords) {
  const json body = greedy(40,
      {{"prompt", "one two three one two three one two three one two"},
          {"speculative_config", {{"method", "ngram"}, {"num_speculative_tokens", 4}}}});
  const json a = answer(kText, body, {.speculation_metrics = ApiLimits::SpeculationMetrics::Detailed});
  const json& s = a["metrics"]["speculative_decoding"];
  ASSERT_GT(s["num_spec_steps"], 0);
  ASSERT_GE(s["acceptance_histogram"].size(), 5u);
  int64_t steps = 0, accepted = 0, drafted = 0;
  for (size_t i = 0; i < s["acceptance_histogram"].size(); ++i) {
    const int64_t n = s["acceptance_histogram"][i];
    steps += n, accepted += n * int64_t(i);
  }
  for (const json& n : s["per_step_drafted"]) drafted += n.get<int64_t>();
  expect_at(s,
      {{"/num_spec_steps", steps}, {"/num_accepted_draft_tokens", accepted}, {"/num_draft_tokens", drafted},
          {"/num_spec_tokens", 4}});
  EXPECT_EQ(s["per_step_accepted"].size(), size_t(steps));
  EXPECT_DOUBLE_EQ(s["mean_acceptance_length"], 1 + double(accepted) / double(steps));
  EXPECT_EQ(a["timings"]["draft_n"], drafted);
  const json off = answer(kText, body, {.speculation_metrics = ApiLimits::SpeculationMetrics::None});
  EXPECT_FALSE(off["metrics"].contains("speculative_decoding"));
  EXPECT_EQ(off["choices"][0]["text"], a["choices"][0]["text"]);
}

// What lm-evaluation-harness does: the continuation is part of the prompt, and its values decide.
TEST(Answer, EchoScoresAPromptWithTheVeryValuesOfItsGeneration) {
  const json first = choice_of(greedy(20, R"({"prompt":[1,20,300,4000],"logprobs":1,"return_token_ids":true})"_json));
  json prompt{1, 20, 300, 4000};
  for (const json& id : first["token_ids"]) prompt.push_back(id);
  for (const int max_tokens : {0, 1}) {
    const json echo =
        answer(kText, greedy(max_tokens, {{"prompt", json::array({prompt})}, {"logprobs", 1}, {"echo", true}, {"seed", 1234}}));
    const json& l = echo["choices"][0]["logprobs"];
    const size_t n = prompt.size() + size_t(max_tokens);
    for (const char* column : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      ASSERT_EQ(l[column].size(), n) << column;
    EXPECT_TRUE(l["token_logprobs"][0].is_null() && l["top_logprobs"][0].is_null());
    EXPECT_EQ(echo["usage"]["completion_tokens"], max_tokens);
    for (size_t i = 4; i < prompt.size(); ++i) {
      EXPECT_EQ(l["token_logprobs"][i], first["logprobs"]["token_logprobs"][i - 4]) << i;
      double best = -INFINITY;
      for (const json& value : l["top_logprobs"][i]) best = std::max(best, value.get<double>());
      EXPECT_EQ(best, l["token_logprobs"][i].get<double>()) << "greedy: the best is the token itself";
    }
    for (size_t i = 1; i < 4; ++i) EXPECT_TRUE(l["top_logprobs"][i].contains(l["tokens"][i].get<std::string>()));
    const std::string text = echo["choices"][0]["text"];
    EXPECT_GT(text.size(), first["text"].get<std::string>().size());
  }
}

TEST(Answer, HasAChoiceForEachPromptAndSample) {
  json body = R"({"prompt":["The sea","A ship"],"n":2,"max_tokens":6,"seed":3,"temperature":1.0,"ignore_eos":true,
    "speculative_config":"off"})"_json;
  const json a = answer(kText, body);
  ASSERT_EQ(a["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(a["choices"][i]["index"], i);
  EXPECT_NE(a["choices"][0]["text"], a["choices"][1]["text"]);
  body["prompt"] = "A ship", body["n"] = 1;
  EXPECT_EQ(a["choices"][2]["text"], choice_of(body)["text"]);
  EXPECT_EQ(a["usage"]["completion_tokens"], 24);
  body["n"] = 3, body.erase("seed");
  const json drawn = answer(kText, body);
  body["seed"] = drawn["metrics"]["seed"];
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(answer(kText, body)["choices"][i]["text"], drawn["choices"][i]["text"]);
}

TEST(Answer, ShowsStopTextsOnlyWhereAsked) {
  const json body = greedy(30, {{"prompt", "The captain looked at the"}});
  const std::string whole = choice_of(body)["text"];
  json stopping = body, by_id = body;
  const std::string stop = whole.substr(whole.size() / 2, 4);
  stopping["stop"] = stop;
  const std::string cut = whole.substr(0, whole.find(stop));
  expect_at(choice_of(stopping), {{"/text", cut}, {"/finish_reason", "stop"}, {"/stop_reason", stop}});
  json late = body;  // the second token's text, where two are wanted: that one ends it
  late["return_token_ids"] = true;
  const json words = choice_of(greedy(1, {{"prompt", body["prompt"]}}))["text"];
  const std::string two = choice_of(greedy(2, {{"prompt", body["prompt"]}}))["text"];
  late["stop"] = two.substr(words.get<std::string>().size()), late["min_tokens"] = 2;
  EXPECT_EQ(choice_of(late)["token_ids"].size(), 2u);
  late["max_tokens"] = 2;
  expect_at(choice_of(late), {{"/text", words}, {"/finish_reason", "stop"}});
  late = body, late["stop"] = whole.substr(whole.size() - 2) + "\u0001";  // held back to the end
  EXPECT_EQ(choice_of(late)["text"], whole);
  // Found where the last token's bytes are let go of.
  late = greedy(1, {{"prompt", "x"}, {"allowed_token_ids", {13230}}, {"stop", "\ufffd"}});
  expect_at(choice_of(late), {{"/text", ""}, {"/finish_reason", "stop"}});
  stopping["include_stop_str_in_output"] = true;
  EXPECT_EQ(choice_of(stopping)["text"], cut + stop);
  stopping["stream"] = true;
  EXPECT_EQ(joined(chunks(kText, stopping)).text, cut + stop);
  by_id["return_token_ids"] = true;
  const json ids = choice_of(by_id)["token_ids"];
  by_id["stop_token_ids"] = {ids[10]};
  EXPECT_EQ(choice_of(by_id)["stop_reason"], ids[10]);
}

json tools() {
  return json::parse(
      R"([{"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{"at":{"$ref":"#/$defs/T"},
      "or":{"$ref":"#"},"c":{"enum":[{"$ref":"#"}]}}, "$defs":{"T":{"type":"string"}}}}}, {"type":"function","function":{"name":"wait","parameters":{}}}])");
}

TEST(Tools, ForceASchemaAndReadItsReply) {
  json body{{"messages", kHello}, {"tools", tools()}, {"tool_choice", "required"}, {"parallel_tool_calls", false}};
  auto made = call(kChat, body);
  const StructuredOutput form = made->request(0).structured;
  ASSERT_EQ(form.kind, StructuredOutput::Kind::JsonSchema);
  const json schema = json::parse(form.text), &items = schema["items"]["anyOf"];
  EXPECT_EQ(items.size(), 2u);
  expect_at(items,
      {{"/0/properties/name/const", "look"}, {"/0/properties/parameters/$ref", "#/$defs/0"},
          {"/1/properties/parameters", R"({"type":"object","properties":{}})"_json}});
  // References look at the root; what stands in an enum is data.
  expect_at(schema["$defs"]["0"]["properties"],
      {{"/at/$ref", "#/$defs/0/$defs/T"}, {"/or/$ref", "#/$defs/0"}, {"/c/enum/0/$ref", "#"}});
  EXPECT_EQ(schema["maxItems"], 1);
  Generation g;
  g.finish = FinishReason::Stop;
  g.text = R"([{"name": "look", "parameters": {"at": "sea"}}])";
  const json whole = json::parse(made->answer({g}))["choices"][0];
  expect_at(whole, {{"/finish_reason", "tool_calls"}, {"/message/content", nullptr}});
  ASSERT_EQ(whole["message"]["tool_calls"].size(), 1u);
  expect_at(whole["message"]["tool_calls"][0],
      {{"/type", "function"}, {"/function/name", "look"}, {"/function/arguments", R"({"at": "sea"})"}});
  for (const auto& [cut, content] :
      {std::pair(R"([{"name": "lo)", json("")), {R"([{"name": "look", "parameters": {"at": "s)", json()}}) {
    g.text = cut;
    expect_at(json::parse(made->answer({g}))["choices"][0], {{"/finish_reason", "stop"}, {"/message/content", content}});
  }

  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "wait"}}}};
  body["stream"] = true;
  made = call(kChat, body);
  EXPECT_EQ(json::parse(made->request(0).structured.text)["type"], "object");
  g.text = "{";
  expect_part(made->opening() + made->ended(0, g), R"("finish_reason":"stop")");
  made = call(kChat, body);
  g.text = "{}";
  std::string events = made->opening();
  events += made->token(0, {.text = "{"}), events += made->ended(0, g), events += made->closing();
  for (const char* part : {R"("tool_calls":[{"index":0,"id":"call_)", R"("name":"wait","arguments":"{"}}])",
           R"("tool_calls":[{"index":0,"function":{"arguments":"}"}}])", R"("finish_reason":"tool_calls")"})
    expect_part(events, part);
}

TEST(Tools, AreRefusedWhereTheyCannotBeMeant) {
  const auto param = [](json fields) {
    fields["messages"] = kHello;
    return refusal(kChat, fields.dump()).param;
  };
  EXPECT_EQ(param({{"tool_choice", "required"}}), "tool_choice");
  EXPECT_EQ(param({{"tools", tools()}, {"tool_choice", {{"function", {{"name", "fly"}}}}}}), "tool_choice");
  EXPECT_EQ(param({{"tools", tools()}, {"tool_choice", "required"}, {"guided_regex", "a"}}), "tool_choice");
  for (const char* choice : {"none", "any"}) EXPECT_EQ(param({{"tools", tools()}, {"tool_choice", choice}}), "");
}

TEST(Tools, NeedATemplateThatShowsHowTheyAreCalled) {
  ServedModels models;
  const std::string chatml = "{{ '<|im_start|>' + m.role + '<|im_end|>' }}";
  ASSERT_TRUE(models.add({.id = "m", .engine = &served_engine(), .chat_template = chatml}).ok());
  EXPECT_EQ(refusal(kChat, json{{"messages", kHello}, {"tools", tools()}}.dump(), models).param, "tools");
}

TEST(Tools, AndThoughtsAreReadAsTheServerWasTold) {
  ServedModels models;
  ASSERT_TRUE(models.add({.id = "m", .engine = &served_engine(), .tool_parser = "hermes", .reasoning_parser = "qwen3"}).ok());
  EXPECT_FALSE(models.add({.id = "n", .engine = &served_engine(), .tool_parser = "mine"}).ok());
  EXPECT_FALSE(models.add({.id = "n", .engine = &served_engine(), .reasoning_parser = "mine"}).ok());
  EXPECT_FALSE(models.add({.id = "m", .engine = &served_engine()}).ok());
  json body{{"messages", kHello}, {"tools", tools()}, {"n", 2}};
  const auto made = call(kChat, body, {}, models);
  Generation called, said;
  called.finish = said.finish = FinishReason::Stop;
  called.text = "<think>\nWell.\n</think>\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"it\"}}\n</tool_call>";
  said.text = "<think></think>Done.";
  const Tokenizer& tokenizer = served_engine().tokenizer();
  called.tokens = *tokenizer.encode(called.text, {.add_bos = false});
  const json a = json::parse(made->answer({called, said})), &choices = a["choices"];
  expect_at(choices[0]["message"],
      {{"/reasoning_content", "Well."}, {"/reasoning", "Well."}, {"/tool_calls/0/function/arguments", R"({"at": "it"})"}});
  expect_at(choices, {{"/0/finish_reason", "tool_calls"}, {"/1/message/content", "Done."}, {"/1/finish_reason", "stop"}});
  // Of its tokens those count that lie, wholly or in part, between the first mark's last byte and the second one's.
  const size_t from = called.text.find(">"), to = called.text.find("</think>") + 8;
  int64_t thoughts = 0;
  size_t at = 0;
  for (const int32_t id : called.tokens) {
    const size_t begin = std::exchange(at, at + tokenizer.token_bytes(id).size());
    thoughts += at > from && begin < to;
  }
  EXPECT_GT(thoughts, 3);
  EXPECT_EQ(a["usage"]["completion_tokens_details"]["reasoning_tokens"], thoughts);
}

TEST(Templates, OfRequestsAreForThoseWhoAreTrusted) {
  ServedModels models;
  ASSERT_TRUE(models.add({.id = "m", .engine = &served_engine(), .trust_request_template = true}).ok());
  const auto body = [&](const std::string& text) { return json{{"messages", kHello}, {"chat_template", text}}; };
  const auto taken = call(kChat, body("Say: {{ messages[0]['role'] }}"), {}, models);
  EXPECT_EQ(taken->request(0).prompt, *served_engine().tokenizer().encode("Say: user", {.add_bos = false}));
  json set = body("{{ a }}{{ reasoning_effort }}{{ add_generation_prompt }}");
  set["chat_template_kwargs"]["a"] = 1, set["reasoning_effort"] = "low", set["add_generation_prompt"] = false;
  const auto said = call(kChat, set, {}, models)->request(0).prompt;
  EXPECT_EQ(said, *served_engine().tokenizer().encode("1lowFalse", {.add_bos = false}));
  const std::string deep(3000, '[');
  for (const std::string& bad :
      {std::string("{% if %}"), "{{ " + deep + " }}", std::string("{% for i in range(10**12) %}{% endfor %}")}) {
    const ApiError refused = refusal(kChat, body(bad).dump(), models);
    EXPECT_EQ(std::tie(refused.status, refused.param), std::tuple(400, "chat_template")) << bad;
  }
}

TEST(Templates, ForToolsAreTheModelsOwn) {
  Engine& engine = served_engine();
  const json templates = json::array({{{"name", "default"}, {"template", engine.chat_template()}},
      {{"name", "tool_use"}, {"template", "<tool_call> {{ tools[0]['function']['name'] }}"}}});
  // As if its file had them.
  std::string& named = const_cast<TokenizerSource&>(engine.parts().checkpoint->tokenizer()).tokenizer_config_json;
  named = json{{"chat_template", templates}}.dump();
  ServedModels models;
  const bool added = models.add({.id = "m", .engine = &engine}).ok();
  named.clear();
  ASSERT_TRUE(added);
  const auto prompt = [&](const json& body) {
    return detokenize(engine.tokenizer(), call(kChat, body, {}, models)->request(0).prompt);
  };
  EXPECT_EQ(prompt({{"messages", kHello}, {"tools", tools()}}), "<tool_call> look");
  EXPECT_EQ(prompt({{"messages", kHello}}).find("<tool_call>"), std::string::npos);
}

TEST(Stream, HasTheTextAndScoresOfTheWholeAnswer) {
  for (const bool speculate : {false, true}) {
    json body{{"prompt", "Über 你好 🙂 one two one two one two"}, {"max_tokens", 60}, {"temperature", 1.5}, {"seed", 11},
        {"logprobs", 2}, {"ignore_eos", true}, {"return_token_ids", true}};
    body["speculative_config"] = speculate ? json{{"method", "ngram"}, {"rule", "match"}} : json("off");
    const json whole = choice_of(body);
    body["stream"] = true;
    const auto parts = chunks(kText, body);
    const Joined all = joined(parts);
    expect_at(whole, {{"/text", all.text}, {"/finish_reason", all.finish}, {"/token_ids", all.ids}});
    expect_at(whole["logprobs"], {{"/token_logprobs", all.logprobs}, {"/top_logprobs", all.tops}, {"/text_offset", all.offsets}});
    for (const json& part : parts) {
      expect_at(part, {{"/id", parts[0]["id"]}, {"/created", parts[0]["created"]}, {"/object", "text_completion"}});
      EXPECT_FALSE(part.contains("usage"));
    }
    EXPECT_TRUE(parts.back().contains("metrics") && parts.back().contains("timings"));
  }
}

TEST(Stream, OfAChatBeginsWithTheRoleAndEndsWithUsage) {
  const json body = greedy(12, {{"messages", kHello}, {"stream", true}, {"n", 2}, {"stream_options", {{"include_usage", true}}}});
  const auto parts = chunks(kChat, body);
  ASSERT_GT(parts.size(), 4u);
  for (size_t i = 0; i < 2; ++i)
    expect_at(parts[i], {{"/choices/0/delta/role", "assistant"}, {"/choices/0/index", i}, {"/object", "chat.completion.chunk"}});
  for (size_t i = 0; i + 1 < parts.size(); ++i) EXPECT_TRUE(parts[i]["usage"].is_null() && parts[i].contains("usage"));
  expect_at(parts.back(), {{"/choices", json::array()}, {"/usage/completion_tokens", 24}});
  EXPECT_TRUE(parts.back().contains("metrics"));
  json whole = body;
  whole["stream"] = false, whole.erase("stream_options");
  EXPECT_EQ(joined(parts, 1).text, answer(kChat, whole)["choices"][1]["message"]["content"]);
}

TEST(Stream, CountsUsageInEveryChunkWhereAskedAndAtTheEndWhereForced) {
  json body = greedy(5, {{"prompt", "The sea"}, {"stream", true}});
  EXPECT_TRUE(chunks(kText, body, {.force_usage = true}).back().contains("usage"));
  body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  body["timings_per_token"] = true;
  const auto parts = chunks(kText, body);
  int64_t before = 0;
  for (size_t i = 0; i + 2 < parts.size(); ++i) {
    const int64_t now = parts[i]["usage"]["completion_tokens"];
    EXPECT_GT(now, std::exchange(before, now));
    EXPECT_EQ(parts[i]["timings"]["predicted_n"], now);
  }
}

TEST(Stream, EchoesThePromptFirst) {
  const auto parts =
      chunks(kText, {{"prompt", "The sea"}, {"max_tokens", 3}, {"echo", true}, {"stream", true}, {"temperature", 0}});
  EXPECT_EQ(parts[0]["choices"][0]["text"], "The sea");
}

TEST(Stream, EndsWithTheErrorThatEndedIt) {
  const auto made = call(kText, {{"prompt", "x"}, {"stream", true}});
  EXPECT_EQ(made->failed(api_error(503, "the server is going down", "server_shutdown")),
      "data: {\"error\":{\"message\":\"the server is going down\",\"type\":\"unavailable_error\",\"param\":null,"
      "\"code\":\"server_shutdown\"}}\n\n");
}

TEST(Stream, NamesTheDrafterOfEveryGuessedText) {
  const auto all = chunks(kText,
      R"({"prompt":"one two three one two three one two three one two","max_tokens":40,"temperature":0,
    "stream":true,"return_token_sources":true,"speculative_config":{"method":"ngram"}})"_json);
  std::string text, sourced;
  int guessed = 0, own = 0;
  for (const json& chunk : all)
    for (const json& choice : chunk["choices"]) {
      if (!choice.contains("token_sources")) continue;
      text += choice["text"].get<std::string>();
      for (const json& source : choice["token_sources"]) {
        sourced += source["text"].get<std::string>();
        const bool guess = !source["drafter"].is_null();
        EXPECT_EQ(guess ? source["drafter"] : "ngram", "ngram");
        ++(guess ? guessed : own);
      }
    }
  EXPECT_EQ(text, sourced);
  EXPECT_GT(guessed, 0);
  EXPECT_GT(own, 0);
}

TEST(Stream, NeverSplitsACharacter) {
  // Tokens of single bytes are common at this temperature.
  const auto parts = chunks(kText,
      R"({"prompt":"你好，世界 🙂 🙃 Привет","max_tokens":80,"temperature":5,"seed":5,"top_p":1,"top_k":-1,"min_p":0,
    "stream":true,"ignore_eos":true})"_json);
  for (const json& part : parts)
    for (const json& choice : part["choices"]) {
      const std::string text = choice["text"];
      EXPECT_EQ(json::parse(json(text).dump()).get<std::string>(), text);  // dump() throws at half a character
    }
}

}
}
