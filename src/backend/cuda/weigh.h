// Drafts that were drawn, weighed on the device: contract in backend/ops/sample.h.
#pragma once

#include "backend/backend.h"
#include "backend/cuda/commands.h"

namespace hunch {

// Two launches for all chains.
void enqueue_weigh_drafts(Commands&, std::span<const WeighDraftsArgs>);

}
