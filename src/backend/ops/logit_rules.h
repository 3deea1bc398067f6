// What a request wants of the logits beside temperature and truncation: bans, bias, penalties. Applied to every row alike, plain,
// draft (ops/sample.h: blind), verify or bonus, each with its own history, so that speculation changes nothing.
//
// Order: allowed ids; the mask; bad words; min tokens; bias; penalties (repetition over prompt and output, frequency and presence
// over the output); then ops/sample.h.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "backend/ops/token_mask.h"

namespace hunch {

inline constexpr float kBanBias = -100;  // a bias of so little, or less, bans

struct LogitRules {
  float repetition = 1;                         // > 0: divides positive logits, multiplies negative ones; 1: off
  float presence = 0, frequency = 0;            // subtracted once, and per occurrence in the output; 0: off
  std::vector<std::pair<int32_t, float>> bias;  // added; an id that comes twice gets both
  std::vector<int32_t> allowed;                 // empty: all
  // The last token of each is banned where the tokens before it just stood, in prompt, output or drafts.
  std::vector<std::vector<int32_t>> bad_words;
  // Output tokens before any of `end_ids` may be chosen; where a mask allows nothing else, they may.
  int64_t min_tokens = 0;
  std::vector<int32_t> end_ids;
  bool penalise() const { return repetition != 1 || presence != 0 || frequency != 0; }
  bool any() const {
    return penalise() || !bias.empty() || !allowed.empty() || !bad_words.empty() || (min_tokens > 0 && !end_ids.empty());
  }
};

// The rules of one request and what they need to know of its committed tokens. Memory is taken once, at admission: about 12 bytes
// per id with penalties, next to nothing without.
class LogitState {
 public:
  // Every id of the rules must be inside the vocabulary and no bad word empty (engine/sampling_options.h checks requests).
  LogitState(LogitRules rules, int64_t vocab);
  LogitState(const LogitState&) = delete;
  LogitState& operator=(const LogitState&) = delete;

  const LogitRules& rules() const { return rules_; }
  int64_t vocab() const { return vocab_; }

  // A mask beside the rules, from the beginning of the output on. Before the first append().
  void take_mask(std::unique_ptr<TokenMask> mask) { mask_ = std::move(mask); }
  TokenMask* mask() const { return mask_.get(); }  // null: none

  // Starts anew with a prompt, then takes each committed token; the pending token counts as committed. Neither allocates.
  void reset(const int32_t* prompt, int64_t length);
  void append(int32_t token);

  // For backends. Counts are kept only if something is penalised, the prompt's ids only with a repetition penalty.
  int64_t output_len() const { return output_len_; }
  uint32_t output_count(int32_t id) const { return output_count_[id]; }
  bool in_prompt(int32_t id) const { return !in_prompt_.empty() && in_prompt_[id]; }
  std::span<const int32_t> output_ids() const { return output_ids_; }  // each once
  std::span<const int32_t> prompt_ids() const { return prompt_ids_; }  // each once
  // True if rules ask which drafts stand before a row, beyond how often: the host must know them then.
  bool reads_drafts() const {
    return mask_ || std::ranges::any_of(rules_.bad_words, [](const auto& word) { return word.size() > 1; });
  }
  // For devices, which keep counts of their own: what they keep, how often there was a new prompt, and the last tokens, at most
  // 2 * kNoted of prompt and output; behind kNoted new ones or more they start anew.
  mutable std::shared_ptr<void> device_copy;
  uint64_t prompts() const { return prompts_; }
  std::span<const int32_t> last_tokens() const { return std::span(last_tokens_).first(num_last_); }
  // Whether all tokens but the last of `word` stand at the end of the committed ones followed by `path` (drafts, oldest first).
  bool completed_next(std::span<const int32_t> word, std::span<const int32_t> path) const;

 private:
  static constexpr size_t kNoted = 128;
  void remember(int32_t token);

  LogitRules rules_;
  std::unique_ptr<TokenMask> mask_;
  int64_t vocab_ = 0, output_len_ = 0;
  std::vector<uint32_t> output_count_;            // [vocab]
  std::vector<bool> in_prompt_;                   // [vocab]
  std::vector<int32_t> output_ids_, prompt_ids_;  // room for every id
  // The last committed tokens, as many as the longest bad word or a device could need and up to twice that.
  std::vector<int32_t> last_tokens_;
  size_t needed_ = 0, num_last_ = 0;
  uint64_t prompts_ = 0;
};

}
