// Readers of replies: the same outcome however the text is cut, calls and thoughts found, hostile text at linear cost.
#include <gtest/gtest.h>

#include "api/call_json.h"
#include "api/reasoning_parser.h"
#include "api/tool_parser.h"

namespace hunch {
namespace {

struct Outcome {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Outcome&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  out << "reasoning \"" << o.reasoning << "\" content \"" << o.content << "\"";
  for (const auto& [name, arguments] : o.calls) out << " " << name << "(" << arguments << ")";
  return out;
}

void add(Outcome& out, ReplyDelta& delta) {
  out.reasoning += delta.reasoning, out.content += delta.content;
  for (const ReplyDelta::Call& call : delta.calls) {
    EXPECT_LE(call.index, out.calls.size());
    EXPECT_EQ(call.index == out.calls.size(), !call.name.empty()) << "a name comes once, at the beginning";
    if (call.index == out.calls.size()) out.calls.emplace_back();
    out.calls[call.index].first += call.name, out.calls[call.index].second += call.arguments;
  }
  delta = {};
}

using Maker = ReplyReaderPtr (*)();
Outcome read(Maker make, std::string_view text, size_t piece) {
  const auto reader = make();
  Outcome out;
  ReplyDelta delta;
  for (size_t at = 0; at < text.size(); at += piece) {
    reader->feed(text.substr(at, piece), delta);
    add(out, delta);
  }
  reader->finish(delta);
  add(out, delta);
  return out;
}
// In pieces of every size.
void expect(Maker make, std::string_view text, const Outcome& wanted) {
  for (const size_t piece : {size_t(1), size_t(2), size_t(3), size_t(7), size_t(1000)})
    EXPECT_EQ(read(make, text, piece), wanted) << text << " in pieces of " << piece;
}

// Neither call nor thought.
void expect_content(Maker make, const std::string& text) { expect(make, text, {"", text, {}}); }

const Maker hermes = [] { return make_tool_parser("hermes", {"f", "g"}); };
const Maker llama = [] { return make_tool_parser("llama3_json", {"f", "g"}); };
const Maker list = [] { return make_call_list_reader(); };
const Maker qwen3 = [] { return make_reasoning_parser("qwen3", false, hermes()); };
const Maker inside = [] { return make_reasoning_parser("qwen3", true, nullptr); };
const Maker harmony = [] { return make_reasoning_parser("openai_gptoss", false, nullptr); };
const Maker forced = [] { return make_arguments_reader("f"); };

TEST(Hermes, FindsCallsBetweenWords) {
  expect_content(hermes, "Just words < 3.");
  expect(hermes, R"(<tool_call>
{"name": "f", "arguments": {"a": [1, {"b": "}\""}]}}
</tool_call>)",
      {"", "", {{"f", R"({"a": [1, {"b": "}\""}]})"}}});
  expect(hermes, R"(I look.
<tool_call>{"name":"f","arguments":{}}</tool_call>
<tool_call>{"arguments":{"x":1},"name":"g"}</tool_call>)",
      {"", "I look.", {{"f", "{}"}, {"g", "{\"x\":1}"}}});
  expect(hermes, R"(<tool_call>{"name":"f"}</tool_call>)", {"", "", {{"f", "{}"}}});
  expect(hermes, R"(<tool_call>{"name":"f","arguments":"{\"a\":1}"}</tool_call>)", {"", "", {{"f", R"({"a":1})"}}});
  expect(hermes, R"(<tool_call>{"name":"f","arguments":{"t":"</tool_call>"}}</tool_call>)",
      {"", "", {{"f", R"({"t":"</tool_call>"})"}}});
}

TEST(Hermes, LeavesWhatIsNoCallAsContent) {
  expect_content(hermes, "<tool_call>not json</tool_call> tail");
  expect_content(hermes, R"(<tool_call>{"id":1}</tool_call>)");
  expect_content(hermes, "half <tool_ca");
  expect(hermes, R"(<tool_call>{"name":"f","arguments":{"a":)", {"", "", {{"f", R"({"a":)"}}});
}

TEST(Llama, ReadsBareCallsOfKnownFunctions) {
  expect(llama, R"({"name": "f", "parameters": {"a": 1}})", {"", "", {{"f", R"({"a": 1})"}}});
  expect(llama, R"(<|python_tag|>{"name":"f","parameters":{}}; {"name":"g","parameters":{"b":2}})",
      {"", "", {{"f", "{}"}, {"g", R"({"b":2})"}}});
  expect_content(llama, R"({"name": "Bob", "parameters": {}})");
  expect_content(llama, R"({"age": 5} and so on)");
  expect_content(llama, "Hello {there}");
}

TEST(ForcedCalls, AreListsOrArguments) {
  expect(list, R"([{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}])",
      {"", "", {{"f", R"({"a": 1})"}, {"g", "{}"}}});
  expect(forced, R"({"a": 1})", {"", "", {{"f", R"({"a": 1})"}}});
}

TEST(Think, TellsThoughtsFromWords) {
  expect(qwen3, "<think>\nI wonder < why.\n</think>\n\nBecause.", {"I wonder < why.", "Because.", {}});
  expect_content(qwen3, "No thoughts </think> here");
  expect(qwen3, "\n<think></think>Yes", {"", "Yes", {}});
  expect(qwen3, "<think>cut sho", {"cut sho", "", {}});
  expect(qwen3, "<think>a</think><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", {"a", "", {{"f", "{}"}}});
  expect(inside, "still\nthinking</think>done", {"still\nthinking", "done", {}});
}

TEST(Harmony, TellsChannelsApart) {
  expect(harmony, "<|channel|>analysis<|message|>Hm < 3.<|end|><|start|>assistant<|channel|>final<|message|>Hello.",
      {"Hm < 3.", "Hello.", {}});
  expect(harmony,
      "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
      "<|constrain|>json<|message|>{\"a\":1}<|call|>",
      {"Look.", "", {{"f", "{\"a\":1}"}}});
  expect_content(harmony, std::string(3000, 'a'));  // no message is opened
  expect(harmony, "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}", {"", "", {{"g", "{}"}}});
  expect_content(harmony, "plain words");
}

// A megabyte of what each parser finds hardest; the test's time limit is the proof that the cost is linear.
TEST(Readers, StayLinearOnHostileText) {
  constexpr size_t kBytes = size_t(1) << 19;
  const auto repeated = [](std::string_view unit) {
    std::string out;
    while (out.size() < kBytes) out += unit;
    return out;
  };
  for (const Maker make : {hermes, llama, list, qwen3, inside, harmony})
    for (const std::string_view unit : {"[", "{", "<", "<tool_call>", "<tool_call>[", "</think>", "<think>", "\\\"", "<|start|>",
             "<|channel|>", "{\"a\":", " ", "<tool_call>{\"name\":\"f\",\"arguments\":{"})
      for (const size_t piece : {size_t(5), kBytes}) {
        const std::string text = repeated(unit);
        const Outcome out = read(make, text, piece);
        EXPECT_LE(out.content.size() + out.reasoning.size(), text.size());
      }
}

}
}
