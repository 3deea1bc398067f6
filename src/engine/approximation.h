// Approximation (hunch/hunch.h): what a request asks for, planned and counted, and how outputs say it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/plan.h"

namespace hunch {

class EngineParts;

const std::vector<std::string_view>& precision_classes();  // strict first
// "3,5" or "none" to layers, ascending. Errors: another form; layer 0, which has none before it; beyond `layers`.
Result<std::vector<int>> reuse_layers_of(std::string_view text, int layers);

// Fills plan.sharing and plan.approximation. Errors: unknown words, sizes out of range, a class but strict for a model without
// natively trained sparse attention, reuse without layers.
Status plan_approximation(const SpeculationOptions&, const EngineParts&, RequestPlan&);

// Method profile: the drafter and the size of what it may guess, of all strategies that were loaded. After plan_approximation().
// Errors: none were loaded, not this class, its drafter is not there.
Status plan_profiled(const EngineParts&, RequestPlan&);

// Counts by position of one request to those of all.
inline void add_to(std::vector<int64_t>& sums, const std::vector<int64_t>& counts) {
  if (sums.size() < counts.size()) sums.resize(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) sums[i] += counts[i];
}

// A pass ran `rows` rows of a request: who chose for them.
void count_choices(const IndexSharing*, int layers, int rows, Approximation&);

// "approx" of every output: what was asked for, and who chose for the rows or what was left out, as it ran. Null: nothing was.
nlohmann::ordered_json approximation_json(const Approximation&);

// "LOSSY: ..." in words; empty: nothing was left out.
std::string approximation_text(const Approximation&);

}
