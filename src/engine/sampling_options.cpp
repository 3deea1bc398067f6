// Ranges are those of OpenAI's and vLLM's interfaces.
#include "engine/sampling_options.h"

#include "base/failure.h"
#include "text/unicode.h"

namespace hunch {
namespace {

Status check_id(const char* field, int64_t id, int64_t vocab) {
  if (id >= 0 && id < vocab) return {};
  return usage_error("{} has token id {}; ids of this model are 0..{}", field, id, vocab - 1);
}

Status check_penalty(const char* field, double value) {
  if (value >= -2 && value <= 2) return {};
  return usage_error("{} is {}; it must be in -2..2 (0: off)", field, value);
}

Status check_logprobs(const char* field, int value) {
  if (value >= -1 && value <= kMaxLogprobs) return {};
  return usage_error("{} is {}; it must be in -1..{} (-1: none)", field, value, kMaxLogprobs);
}

Status check_ranges(const SamplingOptions& s, int64_t vocab) {
  if (!(s.repetition_penalty >= 0.01 && s.repetition_penalty <= 100))
    return usage_error("repetition_penalty is {}; it must lie in [0.01, 100] (1: off)", s.repetition_penalty);
  HUNCH_OK(check_penalty("presence_penalty", s.presence_penalty));
  HUNCH_OK(check_penalty("frequency_penalty", s.frequency_penalty));
  for (const auto& [id, bias] : s.logit_bias) {
    HUNCH_OK(check_id("logit_bias", id, vocab));
    if (!(bias <= 100))
      return usage_error("logit_bias of token id {} is {}; it must be at most 100 (-100 and less bans)", id, bias);
  }
  for (const int32_t id : s.allowed_token_ids) HUNCH_OK(check_id("allowed_token_ids", id, vocab));
  for (size_t i = 0; i < s.bad_words.size(); ++i) {
    if (s.bad_words[i].empty()) return usage_error("bad_words: entry {} is empty; each needs at least one token", i);
    for (const int32_t id : s.bad_words[i]) HUNCH_OK(check_id("bad_words", id, vocab));
  }
  if (s.min_tokens < 0) return usage_error("min_tokens is {}; it must be 0 (off) or more", s.min_tokens);
  HUNCH_OK(check_logprobs("logprobs", s.logprobs));
  return check_logprobs("prompt_logprobs", s.prompt_logprobs);
}

// Bans of every row must leave an id; those of longer bad words depend on the row and may at worst end a request.
Status check_something_is_left(const LogitRules& rules, int64_t vocab) {
  std::vector<bool> banned(vocab, !rules.allowed.empty());
  for (const int32_t id : rules.allowed) banned[id] = false;
  for (const auto& [id, bias] : rules.bias)
    if (bias <= kBanBias) banned[id] = true;
  for (const Tokens& word : rules.bad_words)
    if (word.size() == 1) banned[word[0]] = true;
  const auto nothing_left = [&] { return std::ranges::find(banned, false) == banned.end(); };
  if (nothing_left())
    return usage_error(
        "allowed_token_ids, bad_words and logit_bias leave no token that could be chosen; allow or unban at least one");
  if (rules.min_tokens == 0) return {};
  for (const int32_t id : rules.end_ids) banned[id] = true;
  if (nothing_left())
    return usage_error(
        "min_tokens is {}, but only end tokens may be chosen; it must be 0 or other tokens allowed", rules.min_tokens);
  return {};
}

}

Result<LogitRules> logit_rules(const SamplingOptions& options, int64_t vocab, std::span<const int32_t> end_ids) {
  HUNCH_OK(check_ranges(options, vocab));
  LogitRules rules;
  rules.repetition = float(options.repetition_penalty);
  rules.presence = float(options.presence_penalty), rules.frequency = float(options.frequency_penalty);
  rules.bias = options.logit_bias;
  rules.allowed = options.allowed_token_ids;
  rules.bad_words = options.bad_words;
  rules.min_tokens = options.min_tokens;
  for (const int32_t id : end_ids)
    if (id >= 0 && id < vocab) rules.end_ids.push_back(id);
  HUNCH_OK(check_something_is_left(rules, vocab));
  return rules;
}

Status check_stop_texts(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStopTexts) return usage_error("stop has {} texts; at most {} are allowed", stops.size(), kMaxStopTexts);
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty() || stops[i].size() > kMaxStopBytes)
      return usage_error("stop: text {} has {} bytes; each needs 1..{}", i, stops[i].size(), kMaxStopBytes);
    if (const auto at = first_invalid_utf8(stops[i]))
      return usage_error("stop: text {} is not valid UTF-8 from byte {} on; give whole characters", i, *at);
  }
  return {};
}

}
