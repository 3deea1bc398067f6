// Launchers of ops that need no class of their own: each deals its items to the threads. Called by CpuBackend.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/threads.h"
#include "backend/ops/kv.h"
#include "backend/ops/norm.h"
#include "backend/ops/rope.h"
#include "backend/ops/top_k.h"

namespace hunch {

// Stores are CpuKvStores (ops/kv.h). Both return the bytes read: of K, and of all.
size_t page_bounds(Threads& threads, const BoundsKernels& kernels, const PageBoundsArgs& args);
size_t gather_kv(Threads& threads, const GatherKernels& kernels, const GatherKvArgs& args);

void top_k(Threads& threads, const TopKKernels& kernels, const TopKArgs& args);

// Several threads where a fork pays.
void norm_rows(Threads& threads, const RowsKernels& kernels, const NormArgs& args);
void gate_rows(Threads& threads, const RowsKernels& kernels, const GateArgs& args);
void rope_angle_rows(Threads& threads, const RopeAnglesArgs& args);
void rope_rows(Threads& threads, const RowsKernels& kernels, const RopeArgs& args);

}
