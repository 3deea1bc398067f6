// StrategyProfile: ranked ways to guess and to check, for every precision class and range of contexts, measured end to end by
// `hunch tune --profile` (SSV, section 6); and the guard that gives one up where a prompt is not what was profiled. Device-free.
// Method `profile` runs them: a strategy decides how much is guessed and who chooses blocks, never a sample.
#pragma once

#include "engine/reuse_schedule.h"

namespace hunch {

struct RankedStrategy {
  int depth = 0;  // guesses on a path; 0: plain decoding
  int nodes = 0;  // guesses of a round; depth: a chain
  int top_k = 1;  // likeliest tokens of a node that a tree tries
  int group_rows = 1;
  bool depth_first = false;
  double tokens_per_second = 0, accepted = 0;  // measured; accepted: guesses a round
};

struct StrategyProfile {
  struct Row {
    std::string precision_class;
    int64_t first_len = 0, last_len = 0;  // contexts (first_len, last_len]
    std::vector<RankedStrategy> ranked;   // by tokens a second; plain decoding is among them
  };
  ModelIdentity model;
  std::string drafter;            // the method that guesses
  std::vector<int> reuse_layers;  // of the classes with reuse
  std::vector<Row> rows;

  // The row of a class for a context; beyond the last one that. Null: the class was not profiled.
  const Row* row_for(std::string_view precision_class, int64_t context_len) const {
    const Row* best = nullptr;
    for (const Row& row : rows) {
      if (row.precision_class != precision_class) continue;
      if (!best || context_len > best->last_len) best = &row;
    }
    return best;
  }
  int most(int RankedStrategy::*of) const {
    int most = 0;
    for (const Row& row : rows)
      for (const RankedStrategy& s : row.ranked) most = std::max(most, s.*of);
    return most;
  }

  std::string to_json() const;
  // Errors as those of ReuseSchedule.
  static Result<StrategyProfile> from_json(std::string_view, const ModelIdentity&);
  static Result<StrategyProfile> load(const std::string& path, const ModelIdentity&);
};

inline constexpr size_t kRankedStrategies = 12;
// Ends of the ranges of contexts: 4096, 8192, 12288, 16384, then twice as far each, up to the first that holds `context_len`.
std::vector<int64_t> strategy_regimes(int64_t context_len);

struct GuardOptions {
  double alpha = 0.2, rho = 0.9;  // of the mean of accepted guesses; the share of what was profiled that it must keep
  int warm_up = 8, patience = 5;  // rounds without a verdict; rounds in a row below, after which it is one
  int most_changes = 2;           // of a request; then the best that it has seen stays
};

// One request's walk down the ranked strategies.
class StrategyGuard {
 public:
  explicit StrategyGuard(const GuardOptions& options = {}) : options_(options) {}
  // Another range of contexts: its best strategy, which is no change of mind. The row must outlive the guard.
  void enter(const StrategyProfile::Row& row) {
    row_ = &row, settled_ = false;
    seen_.assign(row.ranked.size(), {});
    go_to(0);
  }
  const StrategyProfile::Row* row() const { return row_; }
  const RankedStrategy& now() const { return row_->ranked[at_]; }
  // A round of now(): guesses that were accepted, and what it took. True: now() is another.
  bool record(int accepted, double ms);
  int changes() const { return changes_; }

 private:
  struct Seen {
    double tokens = 0, ms = 0;
    double speed() const { return ms > 0 ? tokens / ms * 1e3 : 0; }
  };
  bool go_to(size_t at);
  size_t plain() const {
    const auto& all = row_->ranked;
    return std::ranges::find_if(all, [](const RankedStrategy& s) { return s.depth == 0; }) - all.begin();
  }

  GuardOptions options_;
  const StrategyProfile::Row* row_ = nullptr;
  size_t at_ = 0;
  std::vector<Seen> seen_;  // [ranked]
  double mean_ = 0;
  int rounds_ = 0, below_ = 0, changes_ = 0;
  bool settled_ = false;
};

}
