// Growth of draft trees on the device (contracts: backend/ops/tree.h): one block a call, as a level has a few hundred slots.
// All views are device memory.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/ops/tree.h"

namespace hunch {

void enqueue_grow_tree(Commands&, const GrowTreeArgs&);
void enqueue_choose_nodes(Commands&, const ChooseNodesArgs&);

}
