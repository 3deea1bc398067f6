// RoundBench: whole rounds of several requests over a cache of noise, for `hunch bench rounds`: what drafting and verifying cost
// at a context that nobody wants to prefill. Acceptance is given: a rule that throws coins keeps the drafts.
#pragma once

#include "engine/parts.h"
#include "engine/running.h"
#include "engine/step.h"

namespace hunch {

struct RoundOptions {
  int batch = 1, gamma = 7;
  int beside = 0;                  // guesses of a tree beside the chain
  int rounds = 8;                  // timed by a run, at most
  int64_t depth = 0;               // entries of every request before the first round
  std::vector<double> acceptance;  // that some guess of a depth is kept, given one of the depth before; the last value goes on
};

// Of a run, before the timed ones: devices have recorded their graphs by then. Rounds of learned drafters, which differ by what
// was accepted, go on until some in a row launched no kernel by itself, or for so many.
inline constexpr int kWarmRounds = 5, kWarmRoundsOfDevices = 12, kSettledRounds = 5, kMostWarmRounds = 100;

struct RoundCost {
  double round_ms = 0, draft_ms = 0, verify_ms = 0;  // of one round: the whole; its parts, timed apart
  double tokens = 0;                                 // per round and request, as the given acceptance has it
  double drafted = 0;                                // guesses of one round and request
  BackendCounters per_round;
};

class RoundBench {
 public:
  // Errors: no room for the cache, options that a part refuses. `request` says what drafts (speculation) and how tokens are
  // chosen.
  static Result<std::unique_ptr<RoundBench>> make(EngineParts&, const Request& request, const RoundOptions&);
  ~RoundBench();
  // Tokens that the rounds of a run with a learned drafter add to a context, at most.
  static int64_t growth(int gamma, int rounds);

  // Medians over `rounds` rounds, RoundOptions::rounds at most, after the warm-up. gamma: guesses on a path; 0: plain steps.
  // Errors: the device's, and fewer guesses than asked for.
  Result<RoundCost> run(int gamma, int rounds);

 private:
  RoundBench(EngineParts& parts, const RoundOptions& options) : parts_(parts), options_(options), step_(parts, parts.limits) {}
  Status one_round(int gamma);
  void begin_run();
  void end_round() {
    if (!goes_on_) rewind();
  }
  void rewind();
  int64_t drafted() const;

  EngineParts& parts_;
  RoundOptions options_;
  Step step_;
  std::vector<std::unique_ptr<Running>> requests_;
  bool goes_on_ = false;  // a learned drafter knows what it has seen: rounds follow each other, and the context grows a little
  StepPlan plan_;
};

}
