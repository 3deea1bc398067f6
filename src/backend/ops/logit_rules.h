// What a request wants of the logits beside temperature and truncation: bans, bias, penalties. Applied to every row alike, plain,
// draft, verify or bonus, each with its own history, so that speculation changes nothing.
//
// Order: allowed ids; bad words; min tokens; bias; penalties (repetition over prompt and output, frequency and presence over the
// output); then ops/sample.h.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace hunch {

struct LogitRules {
  float repetition = 1;                         // > 0: divides positive logits, multiplies negative ones; 1: off
  float presence = 0, frequency = 0;            // subtracted once, and per occurrence in the output; 0: off
  std::vector<std::pair<int32_t, float>> bias;  // added
  std::vector<int32_t> allowed;                 // empty: all
  std::vector<std::vector<int32_t>> bad_words;  // the last token of each is banned where the tokens before it just stood
  int64_t min_tokens = 0;                       // output tokens before any of `end_ids` may be chosen
  std::vector<int32_t> end_ids;
  bool any() const {
    return repetition != 1 || presence != 0 || frequency != 0 || !bias.empty() || !allowed.empty() || !bad_words.empty() ||
           min_tokens > 0;
  }
};

// The rules of one request and what they need to know of its committed tokens. Memory is taken once, at admission.
class LogitState {
 public:
  LogitState(LogitRules rules, int64_t vocab) : rules_(std::move(rules)) { (void)vocab; }
  const LogitRules& rules() const { return rules_; }

  // Starts anew with a prompt, then takes each committed token; the pending token counts as committed.
  void reset(const int32_t* prompt, int64_t length) { (void)prompt, (void)length; }
  void append(int32_t token) { (void)token; }

 private:
  LogitRules rules_;
};

}  // namespace hunch
