// RoundBench: whole rounds of several requests over a cache filled with noise, for `hunch bench rounds`: what drafting and
// verifying cost at a context that nobody wants to prefill. Acceptance is given, not found: a rule that throws coins keeps the
// drafts.
#pragma once

#include <memory>
#include <vector>

#include "engine/parts.h"
#include "engine/running.h"
#include "engine/step.h"

namespace hunch {

struct RoundOptions {
  int batch = 1, gamma = 7;
  int64_t depth = 0;               // entries of every request before the first round
  std::vector<double> acceptance;  // of the draft at each depth, given that those before it were kept; the last value goes on
};

struct RoundCost {
  double round_ms = 0, draft_ms = 0, verify_ms = 0;  // of one round: the whole; its parts, timed apart
  double tokens = 0;                                 // per round and request, as the given acceptance has it
  BackendCounters per_round;
};

class RoundBench {
 public:
  // Errors: no room for the cache, options that a part refuses. `request` says what drafts (speculation) and how tokens are
  // chosen.
  static Result<std::unique_ptr<RoundBench>> make(EngineParts&, const Request& request, const RoundOptions&);
  ~RoundBench();

  // Medians over `rounds` rounds after two that warm up. gamma 0: plain steps.
  Result<RoundCost> run(int gamma, int rounds);

 private:
  RoundBench(EngineParts& parts, const RoundOptions& options) : parts_(parts), options_(options), step_(parts, parts.limits) {}
  Status one_round(int gamma);
  void rewind();

  EngineParts& parts_;
  RoundOptions options_;
  Step step_;
  std::vector<std::unique_ptr<Running>> requests_;
  StepPlan plan_;
};

}  // namespace hunch
