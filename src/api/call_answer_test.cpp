// Answers, whole and streamed: shapes, and the same contents in both.
#include <cmath>
#include <set>

#include "api/api_testing.h"
#include "engine/parts.h"
#include "text/detokenizer.h"

namespace hunch {
namespace {

using namespace test;

json choice_of(const json& body) { return answer(kText, body)["choices"][0]; }
json answer_of(Call& made, const std::vector<Generation>& all) { return json::parse(made.answer(all)); }
json first_of(Call& made, const Generation& g) { return answer_of(made, {g})["choices"][0]; }
Tokens ids_of(std::string_view text) { return *served_engine().tokenizer().encode(text); }

// So many of the likeliest tokens, whatever they are.
json greedy(int max_tokens, json body) {
  body.update({{"max_tokens", max_tokens}, {"temperature", 0}, {"ignore_eos", true}});
  return body;
}

// A completion's chunks put together again.
struct Joined {
  std::string text, finish;
  json columns;  // of logprobs, and the ids
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
      for (const json& of : {choice, choice["logprobs"]})
        for (const char* key : {"token_ids", "token_logprobs", "text_offset", "top_logprobs"})
          if (of.contains(key))
            for (const json& value : of[key]) out.columns[key].push_back(value);
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

TEST(Answer, OfAChatEndsAtTheMarkOfItsTemplate) {
  const auto made = call(kChat, {{"messages", kHello}});
  const int32_t end = *served_engine().tokenizer().token_id("<|im_end|>");
  EXPECT_EQ(made->request(0).stop_ids.at(0), end);
  expect_at(first_of(*made, {.finish = FinishReason::Stop, .stopped_by_id = end}), {{"/stop_reason", nullptr}});
}

TEST(Answer, AddsUpPromptsAndSamples) {
  const auto made = call(kText,
      {{"prompt", {{1, 2}, {3, 4}}}, {"n", 2}, {"logprobs", 0}, {"prompt_logprobs", 2}, {"return_tokens_as_token_ids", true}});
  std::vector<Generation> all(4);
  for (Generation& g : all) g.prompt_tokens = 7, g.reused_tokens = 3;
  all[1].lossless = false, all[2].warning = "why";
  all[0].tokens = {13230, 247, 224, 0}, all[0].logprobs = {0, 0, 0, 0};  // one character of three tokens, and "!"
  all[0].prompt_logprobs = {{2, -2}}, all[0].prompt_top = {{{9, -1}, {2, -2}}};
  const json a = answer_of(*made, all);
  expect_at(a,
      {{"/usage/prompt_tokens_details/cached_tokens", 6}, {"/timings/prompt_n", 16}, {"/metrics/lossless", false},
          {"/metrics/warning", "why"}});
  expect_at(a["choices"][0],
      {{"/logprobs/text_offset", {0, 1, 1, 1}}, {"/logprobs/tokens/3", "token_id:0"}, {"/prompt_logprobs/1/9/rank", 1},
          {"/prompt_logprobs/1/2/rank", 2}});
}

TEST(Answer, CountsSpeculationInVllmsWords) {
  const json body = greedy(40,
      {{"prompt", "one two three one two three one two three one two"},
          {"speculative_config", {{"method", "ngram"}, {"num_speculative_tokens", 4}}}});
  const json a = answer(kText, body, {.speculation_metrics = ApiLimits::SpeculationMetrics::Detailed});
  const json& s = a["metrics"]["speculative_decoding"];
  ASSERT_GT(s["num_spec_steps"], 0);
  int64_t steps = 0, accepted = 0, drafted = 0, length = 0;
  for (const int64_t n : s["acceptance_histogram"]) steps += n, accepted += n * length++;
  ASSERT_GE(length, 5);
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
  json body = greedy(30, {{"prompt", "The captain looked at the"}, {"return_token_ids", true}});
  const auto with = [&](const json& more) {
    json said = body;
    said.update(more);
    return choice_of(said);
  };
  const json all = choice_of(body);
  const std::string whole = all["text"], stop = whole.substr(whole.size() / 2, 4), cut = whole.substr(0, whole.find(stop));
  expect_at(with({{"stop", stop}}), {{"/text", cut}, {"/finish_reason", "stop"}, {"/stop_reason", stop}});
  const json id = all["token_ids"][10];
  EXPECT_EQ(with({{"stop_token_ids", {id}}})["stop_reason"], id);
  // The second token's text, where two are wanted: that one ends it.
  const std::string one = with({{"max_tokens", 1}})["text"], two = with({{"max_tokens", 2}})["text"];
  json late{{"stop", two.substr(one.size())}, {"min_tokens", 2}};
  EXPECT_EQ(with(late)["token_ids"].size(), 2u);
  late["max_tokens"] = 2;
  expect_at(with(late), {{"/text", one}, {"/finish_reason", "stop"}});
  EXPECT_EQ(with({{"stop", whole.substr(whole.size() - 2) + "\u0001"}})["text"], whole) << "held back to the end";
  // Found where the last token's bytes are let go of.
  expect_at(choice_of(greedy(1, {{"prompt", "x"}, {"allowed_token_ids", {13230}}, {"stop", "\ufffd"}})),
      {{"/text", ""}, {"/finish_reason", "stop"}});
  body["stop"] = stop, body["include_stop_str_in_output"] = true;
  EXPECT_EQ(choice_of(body)["text"], cut + stop);
  body["stream"] = true;
  EXPECT_EQ(joined(chunks(kText, body)).text, cut + stop);
}

json tools() {
  return R"([{"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{"at":{"$ref":"#/$defs/T"},
      "or":{"$ref":"#"},"c":{"enum":[{"$ref":"#"}]}}, "$defs":{"T":{"type":"string"}}}}}, {"type":"function","function":{"name":"wait","parameters":{}}}])"_json;
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
  const auto choice = [&] { return first_of(*made, g); };
  g.text = R"([{"name": "look", "parameters": {"at": "sea"}}, {"name": "wait", "parameters": {}}])";
  EXPECT_EQ(choice()["finish_reason"], "length") << "nobody may call what was cut";
  g.finish = FinishReason::Stop;
  const json whole = choice();
  expect_at(whole, {{"/finish_reason", "tool_calls"}, {"/message/content", nullptr}});
  ASSERT_EQ(whole["message"]["tool_calls"].size(), 1u);
  expect_at(whole["message"]["tool_calls"][0],
      {{"/type", "function"}, {"/function/name", "look"}, {"/function/arguments", R"({"at": "sea"})"}});
  for (const auto& [cut, content] :
      {std::pair(R"([{"name": "lo)", json("")), {R"([{"name": "look", "parameters": {"at": "s)", json()}}) {
    g.text = cut;
    expect_at(choice(), {{"/finish_reason", "stop"}, {"/message/content", content}});
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
  const auto models = models_of({.chat_template = "{{ '<|im_start|>' + m.role + '<|im_end|>' }}"});
  EXPECT_EQ(refusal(kChat, json{{"messages", kHello}, {"tools", tools()}}.dump(), *models).param, "tools");
}

TEST(Tools, AndThoughtsAreReadAsTheServerWasTold) {
  const auto models = models_of({.tool_parser = "hermes", .reasoning_parser = "qwen3"});
  Engine* const engine = &served_engine();
  for (const ServedModel& bad : {ServedModel{.id = "n", .engine = engine, .tool_parser = "mine"},
           {.id = "n", .engine = engine, .reasoning_parser = "mine"}, {.id = "m", .engine = engine}})
    EXPECT_FALSE(models->add(bad).ok());
  json body{{"messages", kHello}, {"tools", tools()}, {"n", 2}};
  const auto made = call(kChat, body, {}, *models);
  EXPECT_FALSE(made->request(0).skip_special_tokens) << "marks of calls may be special";
  Generation called, said;
  called.finish = said.finish = FinishReason::Stop;
  called.text = "<think>\nWell.\n</think>\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"it\"}}\n</tool_call>";
  said.text = "<think></think>Done.";
  called.tokens = ids_of(called.text);
  const json a = answer_of(*made, {called, said}), &choices = a["choices"];
  expect_at(choices[0]["message"],
      {{"/reasoning_content", "Well."}, {"/reasoning", "Well."}, {"/tool_calls/0/function/arguments", R"({"at": "it"})"}});
  expect_at(choices, {{"/0/finish_reason", "tool_calls"}, {"/1/message/content", "Done."}, {"/1/finish_reason", "stop"}});
  // Of its tokens those count that lie, wholly or in part, between the first mark's last byte and the second one's.
  const size_t from = called.text.find(">"), to = called.text.find("</think>") + 8;
  int64_t thoughts = 0;
  size_t at = 0;
  for (const int32_t id : called.tokens) {
    const size_t begin = std::exchange(at, at + served_engine().tokenizer().token_bytes(id).size());
    thoughts += at > from && begin < to;
  }
  EXPECT_GT(thoughts, 3);
  EXPECT_EQ(a["usage"]["completion_tokens_details"]["reasoning_tokens"], thoughts);

  body["include_reasoning"] = false, body["stream"] = true;
  const auto quiet = call(kChat, body, {}, *models);
  std::string seen = quiet->answer({called, said});
  seen += quiet->opening(), seen += quiet->ended(0, called);
  EXPECT_EQ(seen.find("Well"), seen.npos);
  const auto bound = call(kChat, {{"messages", kHello}, {"guided_regex", "<.*"}}, {}, *models);
  EXPECT_EQ(first_of(*bound, said)["message"]["content"], said.text) << "a constraint leaves no thoughts";
}

TEST(Templates, OfRequestsAreForThoseWhoAreTrusted) {
  const auto models = models_of({.trust_request_template = true, .reasoning_parser = "qwen3"});
  const auto body = [&](const std::string& text) { return json{{"messages", kHello}, {"chat_template", text}}; };
  const auto taken = call(kChat, body("{{ messages[0]['role'] }}: <think>{{ '\n' }}"), {}, *models);
  EXPECT_EQ(taken->request(0).prompt, ids_of("user: <think>\n"));
  expect_at(first_of(*taken, {.text = "Well.</think>Yes."})["message"], {{"/reasoning", "Well."}, {"/content", "Yes."}});
  json set = body("{{ a }}{{ reasoning_effort }}{{ add_generation_prompt }}");
  set["chat_template_kwargs"]["a"] = 1, set["reasoning_effort"] = "low", set["add_generation_prompt"] = false;
  EXPECT_EQ(call(kChat, set, {}, *models)->request(0).prompt, ids_of("1lowFalse"));
  const std::string deep(3000, '[');
  for (const std::string& bad :
      {std::string("{% if %}"), "{{ " + deep + " }}", std::string("{% for i in range(10**12) %}{% endfor %}")}) {
    const ApiError refused = refusal(kChat, body(bad).dump(), *models);
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
  const auto models = models_of({});
  named.clear();
  const auto prompt = [&](const json& body) {
    return detokenize(engine.tokenizer(), call(kChat, body, {}, *models)->request(0).prompt);
  };
  EXPECT_EQ(prompt({{"messages", kHello}, {"tools", tools()}}), "<tool_call> look");
  EXPECT_EQ(prompt({{"messages", kHello}}).find("<tool_call>"), std::string::npos);
}

TEST(Stream, HasTheTextAndScoresOfTheWholeAnswer) {
  for (const json& config : {json("off"), json{{"method", "ngram"}, {"rule", "match"}}}) {
    json body{{"prompt", "Über 你好 🙂 one two one two one two"}, {"max_tokens", 60}, {"temperature", 1.5}, {"seed", 11},
        {"logprobs", 2}, {"ignore_eos", true}, {"return_token_ids", true}, {"speculative_config", config}};
    const json whole = choice_of(body);
    body["stream"] = true;
    const auto parts = chunks(kText, body);
    const Joined all = joined(parts);
    expect_at(whole, {{"/text", all.text}, {"/finish_reason", all.finish}});
    for (const auto& [key, column] : all.columns.items())
      EXPECT_EQ((key == "token_ids" ? whole : whole["logprobs"])[key], column);
    EXPECT_EQ(all.columns.size(), 4u);
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
  json body{{"prompt", "The sea"}, {"max_tokens", 3}, {"echo", true}, {"stream", true}};
  const auto first = [&] { return chunks(kText, body)[0]["choices"][0]["text"]; };
  EXPECT_EQ(first(), "The sea");
  body["truncate_prompt_tokens"] = 1;
  EXPECT_EQ(first(), " sea");
}

TEST(Stream, EndsWithTheErrorThatEndedIt) {
  const auto made = call(kText, {{"prompt", "x"}, {"n", 2}, {"stream", true}, {"stream_options", {{"include_usage", true}}}});
  EXPECT_NE(made->ended(0, {}), "");
  EXPECT_EQ(made->token(0, {.text = "late"}) + made->closing(), "data: [DONE]\n\n") << "no usage of half an answer";
  EXPECT_EQ(made->failed(api_error(503, "the server is going down", "server_shutdown")),
      R"(data: {"error":{"message":"the server is going down","type":"unavailable_error","param":null,"code":"server_shutdown"}})"
      "\n\n");
}

TEST(Stream, NamesTheDrafterOfEveryGuessedText) {
  const auto all = chunks(kText,
      R"({"prompt":"one two three one two three one two three one two","max_tokens":40,"temperature":0,
    "stream":true,"return_token_sources":true,"speculative_config":{"method":"ngram"}})"_json);
  std::string text, sourced;
  std::set<json> drafters;
  for (const json& chunk : all)
    for (const json& choice : chunk["choices"]) {
      if (!choice.contains("token_sources")) continue;
      text += choice["text"].get<std::string>();
      for (const json& source : choice["token_sources"]) {
        sourced += source["text"].get<std::string>();
        drafters.insert(source["drafter"]);
      }
    }
  EXPECT_EQ(text, sourced);
  EXPECT_EQ(drafters, (std::set<json>{nullptr, "ngram"}));
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
