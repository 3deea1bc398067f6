// Launcher of top_k: one item a set. Called by CpuBackend.
#pragma once

#include "backend/cpu/threads.h"
#include "backend/cpu/top_k_kernels.h"
#include "backend/ops/top_k.h"

namespace hunch {

void top_k(Threads& threads, const TopKKernels& kernels, const TopKArgs& args);

}
