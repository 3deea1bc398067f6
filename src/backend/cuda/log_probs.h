// Natural log-probabilities on the device: contract in backend/ops/log_probs.h. All views are device memory, ids included. At
// most 393,216 ids in a row.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/ops/log_probs.h"

namespace hunch {

void enqueue_log_probs(Commands& commands, const LogProbsArgs& args);

}
