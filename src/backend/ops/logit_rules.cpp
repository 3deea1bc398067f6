// See logit_rules.h: what the rules must know of the past, kept so that a committed token costs a few writes and a row can be
// processed without looking at the whole history.
#include "backend/ops/logit_rules.h"

#include "base/check.h"

namespace hunch {

LogitState::LogitState(LogitRules rules, int64_t vocab) : rules_(std::move(rules)), vocab_(vocab) {
  const auto check = [&](int32_t id) { HUNCH_CHECK(id >= 0 && id < vocab_); };
  for (const auto& [id, bias] : rules_.bias) check(id);
  for (const int32_t id : rules_.allowed) check(id);
  for (const int32_t id : rules_.end_ids) check(id);
  for (const std::vector<int32_t>& word : rules_.bad_words) {
    HUNCH_CHECK(!word.empty());
    for (const int32_t id : word) check(id);
    needed_ = std::max(needed_, word.size() - 1);
  }
  HUNCH_CHECK(rules_.repetition > 0);
  if (rules_.penalise()) needed_ = std::max(needed_, kNoted);
  last_tokens_.resize(2 * needed_);
  if (rules_.penalise()) {
    output_count_.resize(vocab);
    output_ids_.reserve(vocab);
  }
  if (rules_.repetition != 1) {
    in_prompt_.resize(vocab);
    prompt_ids_.reserve(vocab);
  }
}

void LogitState::reset(const int32_t* prompt, int64_t length) {
  for (const int32_t id : output_ids_) output_count_[id] = 0;
  for (const int32_t id : prompt_ids_) in_prompt_[id] = false;
  output_ids_.clear();
  prompt_ids_.clear();
  output_len_ = 0, num_last_ = 0, ++prompts_;
  if (mask_) mask_->reset();
  for (int64_t i = 0; i < length; ++i) {
    const int32_t id = prompt[i];
    remember(id);
    if (in_prompt_.empty() || id < 0 || id >= vocab_ || in_prompt_[id]) continue;
    in_prompt_[id] = true;
    prompt_ids_.push_back(id);
  }
}

void LogitState::append(int32_t token) {
  HUNCH_CHECK(token >= 0 && token < vocab_);
  ++output_len_;
  if (mask_) mask_->append(token);
  remember(token);
  if (!output_count_.empty() && output_count_[token]++ == 0) output_ids_.push_back(token);
}

void LogitState::remember(int32_t token) {
  if (needed_ == 0) return;
  if (num_last_ == last_tokens_.size()) {  // the older half can matter no more
    std::copy(last_tokens_.begin() + long(needed_), last_tokens_.end(), last_tokens_.begin());
    num_last_ = needed_;
  }
  last_tokens_[num_last_++] = token;
}

bool LogitState::completed_next(std::span<const int32_t> word, std::span<const int32_t> path) const {
  const size_t before = word.size() - 1, from_path = std::min(before, path.size()), from_committed = before - from_path;
  if (from_committed > num_last_) return false;
  return std::equal(word.begin(), word.begin() + long(from_committed), last_tokens_.begin() + long(num_last_ - from_committed)) &&
      std::equal(path.end() - long(from_path), path.end(), word.begin() + long(from_committed));
}

}
