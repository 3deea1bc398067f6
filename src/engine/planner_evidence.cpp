// What the planner has seen: acceptance by arm, position and context over all requests, and each request's own odds on top.

#include "base/check.h"
#include "engine/planner.h"

namespace hunch {
namespace {

constexpr double kSharedMost = 1500;     // trials at a position beyond which older ones fade
constexpr double kSharedWeight = 0.4;    // of a trial in the shared counts: those of one text are alike
constexpr double kOwnStrength = 6;       // trials that the shared acceptance is worth against a request's own
constexpr double kOwnMost = 150;         // a request's trials beyond which older ones fade
constexpr double kChange = 6;            // factor on the odds of a text that is taken to have changed...
constexpr double kAlarm = 5.5;           // ...and the logarithm of how much better that must explain the last trials
constexpr double kCredit = 12;           // tokens: what past gains may excuse
constexpr int64_t kLongestPause = 2048;  // tokens between probes
constexpr double kAfterSuccess = 0.4;    // of the evidence stays when a probe paid

}

void Planner::Counts::add(int position, bool success, double most) {
  double &t = trials[position], &k = kept[position];
  t += kSharedWeight, k += success ? kSharedWeight : 0;
  if (t > most) k *= most / t, t = most;
}

int Planner::bucket_of(int arm, int64_t context_len, int quality) const {
  // Contexts below 1K, then by doubling: what attention over a few per cent misses depends on how much there is to miss.
  if (options_.arms[arm].passes) return std::clamp(int(log2_bucket(double(context_len) / 512)), 0, kBuckets - 1);
  return std::clamp(quality, 0, kBuckets - 1);
}

// Two levels of shrinkage: the arm's counts everywhere to its prior, the bucket's to those. A position is shrunk to the one
// before it: those never reached are expected to be as good as the last that was.
const Planner::Rates& Planner::shared_acceptance(int arm, int bucket) const {
  const Shared& shared = shared_[arm];
  Rates& out = shared.rates[bucket];
  if (shared.known >> bucket & 1) return out;
  shared.known |= 1u << bucket;
  const Counts& here = shared.buckets[bucket];
  double all = options_.arms[arm].prior_acceptance;
  for (size_t i = 0; i < out.size(); ++i) {
    all = (shared.all.kept[i] + kSharedStrength * all) / (shared.all.trials[i] + kSharedStrength);
    const double prior = i == 0 ? all : 0.5 * (all + out[i - 1]);
    out[i] = std::clamp((here.kept[i] + kSharedStrength * prior) / (here.trials[i] + kSharedStrength), kLeast, kMost);
  }
  return out;
}

std::array<double, kMaxPlannedDraft> Planner::acceptance(int arm, int64_t context_len, int quality) const {
  return shared_acceptance(arm, bucket_of(arm, context_len, quality));
}

void Planner::seed(int arm, int64_t context_len, std::span<const double> acceptance, double rounds, int quality) {
  Shared& shared = shared_[arm];
  Counts& here = shared.buckets[bucket_of(arm, context_len, quality)];
  double reached = std::clamp(rounds, 0.0, kSharedMost);
  for (size_t i = 0; i < std::min(acceptance.size(), size_t(kMaxPlannedDraft)); ++i) {
    const double a = std::isfinite(acceptance[i]) ? std::clamp(acceptance[i], 0.0, 1.0) : 0;
    for (Counts* counts : {&here, &shared.all}) counts->trials[i] += reached, counts->kept[i] += reached * a;
    reached *= a;
  }
  shared.known = 0;
}

double Planner::odds_factor(const Evidence& e) const {
  if (e.trials <= 0) return 1;
  const double expected = std::clamp(e.expected / e.trials, kLeast, kMost);
  const double rate = (e.kept + kOwnStrength * expected) / (e.trials + kOwnStrength);
  return odds(std::clamp(rate, kLeast, kMost)) / odds(expected);
}

void Planner::learn(Evidence& e, bool kept, double expected, double factor) const {
  e.trials += 1, e.kept += kept, e.expected += expected;
  if (e.trials > kOwnMost) {
    const double keep = kOwnMost / e.trials;
    e.trials *= keep, e.kept *= keep, e.expected *= keep;
  }
  const double now = factor * odds(expected), p = now / (1 + now);
  for (Change& c : e.changes) {
    const double other = &c == &e.changes[0] ? now / kChange : now * kChange, q = other / (1 + other);
    c.score += kept ? std::log(q / p) : std::log((1 - q) / (1 - p));
    c.trials += 1, c.kept += kept, c.expected += expected;
    if (c.score <= 0) c = {};
    if (c.score < kAlarm) continue;
    // What was seen before the change no longer counts.
    e.trials = c.trials, e.kept = c.kept, e.expected = c.expected;
    e.changes = {};
    return;
  }
}

void Planner::record(const RoundOutcome& outcome) {
  Slot& slot = slots_[outcome.slot];
  const Decision& d = slot.last;
  slot.tokens += outcome.accepted + 1, ++slot.rounds;
  const double extra = std::exchange(slot.extra, 0.0);
  slot.recent_tokens = kRunsKeep * slot.recent_tokens + outcome.accepted + 1;
  slot.recent_time = kRunsKeep * slot.recent_time + slot.time;
  const auto charge = [&](int arm, double tokens) {
    double& lost = slot.lost[arm];
    lost = std::max(-kCredit, lost + tokens);
  };
  if (d.learn >= 0) charge(d.learn, slot.learning);  // whoever guesses meanwhile
  if (d.arm != kPlain) charge(d.arm, extra - outcome.accepted);
  if (d.arm == kPlain) return;
  const Arm& arm = options_.arms[d.arm];
  const int asked = outcome.stopped_early && arm.passes ? d.gamma : std::min(outcome.drafted, d.gamma);
  HUNCH_CHECK(outcome.accepted <= outcome.drafted);
  if (asked == 0) return;

  Shared& shared = shared_[d.arm];
  Evidence& e = slot.arms[d.arm];
  const Rates& base = shared_acceptance(d.arm, slot.bucket);
  const double factor = odds_factor(e);
  // A chain that stopped early and was kept to its end counts as a failure of the position it did not reach: so what it brings is
  // right. Its cost is counted by goes_on.
  const int tried = std::min(outcome.accepted + 1, asked);
  shared.known = 0;
  for (int i = 0; i < tried; ++i) {
    const bool kept = i < outcome.accepted;
    learn(e, kept, base[i], factor);
    shared.all.add(i, kept, kSharedMost);
    shared.buckets[slot.bucket].add(i, kept, kSharedMost);
  }
  if (arm.passes)
    for (int i = 1; i < std::min(asked, outcome.drafted + 1); ++i) shared.goes_on.add(i, i < outcome.drafted, kSharedMost);
  // Probes: a failure doubles the time to the next; a success asks again at once, and lets old evidence count for little.
  const bool paid = outcome.accepted > 0 && outcome.accepted >= (d.probe ? slot.probe_worth : extra);
  if (paid) e.interval = kShortest;
  if (!d.probe) return;
  slot.explored = std::max(0.0, slot.explored + slot.probe_worth - outcome.accepted);
  if (paid) {
    e.probe_at = slot.tokens;
    e.trials *= kAfterSuccess, e.kept *= kAfterSuccess, e.expected *= kAfterSuccess;
  } else {
    e.interval = std::min(2 * e.interval, kLongestPause);
    e.probe_at = slot.tokens + e.interval;
  }
}

}
