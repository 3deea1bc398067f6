#include "api/info_bodies.h"

#include "api/api_testing.h"
#include "api/body.h"

namespace hunch {
namespace {

using namespace test;

json body(const Answered& answer) {
  const auto* text = std::get_if<std::string>(&answer);
  EXPECT_NE(text, nullptr) << (text ? "" : std::get<ApiError>(answer).message);
  return text ? json::parse(*text) : json();
}
json tokenized(const json& request) { return body(tokenize_answer(request.dump(), served_models(), {})); }

TEST(InfoBodies, ListModelsUnderAllTheirNames) {
  const json list = json::parse(models_body(served_models()));
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  expect_at(list["data"],
      {{"/0/id", "wren"}, {"/0/created", 1700000000}, {"/0/max_model_len", 1024}, {"/1/id", "gpt-wren"}, {"/1/root", "wren"}});
  EXPECT_EQ(body(model_body(served_models(), "gpt-wren"))["id"], "gpt-wren");
  EXPECT_EQ(std::get<ApiError>(model_body(served_models(), "other")).status, 404);
}

TEST(InfoBodies, TellOfSeatsAndDefaults) {
  const json props = body(props_body(served_models(), "", "1.2"));
  expect_at(props,
      {{"/default_generation_settings/n_ctx", 1024}, {"/total_slots", 8}, {"/build_info", "hunch 1.2"},
          {"/speculation/lossless", true}});
  EXPECT_EQ(json::parse(slots_body(served_models())).size(), 8u);
  EXPECT_EQ(version_body("1.2"), R"({"version":"1.2"})");
}

TEST(InfoBodies, TokenizeInBothDialects) {
  const json vllm = tokenized({{"prompt", "Hello <|im_end|>"}, {"return_token_strs", true}});
  const size_t n = vllm["tokens"].size();
  expect_at(vllm, {{"/count", n}, {"/max_model_len", 1024}});
  EXPECT_EQ(vllm["token_strs"].size(), n);
  const json llama = tokenized({{"content", "Hello <|im_end|>"}});
  EXPECT_EQ(llama["tokens"], vllm["tokens"]);
  EXPECT_GT(tokenized({{"content", "Hello <|im_end|>"}, {"parse_special", false}})["tokens"].size(), n);
  const json pieces = tokenized({{"content", "Hi 🙂"}, {"with_pieces", true}});
  EXPECT_TRUE(pieces["tokens"][0]["id"].is_number() && pieces["tokens"][0]["piece"].is_string());
  const json chat = tokenized({{"messages", {{{"role", "user"}, {"content", "Hi"}}}}});
  EXPECT_GT(chat["count"], 3);
  for (const json& tokens : {vllm["tokens"], chat["tokens"]}) {
    const json text = body(detokenize_answer(json{{"tokens", tokens}}.dump(), served_models(), {}));
    EXPECT_EQ(text["content"], text["prompt"]);
    EXPECT_EQ(tokenized({{"content", text["content"]}})["tokens"], tokens);
  }
}

TEST(InfoBodies, RefuseWhatCannotBeTokenized) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {R"({})", "prompt"},
      {R"({"prompt":7})", "prompt"},
      {R"({"content":[1]})", "content"},
      {R"({"prompt":"x","model":7})", "model"},
      {R"({"messages":[]})", "messages"},
      {R"({"content":"x","with_pieces":1})", "with_pieces"},
  };
  const auto refused = [](const auto& answer_of, std::string_view body) {
    return std::get<ApiError>(answer_of(body, served_models(), {}));
  };
  for (const auto& [body, param] : cases) {
    const ApiError error = refused(tokenize_answer, body);
    EXPECT_EQ(std::tie(error.status, error.param), std::tuple(400, param)) << body;
  }
  const std::string many = json{{"prompt", std::string(1 << 22, 'a')}}.dump();
  EXPECT_EQ(refused(tokenize_answer, many).code, "context_length_exceeded");
  for (const std::string_view bad :
      {R"({})", R"({"tokens":[1.5]})", R"({"tokens":[-1]})", R"({"tokens":[16384]})", R"({"tokens":"x"})"})
    EXPECT_EQ(refused(detokenize_answer, bad).param, "tokens") << bad;
}

TEST(InfoBodies, DescribeEveryKeyThatABodyMaySet) {
  const auto text = openapi_body("1.2");
  EXPECT_LT(text.size(), 60000u);
  const json description = json::parse(text);
  EXPECT_EQ(description["openapi"], "3.1.0");
  for (const auto& [kind, name] : {std::pair(BodyKind::Completions, "Completion"), std::pair(BodyKind::Chat, "Chat")}) {
    const json& properties = description["components"]["schemas"][name]["properties"];
    for (const std::string_view key : settable_keys(kind))
      EXPECT_TRUE(properties.contains(std::string(key))) << name << ": " << key;
  }
}

}
}
