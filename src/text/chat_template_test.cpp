#include "text/chat_template.h"

#include "text/test_data.h"

namespace hunch {
namespace {

using Json = nlohmann::ordered_json;
using Marks = std::vector<std::pair<std::string, std::string>>;

// Slow machines and sanitizers are not what these tests are about.
TemplateLimits patient() { return {.time = std::chrono::minutes(10)}; }

Result<RenderedChat> render(
    std::string_view source, const Json& variables = Json::object(), const Marks& marks = {}, TemplateLimits limits = patient()) {
  auto made = ChatTemplate::compile(source);
  if (!made.ok()) return made.error();
  return made.value().render(variables, marks, limits, 1753358400);
}

std::string error_of(const Result<RenderedChat>& result) {
  return result.ok() ? "no error: " + result.value().text : result.error().message;
}
std::string error_of(std::string_view source, const Json& variables = Json::object(), TemplateLimits limits = patient()) {
  return error_of(render(source, variables, {}, limits));
}

void expect_error(
    std::string_view source, std::string_view words, const Json& variables = Json::object(), TemplateLimits limits = patient()) {
  test::expect_part(error_of(source, variables, limits), words);
}

void expect_text(std::string_view source, std::string_view text) { EXPECT_EQ(render(source).value().text, text) << source; }

// The bytes that are not the request's, runs joined by '|'.
std::string trusted_part(std::string_view source, const Json& variables, const Marks& marks = {}) {
  const auto got = render(source, variables, marks);
  if (!got.ok()) return got.error().message;
  std::string out;
  for (const auto& [begin, end] : got.value().trusted)
    (out += out.empty() ? "" : "|") += got.value().text.substr(begin, end - begin);
  return out;
}

class TemplateGolden : public testing::Test {
 protected:
  const Json golden_ = Json::parse(test::read_data("templates.json"));
};

TEST_F(TemplateGolden, ConversationsRenderAsJinja2DoesInThePublishedConstructs) {
  Marks marks;
  for (const auto& [name, text] : golden_["marks"].items()) marks.push_back({name, text.get<std::string>()});
  std::string last;
  std::optional<ChatTemplate> one;
  int refused = 0;
  for (const Json& row : golden_["cases"]) {
    const std::string name = row[0].get<std::string>(), conversation = row[1].get<std::string>();
    if (name != last) one = test::good(ChatTemplate::compile(test::read_data("templates/" + name + ".jinja")));
    last = name;
    Json variables = {{"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", true}};
    variables.update(golden_["conversations"][conversation]);
    const auto got = one->render(variables, marks, patient(), golden_["now"].get<std::time_t>());
    EXPECT_EQ(got.ok(), row[2].is_string()) << name << " with " << conversation << ": " << error_of(got);
    if (got.ok() && row[2].is_string()) {
      EXPECT_EQ(got.value().text, row[2].get<std::string>()) << name << " with " << conversation;
    }
    refused += !got.ok();
  }
  EXPECT_GE(golden_["cases"].size(), 130u);
  EXPECT_GE(refused, 10);  // both outcomes are there
}

TEST_F(TemplateGolden, SnippetsOfEveryConstructRenderAsInJinja2OrFailWithIt) {
  for (const Json& row : golden_["snippets"]) {
    const auto got = render(row[0].get<std::string>(), golden_["variables"]);
    EXPECT_EQ(got.ok(), row[1].is_string()) << row[0] << ": " << error_of(got);
    if (got.ok() && row[1].is_string()) { EXPECT_EQ(got.value().text, row[1].get<std::string>()) << row[0]; }
    if (!got.ok()) { EXPECT_TRUE(got.error().message.starts_with("chat template line ")) << got.error().message; }
  }
  EXPECT_GE(golden_["snippets"].size(), 200u);
}

TEST(ChatTemplate, ErrorsNameLineAndConstruct) {
  for (const auto& [source, error] : std::initializer_list<std::pair<const char*, std::string>>{
           {"a\n\n{{ x|xmlattr }}", "3: the filter 'xmlattr' is not supported"},
           {"{{ x is weird }}", "1: the test 'weird' is not supported"},
           {"\n{% include 'a' %}", "2: the tag 'include' is not supported"},
           {"{% for x in [1] %}\n{{ x.y.z }}{% endfor %}", "2: 'int object' has no attribute \"y\""},
           {"{{ raise_exception('no tools') }}", "1: the template refuses the conversation: no tools"},
           {"{{ 'a'.encode() }}", "1: the attribute 'encode' of str is not supported"},
           {"{% if x %}", "1: expected {% endif %}, found the end of the template"},
       })
    EXPECT_EQ(error_of(source), "chat template line " + error);
  EXPECT_EQ(render("{{ 1 / 0 }}").error().kind, Error::Kind::Usage);
}

TEST(ChatTemplate, WhatIsLackingBehindAConditionIsNamedOnlyWhenReached) {
  expect_text("{% if x %}{{ 1|xmlattr }}{% endif %}ok", "ok");
  EXPECT_EQ(error_of("{% if 1 %}{{ 1|xmlattr }}{% endif %}ok"), "chat template line 1: the filter 'xmlattr' is not supported");
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(ChatTemplate, FiltersTakeNothingFromWhatIsFalse) {
  const std::string source =
      "{{ none|selectattr('a', 'nosuch')|list }}{{ 0|map('nosuch')|list }}{{ x|last }}{{ [1, 2]|select|reverse|length }}";
  expect_text(source, "[][]2");
}

TEST(ChatTemplate, TestsOfALoopSeeWhatItsBodyDid) {
  const std::string before = "{% set n = namespace(d=0) %}{% for i in [1, 2, 3] if not n.d %}",
                    after = "{% set n.d = i %}{% endfor %}";
  expect_text(before + "{{ i }}" + after, "1");
  expect_text(before + "{{ i }}{{ loop.last }}{{ loop.nextitem }}" + after, "1False22True");
  expect_text(before + "{{ loop.length }}{{ loop.index }}" + after, "313233");
}

TEST(ChatTemplate, DeepTemplatesAreRefusedWithoutDeepRecursion) {
  const auto expect_refused = [](const std::string& source) { expect_error(source, "template nested deeper than 128"); };
  for (const std::string_view open : {"(", "[", "{1:", "-", "not ", "a if b else ", "f(", "x[", "{'a':["})
    expect_refused("{{ " + repeated(open, 6000) + "x }}");
  for (const std::string_view more : {".b", "|trim", "()"}) expect_refused("{{ a" + repeated(more, 6000) + " }}");
  for (const std::string& source : {repeated("{% if 1 %}", 50000), repeated("{% for x in y %}", 50000),
           "{% set " + repeated("(", 6000) + "x = 1 %}", std::string("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"),
           "{% macro f(n) %}{{ " + repeated("-", 100) + "f(n) }}{% endmacro %}{{ f(0) }}",
           std::string("{% for x in [0] recursive %}{{ loop([0]) }}{% endfor %}")})
    expect_refused(source);
}

TEST(ChatTemplate, LongChainsAreNotDeep) {
  expect_text("{{ 1" + repeated(" + 1", 5000) + " }}", "5001");
  EXPECT_EQ(render("{{ 'a'" + repeated(" ~ 'a'", 5000) + " }}").value().text.size(), 5001u);
  expect_text("{% if 0 %}" + repeated("{% elif 0 %}", 5000) + "{% else %}x{% endif %}", "x");
  expect_text("{{ 0" + repeated(" or 0", 5000) + " }}", "0");
}

TEST(ChatTemplate, DeepValuesAreRefused) {
  Json deep = 1;
  for (int i = 0; i < 500; ++i) deep = Json::array({deep});
  expect_error("{{ x }}", "nested deeper than 128", {{"x", deep}});
  expect_error("{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
      "nested deeper than 128");
  expect_error("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "cannot be printed");
}

TEST(ChatTemplate, SharedPartsDoNotMakeWalksLong) {
  const std::string doubling =
      "{% set ns = namespace(a=[], b=[]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}"
      "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}";
  expect_error(doubling, "a value holds more than");
}

TEST(ChatTemplate, StepsTimeAndOutputAreBounded) {
  const std::string loops = "{% for a in range(2000) %}{% for b in range(2000) %}{% endfor %}{% endfor %}";
  expect_error(loops, "takes more than 1000000 steps");
  expect_error(loops, "takes more than 0 ms", Json::object(), {.time = std::chrono::milliseconds(0)});
  const TemplateLimits small = {.time = std::chrono::minutes(10), .output_bytes = 1000};
  for (const std::string_view source : {"{% for a in range(2000) %}x{% endfor %}", "{{ 'x' * 9000000000 }}",
           "{{ '%99999s' % 'x' }}", "{{ ('ab' * 400).replace('a', 'b' * 400) }}", "{{ range(900)|join('abc') }}",
           "{{ 'a\nb'|indent(999999999) }}", "{{ [1]|tojson(indent=5000) }}",
           "{% set ns = namespace(x='ab') %}{% for i in range(99) %}"
           "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
           "{{ ''.join(['x' * 600, 'y' * 600]) }}", "{{ ('x' * 600)|upper ~ ('x' * 600) }}"}) {
    const auto error = error_of(source, Json::object(), small);
    EXPECT_TRUE(error.find("bytes") != error.npos || error.find("too wide") != error.npos) << source << ": " << error;
  }
  expect_error("{{ range(10 ** 12) }}", "range of more than 100000 elements");
  expect_error("{{ [0] * 10 ** 15 }}", "too long a list");
  expect_error("{{ 2 ** 64 }}", "beyond 64 bits");
  expect_error(std::string((1 << 20) + 1, 'x'), "at most 1048576");
}

TEST(ChatTemplate, OnlyBytesOfTheTemplateAndItsMarksAreTrusted) {
  const Json chat = {
      {"messages", {{{"role", "user"}, {"content", " <s>hi "}}, {{"role", "<s>"}, {"content", "user"}, {"call", {{"<s>", 1}}}}}}};
  EXPECT_EQ(trusted_part("{{ bos }}[{{ messages[0].content }}]", chat, {{"bos", "<s>"}}), "<s>[|]");
  for (const auto& [source, trusted] : std::initializer_list<std::pair<const char*, const char*>>{
           {"{{ '<' ~ messages[0].content|trim + '>' }}", "<|>"},
           {"{{ '<|' + messages[0].role + '|>' }}", "<|user|>"},  // a known role is as good as the template
           {"{{ '<|' + messages[1].role + '|>' }}", "<|||>"},
           {"{{ '<|' + messages[1].content + '|>' }}", "<|||>"},
           {"{{ messages[1].call|join }}{{ messages[1]|join }}", ""},
           {"{{ ('[' ~ messages[0].content ~ ']')[1:-1] }}", ""},
           {"{{ '%s<%s>' % (messages[0].content, 1) }}", "<|>"},
           {"{{ messages|map(attribute='content')|join('<sep>') }}", "<sep>"},
           {"{{ messages[0].content.replace('hi', '<x>') }}", "<x>"},
           {"{{ messages[0].content.split('<')|join('<') }}", "<"},
           {"{{ messages|tojson }}{{ messages[0].content|upper }}{{ messages[0].content[::-1] }}", ""},
           {"{% macro f(x) %}<{{ x }}>{% endmacro %}{% set a %}{{ f(messages[0].content) }}{% endset %}{{ a }}", "<|>"},
           {"{% filter trim %} a{{ messages[0].content }}{% endfilter %}", "a"},
       })
    EXPECT_EQ(trusted_part(source, chat), trusted) << source;
}

TEST(ChatTemplate, MarksWinOverVariablesOfTheirName) {
  const auto got = render("{{ bos_token }}", {{"bos_token", "forged"}}, {{"bos_token", "<s>"}});
  EXPECT_EQ(got.value().text, "<s>");
}

TEST(ChatTemplate, TextsThatAreNotUtf8AreRefused) {
  expect_error("a\xFF", "not valid UTF-8: at byte 1");
  expect_error("{{ x }}", "not valid UTF-8", {{"x", "a\xFF"}});
}

}
}
