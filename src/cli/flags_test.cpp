// Every wrong flag of `hunch run` with the message that answers it; what is taken from llama.cpp's command lines.
#include "cli/flags.h"

#include <tuple>

#include "api/nearest.h"
#include "base/test_results.h"
#include "cli/request_flags.h"

namespace hunch {
namespace {

using namespace test;

// The flags of `hunch run`, parsed; keeps the error's message.
struct Parsed : RunFlags {
  FlagSet set{"hunch run", "Runs."};
  Status status;

  explicit Parsed(std::vector<std::string> arguments) {
    add_run_flags(set, *this);
    status = set.parse(arguments);
  }
  Parsed(const Parsed&) = delete;
  std::string message() const { return status.ok() ? "" : status.error().message; }
};

TEST(Flags, TakesLlamaCppsSpellings) {
  const Parsed p({"-m", "x.gguf", "--prompt=a = b", "-n", "-1", "-c", "0", "-t", "2", "--temp", ".5", "-s", "-1", "-ctk", "f16",
      "-ctv", "f16"});
  ASSERT_TRUE(p.status.ok()) << p.message();
  EXPECT_EQ(p.model.model, "x.gguf");
  EXPECT_EQ(p.prompt.text, "a = b");
  EXPECT_EQ(p.sampling.max_tokens, -1);
  EXPECT_EQ(p.sampling.temperature, 0.5);
  EXPECT_EQ(p.sampling.seed, std::nullopt);
  EXPECT_EQ(p.model.key_dtype, "f16");
}

TEST(Flags, TakesOneStructureOfTheOutput) {
  using Kind = StructuredOutput::Kind;
  const Parsed json({"-j", R"({"type": "null"})"}), choice({"--choice", "yes", "--choice", "no"}), regex({"--regex", "a|b"}),
      grammar({"--grammar", "root ::= \"a\""});
  EXPECT_EQ(json.sampling.structured.kind, Kind::JsonSchema);
  EXPECT_EQ(json.sampling.structured.text, R"({"type": "null"})");
  EXPECT_EQ(choice.sampling.structured.kind, Kind::Choice);
  EXPECT_EQ(choice.sampling.structured.choices, (std::vector<std::string>{"yes", "no"}));
  EXPECT_EQ(regex.sampling.structured.kind, Kind::Regex);
  EXPECT_EQ(grammar.sampling.structured.kind, Kind::Grammar);
  EXPECT_EQ(request_of(grammar.sampling, {}).structured.text, "root ::= \"a\"");
  expect_part(Parsed({"-j", "{}", "--regex", "a"}).message(), "given already");
  expect_part(Parsed({"-j", "{"}).message(), "not valid JSON");
  EXPECT_NE(Parsed({"--grammar-file", "/nowhere"}).message(), "");
}

TEST(Flags, TakesWhatStandsBehindTwoDashesAsItIs) {
  FlagSet set("hunch x FILE", "Reads.");
  std::optional<std::string> file;
  set.positional("FILE", true, "a file", file);
  expect_part(set.parse({}).error().message, "FILE is missing");
  const std::string given[] = {"--", "-odd"};
  ASSERT_TRUE(set.parse(given).ok());
  EXPECT_EQ(file, "-odd");
}

TEST(Flags, ReadsContextsInBothThousands) {
  for (const auto& [given, meant] : {std::pair{"32k", 32000}, {"32K", 32768}, {"auto", 0}})
    EXPECT_EQ(Parsed({"-c", given}).model.context_len, meant);
  EXPECT_FALSE(Parsed({"-c", "17000k"}).status.ok());
}

TEST(Flags, LetsTheLastOfARepeatedFlagWin) { EXPECT_EQ(Parsed({"--top-k", "1", "--top-k", "2"}).sampling.top_k, 2); }

void expect_refused(const std::vector<std::string>& arguments, const std::string& message) {
  const Parsed p(arguments);
  EXPECT_EQ(p.message(), message);
  if (!p.status.ok()) { EXPECT_EQ(p.status.error().kind, Error::Kind::Usage) << message; }
}

TEST(Flags, AnswersEveryBadValueWithFlagValueAndRange) {
  const struct {
    std::string flag, value, wanted;
  } values[] = {
      {"--temp", "x", "needs a number in 0..10000"},
      {"--temp", "-0.1", "must be in 0..10000"},
      {"--temp", "nan", "must be in 0..10000"},
      {"-n", "-5", "must be in -1..1099511627776"},
      {"-n", "0", "must be -1 (no limit) or at least 1"},
      {"--top-p", "2", "must be above 0 and at most 1"},
      {"--top-p", "0", "must be above 0 and at most 1"},
      {"--min-p", "1.1", "must be in 0..1"},
      {"--top-k", "-1", "must be in 0..1073741824"},
      {"-t", "0", "must be in 1..1024"},
      {"-t", "1025", "must be in 1..1024"},
      {"-c", "99999999999", "must be in 0..16777216"},
      {"--draft", "9999999", "must be in 1..64"},
      {"--draft", "0", "must be in 1..64"},
      {"--ratio", "0", "must be above 0 and at most 1"},
      {"--ratio", "nan", "must be above 0 and at most 1"},
      {"--policy", "nosuch",
          "must be one of full, last_accepted, oracle, quest, random, snapkv, sparsespec, streamingllm, vegas"},
      {"--rule", "block", "must be one of match, point, ratio"},
      {"--seed", "-2", "needs -1 (random) or a whole number in 0..18446744073709551615"},
      {"--seed", "12x", "needs -1 (random) or a whole number in 0..18446744073709551615"},
      {"--kv-type", "int8", "must be one of f32, f16, bf16, i16, q8_0, fp8"},
      {"--device", "metal", "must be one of cpu, reference"},
      {"--color", "maybe", "must be one of auto, always, never"},
  };
  for (const auto& [flag, value, wanted] : values) expect_refused({flag, value}, flag + " " + wanted + ", not \"" + value + "\"");
  const std::pair<std::vector<std::string>, std::string> others[] = {
      {{"--spec", "dflash"},
          "--spec: dflash is not available yet; there are auto, cascade, draft_model, eagle, eagle3, medusa, mtp, ngram, none, "
          "profile, self, staged, suffix (self also spelled sparse_attn)"},
      {{"-ctk", "q4_0"}, "-ctk: q4_0 is not available yet; there are f32, f16, bf16, i16, q8_0, fp8"},
      {{"--kv-cache-dtype", "fp8_e5m2"},
          "--kv-cache-dtype: fp8_e5m2 is not available yet; there are f32, f16, bf16, i16, q8_0, fp8"},
      {{"--device", "cuda"}, "--device cuda: this program has no CUDA backend; scripts/build cuda makes one"},
      {{"--nosuchflag"}, "unknown flag \"--nosuchflag\""},
      {{"--temprature", "1"}, "unknown flag \"--temprature\" (did you mean --temperature?)"},
      {{"--draft"}, "--draft needs a value: --draft N"},
      {{"--json=yes"}, "--json takes no value, but got \"yes\""},
      {{"hello"}, "what is \"hello\" for? A text to continue goes behind -p, a file behind -f"},
  };
  for (const auto& [arguments, message] : others) expect_refused(arguments, message);
}

TEST(Flags, IgnoresHarmlessForeignFlagsAndRefusesTheRest) {
  const Parsed harmless(
      {"-ngl", "99", "-fa", "-b", "2048", "-ub", "512", "--mlock", "--no-mmap", "-fa", "on", "--repeat-penalty", "1.0"});
  ASSERT_TRUE(harmless.status.ok()) << harmless.message();
  EXPECT_EQ(harmless.set.ignored(), (std::vector<std::string>{"-ngl", "-fa", "-b", "-ub", "--mlock", "--no-mmap"}));
  const Parsed defaults({"-t", "4", "-t", "-1", "--repeat-last-n", "64", "--spec-draft-n-min", "0", "--spec-draft-p-min", "0.00",
      "--spec-draft-p-split", "0.10", "--poll", "50", "--keep", "0", "--mirostat", "0", "--xtc-probability", "0.00"});
  EXPECT_TRUE(defaults.status.ok()) << defaults.message();
  EXPECT_EQ(defaults.model.threads, std::nullopt);
  expect_part(Parsed({"--rope-freq-base", "2"}).message(), "leave it out or at 0");
  expect_part(Parsed({"--samplers", "top_k"}).message(), "the order of processing is the same everywhere");
  EXPECT_FALSE(Parsed({"--dry-multiplier", "0.8"}).status.ok());
  EXPECT_EQ(Parsed({"--typical", "0.9"}).message(), "--typical: not available yet; leave it out or at 1");
}

TEST(Flags, TakesWhatEndsAnAnswerAndWhatBackslashesMean) {
  const Parsed p(
      {"-e", "-p", R"(a\tb\x41\q\)", "--stop", "x", "-r", R"(\n)", "--special", "-dev", "none", "--color", "-n", "-2"});
  ASSERT_TRUE(p.status.ok()) << p.message();
  EXPECT_EQ(good(prompt_text(p.prompt)), "a\tbA\\q\\");
  const Request request = request_of(p, {});
  EXPECT_EQ(request.stop, (std::vector<std::string>{"x", "\n"}));
  EXPECT_FALSE(request.skip_special_tokens);
  EXPECT_EQ(p.model.device, "cpu");
  EXPECT_EQ(p.output.color, ColorWish::Always);
  EXPECT_EQ(p.sampling.max_tokens, -1);
  EXPECT_EQ(Parsed({"--color", "off"}).output.color, ColorWish::Never);
  EXPECT_EQ(good(prompt_text(Parsed({"-p", R"(a\n)"}).prompt)), R"(a\n)");
  expect_part(prompt_text(Parsed({"-e", "-p", R"(\xff)"}).prompt).error().message, "not UTF-8");
  EXPECT_FALSE(Parsed({"--stop", ""}).status.ok());
}

TEST(Flags, TakesVllmsDottedKeysAndSglangsWords) {
  const Parsed dotted({"--speculative-config.method", "ngram", "-n", "3", "--speculative-config.num_speculative_tokens=4"});
  ASSERT_TRUE(dotted.status.ok()) << dotted.message();
  EXPECT_EQ(dotted.speculation.config, R"({"method":"ngram","num_speculative_tokens":4})");
  EXPECT_EQ(dotted.sampling.max_tokens, 3);
  expect_part(Parsed({"--speculative-config.method"}).message(), "unknown flag");
  const Parsed sglang(
      {"--speculative-algorithm", "NGRAM", "--speculative-num-steps", "5", "--kv-type", "f16", "--kv-cache-dtype", "auto"});
  ASSERT_TRUE(sglang.status.ok()) << sglang.message();
  const auto options = good(resolve_speculation(sglang.speculation));
  EXPECT_EQ(std::tie(options.proposer, options.num_tokens), std::tuple("ngram", 5));
  EXPECT_EQ(sglang.model.key_dtype, std::nullopt);
}

TEST(Flags, TakesPenaltiesAndBiases) {
  const Parsed p({"--repeat-penalty", "1.1", "--presence-penalty", "0.5", "--frequency-penalty", "-1", "-l", "5+1.5", "-l", "7-2",
      "-l", "9-inf", "--temp", "0", "--top-p", "0.9", "--min-p", "0.2", "--top-k", "7"});
  ASSERT_TRUE(p.status.ok()) << p.message();
  const SamplingOptions s = request_of(p.sampling, {}).sampling;
  EXPECT_EQ(std::tie(s.repetition_penalty, s.presence_penalty, s.frequency_penalty), std::tuple(1.1, 0.5, -1.0));
  EXPECT_EQ(std::tie(s.top_p, s.min_p, s.top_k), std::tuple(0.9, 0.2, 7));
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, 1.5f}, {7, -2}, {9, -100}}));
  EXPECT_EQ(s.temperature, 0);
  for (const char* bad : {"", "x+1", "5", "5+", "5*2", "-5+1"}) EXPECT_FALSE(Parsed({"-l", bad}).status.ok()) << bad;
  EXPECT_FALSE(Parsed({"--repeat-penalty", "0"}).status.ok());
  const Parsed none({"--repeat-last-n", "0", "--repeat-penalty", "1.1", "--presence-penalty", "1", "--frequency-penalty", "1"});
  ASSERT_TRUE(none.status.ok()) << none.message();
  const SamplingOptions without = request_of(none.sampling, {}).sampling;
  EXPECT_EQ(std::tie(without.repetition_penalty, without.presence_penalty, without.frequency_penalty), std::tuple(1.0, 0.0, 0.0));
  expect_part(Parsed({"--repeat-last-n", "64", "--repeat-penalty", "1.1"}).message(), "the whole text");
}

TEST(Flags, WantsOneTypeForKeysAndValues) {
  const Parsed p({"-m", "x", "-ctk", "f16", "-ctv", "f32"});
  EXPECT_EQ(error_of(engine_options(p.model)),
      "keys and values of the KV cache have one type here: -ctk f16 -ctv f32 do not agree; use --kv-type");
}

TEST(Flags, TakesTheTypesOfTheCacheAsVllmSpellsThem) {
  for (const auto& [given, meant] : {std::pair{"fp8", "fp8"}, {"fp8_e4m3", "fp8"}, {"bfloat16", "bf16"}, {"q8_0", "q8_0"}}) {
    const Parsed p({"-m", "x", "--kv-cache-dtype", given});
    EXPECT_EQ(good(engine_options(p.model)).kv_dtype, meant);
  }
}

TEST(Flags, WantsExactlyOnePrompt) {
  const auto message = [](std::vector<std::string> arguments) {
    return error_of(prompt_text(Parsed(std::move(arguments)).prompt));
  };
  EXPECT_EQ(message({}), "no prompt: give the text with -p TEXT or a file with -f FILE (-f - reads the standard input)");
  EXPECT_EQ(message({"-p", "a", "-f", "b"}), "-p and -f exclude each other: the prompt comes from one of them");
  EXPECT_EQ(message({"-p", "a", "--system", "b"}), "--system needs --chat: without it the text is continued as it is");
  EXPECT_EQ(message({"-p", ""}), "-p: the prompt is empty");
  EXPECT_EQ(message({"-p", "ab\xff"}), "-p: not UTF-8 text: byte 2 (0xff) begins no character");
  EXPECT_EQ(message({"-f", "/no/such/file"}), "/no/such/file: cannot be opened: No such file or directory");
}

TEST(Flags, HelpFitsAHundredColumns) {
  const Parsed p({"--help"});
  EXPECT_TRUE(p.set.help_wanted());
  const std::string help = p.set.help();
  for (size_t at = 0; at < help.size();) {
    const size_t end = std::min(help.find('\n', at), help.size());
    EXPECT_LE(end - at, 100u) << help.substr(at, end - at);
    at = end + 1;
  }
  expect_part(help, "--speculative-config");
  EXPECT_EQ(help.find("-ngl"), help.npos);
}

TEST(Nearest, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("ratio", "ratio"), 0);
  EXPECT_EQ(edit_distance("ratoi", "ratio"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  static constexpr std::string_view kWords[] = {"alpha", "beta"};
  EXPECT_EQ(nearest_word("bta", kWords), "beta");
  EXPECT_EQ(nearest_word("zzzzzz", kWords), "");
}

}
}
