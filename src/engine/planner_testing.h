// For tests of the planner: rounds of one request, decisions for a full batch.
#pragma once

#include "engine/planner.h"

namespace hunch::test {

// A small model, drafts of it from Q4_0 weights over some entries; a look-up beside them.
inline CostPriors small_priors() { return {.weight_bytes = 35e6, .drafts = {{"q4_0@0.03", 19e6}}}; }
inline Arm self_arm(double prior_acceptance = Arm{}.prior_acceptance) {
  return {.name = "self", .passes = true, .draft_kind = 0, .ratio = 0.03, .prior_acceptance = prior_acceptance};
}

inline constexpr double kRows[] = {1, 2, 4, 8, 16};  // of a sequence, in passes that tables learn from

// Of requests in slots 0 to count - 1, each as view_of(slot) says.
template <class ViewOf>
std::vector<Decision> decide_batch(Planner& planner, int count, int budget, ViewOf view_of) {
  std::vector<RequestView> views;
  for (int slot = 0; slot < count; ++slot) views.push_back(view_of(slot));
  std::vector<Decision> decisions(views.size());
  planner.decide(views, decisions, budget);
  return decisions;
}

// Of each of them `kept(slot, decision)` guesses were kept.
template <class Kept>
void record_batch(Planner& planner, const std::vector<Decision>& decisions, Kept kept) {
  for (int slot = 0; slot < int(decisions.size()); ++slot) {
    const Decision& d = decisions[slot];
    planner.record({.slot = slot, .drafted = d.gamma, .accepted = kept(slot, d)});
  }
}

// A round of one request, of whose guesses `kept(decision)` are kept.
template <class Kept>
Decision one_round(Planner& planner, const RequestView& view, Kept kept) {
  const Decision d = planner.decide(view);
  planner.record({.slot = view.slot, .drafted = d.gamma, .accepted = kept(d)});
  return d;
}
inline int all(const Decision& d) { return d.gamma; }
inline int none(const Decision&) { return 0; }

}
