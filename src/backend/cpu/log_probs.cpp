// Exponentials are fp32 (about 1 ulp), summed by 16 in fp32, then in fp64, in the order of the ids: the logarithm of the sum is
// good to about 1e-7.
#include "backend/cpu/log_probs.h"

#include <functional>

namespace hunch {
namespace {

constexpr float kInf = INFINITY, kNan = NAN;

}

CpuLogProbs::CpuLogProbs(Threads& threads, const RowsKernels& kernels)
    : threads_(threads), kernels_(kernels), scratch_(size_t(threads.count())) {}

void CpuLogProbs::log_probs(const LogProbsArgs& args) {
  const size_t vocab = args.logits.extent[1];
  for (Scratch& scratch : scratch_) {  // grows with the first call, then stays
    if (scratch.ratios.size() >= vocab) continue;
    scratch.ids.resize(vocab + 16);
    scratch.group_best.resize((vocab + 255) / 256 * 16);
    scratch.ratios.resize(vocab);
  }
  threads_.run(args.logits.extent[0], [&](int64_t row, int worker) { log_probs_of_row(args, row, scratch_[worker]); });
}

void CpuLogProbs::log_probs_of_row(const LogProbsArgs& args, int64_t r, Scratch& scratch) const {
  const int64_t vocab = args.logits.extent[1];
  const float* logits = &args.logits(r, 0);
  const LogitScan scan = kernels_.scan(logits, vocab, scratch.group_best.data());
  if (scan.has_nan || !scan.has_finite) {
    if (args.ids.data) args.values(r) = kNan;
    for (int i = 0; i < args.count; ++i) args.top_ids(r, i) = -1, args.top_values(r, i) = kNan;
    return;
  }
  const SampleRow row{
      .logits = logits, .vocab = vocab, .best = scan.best, .cut_logit = -kInf, .cut_id = int32_t(vocab)};  // all ids
  const double log_total = std::log(kernels_.ratios(row, scratch.ratios.data()));
  const auto value = [&](int32_t id) {
    return float((logits[id] == scan.best ? 0.0 : double(logits[id]) - double(scan.best)) - log_total);
  };
  if (args.ids.data) args.values(r) = value(args.ids(r));
  if (args.count == 0) return;

  // The count best groups hold an id each that is at least as good as the worst of their bests: a bound, as in CpuSampler.
  const int64_t groups = (vocab + 255) / 256 * 16, wanted = std::min<int64_t>(args.count, vocab);
  float bound = -kInf;
  if (wanted <= groups) {
    float* best = scratch.group_best.data();
    std::nth_element(best, best + wanted - 1, best + groups, std::greater<>());
    bound = best[wanted - 1];
  }
  int32_t* ids = scratch.ids.data();
  const int64_t found = kernels_.collect(logits, vocab, bound, ids);
  const auto before = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  std::partial_sort(ids, ids + wanted, ids + found, before);
  for (int64_t i = 0; i < args.count; ++i) {
    args.top_ids(r, i) = i < wanted ? ids[i] : -1;
    args.top_values(r, i) = i < wanted ? value(ids[i]) : -kInf;
  }
}

}
