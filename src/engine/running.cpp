#include "engine/running.h"

#include "engine/sampling_options.h"
#include "engine/verify_check.h"

namespace hunch {

Tokens end_ids_of(const Request& request, const EngineParts& parts) {
  Tokens ids = request.stop_ids;
  const auto& eos = parts.model->shape().eos_ids;
  if (!request.ignore_eos || request.structured.kind != StructuredOutput::Kind::None)
    ids.insert(ids.end(), eos.begin(), eos.end());
  return ids;
}

Running::Running(EngineParts& parts, const RequestPlan& plan_, const Request& request)
    : plan(plan_), chance(plan_.noise), parts_(parts) {
  sequence.tokens.reserve(parts.context_len + 1);
  sequence.tokens = request.prompt;
  sequence.cache_salt = request.cache_salt;
  sequence.prompt_len = std::ssize(request.prompt);
  const int64_t room = parts.context_len - sequence.prompt_len;
  sequence.max_len = sequence.prompt_len + (request.max_tokens < 0 ? room : std::min(room, request.max_tokens));
  sequence.pages = PageTable(parts.context_len);
  sequence.noise = plan.noise;
  sequence.sampling = plan.sampling;
  prefill_target = sequence.prompt_len;
  priority = request.priority;
  if (plan.sharing.any()) sharing = &plan.sharing;
  profiled_ = plan.sharing;
  // The log-probabilities of a prompt come from running all of it.
  use_cache = request.cache_prompt && plan.prompt_logprobs < 0;
}

Running::~Running() {
  HUNCH_CHECK(!seated_now);
  for (const Drafter& drafter : drafters) parts_.drafting().release(drafter.proposer);
  if (policy) parts_.drafting().release(policy);
}

Result<std::unique_ptr<Running>> Running::make(EngineParts& parts, const RequestPlan& plan, const Request& request) {
  auto made = std::unique_ptr<Running>(new Running(parts, plan, request));
  HUNCH_TRY(made->rule, Register<AcceptanceRule>::find(plan.rule)->make({.vocab = parts.model->shape().vocab_size}));
  // Drawn trees grow level by level on the host, which judges them: on a device chains do better.
  if (made->needs_probs() && parts.backend->asynchronous()) made->plan.planned_nodes = 0;
  for (const std::string& name : plan.drafters) HUNCH_OK(made->add_drafter(name));
  HUNCH_TRY(LogitRules rules, logit_rules(request.sampling, parts.model->shape().vocab_size, end_ids_of(request, parts)));
  const bool structured = request.structured.kind != StructuredOutput::Kind::None;
  if (rules.any() || structured) {
    made->sequence.logit_state = std::make_unique<LogitState>(std::move(rules), parts.model->shape().vocab_size);
    if (structured) {
      HUNCH_TRY(GrammarCompiler * compiler, parts.grammars());
      auto grammar = plan.grammar;
      if (!grammar) { HUNCH_TRY(grammar, compiler->compile(request.structured)); }
      made->sequence.logit_state->take_mask(
          std::make_unique<GrammarMask>(*compiler, std::move(grammar), request.ignore_eos, parts.mask_workers()));
    }
    made->sequence.logit_state->reset(request.prompt.data(), std::ssize(request.prompt));
  }
  if (plan.sparse.on || plan.sparse.drafts) {
    HUNCH_TRY(CheckOptions options, check_options(parts, plan.sparse));
    (plan.sparse.on ? made->check : made->thinned) = make_check(parts, std::move(options));
  }
  // What lossy decoding leaves behind is not what others may build on.
  if (plan.approximation.any()) made->exact_len = made->sequence.prompt_len;  // prompts are read exactly
  else if (made->guarantee() == Guarantee::Lossy) made->use_cache = false;

  const size_t gamma = made->drafting() ? size_t(plan.gamma) : 0;
  made->row_parents.reserve(size_t(std::max(plan.nodes, plan.planned_nodes)) + 1);
  made->path_rows.reserve(gamma + 1);
  made->verdict.path.reserve(gamma + 1);
  made->verdict.tokens.reserve(gamma + 1);
  made->stats.drafted_by_position.assign(gamma, 0);
  made->stats.accepted_by_position.assign(gamma, 0);
  return made;
}

Status Running::add_drafter(const std::string& name) {
  const int64_t nodes = parts_.learned_named(name) ? std::max(plan.nodes, plan.planned_nodes) : plan.nodes;
  Drafter drafter{.name = name};
  HUNCH_TRY(drafter.proposer, parts_.drafting().acquire_proposer(name, plan.proposing, plan.draft_weights));
  drafter.tree.parents.resize(nodes);
  drafter.tokens = parts_.backend->allocate(nodes * sizeof(int32_t), Memory::Shared);
  drafter.tree.tokens = drafter.tokens.view<int32_t>(nodes);
  const bool passes = drafter.proposer->uses_policy();
  if (passes && plan.draft_weights && !plan.planned) HUNCH_OK(parts_.draft_weights(*plan.draft_weights));
  drafters.push_back(std::move(drafter));
  if (passes && !policy && !chooses_blocks()) {
    HUNCH_TRY(policy, parts_.drafting().acquire_policy(plan.policy_name, plan.policy));
    selecting_rows = policy->prompt_rows();
  }
  return {};
}

// Method auto makes trees of learned drafters only, where the request asks for none itself.
bool Running::may_make_trees(bool learned) const {
  return may_branch() || plan.token_tree.size() > 0 || (learned && plan.planned_nodes > 0 && rule->takes_branches());
}

bool Running::reads_rows() const {
  DraftTree chain{.law = DraftLaw::Given};
  chain.parents.resize(1), chain.make_chain(1);
  return rule->reads(chain) == AcceptanceRule::Reads::Rows || may_make_trees(true);
}

void Running::seated() {
  prepared = planned = false;
  if (policy) policy->open(sequence);
  if (check) check->open(sequence);
  if (thinned) thinned->open(sequence);
  for (const Drafter& drafter : drafters) drafter.proposer->open(sequence);
}

Guarantee Running::guarantee() const {
  if (check || plan.approximation.any()) return Guarantee::Lossy;
  if (!drafting()) return Guarantee::Stream;
  return plan.verify ? rule->guarantee() : policy->unverified();
}

bool Running::lossless() const {
  if (plan.approximation.any()) return false;
  if (drafting() && (plan.verify ? rule->guarantee() : policy->unverified()) == Guarantee::Lossy) return false;
  return !check || check->counts().passes == 0;
}

void Running::label() {
  stats.lossless = lossless();
  if (check) describe(*check, plan.sparse, stats.approximation);
  if (thinned) describe(*thinned, plan.sparse, stats.thinned);
}

void Running::decide_as_asked() {
  want_drafts = most_drafts(), want_depth = most_depth();
  branch = may_branch(), top_k = plan.proposing.tree_top_k;
  chosen = want_drafts > 0 ? 0 : -1, arm = -1;
  learns = policy != nullptr;
  stop_below = 0;
  looked_up = false;
}

void Running::decide_as_profiled() {
  const auto* row = parts_.strategies->row_for(plan.approximation.precision_class, sequence.committed_len);
  if (row != guard_.row()) guard_.enter(*row);
  const RankedStrategy& now = guard_.now();
  decide_as_asked();
  want_depth = std::min(want_depth, now.depth), want_drafts = std::min(want_drafts, now.nodes);
  branch = branch && now.nodes > now.depth, top_k = now.top_k;
  if (!branch) want_drafts = std::min(want_drafts, want_depth);
  if (want_drafts == 0) chosen = -1;
  if (!plan.approximation.any()) return;
  profiled_.group_rows = now.group_rows, profiled_.depth_first = now.depth_first;
  sharing = profiled_.any() ? &profiled_ : nullptr;
  stats.approximation.group_rows = std::max(stats.approximation.group_rows, now.group_rows);
}

int Running::most_depth() const {
  if (!drafting()) return 0;
  return int(std::clamp<int64_t>(sequence.max_len - sequence.len() - 1, 0, plan.gamma));
}

int Running::most_drafts() const {
  const int depth = most_depth();
  if (depth == 0 || !may_branch()) return depth;
  return int(std::min<int64_t>(plan.nodes, parts_.context_len - sequence.len()));
}
}
