// Ops on rows of activations on the device: contracts in backend/ops/{norm,rope}.h. All views are device memory, positions
// excepted. A row's bits depend on its values and width only.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/ops/norm.h"
#include "backend/ops/rope.h"

namespace hunch {

void enqueue_norm(Commands& commands, const NormArgs& args);  // weight: device memory
void enqueue_gate(Commands& commands, const GateArgs& args);
void enqueue_rope_angles(Commands& commands, const RopeAnglesArgs& args);  // positions: host memory, copied now

}
