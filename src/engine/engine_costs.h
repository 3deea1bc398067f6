// The table of costs of a loaded engine: its key, its priors, and measuring it on purpose (`hunch bench breakeven`). What
// speculation needs to pay follows from it: break_even().
#pragma once

#include "engine/cost_table.h"
#include "engine/parts.h"
#include "engine/plan.h"
#include "engine/strategy.h"

namespace hunch {

CostKey cost_key(const EngineParts&);
// "q4_0@0.03": the kind of draft pass that a plan asks for; the name of its models in a table.
std::string draft_kind_name(const RequestPlan&);
// For a table with the plan's kind of draft first, then those of the learned drafters that are loaded.
CostPriors cost_priors(EngineParts&, const RequestPlan&);

// Times plain, verify, draft and learning passes of one sequence at these depths, `repeats` of each, into the table (whose first
// kind of draft is the plan's). Depths beyond the context are passed over. Errors: those of DepthBench.
Status measure_costs(
    EngineParts&, const RequestPlan&, std::span<const int64_t> depths, std::span<const int64_t> rows, int repeats, CostTable&);

struct BreakEven {
  bool possible = false;  // at some acceptance below 1
  double acceptance = 1;  // conditional, of every position, from which the best length gains
  int gamma = 0;          // that length
};
// `each_context`: entries of each of `batch` sequences, all of which draft with this arm.
BreakEven break_even(const CostTable&, const Arm&, double each_context, int batch);
// Tokens a second over plain decoding's at this conditional acceptance with the best length, which goes to `gamma`.
double best_gain(const CostTable&, const Arm&, double each_context, int batch, double acceptance, int& gamma);

}
