// Options of sampling become rules, or an error that names the field, the value and what is allowed.
#include "engine/sampling_options.h"

#include "base/test_results.h"

#include <cmath>
#include <limits>
#include <tuple>

namespace hunch {
namespace {

constexpr float kInf = INFINITY;
constexpr int64_t kVocab = 10;

std::string refusal(const SamplingOptions& options) {
  auto rules = logit_rules(options, kVocab, Ints{0});
  if (rules.ok()) return "accepted";
  EXPECT_EQ(rules.error().kind, Error::Kind::Usage);
  return rules.error().message;
}

TEST(LogitRulesOfARequest, AreOffByDefault) {
  auto rules = test::good(logit_rules({}, kVocab, Ints{0, 99}));
  EXPECT_FALSE(rules.any());
  EXPECT_EQ(rules.end_ids, (Ints{0}));  // 99 is no token of the model
}

TEST(LogitRulesOfARequest, TakeEveryField) {
  SamplingOptions options;
  options.repetition_penalty = 1.5, options.presence_penalty = -2, options.frequency_penalty = 2;
  options.logit_bias = {{3, -kInf}, {4, 100.0f}};
  options.allowed_token_ids = {3, 4, 9};
  options.bad_words = {{9, 9}};
  options.min_tokens = 4, options.logprobs = 20, options.prompt_logprobs = 0;
  auto rules = test::good(logit_rules(options, kVocab, Ints{9}));
  EXPECT_EQ(std::tie(rules.repetition, rules.presence, rules.frequency, rules.min_tokens), std::tuple(1.5f, -2, 2, 4));
  EXPECT_EQ(std::tie(rules.bias, rules.allowed, rules.bad_words),
      std::tie(options.logit_bias, options.allowed_token_ids, options.bad_words));
  EXPECT_EQ(rules.end_ids, (Ints{9}));
}

TEST(LogitRulesOfARequest, NameTheFieldTheValueAndWhatIsAllowed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(refusal({.repetition_penalty = 0}), "repetition_penalty is 0; it must lie in [0.01, 100] (1: off)");
  EXPECT_NE(refusal({.repetition_penalty = nan}), "accepted");
  EXPECT_NE(refusal({.repetition_penalty = 1e-38}), "accepted");  // logits would become infinite
  EXPECT_NE(refusal({.repetition_penalty = 100.5}), "accepted");
  EXPECT_EQ(refusal({.presence_penalty = -2.5}), "presence_penalty is -2.5; it must be in -2..2 (0: off)");
  EXPECT_NE(refusal({.presence_penalty = nan}), "accepted");
  EXPECT_EQ(refusal({.frequency_penalty = 2.5}), "frequency_penalty is 2.5; it must be in -2..2 (0: off)");
  EXPECT_EQ(refusal({.logit_bias = {{10, 1.0f}}}), "logit_bias has token id 10; ids of this model are 0..9");
  EXPECT_EQ(
      refusal({.logit_bias = {{1, 101.0f}}}), "logit_bias of token id 1 is 101; it must be at most 100 (-100 and less bans)");
  EXPECT_NE(refusal({.logit_bias = {{1, float(nan)}}}), "accepted");
  EXPECT_EQ(refusal({.allowed_token_ids = {-1}}), "allowed_token_ids has token id -1; ids of this model are 0..9");
  EXPECT_EQ(refusal({.bad_words = {{1}, {}}}), "bad_words: entry 1 is empty; each needs at least one token");
  EXPECT_EQ(refusal({.bad_words = {{1, 12}}}), "bad_words has token id 12; ids of this model are 0..9");
  EXPECT_EQ(refusal({.min_tokens = -1}), "min_tokens is -1; it must be 0 (off) or more");
  EXPECT_EQ(refusal({.logprobs = 21}), "logprobs is 21; it must be in -1..20 (-1: none)");
  EXPECT_EQ(refusal({.prompt_logprobs = -2}), "prompt_logprobs is -2; it must be in -1..20 (-1: none)");
}

TEST(LogitRulesOfARequest, MustLeaveATokenToChoose) {
  const std::string nothing =
      "allowed_token_ids, bad_words and logit_bias leave no token that could be chosen; allow or unban at least one";
  EXPECT_EQ(refusal({.logit_bias = {{2, -100.0f}}, .allowed_token_ids = {1, 2}, .bad_words = {{1}}}), nothing);
  EXPECT_EQ(refusal({.allowed_token_ids = {1, 2}, .bad_words = {{1}, {3, 2}}}), "accepted");
  SamplingOptions none;
  for (int32_t id = 0; id < kVocab; ++id) none.logit_bias.emplace_back(id, -kInf);
  EXPECT_EQ(refusal(none), nothing);
  EXPECT_EQ(refusal({.allowed_token_ids = {0}, .min_tokens = 1}),
      "min_tokens is 1, but only end tokens may be chosen; it must be 0 or other tokens allowed");
  EXPECT_EQ(refusal({.allowed_token_ids = {0}}), "accepted");
}

TEST(StopTextsOfARequest, AreFewShortAndWhole) {
  const auto refusal = [](const std::vector<std::string>& stops) {
    const Status status = check_stop_texts(stops);
    return status.ok() ? "accepted" : status.error().message;
  };
  EXPECT_EQ(refusal({}), "accepted");
  EXPECT_EQ(refusal(std::vector<std::string>(32, std::string(1024, 'x'))), "accepted");
  EXPECT_EQ(refusal(std::vector<std::string>(33, "x")), "stop has 33 texts; at most 32 are allowed");
  EXPECT_EQ(refusal({"a", ""}), "stop: text 1 has 0 bytes; each needs 1..1024");
  EXPECT_EQ(refusal({std::string(1025, 'x')}), "stop: text 0 has 1025 bytes; each needs 1..1024");
  EXPECT_EQ(refusal({"a\xc3"}), "stop: text 0 is not valid UTF-8 from byte 1 on; give whole characters");
}

}
}
