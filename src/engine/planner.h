// Planner: chooses per request and round how to guess and how much, zero included, so that a step makes the most tokens per
// millisecond. Costs come from the CostTable, chances from what was accepted: in a request's own rounds, shrunk to what earlier
// ones saw. Called by the step loop; deterministic (no clock, no chance), allocates nothing after construction. How exploration
// is bounded, and why every rule stays exact: docs/how-it-works.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/cost_table.h"
#include "engine/strategy.h"

namespace hunch {

struct PlannerOptions {
  std::vector<Arm> arms;  // at most kMaxArms
  int max_slots = 1;
  bool widest_counts = false;  // PassShape::widest: in a batch, what the longest guess of all takes is paid for all
  // In tokens: what an arm may lose against plain decoding before it is stopped is loss_free + loss_share * tokens made; what
  // probes may lose against the best known choice, explore_free + explore_share * tokens made.
  double loss_free = 2.2, loss_share = 0.008;
  double explore_free = 1, explore_share = 0.01;
};

class Planner {
 public:
  // The table must outlive the planner; it may change between calls.
  Planner(const CostTable&, PlannerOptions);

  // A slot gets a new request.
  void open(int slot);

  // One step: a decision for each view (all slots different). `max_rows`: rows of the verify pass, 1 + gamma summed, at least one
  // a view; 0: no limit. Every decision obeys room, arms, found lengths and the budget.
  void decide(std::span<const RequestView>, std::span<Decision>, int max_rows = 0);
  Decision decide(const RequestView& view) {
    Decision out;
    decide(std::span(&view, 1), std::span(&out, 1));
    return out;
  }
  // What came of the last decision of this slot; plain rounds too.
  void record(const RoundOutcome&);

  // Conditional acceptance by position that requests near this context (arms with passes) or with matches of this quality
  // (others) had so far, [kMaxPlannedDraft]; before any: the prior.
  std::array<double, kMaxPlannedDraft> acceptance(int arm, int64_t context_len, int quality = 0) const;
  // How many rounds that stands on; they count less than whole ones, as those of one text are alike.
  double rounds_seen(int arm, int64_t context_len, int quality = 0) const {
    return shared_[arm].buckets[bucket_of(arm, context_len, quality)].trials[0];
  }
  // As if so many rounds with this acceptance by position had been seen: a stored profile as prior.
  void seed(int arm, int64_t context_len, std::span<const double> acceptance, double rounds, int quality = 0);

  const PlannerOptions& options() const { return options_; }

 private:
  static constexpr int kBuckets = kQualities, kSteps = kMaxPlannedDraft + 1;
  static constexpr double kSharedStrength = 6;  // trials that a prior is worth against shared counts
  static constexpr double kLeast = 0.01, kMost = 0.995;
  static constexpr double kRunsKeep = 0.9;                    // of what is known about runs of lookups, per round
  static constexpr int64_t kFirstProbe = 12, kShortest = 16;  // tokens up to the first probe; between probes, at least
  static double odds(double p) { return p / (1 - p); }
  static double log2_bucket(double x) { return std::log2(std::max(1.0, x)); }
  // Trials and successes by position, decayed.
  struct Counts {
    std::array<double, kMaxPlannedDraft> trials{}, kept{};
    void add(int position, bool success, double most);
  };
  using Rates = std::array<double, kMaxPlannedDraft>;
  struct Shared {
    Counts all;
    std::array<Counts, kBuckets> buckets;       // by context or by quality
    Counts goes_on;                             // chains that were not stopped early before this position
    mutable std::array<Rates, kBuckets> rates;  // what the counts say, where bit b of `known` is set
    mutable uint32_t known = 0;
  };
  // A test for a change of the text (CUSUM): how much better the trials since it was last zero fit other odds than the record's.
  struct Change {
    double score = 0, trials = 0, kept = 0, expected = 0;
  };
  // One request's odds of acceptance relative to what the shared counts expect.
  struct Evidence {
    double trials = 0, kept = 0, expected = 0;
    std::array<Change, 2> changes;  // to worse, to better
    int64_t probe_at = 0;
    int64_t interval = 0;
  };
  struct Runs {
    double rounds = 0, missed = 0;
  };
  struct Slot {
    std::array<Evidence, kMaxArms> arms;
    Decision last;
    int bucket = 0;                       // of the last decision's arm
    double extra = 0, learning = 0;       // what the last decision was expected to cost, and to learn, in tokens
    std::array<double, kMaxArms> lost{};  // tokens, against plain, by arm
    double explored = 0;                  // tokens that probes lost against the best known choice
    double time = 0;                      // of the last step, in tokens that plain decoding makes of this request in it
    double recent_tokens = 0, recent_time = 0;
    double weight = 1;       // of its tokens
    double probe_worth = 0;  // tokens that the time of the last probe is worth, less the one it makes anyway
    int64_t tokens = 0, rounds = 0;
    std::array<Runs, 2> runs;  // rounds after one without and one with a lookup's drafts; how many of them had none
    bool looked_up = false;
  };
  // What a chain of g drafts of one request, or a tree of g levels, brings and takes; [g].
  struct Chain {
    std::array<double, kSteps> gain{}, drafts{};  // drafts: levels that are made, as some end early
    std::array<double, kSteps> acceptance{};
    int longest = 0;
  };
  struct Choice {
    int arm = kPlain, gamma = 0;
  };
  struct Totals {
    double tokens = 0, ms = 0;
    bool cut = false;  // longer chains might have been chosen than were allowed
  };

  int bucket_of(int arm, int64_t context_len, int quality) const;
  const Rates& shared_acceptance(int arm, int bucket) const;
  void learn(Evidence&, bool kept, double expected, double factor) const;
  double odds_factor(const Evidence&) const;
  void make_chain(const RequestView&, int arm, Chain&) const;
  void weigh(std::span<const RequestView>);
  bool price(std::span<const RequestView>);  // whether it did
  double verify_ms(double rows) const {
    if (rows <= sequences_) return plain_ms_;
    const std::vector<double>& curve = verify_curves_[width_];
    const double at = std::clamp(rows * per_sequence_ - 1, 0.0, double(curve.size() - 1));
    const size_t low = std::min(size_t(at), curve.size() - 2);
    return curve[low] + (at - low) * (curve[low + 1] - curve[low]);
  }
  int most_guesses() const { return width_ == 0 ? kMaxPlannedDraft : kWidths[width_] - 1; }
  int width_of(int arm) const { return arm == kPlain ? 0 : options_.arms[arm].width; }
  int nodes_of(const Decision& d) const { return d.gamma * width_of(d.arm); }
  double step_ms(int arm, double sequences) const {
    const auto& costs = steps_[arm];
    const size_t low = std::min(size_t(sequences), size_t(sequences_ - 1));
    return costs[low] + (sequences - low) * (costs[low + 1] - costs[low]);
  }
  Totals best_choices(size_t count, double rate, bool lookups, uint32_t passing, std::vector<Choice>& out);
  Totals fill(size_t count, double rate, double row_ms, bool lookups, int passing, int longest, std::vector<Choice>& out);
  bool worth_learning(const Slot&, int arm, double each, double rate) const;
  void settle(std::span<const RequestView>, std::span<Decision>, double rate);
  void probe(std::span<const RequestView>, std::span<Decision>, double rate, double price);
  void fit(std::span<Decision>, int max_rows);
  bool plain_due(std::span<const RequestView>);
  double extra_ms(const Decision&, const Chain*, double guess_ms, int sharing) const;
  double alone_ms(int arm, double drafts) const;
  double may_lose(const Slot& s, int arm) const { return options_.loss_free + options_.loss_share * s.tokens - s.lost[arm]; }
  double rows_at_stake(int guesses) const;
  double price_of_time(std::span<const RequestView>, double steady) const;

  const CostTable& table_;
  PlannerOptions options_;
  std::vector<Slot> slots_;
  Slot usual_;  // of a request that begins
  std::array<Shared, kMaxArms> shared_;
  std::array<std::array<uint8_t, 8>, 16> asked_plain_{};  // by context and batch: plain steps made to learn their cost
  int steps_since_plain_ = 0;
  double last_rate_ = 0;

  // Scratch of one decide().
  std::vector<Chain> chains_;  // [view][arm]
  std::vector<Choice> steady_, now_, trial_;
  std::vector<int> steady_of_;  // slots
  Choice passes_;               // beside look-ups, when steady_ was made; gamma 0: none, or all are to be tried
  // ms at 1 + k rows a sequence: as many for all; none of them more than a width (device kernels' own steps).
  static constexpr std::array<int, 5> kWidths = {0, 2, 4, 8, 16};
  static constexpr size_t kUsualWidth = 3;
  std::array<std::vector<double>, kWidths.size()> verify_curves_;
  size_t width_ = 0;                              // that passes are taken to have; 0: what they have
  size_t steady_width_ = 0, guessing_width_ = 0;  // when steady_ was made; beside lookups since then, 0: all are to be tried
  // ms by number of sequences; once: of a chain, to learn its selection or to start.
  std::array<std::vector<double>, kMaxArms> steps_, once_;
  double sequences_ = 0, per_sequence_ = 1, plain_ms_ = 1;
  double priced_entries_ = 0;
  int priced_ = 0;     // steps ago
  uint32_t near_ = 0;  // arms with passes that might be worth while
  std::vector<double> reach_;
  std::vector<uint8_t> insists_;  // [view] with something to guess
};

}
