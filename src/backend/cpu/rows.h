// Row-wise ops on the CPU: norm, gate and rope. One thread for few rows, several where a fork pays.
#pragma once

#include "backend/cpu/rows_kernels.h"
#include "backend/cpu/threads.h"
#include "backend/ops/norm.h"
#include "backend/ops/rope.h"

namespace hunch {

void norm_rows(Threads& threads, const RowsKernels& kernels, const NormArgs& args);
void gate_rows(Threads& threads, const RowsKernels& kernels, const GateArgs& args);
void rope_angle_rows(Threads& threads, const RopeAnglesArgs& args);
void rope_rows(Threads& threads, const RowsKernels& kernels, const RopeArgs& args);

}
