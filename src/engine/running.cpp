#include "engine/running.h"

#include <algorithm>

namespace hunch {

Running::Running(EngineParts& parts, const RequestPlan& plan_, const Request& request)
    : plan(plan_), chance(plan_.noise), parts_(parts) {
  sequence.tokens.reserve(size_t(parts.context_len) + 1);
  sequence.tokens = request.prompt;
  sequence.prompt_len = int64_t(request.prompt.size());
  const int64_t room = parts.context_len - sequence.prompt_len;
  sequence.max_len = sequence.prompt_len + (request.max_tokens < 0 ? room : std::min(room, request.max_tokens));
  sequence.pages = PageTable(parts.context_len);
  sequence.noise = plan.noise;
  sequence.sampling = plan.sampling;
  prefill_target = sequence.prompt_len;
  priority = request.priority;
  use_cache = request.cache_prompt;
}

Running::~Running() {
  HUNCH_CHECK(!seated_now);
  if (proposer) parts_.drafting().release(proposer);
  if (policy) parts_.drafting().release(policy);
}

Result<std::unique_ptr<Running>> Running::make(EngineParts& parts, const RequestPlan& plan, const Request& request) {
  auto made = std::unique_ptr<Running>(new Running(parts, plan, request));
  HUNCH_TRY(made->rule, Register<AcceptanceRule>::find(plan.rule)->make({}));
  HUNCH_TRY(made->proposer, parts.drafting().acquire_proposer(plan.proposer, plan.proposing, plan.draft_weights));
  if (made->proposer->uses_policy()) { HUNCH_TRY(made->policy, parts.drafting().acquire_policy(plan.policy_name, plan.policy)); }
  // What decoding unverified leaves behind is not what others may build on.
  if (made->guarantee() == Guarantee::Lossy) made->use_cache = false;

  const size_t gamma = made->drafting() ? size_t(plan.gamma) : 0;
  made->tree.parents.resize(gamma);
  made->tokens_ = parts.backend->allocate(std::max<size_t>(gamma, 1) * sizeof(int32_t));
  made->tree.tokens = made->tokens_.view<int32_t>(int64_t(gamma));
  if (made->needs_probs() && gamma > 0) {
    const int64_t vocab = parts.model->shape().vocab_size;
    made->q_ = parts.backend->allocate(gamma * size_t(vocab) * sizeof(float));
    made->tree.q = made->q_.view<float>(int64_t(gamma), vocab);
  }
  made->row_parents.reserve(gamma + 1);
  made->path_rows.reserve(gamma + 1);
  made->verdict.path.reserve(gamma + 1);
  made->verdict.tokens.reserve(gamma + 1);
  made->stats.drafted_by_position.assign(gamma, 0);
  made->stats.accepted_by_position.assign(gamma, 0);
  return made;
}

void Running::seated() {
  if (policy) policy->open(sequence);
  proposer->open(sequence);
}

void Running::unseated() {
  if (policy) policy->close(sequence.slot);
  proposer->close(sequence.slot);
}

Guarantee Running::guarantee() const {
  if (!drafting()) return Guarantee::Stream;
  return plan.verify ? rule->guarantee() : policy->unverified();
}

int Running::most_drafts() const {
  if (!drafting()) return 0;
  return int(std::clamp<int64_t>(sequence.max_len - sequence.len() - 1, 0, plan.gamma));
}

}  // namespace hunch
