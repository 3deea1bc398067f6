// thin_channels and thin_experts on the device; contracts in backend/ops/thin.h. Counts lie where the host sees them.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/ops/thin.h"

namespace hunch {

void enqueue_thin_channels(Commands&, const ThinChannelsArgs&);
void enqueue_thin_experts(Commands&, const ThinExpertsArgs&);

}
