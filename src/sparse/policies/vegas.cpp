// vegas: the blocks of entries that the verified rows attended to most (Vegas, section 4: blocks of one), each by its greatest
// score. Forward spread over them (S'(j) = max_t 0.98^t S(j-t)) favours what follows the places just read, which is what the next
// tokens read.
//
// Metrics: `weight` normalises by the drafts' log-sum-exps, `true_weight` by the rows' own in a second look at K; `logit` is eq.
// 2 and 3. Rows `last` is the row of the last accepted token, `accepted` all rows up to it.
#include "sparse/scored_policy.h"

namespace hunch {
namespace {

Result<std::unique_ptr<SparsePolicy>> make_vegas(const SparsePolicy::Setup& setup) {
  const PolicyOptions& o = setup.options;
  const auto unknown = [](const std::string& key, const std::string& value, const std::string& known) {
    return usage_error("vegas: unknown " + key + " '" + value + "'; known: " + known);
  };
  ScoredOptions how;
  if (o.metric != "weight" && o.metric != "true_weight" && o.metric != "logit")
    return unknown("metric", o.metric, "weight, true_weight, logit");
  how.metric = o.metric == "logit" ? ScoreMetric::Logit : ScoreMetric::Weight;
  how.drafts_lse = o.metric == "weight";
  using Rows = ScoredOptions::Rows;
  if (o.rows == "all") how.rows = Rows::All;
  else if (o.rows == "first_last") how.rows = Rows::FirstLast;
  else if (o.rows == "last") how.rows = Rows::Last;
  else if (o.rows == "accepted") how.rows = Rows::Accepted;
  else return unknown("rows", o.rows, "all, first_last, last, accepted");
  HUNCH_OK(parse_combine("vegas", o, how));
  HUNCH_OK(parse_share("vegas", o, how));
  if (o.block < 1 || o.block > 64) return usage_error("vegas: blocks must have 1 to 64 entries");
  how.block = o.block, how.spread = (o.spread + o.block - 1) / o.block;
  if (o.metric == "logit" && how.spread > 0)
    return usage_error("vegas: spread needs a weight metric (logits may be negative); use spread 0 with metric logit");
  return std::unique_ptr<SparsePolicy>(new ScoredPolicy(setup, how));
}

const Register<SparsePolicy> vegas{"vegas", "what the verified rows attended to, spread forward", make_vegas};

}
}
