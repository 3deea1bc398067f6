// vegas: the blocks of entries that the verified rows attended to most (Vegas, section 4: blocks of one), each by its greatest
// score. Forward spread over them (S'(j) = max_t 0.98^t S(j-t)) favours what follows the places just read: the next tokens read
// it.
//
// Metrics: `weight` normalises by the drafts' log-sum-exps, `true_weight` by the rows' own in a second look at K; `logit` is eq.
// 2 and 3. Rows `last` is the row of the last accepted token, `accepted` all rows up to it.
#include "sparse/scored_policy.h"

namespace hunch {
namespace {

Result<std::unique_ptr<SparsePolicy>> make_vegas(const SparsePolicy::Setup& setup) {
  const PolicyOptions& o = setup.options;
  HUNCH_OK(check_known("vegas", "metric", o.metric, {"weight", "true_weight", "logit"}));
  HUNCH_OK(check_known("vegas", "rows", o.rows, {"all", "first_last", "last", "accepted"}));
  HUNCH_OK(check_known("vegas", "combine", o.combine, {"max", "sum"}));
  ScoredOptions how;
  how.metric = o.metric == "logit" ? ScoreMetric::Logit : ScoreMetric::Weight;
  how.drafts_lse = o.metric == "weight";
  using Rows = ScoredOptions::Rows;
  how.rows = o.rows == "all"   ? Rows::All
      : o.rows == "first_last" ? Rows::FirstLast
      : o.rows == "last"       ? Rows::Last
                               : Rows::Accepted;
  how.combine = o.combine == "max" ? ScoreCombine::Max : ScoreCombine::Sum;
  if (o.block < 1 || o.block > 64) return usage_error("vegas: blocks must have 1 to 64 entries");
  how.block = o.block, how.spread = (o.spread + o.block - 1) / o.block;
  if (o.metric == "logit" && how.spread > 0)
    return usage_error("vegas: spread needs a weight metric (logits may be negative); use spread 0 with metric logit");
  return make_scored("vegas", setup, how);
}

const Register<SparsePolicy> vegas{"vegas", "what the verified rows attended to, spread forward", make_vegas};

}
}
