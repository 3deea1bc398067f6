// Launcher of page_bounds: heads and stretches of pages are dealt to the threads. Called by CpuBackend.
#pragma once

#include "backend/cpu/bounds_kernels.h"
#include "backend/cpu/threads.h"
#include "backend/ops/kv.h"

namespace hunch {

// Both stores are CpuKvStores (ops/kv.h). Returns the bytes of K read.
size_t page_bounds(Threads& threads, const BoundsKernels& kernels, const PageBoundsArgs& args);

}
