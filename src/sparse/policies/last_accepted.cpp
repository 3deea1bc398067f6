// last_accepted: the entries that the row of the last accepted token attended to most (SpecExtend's rule as an ablation of Vegas,
// per layer and entry). True weights, mean over the query heads of a set; the row is known after acceptance only.
#include "sparse/scored_policy.h"

namespace hunch {
namespace {

Result<std::unique_ptr<SparsePolicy>> make_last_accepted(const SparsePolicy::Setup& setup) {
  return make_scored("last_accepted", setup, {.rows = ScoredOptions::Rows::Last, .combine = ScoreCombine::Sum});
}

const Register<SparsePolicy> last_accepted{
    "last_accepted", "what the last accepted row attended to (SpecExtend)", make_last_accepted};

}
}
