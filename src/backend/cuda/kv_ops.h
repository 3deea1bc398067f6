// store_kv, gather_kv, move_kv, shuffle_kv and page_bounds (contracts: backend/ops/kv.h) as kernels. Index lists, K and V rows
// are device memory, page tables and the entries to move host memory.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/ops/kv.h"

namespace hunch {

// One launch for all of them.
void enqueue_store_kv(Commands&, std::span<const StoreKvArgs>);
inline void enqueue_store_kv(Commands& commands, const StoreKvArgs& args) { enqueue_store_kv(commands, std::span(&args, 1)); }
void enqueue_gather_kv(Commands&, const GatherKvArgs&);
void enqueue_move_kv(Commands&, const MoveKvArgs&);
void enqueue_shuffle_kv(Commands&, const ShuffleKvArgs&);
void enqueue_page_bounds(Commands&, const PageBoundsArgs&);

}
