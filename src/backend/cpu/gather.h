// Launcher of gather_kv: heads and stretches of the destination are dealt to the threads. Called by CpuBackend.
#pragma once

#include "backend/cpu/gather_kernels.h"
#include "backend/cpu/threads.h"
#include "backend/ops/kv.h"

namespace hunch {

// Both stores are CpuKvStores (ops/kv.h). Returns the bytes read.
size_t gather_kv(Threads& threads, const GatherKernels& kernels, const GatherKvArgs& args);

}
