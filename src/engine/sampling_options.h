// Checks what a request asks of sampling beside the truncation parameters (engine/plan.h). Called at admission; errors are usage
// errors that name the field, its value and what is allowed.
#pragma once

#include "backend/ops/logit_rules.h"
#include "hunch/hunch.h"
#include "hunch/result.h"

namespace hunch {

inline constexpr int kMaxLogprobs = 20;  // other ids per token
inline constexpr size_t kMaxStopTexts = 32, kMaxStopBytes = 1024;

// The rules of these options; logprobs and prompt_logprobs are checked too. `end_ids`: what min_tokens forbids; those outside the
// vocabulary are left out. An error if bans leave no id to choose, or none before min_tokens.
Result<LogitRules> logit_rules(const SamplingOptions& options, int64_t vocab, std::span<const int32_t> end_ids);

Status check_stop_texts(const std::vector<std::string>& stops);

}
