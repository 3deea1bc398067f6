// See sampler.h and docs/kernels/sampling.md.
#include "backend/cpu/sampler.h"

#include <bit>
#include <limits>

#include "backend/reference/reference_backend.h"
#include "base/check.h"

namespace hunch {
namespace {

constexpr int64_t kFewIds = 512;  // up to here one id at a time in fp64 is faster than noise for the whole vocabulary
constexpr float kInfinity = INFINITY;

struct Row {
  const float* logits;
  float best;
  double temperature;
  double log_ratio(int32_t id) const { return logits[id] == best ? 0 : (double(logits[id]) - double(best)) / temperature; }
  double ratio(int32_t id) const { return std::exp(log_ratio(id)); }
};

auto by_logit(const float* logits) {
  return [logits](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
}

// Ratios in (0, 1] with the same exponent and first 5 bits of mantissa share a bucket; bucket 0 holds the greatest.
constexpr int kBuckets = 127 << 5;
size_t bucket_of(float ratio) {
  const uint32_t below_one = 0x3f800000u - std::bit_cast<uint32_t>(std::min(ratio, 1.0f));
  return std::min<size_t>(below_one >> 18, kBuckets - 1);
}

}

CpuSampler::CpuSampler(Threads& threads, const RowsKernels& kernels)
    : threads_(threads), kernels_(kernels), scratch_(size_t(threads.count())) {}

void CpuSampler::sample(const SampleArgs& args) {
  const int64_t vocab = args.logits.extent[1];
  HUNCH_CHECK(ranks_allowed(args));
  for (Scratch& scratch : scratch_) {  // grows with the first call, then stays
    if (args.state) scratch.patch.reserve(vocab, args.drafts.extent[0]);
    if (num_ranked(args) > 0 && std::ssize(scratch.scores) < vocab) scratch.scores.resize(vocab);
    scratch.few.reserve(kFewIds);
    if (std::ssize(scratch.ids) >= vocab + 16) continue;
    scratch.ids.resize(vocab + 16);
    scratch.group_best.resize(size_t(vocab + 255) / 256 * 16);
    scratch.ratios.resize(vocab);
    scratch.masses.resize(kBuckets);
  }
  threads_.run(args.logits.extent[0], [&](int64_t row, int worker) { sample_row(args, row, scratch_[worker]); });
}

void CpuSampler::sample_row(const SampleArgs& args, int64_t r, Scratch& scratch) const {
  const int64_t vocab = args.logits.extent[1];
  const SamplingParams& params = args.params;
  const float* logits = args.state ? scratch.patch.apply(args, r) : &args.logits(r, 0);
  float* probs = args.probs.data ? &args.probs(r, 0) : nullptr;
  int32_t* ids = scratch.ids.data();
  args.tokens(r) = -1;
  const auto note_second = [&](int32_t id, double lead) {
    if (args.seconds.data) args.seconds(r) = id;
    if (args.leads.data) args.leads(r) = id < 0 ? kInfinity : float(lead);
  };
  note_second(-1, 0);
  scratch.few.clear();
  rank_few(args, r, scratch);  // none
  const LogitScan scan = kernels_.scan(logits, vocab, scratch.group_best.data());
  if (scan.has_nan || !scan.has_finite) {
    if (probs) std::fill_n(probs, vocab, 0.0f);
    return;
  }
  if (params.temperature < kGreedyTemperature) {
    args.tokens(r) = int32_t(std::find(logits, logits + vocab, scan.best) - logits);
    if (probs) std::fill_n(probs, vocab, 0.0f), probs[args.tokens(r)] = 1;
    if (num_ranked(args) > 0) rank_many(args, r, logits, scratch);
    if (!wants_second(args)) return;
    int32_t second = -1;
    for (int32_t id = 0; id < vocab; ++id)
      if (id != args.tokens(r) && logits[id] > (second < 0 ? -kInfinity : logits[second])) second = id;
    if (second >= 0) note_second(second, double(scan.best) - double(logits[second]));
    return;
  }

  // A lower bound of every possible logit: from min_p, a little below what rounding makes of it; from top-k, as each of the k
  // best groups holds an id at least as good as the k-th group's best.
  const Row row{logits, scan.best, double(params.temperature)};
  const double least = params.min_p > 0 ? std::min(0.0, std::log(double(params.min_p))) : -double(kInfinity);
  const bool by_top_k = params.top_k > 0 && params.top_k < vocab;
  float bound = std::numeric_limits<float>::lowest();
  if (params.min_p > 0 && std::isfinite(scan.best)) {
    const double at = double(scan.best) + least * row.temperature;
    bound = std::max(bound, float(at - 1e-5 * (std::abs(at) + std::abs(double(scan.best)))));
  }
  const int64_t groups = (vocab + 255) / 256 * 16;
  if (by_top_k && params.top_k <= groups) {
    float* best = scratch.group_best.data();
    std::nth_element(best, best + params.top_k - 1, best + groups, std::greater<>());
    bound = std::max(bound, best[params.top_k - 1]);
  }

  int64_t count = kernels_.collect(logits, vocab, bound, ids);
  const int64_t collected = count;
  if (params.min_p > 0 || !std::isfinite(scan.best)) {  // else all of them pass
    const auto too_small = [&](int32_t id) {
      const double log_ratio = row.log_ratio(id);
      return !(log_ratio >= least) || std::isinf(log_ratio);
    };
    count = std::remove_if(ids, ids + count, too_small) - ids;
  }
  const auto before = by_logit(logits);
  if (by_top_k && params.top_k < count) {
    std::nth_element(ids, ids + params.top_k - 1, ids + count, before);
    count = params.top_k;
  }

  SampleRow kernel_row{.logits = logits, .vocab = vocab, .best = scan.best, .temperature = params.temperature};
  kernel_row.seed = args.key.seed, kernel_row.sample = args.key.sample;
  kernel_row.stream = uint32_t(args.stream), kernel_row.position = uint32_t(args.positions(r));
  const auto cut_after = [&](int32_t last) { kernel_row.cut_logit = logits[last], kernel_row.cut_id = last; };
  if (count > kFewIds) {
    if (count < collected) cut_after(*std::max_element(ids, ids + count, before));
    else kernel_row.cut_logit = bound, kernel_row.cut_id = int32_t(vocab);  // all that reach the bound
    if (params.top_p < 1) {
      cut_after(last_of_top_p(kernel_row, double(params.top_p), scratch));
      count = kernels_.collect(logits, vocab, kernel_row.cut_logit, ids);
      const auto past_cut = [&](int32_t id) { return logits[id] == kernel_row.cut_logit && id > kernel_row.cut_id; };
      count = std::remove_if(ids, ids + count, past_cut) - ids;
    }
  } else if (params.top_p < 1) {
    std::sort(ids, ids + count, before);
    double total = 0, mass = 0;
    for (int64_t i = 0; i < count; ++i) total += row.ratio(ids[i]);
    int64_t reached = 0;
    do mass += row.ratio(ids[reached++]);
    while (reached < count && mass < double(params.top_p) * total);
    count = reached;
  }

  const auto score = [&](int32_t id) {
    const double u = uniform(args.key, args.stream, uint32_t(args.positions(r)), uint32_t(id));
    return row.log_ratio(id) - std::log(-std::log(u));
  };
  if (count > kFewIds) {
    args.tokens(r) = kernels_.choose(kernel_row);
    if (wants_second(args) && args.tokens(r) >= 0) {  // the choice among the others, by the same scores
      std::copy_n(logits, vocab, scratch.ratios.data());
      scratch.ratios[args.tokens(r)] = -kInfinity;
      SampleRow others = kernel_row;
      others.logits = scratch.ratios.data();
      const int32_t second = kernels_.choose(others);
      if (second >= 0) note_second(second, score(args.tokens(r)) - score(second));
    }
    if (num_ranked(args) > 0) {
      kernels_.scores(kernel_row, scratch.scores.data());
      rank_many(args, r, scratch.scores.data(), scratch);
    }
    if (!probs) return;
    const float scale = float(1 / kernels_.ratios(kernel_row, probs));
    for (int64_t i = 0; i < vocab; ++i) probs[i] *= scale;
    return;
  }
  std::sort(ids, ids + count);
  double total = 0, greatest = -double(kInfinity), next = greatest;
  int32_t second = -1;
  for (int64_t i = 0; i < count; ++i) {
    total += row.ratio(ids[i]);
    const double own = score(ids[i]);
    if (own > greatest) second = args.tokens(r), next = greatest, greatest = own, args.tokens(r) = ids[i];
    else if (own > next) second = ids[i], next = own;
    if (num_ranked(args) > 0) scratch.few.push_back({ids[i], own});
  }
  rank_few(args, r, scratch);
  note_second(second, greatest - next);
  if (!probs) return;
  std::fill_n(probs, vocab, 0.0f);
  for (int64_t i = 0; i < count; ++i) probs[ids[i]] = float(row.ratio(ids[i]) / total);
}

// Of scratch.few, in ascending order of ids. Sums take that order.
void CpuSampler::rank_few(const SampleArgs& args, int64_t r, Scratch& scratch) const {
  const int64_t k = num_ranked(args);
  if (k == 0) return;
  std::vector<Scored>& few = scratch.few;
  double greatest = -double(kInfinity), total = 0;
  for (const Scored& s : few) greatest = std::max(greatest, s.score);
  for (const Scored& s : few) total += std::exp(s.score - greatest);
  const int64_t some = std::min<int64_t>(k, std::ssize(few));
  std::partial_sort(few.begin(), few.begin() + some, few.end(),
      [](const Scored& a, const Scored& b) { return a.score != b.score ? a.score > b.score : a.id < b.id; });
  for (int64_t i = 0; i < k; ++i) {
    if (args.ranked.data) args.ranked(r, i) = i < some ? few[i].id : -1;
    if (args.shares.data) args.shares(r, i) = i < some ? float(std::exp(few[i].score - greatest) / total) : 0;
  }
}

// Of scores [vocab], -inf where not possible: a bound first, as for the filters, so that few ids need an order.
void CpuSampler::rank_many(const SampleArgs& args, int64_t r, const float* scores, Scratch& scratch) const {
  const int64_t vocab = args.logits.extent[1], k = num_ranked(args), groups = (vocab + 255) / 256 * 16;
  float* best = scratch.group_best.data();
  SampleRow row;  // its ratios are exp(score - greatest)
  row.logits = scores, row.vocab = vocab;
  row.best = kernels_.scan(scores, vocab, best).best;
  row.cut_logit = std::numeric_limits<float>::lowest(), row.cut_id = int32_t(vocab);
  float bound = row.cut_logit;
  if (k <= groups) {
    std::nth_element(best, best + k - 1, best + groups, std::greater<>());
    bound = std::max(bound, best[k - 1]);
  }
  int32_t* ids = scratch.ids.data();
  const int64_t count = kernels_.collect(scores, vocab, bound, ids), some = std::min(k, count);
  std::partial_sort(ids, ids + some, ids + count, by_logit(scores));
  const double total = args.shares.data ? kernels_.ratios(row, scratch.ratios.data()) : 1;
  for (int64_t i = 0; i < k; ++i) {
    if (args.ranked.data) args.ranked(r, i) = i < some ? ids[i] : -1;
    if (!args.shares.data) continue;
    const double score = i < some ? double(scores[ids[i]]) : -double(kInfinity);
    args.shares(r, i) = float((score == double(row.best) ? 1 : std::exp(score - double(row.best))) / total);
  }
}

// The last id of the smallest set whose mass reaches top_p of all possible ids'. Buckets of ratios are summed first: only ids of
// the bucket where the mass is reached need an order.
int32_t CpuSampler::last_of_top_p(const SampleRow& row, double top_p, Scratch& scratch) const {
  const float* ratios = scratch.ratios.data();
  const double total = kernels_.ratios(row, scratch.ratios.data()), wanted = top_p * total;
  // Ids this small have at most half of the mass past the cut, all together: the cut lies before them. (Not for a top_p that
  // rounding of the sums could hide.)
  const double small = 1 - top_p > 1e-4 ? (1 - top_p) * total / double(2 * row.vocab) : 0;
  int32_t* ids = scratch.ids.data();
  const int64_t candidates =
      kernels_.collect(ratios, row.vocab, std::max(float(small), std::numeric_limits<float>::denorm_min()), ids);
  std::ranges::fill(scratch.masses, 0.0);
  size_t last_bucket = 0;
  for (int64_t i = 0; i < candidates; ++i) {
    const size_t bucket = bucket_of(ratios[ids[i]]);
    scratch.masses[bucket] += double(ratios[ids[i]]);
    last_bucket = std::max(last_bucket, bucket);
  }
  double mass = 0;
  size_t bucket = 0;
  while (bucket < last_bucket && mass + scratch.masses[bucket] < wanted) mass += scratch.masses[bucket++];

  int64_t count = 0;
  for (int64_t i = 0; i < candidates; ++i)
    if (bucket_of(ratios[ids[i]]) == bucket) ids[count++] = ids[i];
  std::sort(ids, ids + count, by_logit(row.logits));
  for (int64_t i = 0; i + 1 < count; ++i)
    if (!((mass += double(ratios[ids[i]])) < wanted)) return ids[i];
  return ids[count - 1];
}

}
