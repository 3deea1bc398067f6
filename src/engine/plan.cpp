#include "engine/plan.h"

#include <random>
#include <tuple>

#include "accept/rule.h"
#include "base/failure.h"
#include "checkpoint/drafter_method.h"
#include "draft/proposer.h"
#include "engine/approximation.h"
#include "engine/controller.h"
#include "engine/defaults.h"
#include "engine/verify_check.h"
#include "model/skipped_layers.h"

namespace hunch {
namespace {

Status check_range(const char* what, double value, double low, double high, bool open_low) {
  if (std::isfinite(value) && (open_low ? value > low : value >= low) && value <= high) return {};
  return usage_error("{} is {}; it must lie in {}{}, {}]", what, value, open_low ? "(" : "[", low, high);
}

template <class I>
Status check_part(const char* what, const std::string& name) {
  if (Register<I>::find(name)) return {};
  return usage_error("unknown {} '{}'; known: {}", what, name, Register<I>::names());
}

// A tree of the request's own says how many nodes there are, and how deep; whoever gives a number beside it may mean either.
Status plan_token_tree(const SpeculationOptions& o, int max_draft, RequestPlan& plan) {
  if (!is_drafter_method(o.proposer))
    return usage_error("method {} does not guess by a token tree: learned drafters do", o.proposer);
  if (o.tree_tokens > 0) return usage_error("a token tree says how many nodes there are: leave the tree tokens out");
  HUNCH_TRY(plan.token_tree, StaticTree::make(o.token_tree, max_draft));
  plan.gamma = plan.token_tree.depth(), plan.nodes = plan.token_tree.size();
  if (o.num_tokens != 0 && o.num_tokens != plan.gamma && o.num_tokens != plan.nodes)
    return usage_error(
        "drafts of {} tokens, but the token tree has {} nodes in {} levels: say one of these, or leave the length out",
        o.num_tokens, plan.nodes, plan.gamma);
  return {};
}

Status check_drafting(const SpeculationOptions& o) {
  if (o.tree_top_k < 0 || o.tree_top_k > 16)
    return usage_error("the {} likeliest tokens of each node: 1 to 16 are possible, 0 is the default", o.tree_top_k);
  return {};
}

}

Status check_drafter(const std::string& method, const std::vector<DrafterOptions>& loaded) {
  if (!is_drafter_method(method)) return {};
  std::string names;
  for (const DrafterOptions& drafter : loaded) {
    if (drafter.method == method) return {};
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", drafter.method, drafter.path);
  }
  if (names.empty())
    return usage_error("method {} needs a drafter: --model-draft PATH or \"model\" in --speculative-config", method);
  return usage_error("method {} is not loaded; loaded are {}: add --model-draft PATH", method, names);
}

uint64_t drawn_seed() {
  std::random_device entropy;
  return uint64_t(entropy()) << 21 | entropy() >> 11;
}

Result<RequestPlan> plan_request(
    const Request& request, const SamplingDefaults& model, int max_draft, int layers, double bits_per_weight) {
  const SamplingOptions& s = request.sampling;
  const SpeculationOptions& o = request.speculation;
  RequestPlan plan;
  plan.sampling.temperature = float(s.temperature.value_or(model.temperature.value_or(defaults::kTemperature)));
  plan.sampling.top_p = float(s.top_p.value_or(model.top_p.value_or(defaults::kTopP)));
  plan.sampling.min_p = float(s.min_p.value_or(model.min_p.value_or(defaults::kMinP)));
  plan.sampling.top_k = s.top_k.value_or(model.top_k.value_or(defaults::kTopK));
  HUNCH_OK(check_range("temperature", plan.sampling.temperature, 0, 1e4, false));
  HUNCH_OK(check_range("top-p", plan.sampling.top_p, 0, 1, true));
  HUNCH_OK(check_range("min-p", plan.sampling.min_p, 0, 1, false));
  if (plan.sampling.top_k < 0) return usage_error("top-k is {}; it must be 0 (off) or more", plan.sampling.top_k);
  plan.noise.sample = request.sample_index;
  plan.noise.seed = s.seed ? *s.seed : drawn_seed();

  plan.logprobs = s.logprobs, plan.prompt_logprobs = s.prompt_logprobs;
  const bool greedy = plan.greedy();
  plan.rule = !o.rule.empty() ? o.rule : greedy || s.seed ? "match" : "ratio";
  plan.proposer = o.proposer;
  plan.planned = plan.proposer == "auto";
  plan.profiled = plan.proposer == "profile";
  if (plan.planned) plan.drafters = auto_drafters();
  else if (plan.profiled) plan.draft_weights.reset();
  else if (plan.proposer != "none") plan.drafters = {plan.proposer};
  plan.policy_name = o.policy;
  HUNCH_OK(check_part<AcceptanceRule>("rule", plan.rule));
  if (!plan.planned && !plan.profiled && !Register<Proposer>::find(plan.proposer))
    return usage_error("unknown proposer '{}'; known: auto, {}", plan.proposer, Register<Proposer>::names());
  HUNCH_OK(check_part<SparsePolicy>("policy", plan.policy_name));

  plan.gamma = o.num_tokens != 0 ? o.num_tokens : plan.planned ? std::min(kMaxPlannedDraft, max_draft) : defaults::kDraftTokens;
  if (plan.gamma < 1 || plan.gamma > max_draft)
    return usage_error("drafts of {} tokens: the length must lie in [1, {}]", plan.gamma, max_draft);
  plan.nodes = plan.gamma + o.tree_tokens;
  if (o.tree_tokens < 0 || plan.nodes > max_draft)
    return usage_error("a tree of {} tokens beside chains of {}: it must be 0 or more, and both together at most {}",
        o.tree_tokens, plan.gamma, max_draft);
  if (!o.token_tree.empty()) HUNCH_OK(plan_token_tree(o, max_draft, plan));
  HUNCH_OK(check_drafting(o));
  plan.policy.ratio = o.ratio == 0 ? defaults::kRatio : o.ratio;
  HUNCH_OK(check_range("the kept ratio", plan.policy.ratio, 0, 1, true));
  plan.policy.min_tokens = o.min_tokens;
  if (o.min_tokens < 1) return usage_error("the minimum budget is {}; it must be at least 1", o.min_tokens);
  if (o.spread < 0 || o.spread > 1024) return usage_error("spread is {}; it must lie in [0, 1024]", o.spread);
  if (o.sinks < -1 || o.recent < 0) return usage_error("sinks and recent must be 0 or more");
  plan.policy.sinks = o.sinks >= 0 ? o.sinks : o.policy == "streamingllm" ? defaults::kStreamingSinks : 0;
  PolicyOptions& policy = plan.policy;
  policy.recent = o.recent, policy.spread = o.spread, policy.max_tokens = o.max_entries;
  policy.metric = o.metric, policy.rows = o.rows, policy.combine = o.combine, policy.share = o.share;
  policy.page = o.page, policy.block = o.block, policy.layer_step = o.layer_step;
  if (o.layer_step < 1 || o.layer_step > 64)
    return usage_error("a layer step of {}: one choice serves 1 to 64 layers", o.layer_step);
  if (o.block < 1 || o.block > 64) return usage_error("blocks of {} entries; they must hold 1 to 64", o.block);
  if (o.max_entries < 0) return usage_error("at most {} entries to read; it must be 0 (no limit) or more", o.max_entries);
  if (o.page < 1 || o.page > 64) return usage_error("pages of {} entries; they must hold 1 to 64", o.page);
  if (o.ngram_min < 0 || o.ngram_max < 0 || (o.ngram_max > 0 && o.ngram_min > o.ngram_max))
    return usage_error("n-grams of {} to {} tokens: the lengths must be 0 or more, min not above max", o.ngram_min, o.ngram_max);
  if (o.suffix_depth < 1 || o.suffix_cached_requests < 0)
    return usage_error("suffix decoding needs a tree depth of at least 1 and 0 or more cached requests");
  HUNCH_OK(check_range("the suffix factor", o.suffix_factor, 0, 1e6, false));
  HUNCH_OK(check_range("the least suffix probability", o.suffix_min_probability, 0, 1, false));
  plan.proposing = {
      .ngram_min = o.ngram_min,
      .ngram_max = o.ngram_max,
      .suffix_depth = o.suffix_depth,
      .suffix_cached_requests = o.suffix_cached_requests,
      .suffix_factor = o.suffix_factor,
      .suffix_min_probability = o.suffix_min_probability,
      .cascade_first = o.cascade_first,
      .self_lookup = o.self_lookup,
      .tree_top_k = o.tree_top_k > 0 ? o.tree_top_k : defaults::kTreeTopK,
  };
  if (!o.self_lookup.empty() && o.self_lookup != "ngram" && o.self_lookup != "suffix")
    return usage_error("unknown look-up '{}' for self; known: ngram, suffix", o.self_lookup);
  HUNCH_TRY(plan.policy.skip_layers, skipped_layers(o.draft_skip_layers, layers));
  plan.proposing.skip_layers = plan.policy.skip_layers;
  if (!o.verify && !plan.policy.skip_layers.empty())
    return usage_error("unverified (lossy) decoding runs every layer: leave out the layers to skip");
  if (o.draft_weights == "auto") {
    // Unverified decoding shows what its attention alone does: no coarser weights on top unless asked for.
    if (o.verify && bits_per_weight >= defaults::kCoarserFrom) plan.draft_weights = DType::Q4_0;
  } else if (o.draft_weights == "q4_0" || o.draft_weights == "q8_0") {
    plan.draft_weights = dtype_named(o.draft_weights);
  } else if (o.draft_weights != "target") {
    return usage_error("unknown draft weights '{}'; known: auto, target, q4_0, q8_0", o.draft_weights);
  }
  plan.verify = o.verify;
  if (!plan.verify && (plan.proposer != "self" || plan.policy_name != "streamingllm"))
    return usage_error("unverified (lossy) decoding exists for proposer self with policy streamingllm only");
  HUNCH_OK(check_sparse_values(o));
  plan.sparse = o.sparse;
  // self guesses by what a check of all entries learns.
  if (plan.planned && o.sparse.on && o.sparse.ratio < 1) {
    std::ranges::replace(plan.drafters, std::string("self"), std::string("none"));
    plan.draft_weights.reset();
  }
  if (!plan.verify && plan.logprobs >= 0)
    return usage_error("log-probabilities come from the checking pass; unverified (lossy) decoding has none");
  return plan;
}

Result<RequestPlan> plan_on(const EngineParts& parts, const Request& request) {
  const std::string& method = request.speculation.proposer;
  HUNCH_OK(check_drafter(method, parts.options.drafters));
  HUNCH_TRY(RequestPlan plan,
      plan_request(
          request, parts.checkpoint->sampling(), parts.options.max_draft, parts.model->shape().layers, parts.bits_per_weight()));
  HUNCH_OK(plan_approximation(request.speculation, parts, plan));
  HUNCH_OK(plan_profiled(parts, plan));
  HUNCH_OK(check_options(parts, plan.sparse));
  if (parts.model->shape().nsa.used() && (method == "self" || method == "cascade" || method == "staged"))
    return usage_error(
        "methods self, cascade and staged draft over selected entries, and a model with natively trained sparse attention "
        "reads few anyway: use suffix, ngram or a loaded drafter");
  return plan;
}

void pace(const Request& request, int max_draft, RequestPlan& plan) {
  const SpeculationOptions& o = request.speculation;
  const SpeculationOptions usual;
  const auto reads = [](const SpeculationOptions& s) {
    return std::tie(s.num_tokens, s.tree_tokens, s.policy, s.ratio, s.min_tokens, s.metric, s.rows, s.combine, s.share, s.spread,
        s.sinks, s.recent, s.draft_weights, s.max_entries, s.page, s.block, s.layer_step, s.draft_skip_layers, s.self_lookup,
        s.verify, s.sparse.on, s.sparse.drafts);
  };
  plan.paced = plan.proposer == "self" && reads(o) == reads(usual) && request.structured.kind == StructuredOutput::Kind::None;
  if (plan.paced) plan.gamma = plan.nodes = std::min(kMaxPlannedDraft, max_draft);
}

}
