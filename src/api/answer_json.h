// The parts of an answer as JSON, in the shapes of OpenAI, of vLLM (prompt_logprobs, metrics) and of llama.cpp (timings). Used by
// call.cpp for whole answers and for chunks of a stream, which must show the same values.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "api/call.h"
#include "hunch/hunch.h"
#include "text/tokenizer.h"

namespace hunch {

// How a token is called: its text; "bytes:\xe2\x80" where that is no whole characters; with `as_ids` (or no tokenizer)
// "token_id:7".
struct TokenNames {
  const Tokenizer* tokenizer = nullptr;
  bool as_ids = false;
  bool skip_special = true;
  std::string name(int32_t id) const;
  std::string bytes(int32_t id) const;  // as the token adds them to the text
};

// One token with what was looked at beside it.
struct ScoredToken {
  int32_t id = -1;
  bool scored = true;  // false: the first of a prompt
  float logprob = 0;
  std::span<const TokenLogprob> top;
};

// Without the token that the engine always makes and nobody asked for.
Generation scores_of(Generation generation);

// Of completions: columns. `offset`: code points of the choice's text before the first token; moves on.
nlohmann::ordered_json completion_logprobs(std::span<const ScoredToken> tokens, const TokenNames& names, int64_t& offset);
// Of chats: {"content": [...]}.
nlohmann::ordered_json chat_logprobs(std::span<const ScoredToken> tokens, const TokenNames& names);
// vLLM's: null, then an object of token ids for every further token of the prompt.
nlohmann::ordered_json prompt_logprobs(const Generation& generation, const TokenNames& names);

// The tokens of a prompt and of what follows it, as they were scored.
std::vector<ScoredToken> scored_prompt(const Tokens& prompt, const Generation& generation);
std::vector<ScoredToken> scored_tokens(const Generation& generation);

// `thoughts`: how many of the completion's tokens were; -1: not known yet.
nlohmann::ordered_json usage_json(int64_t prompt, int64_t completion, int64_t cached, int64_t thoughts);
// Of several generations: counts together, times the longest.
nlohmann::ordered_json timings_json(std::span<const Generation* const> generations);
nlohmann::ordered_json metrics_json(std::span<const Generation* const> generations, ApiLimits::SpeculationMetrics detail);

// "stop", "length", and for a generation that was stopped from outside "length" too: its text goes no further.
std::string_view openai_finish(FinishReason reason);

}
