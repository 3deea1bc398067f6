// What a request's sparse verification, or thinned drafts, mean for the engine that is to run it: refusals, and the options of
// its SparseCheck.
#pragma once

#include "engine/parts.h"
#include "hunch/hunch.h"
#include "sparse/sparse_check.h"

namespace hunch {

// Values alone. Errors (usage) name the setting, its value and what is allowed.
Status check_sparse_values(const SpeculationOptions&);

// Errors (usage): what this model or device does not have; a calibration is needed.
Result<CheckOptions> check_options(const EngineParts&, const SparseVerification&);

std::unique_ptr<SparseCheck> make_check(const EngineParts&, CheckOptions);

// What it counted, into `out`; since_token is its owner's.
void describe(const SparseCheck&, const SparseVerification& asked, Approximation& out);

}
