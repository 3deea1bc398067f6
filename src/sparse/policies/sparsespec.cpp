// sparsespec: the entries that all rows of the last verify pass attended to, by the sum of their true weights (PillarAttn of
// SparseSpec, arXiv 2512.01278). The first round after the prompt reads everything.
#include "sparse/scored_policy.h"

namespace hunch {
namespace {

Result<std::unique_ptr<SparsePolicy>> make_sparsespec(const SparsePolicy::Setup& setup) {
  return make_scored("sparsespec", setup, {.combine = ScoreCombine::Sum, .selects_prompt = false});
}

const Register<SparsePolicy> sparsespec{
    "sparsespec", "what all verified rows attended to, by true weights (PillarAttn)", make_sparsespec};

}
}
