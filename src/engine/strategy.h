// What the planner and the engine say to each other: the ways to guess (arms), what a request looks like before a round, what
// the round shall do, and what came of it. Plain data, no device, no clock.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace hunch {

inline constexpr int kMaxArms = 8;
inline constexpr int kMaxPlannedDraft = 16;  // longest path a planner asks for
inline constexpr int kMaxPlannedNodes = 48;  // guesses of a tree that a planner asks for

// A way to guess. Plain decoding is not one: it is arm kPlain, always there.
struct Arm {
  std::string name;     // "ngram", "suffix", "self"; for reports and profiles
  bool passes = false;  // each drafted token is a pass, of the target over a selection that verify learned; else guesses are free
  bool ready = false;   // passes: of a network of its own, which needs no selection
  int draft_kind = -1;  // passes: index of CostTable::drafts
  double ratio = 1;     // passes: entries a draft row reads over the context...
  double min_entries = 16;  // ...and at least
  int width = 1;  // guesses a level, each a row of the verify pass and, but for the last level's, of a draft step; 1: chains
  int max_gamma = kMaxPlannedDraft;  // levels; times width at most kMaxPlannedNodes where that is above 1
  double prior_acceptance = 0.85;    // conditional, of any position, before anything was seen

  bool selects() const { return passes && !ready; }
};
inline constexpr int kPlain = -1;

// What an arm without passes would propose now: a function of committed tokens, found before the decision.
struct Found {
  int length = 0;   // drafts it has; 0: nothing found
  int quality = 0;  // bucket in [0, kQualities) of how good the match is: longer matches, higher buckets
};
inline constexpr int kQualities = 16;  // the upper half for draws: greedy choices say nothing of them

struct RequestView {
  int slot = 0;
  int64_t context_len = 0;              // committed entries
  int room = kMaxPlannedDraft;          // levels that may still be made (end of the sequence, the request's own limit)
  int nodes = kMaxPlannedNodes;         // guesses of a tree that there is room for
  uint32_t arms = ~0u;                  // bit a: arm a may be used
  bool insists = false;                 // guesses in every round where it can; all who do use the same one arm with passes
  double guess_ms = 0;                  // that a guess of it takes beside its row
  int prepared = -1;                    // the arm whose selection was learned in the round before (or in the prompt); -1: none
  std::array<Found, kMaxArms> found{};  // by arm
};

struct Decision {
  int arm = kPlain;
  int gamma = 0;         // drafts of a chain, levels of a tree, at most; 0 exactly where arm is kPlain
  float stop_below = 0;  // passes: DraftLimits::stop_below
  int learn = -1;        // the arm for which this round's verify learns a selection; -1: none
  bool probe = false;    // made to find out, not because it looks best
};

struct RoundOutcome {
  int slot = 0;
  int drafted = 0, accepted = 0;  // of a tree: its levels, and those that something was kept of
  // The chain ended by stop_below before gamma. False where it ended for another reason (no pages, nothing more found).
  bool stopped_early = false;
};

}
