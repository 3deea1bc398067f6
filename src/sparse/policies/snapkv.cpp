// snapkv: the entries that the last rows of the prompt attended to, by the sum of their true weights, averaged over neighbours
// (SnapKV, as MagicDec drafts with it). Chosen once and kept: the observation window and everything generated are read whole.
#include "sparse/scored_policy.h"

namespace hunch {
namespace {

constexpr int kWindow = 32, kPool = 5;

Result<std::unique_ptr<SparsePolicy>> make_snapkv(const SparsePolicy::Setup& setup) {
  return make_scored("snapkv", setup, {.combine = ScoreCombine::Sum, .pool = kPool, .prompt_rows = kWindow, .keeps = true});
}

const Register<SparsePolicy> snapkv{"snapkv", "what the end of the prompt attended to, kept for the whole request", make_snapkv};

}
}
