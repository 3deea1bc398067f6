// Grammars alone: what they allow byte by byte, roll-back, the end, and what is refused before or while compiling.
#include "text/grammar.h"

#include <fmt/format.h>

#include <ctime>

#include "text/grammar_check.h"
#include "text/grammar_language.h"
#include "text/test_data.h"

namespace hunch {
namespace {

using namespace test;

using Kind = StructuredOutput::Kind;
using enum Kind;
using Texts = std::vector<std::string>;

class Grammars : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!grammars_available()) GTEST_SKIP() << "built without xgrammar";
  }

  static const Tokenizer& tokenizer() {
    static const Tokenizer loaded = load("wren");
    return loaded;
  }
  static Ints ids_of(std::string_view text) { return encode(tokenizer(), text, {.add_bos = false}); }
  static int64_t vocab() { return tokenizer().vocab_size() + 40; }  // padded rows
  static GrammarCompiler compiler(const GrammarLimits& limits) { return {tokenizer(), vocab(), tokenizer().eos_ids(), limits}; }
  static GrammarCompiler& compiler() {
    static GrammarCompiler made = compiler({.seconds = 60});
    return made;
  }
  static GrammarState state(Kind kind, const std::string& text, Texts choices = {}) {
    return GrammarState(good(compiler().compile({.kind = kind, .text = text, .choices = std::move(choices)})), compiler());
  }
  static std::string error(Kind kind, const std::string& text, Texts choices = {}) {
    auto grammar = compiler().compile({.kind = kind, .text = text, .choices = std::move(choices)});
    if (!grammar.ok()) { EXPECT_EQ(grammar.error().kind, Error::Kind::Usage); }
    return grammar.ok() ? "" : grammar.error().message;
  }
  static void expect_refused(Kind kind, const Texts& texts) {
    for (const std::string& text : texts) EXPECT_NE(error(kind, text), "") << text;
  }
  static std::vector<uint32_t> mask(GrammarState& state) {
    std::vector<uint32_t> words(GrammarState::mask_words(vocab()));
    state.fill_mask(words);
    return words;
  }
  static bool allows(const std::vector<uint32_t>& words, int32_t id) { return words[size_t(id) / 32] >> (id % 32) & 1; }
  // The mask says of every id whether it is accepted; how many are.
  static int64_t expect_true_mask(GrammarState& at) {
    const auto words = mask(at);
    int64_t allowed = 0;
    for (int32_t id = 0; id < vocab(); ++id) {
      const bool accepted = at.accept(id);
      if (accepted) at.rollback(1), ++allowed;
      EXPECT_EQ(accepted, allows(words, id)) << id << " at " << at.taken();
      if (tokenizer().is_special(id) && !at.complete()) { EXPECT_FALSE(accepted) << id; }
    }
    EXPECT_EQ(mask(at), words) << "what was rolled back left a trace";
    return allowed;
  }
  static int32_t eos() { return tokenizer().eos_ids()[0]; }

  static bool reads(GrammarState& at, std::string_view text) {
    return std::ranges::all_of(ids_of(text), [&](int32_t id) { return at.accept(id); });
  }
  // Whether the text, as the tokenizer spells it, is a whole output.
  static bool takes(Kind kind, const std::string& grammar, const std::string& text, Texts choices = {}) {
    GrammarState at = state(kind, grammar, std::move(choices));
    return reads(at, text) && at.accept(eos());
  }
  static bool fits(const std::string& schema, const std::string& text) { return takes(JsonSchema, schema, text); }
};

TEST_F(Grammars, TakeWhatTheyDescribeAndNothingElse) {
  const std::string schema =
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]})";
  EXPECT_TRUE(fits(schema, R"({"name": "Ada", "age": 36})"));
  EXPECT_TRUE(fits(schema, R"({"name":"Ada","age":36})"));
  EXPECT_FALSE(fits(schema, R"({"name": "Ada"})"));
  EXPECT_FALSE(fits(schema, R"({"name": "Ada", "age": "36"})"));
  EXPECT_FALSE(fits(schema, R"({"name": "Ada", "age": 36, "more": 1})"));
  EXPECT_TRUE(takes(JsonObject, "", R"({"a": [1, {"b": null}], "c": "é"})"));
  EXPECT_FALSE(takes(JsonObject, "", "[1]"));
  for (const int blanks : {20, 21}) EXPECT_EQ(takes(JsonObject, "", "{" + std::string(blanks, ' ') + "}"), blanks == 20);
  EXPECT_FALSE(takes(JsonObject, "", R"({"a": 1)"));
  EXPECT_TRUE(takes(Regex, "[a-c]{2,3}-(x|y)+", "abc-xyx"));
  EXPECT_FALSE(takes(Regex, "[a-c]{2,3}-(x|y)+", "a-x"));
  EXPECT_TRUE(takes(Regex, R"([\^a]\x61b)", "^ab"));
  EXPECT_FALSE(takes(Regex, R"([\^a])", "x"));
  EXPECT_TRUE(takes(Grammar, R"(root ::= "\x61b" [\x61b])", "aba"));
  EXPECT_TRUE(takes(Choice, "", "a\nb", {"a\nb"}));
  EXPECT_TRUE(takes(Choice, "", "say \"no\"\\\n", {"yes", "say \"no\"\\\n"}));
  EXPECT_FALSE(takes(Choice, "", "ye", {"yes", "no"}));
  const std::string sums = "root ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" root \")\"";
  EXPECT_TRUE(takes(Grammar, sums, "1+(23+4)"));
  EXPECT_FALSE(takes(Grammar, sums, "1+(23+4"));
}

TEST_F(Grammars, AnythingMayStandWhereNothingIsSaidOfIt) {
  for (const char* schema :
      {R"({"type": ["array", "null"], "minItems": 1})", R"({"anyOf": [{"type": "array", "maxItems": 1}]})", "{}", "true",
          R"({"items": {"type": "object", "minProperties": 1}})", R"({"items": {"type": "object", "required": []}})"})
    EXPECT_TRUE(fits(schema, R"([{"type": [1]}])")) << schema;
  EXPECT_FALSE(fits(R"({"type": "array", "maxItems": 1})", "[1, 2]"));
  EXPECT_TRUE(fits(R"({"const": {"type": "array"}})", R"({"type":"array"})"));
  EXPECT_FALSE(fits(R"({"type": "object", "properties": {}})", R"({"a": 1})"));
}

TEST_F(Grammars, ADotOfARegexIsNoLineEnd) {
  EXPECT_TRUE(takes(Regex, R"(.[.\]]\.)", "é]."));
  EXPECT_FALSE(takes(Regex, ".", "\n"));
  EXPECT_FALSE(takes(Regex, R"(\.[.])", ".x"));
}

TEST_F(Grammars, AreWhatLlamaCppTakes) {
  for (const char* text : {"a", "a "}) EXPECT_TRUE(takes(Grammar, "root ::= \"a\" ws # |\nws ::= | \" \"", text)) << text;
  EXPECT_TRUE(takes(Grammar, "root ::= . \"b\" .* [.|)] \"(|\"", "éb.(|"));
  EXPECT_FALSE(takes(Grammar, "root ::= . \"b\"", "b"));
  EXPECT_TRUE(takes(Grammar, "root ::= a.b\na.b ::= \"x\"", "x"));
  EXPECT_TRUE(takes(Grammar, R"(root ::= "\[\"" [\]"] "\\")", "[\"]\\"));
  for (const char* text : {"", "aaa"}) EXPECT_TRUE(takes(Grammar, "root ::= \"a\"{ ,3}", text)) << text;
  EXPECT_FALSE(takes(Grammar, "root ::= \"a\"{,3}", "aaaa"));
  for (const char* text : {"x", "xy", "xz"}) EXPECT_TRUE(takes(Grammar, "root ::= \"x\" (\"y\" | | b)\nb ::= \"z\" |", text));
}

// For every id of the vocabulary, padded rows and special tokens included, at every position of an output.
TEST_F(Grammars, MasksSayWhatIsAccepted) {
  for (const auto& [kind, grammar, text] : std::vector<std::tuple<Kind, std::string, std::string>>{
           {JsonSchema, R"({"type": "object", "properties": {"kö": {"enum": ["ab", 1.5, null]}}, "required": ["kö"]})",
               R"({"kö": "ab"})"},
           {Regex, "(foo|bar)[0-9]{2}", "foo12"}}) {
    GrammarState at = state(kind, grammar);
    Ints ids = ids_of(text);
    ids.push_back(eos());
    for (const int32_t next : ids) {
      EXPECT_GT(expect_true_mask(at), 0);
      ASSERT_TRUE(at.accept(next));
    }
    EXPECT_FALSE(at.accept(-1));
    EXPECT_FALSE(at.accept(int32_t(vocab())));
  }
}

TEST_F(Grammars, RollBackOverTheEndAndBeyond) {
  GrammarState at = state(Choice, "", {"yes", "yesterday"});
  std::vector<std::vector<uint32_t>> masks{mask(at)};
  const auto ids = ids_of("yesterday");
  for (const int32_t id : ids) {
    ASSERT_TRUE(at.accept(id));
    masks.push_back(mask(at));
  }
  ASSERT_TRUE(at.accept(eos()));
  EXPECT_TRUE(at.terminated());
  ASSERT_TRUE(at.accept(eos())) << "behind the end there is only the end";
  EXPECT_FALSE(at.accept(ids[0]));
  const auto& ends = tokenizer().eos_ids();
  const auto last = mask(at);
  for (int32_t id = 0; id < vocab(); ++id) EXPECT_EQ(allows(last, id), std::ranges::find(ends, id) != ends.end()) << id;
  at.rollback(2);
  EXPECT_FALSE(at.terminated());
  for (size_t taken = ids.size(); taken > 0; --taken) {
    EXPECT_EQ(mask(at), masks[taken]);
    at.rollback(1);
  }
  EXPECT_EQ(mask(at), masks[0]);
  EXPECT_EQ(at.taken(), 0);
  ASSERT_TRUE(reads(at, "yes"));
  ASSERT_TRUE(at.accept(eos()));
  EXPECT_FALSE(at.accept(ids_of("terday")[0]));
  at.reset();
  EXPECT_EQ(mask(at), masks[0]);
}

// Neither the length of a string nor what stands before makes a raw control character or half a surrogate pair valid.
TEST_F(Grammars, JsonStringsHaveNoRawControlCharactersAndWholeSurrogatePairs) {
  const std::string bounded = R"({"type": "string", "maxLength": 20})", any = R"({"type": "string"})";
  for (const std::string& schema : {bounded, any}) {
    EXPECT_TRUE(fits(schema, "\"ab c\""));
    for (const char control : {'\x01', '\t', '\n', '\x1b', '\x1f'})
      EXPECT_FALSE(fits(schema, std::string("\"a") + control + "b\"")) << int(control);
  }
  EXPECT_TRUE(fits(any, R"("\ud83D\uDe00 \u00e9 \ud7ff\/")"));
  for (const char* half : {R"("\ud83d\udbff")", R"("\ud83d")", R"("\ud83d\n")", R"("\ud83d\u0041")", R"("\udc00")"})
    EXPECT_FALSE(fits(any, half)) << half;
  GrammarState at = state(JsonSchema, bounded);
  ASSERT_TRUE(at.accept(ids_of("\"")[0]));
  expect_true_mask(at);
  GrammarState escape = state(JsonSchema, any);
  ASSERT_TRUE(reads(escape, R"("\ud8)"));
  expect_true_mask(escape);
  escape.reset();
  EXPECT_TRUE(escape.accept(ids_of("\"")[0]));
}

TEST_F(Grammars, KnowWhatIsForced) {
  GrammarState at = state(Regex, "abc(d|e)fgh");
  EXPECT_EQ(at.forced(100), "abc");
  EXPECT_EQ(at.taken(), 0);
  ASSERT_TRUE(reads(at, "abcd"));
  EXPECT_EQ(at.forced(100), "fgh");
  GrammarState endless = state(Grammar, "root ::= \"ab\" root | \"abq\"");
  EXPECT_EQ(endless.forced(100), "ab");
  GrammarState long_one = state(Regex, "(ab){40}");
  EXPECT_EQ(long_one.forced(10), "ababababab");
  GrammarState may_end = state(Regex, "ab(cd)?"), two_lines = state(Choice, "", {"a\nb"});
  EXPECT_EQ(may_end.forced(9) + two_lines.forced(9), "aba\nb");
}

TEST_F(Grammars, RefuseWhatIsNotWellFormed) {
  expect_refused(JsonSchema,
      {"{", "", "[1]", "false", R"({"enum": []})", R"({"type": "strng"})", R"({"minimum": 3, "maximum": 2, "type": "integer"})"});
  expect_refused(Regex, {"[", "(a", "\xff", std::string("a\0b", 3)});
  expect_refused(Grammar, {"rot ::= \"a\"", "root ::= missing"});
  EXPECT_NE(error(Choice, ""), "");
  EXPECT_NE(error(Choice, "", {"a", ""}), "");
  EXPECT_NE(error(Choice, "", {std::string("a\0b", 3)}), "");
  GrammarCompiler few(tokenizer(), 9, {-1, 3, 9}, {.seconds = 60});
  EXPECT_EQ(few.end_ids(), Ints{3});
  expect_error(few.compile({.kind = Choice, .choices = {"é"}}), "no output of this model's tokens");
}

// A constraint that would be kept in part is not kept at all.
TEST_F(Grammars, RefuseWhatTheyCouldNotKeepToTheLetter) {
  expect_refused(JsonSchema,
      {R"({"type":"string","not":{"const":"a"}})", R"({"type":"array","uniqueItems":true})",
          R"({"type":"array","contains":{"type":"null"}})", R"({"if":{"type":"null"},"then":{"type":"null"}})",
          R"({"type":"number","multipleOf":0.1})", R"({"type":"integer","multipleOf":7,"minimum":3})",
          R"({"type":"string","pattern":"a+","maxLength":3})", R"({"allOf":[{"type":"string"},{"maxLength":2}]})",
          R"({"anyOf":[{"type":"string"}],"maxLength":2})", R"({"oneOf":[{"type":"string"},{"type":"string"}]})",
          R"({"type":"string","enum":["a",1]})", R"({"properties":{"a":{"items":{"not":{}}}}})", R"({"minimum":5})",
          R"({"items":{"required":["a"]}})", R"({"type":"string","format":"json-pointer"})",
          R"({"enum":[{"a":[18446744073709551615]}]})", R"({"type":"object","required":["q"]})",
          R"({"properties":{"a":{}},"required":["a","q"],"additionalProperties":true})", R"({"type":"object","minProperties":2})",
          R"({"properties":{"a":{}},"additionalProperties":{},"minProperties":2})",
          R"({"properties":{"a":{}},"propertyNames":{"enum":["b"]}})",
          R"({"type":"object","patternProperties":{"^a+$":{}},"properties":{"aa":{}}})",
          R"({"type":"object","patternProperties":{"^a+$":{}},"additionalProperties":{}})",
          R"({"type":"object","patternProperties":{"^a.*$":{},"^.*b$":{}}})",
          R"({"properties":{"a":{}},"unevaluatedProperties":{},"minProperties":2})",
          R"({"type":"object","propertyNames":{"type":"string","not":{}}})", R"({"type":"string","format":"idn-email"})",
          R"({"enum":["a"],"anyOf":[{"const":"b"}]})", R"({"type":"integer","enum":[1.5]})", R"({"type":"string","const":1})",
          R"({"const":18446744073709551615})", R"({"$ref":"#/definitions/a","definitions":{"a":{"type":"null","not":{}}}})",
          R"({"type":[]})"});
  for (const char* key : {"else", "dependentSchemas", "$dynamicRef"})
    expect_refused(JsonSchema, {fmt::format(R"({{"type":"array","{}":1}})", key)});
  EXPECT_EQ(error(JsonSchema, R"({"properties":{"a":{},"b":{"type":"integer","format":"int32"}},"minProperties":2})"), "");
  expect_refused(Regex, {"a(?=b)b", "(a)\\1", "a$b"});
  EXPECT_EQ(error(Regex, "^a[$^]\\$$"), "");
  // Examples are data, not schemas.
  EXPECT_EQ(error(JsonSchema, R"({"type":"object","properties":{"not":{"type":"null"}},"examples":[{"not":1}]})"), "");
}

TEST_F(Grammars, SayWhereASchemaIsWrong) {
  for (const char* wrong :
      {R"({"type":"strng"})", R"({"type":["null","nul"]})", R"({"type":"string","minLength":3,"maxLength":1})",
          R"({"type":"integer","maximum":6.5})", R"({"type":"integer","minimum":"1"})",
          R"({"type":"integer","maximum":2,"multipleOf":2})", R"({"type":"string","pattern":"a$b"})"})
    test::expect_part(error(JsonSchema, fmt::format(R"({{"type":"array","items":{}}})", wrong)), "at /items: ");
  EXPECT_TRUE(fits(R"({"type":"array","prefixItems":[true]})", R"([{"a":1}])"));
}

TEST_F(Grammars, RefusePatternsThatLeaveTheirString) {
  const auto of = [](std::string_view pattern) {
    std::string escaped;
    for (const char c : pattern) escaped += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    return Texts{fmt::format(R"({{"type": "string", "pattern": "{}"}})", escaped),
        fmt::format(R"({{"type": "object", "patternProperties": {{"{}": {{}}}}}})", escaped)};
  };
  for (const char* pattern :
      {"^a\"b$", "[\"]", "a\\x22", "\\u005c", "^\\cJ$", "é.", "é\\S", "é[^a]", "é[ -~]", "(.{1,100}){1,100}"})
    expect_refused(JsonSchema, of(pattern));
  for (const char* pattern : {".", "\\S+", "[^a]", "[\"a]", "^é[^\"\\\\]$", "[а-яё]{2}", "é[!#-\\[]\\w"})
    for (const std::string& schema : of(pattern)) EXPECT_EQ(error(JsonSchema, schema), "") << schema;
  for (const char* schema : {R"({"type": "string", "format": "date", "pattern": "^2"})", R"({"anyOf": []})",
           R"({"type": "number", "minimum": 0.1234567, "maximum": 0.1234568})", R"({"exclusiveMinimum": 0, "maximum": 1e-7})",
           R"({"type": "number", "exclusiveMinimum": 0.999999, "exclusiveMaximum": 1})",
           R"({"type": "integer", "minimum": 0.2, "maximum": 0.8})"})
    expect_refused(JsonSchema, {schema});
  EXPECT_EQ(error(JsonSchema, R"({"type": "number", "exclusiveMinimum": 0.1, "maximum": 0.100001})"), "");
  const std::string email = R"({"type": "string", "format": "email"})";
  EXPECT_TRUE(fits(email, R"("\"\n\\\"@ab.cd")"));
  EXPECT_FALSE(fits(email, R"("\"\a\"@ab.cd")"));
  for (const char* text : {R"("\"\u00g0\"@ab.cd")", R"("\"\ud8g0\udc00\"@ab.cd")"}) EXPECT_FALSE(fits(email, text)) << text;
  GrammarState at = state(JsonSchema, email);
  ASSERT_TRUE(reads(at, R"("\")"));
  expect_true_mask(at);
}

// What scripts/xgrammar.patch makes of the library.
TEST_F(Grammars, KeepFormatsAndFollowReferences) {
  for (const auto& [format, good, bad] : std::vector<std::tuple<std::string, Texts, Texts>>{
           {"date", {"2024-02-29", "1999-12-31", "0001-02-28"}, {"2023-02-29", "2024-11-31", "1900-02-29", "0000-01-01"}},
           {"date-time", {"2024-02-29T23:59:59.5Z"}, {"2024-09-31T10:00:00Z", "2024-09-30T10:00:60Z"}},
           {"time", {"23:59:59+01:00"}, {"10:00:60Z"}}, {"ipv4", {"192.0.20.1"}, {"059.1.1.1", "1.1.1.01", "256.1.1.1"}},
           {"ipv6", {"::1.2.3.4"}, {"::01.1.1.1"}}}) {
    const auto schema = fmt::format(R"({{"type": "string", "format": "{}"}})", format);
    for (const std::string& text : good) EXPECT_TRUE(fits(schema, '"' + text + '"')) << text;
    for (const std::string& text : bad) EXPECT_FALSE(fits(schema, '"' + text + '"')) << text;
  }
  const std::string kinds = R"({"$ref": "#/$defs/d"}], "$defs":
      {"a/b": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
       "d": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}}})";
  const std::string animals = R"({"oneOf": [{"$ref": "#/$defs/a~1b"}, )" + kinds;
  EXPECT_TRUE(fits(animals, R"({"kind": "dog"})"));
  EXPECT_FALSE(fits(animals, R"({"kind": "cow"})"));
  EXPECT_TRUE(fits(R"({"oneOf": [{"type": "null"}, {"type": "array"}, )" + kinds, "null"));
  EXPECT_NE(
      error(JsonSchema, R"({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}], "$defs": {"a": {"type": "number"}}})"), "");
}

TEST_F(Grammars, RefuseWhatNeverComesToAnEnd) {
  const std::string open = "root ::= x | \"b\" y\nx ::= \"(\" x \")\"\ny ::= [)] y \"|\" | x";
  const std::string self = R"({"type": "object", "properties": {"a": {"$ref": "#"}})";
  expect_refused(Grammar, {"root ::= \"a\" root", open});
  expect_refused(JsonSchema, {self + R"(, "required": ["a"]})"});
  EXPECT_EQ(error(Grammar, open + "{0,2}"), "");
  EXPECT_EQ(error(JsonSchema, self + "}"), "");
}

TEST(Language, IsEmptyWhereRulesOnlyLeadToEachOther) {
  for (const std::string& some : {std::string("root ::= ((\"a\"))"), "root ::= " + std::string(100000, '('),
           std::string("root ::= ((\"a\" root) | (b))\nb ::= ((\"x\" [^)\\]]* c)) (=(\"(\" root))\nc ::= (\"\" | (root))"),
           std::string("root ::= ((\"a\" root{0, 3}))"), std::string("root ::= Regex(\"a)|(b\", json_string=true) (=(\"x\"))")})
    EXPECT_TRUE(has_output(some)) << some;
  EXPECT_FALSE(has_output("root ::= ((\"a\" root{1, 3}))"));
  EXPECT_FALSE(has_output("root ::= ((\"\\\")|\" root) | (b))\nb[lazy] ::= (([|)\\]] root)) (=(\"\"))"));
  EXPECT_TRUE(has_output("")) << "what cannot be read is nobody's error";
}

TEST_F(Grammars, RefuseReferencesThatLeadOutOrRound) {
  expect_refused(JsonSchema,
      {R"({"$ref":"#"})", R"({"$ref":"http://example.com/schema.json"})",
          R"({"$defs":{"a":{"$ref":"#/$defs/b"}, "b":{"$ref":"#/$defs/a"}}, "$ref":"#/$defs/a"})",
          R"({"$ref":"#/$defs/missing"})"});
  const std::string list = R"({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
                              "required": ["next"]})";
  EXPECT_TRUE(fits(list, R"({"next": {"next": null}})"));
}

TEST_F(Grammars, RefuseWhatIsTooLargeBeforeItIsCompiled) {
  const auto expect_refused = [](Kind kind, const std::string& text) {
    expect_error(check_structured({.kind = kind, .text = text}), "schema_too_complex");
  };
  std::string deep, many = R"({"enum": [0)";
  for (int i = 0; i < 10000; ++i) deep += R"({"items": )", many += ',', many += std::to_string(i);
  std::string some = many.substr(0, 14000) + "0]}", bools = R"({"prefixItems": [true)";
  for (int i = 0; i < kMaxSchemaValues; ++i) bools += ",true";
  EXPECT_TRUE(check_structured({.kind = JsonSchema, .text = some}).ok());
  for (const std::string& schema : {deep, many + "]}", fmt::format(R"({{"anyOf": [{0},{0}]}})", some), bools + "]}",
           std::string(R"({"type": "string", "maxLength": 100000000})"),
           std::string(R"({"type": "string", "pattern": "(a{1,500}){1,500}"})")})
    expect_refused(JsonSchema, {schema});
  for (const std::string& regex : {std::string("(.{1,999}){1,999}"), std::string("(.{,999}){999}"), std::string("a{101}{101}"),
           std::string("((a{99})b){999}"), std::string("((a|[)(]{200}){3}b){200,}"), std::string(kMaxGrammarBytes + 1, 'a'),
           std::string(300, '(') + "a" + std::string(300, ')')})
    expect_refused(Regex, regex);
  expect_refused(Grammar, "root ::= (\"{1\" [a-z]{200}) {200}");
  EXPECT_TRUE(check_structured({.kind = Regex, .text = "(a+)+b{100}c{999}\\d{99}"}).ok());
  expect_error(check_structured({.kind = Choice, .choices = {std::string(kMaxGrammarBytes + 1, 'a')}}), "schema_too_complex");
  for (const size_t more : {0, 1})
    EXPECT_EQ(check_structured({.kind = Choice, .choices = Texts(kMaxChoices + more, "a")}).ok(), !more);
}

TEST_F(Grammars, GiveUpOnWhatCompilesTooLong) {
  GrammarCompiler hurried = compiler({.seconds = 1e-6});
  expect_error(hurried.compile({.kind = JsonSchema, .text = R"({"type": "string", "maxLength": 60})"}), "schema_too_complex");
  // It ends at its limit, not when it has compiled all.
  const auto seconds = [](double limit) {
    GrammarCompiler of_limit = compiler({.seconds = limit});
    const std::clock_t begin = std::clock();
    (void)of_limit.compile({.kind = JsonSchema, .text = R"({"type": "string", "maxLength": 3000})"});
    return double(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  const double whole = seconds(60);
  EXPECT_LT(seconds(whole / 50), whole / 2);
  GrammarCompiler small = compiler({.seconds = 60, .grammar_bytes = 1000});
  EXPECT_FALSE(small.compile({.kind = JsonObject}).ok());
}

TEST_F(Grammars, AreKeptWithinABound) {
  GrammarCompiler bounded = compiler({.seconds = 60, .cache_bytes = 20000});
  const auto regex = [](int i) { return StructuredOutput{.kind = Regex, .text = "a{2}b" + std::to_string(i)}; };
  const auto first = good(bounded.compile(regex(0)));
  EXPECT_EQ(bounded.compile(regex(0))->get(), first.get()) << "compiled once";
  const auto used = good(bounded.compile(regex(1)));
  for (int i = 2; i < 300; ++i) {
    ASSERT_TRUE(bounded.compile(regex(i)).ok());
    ASSERT_EQ(bounded.compile(regex(1))->get(), used.get());
    EXPECT_LE(bounded.cached_bytes(), 20000u);
  }
  EXPECT_NE(bounded.compile(regex(0))->get(), first.get()) << "it had to go";
}

TEST_F(Grammars, AreNotMixedUp) {
  std::set<SharedGrammar> made;
  for (const StructuredOutput& form : {StructuredOutput{.kind = Choice, .choices = {"ab", "c"}},
           {.kind = Choice, .choices = {"a", "bc"}}, {.kind = Regex, .text = "ab"}, {.kind = Grammar, .text = "root ::= \"ab\""}})
    made.insert(good(compiler().compile(form)));
  EXPECT_EQ(made.size(), 4u);
}

}
}
