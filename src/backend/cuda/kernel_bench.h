// Kernels alone against what the device's memory and tensor cores give, for `hunch bench kernels`. Each group of kernels has its
// own file x_bench.cu; times are medians by CUDA events over data far larger than the L2.
#pragma once

#include "backend/backend.h"
#include "backend/cuda/commands.h"

namespace hunch {

struct Ceilings {
  double read_bytes = 0, copy_bytes = 0, bf16_flops = 0;  // per second, measured in this run
};
Ceilings measure_ceilings();

// Median milliseconds of one run of `body` (which appends to `commands`): after a warm-up, `repeats` lists between two events.
double time_commands(Commands& commands, int repeats, const std::function<void()>& body);

// `bytes` written, then read again, by nothing else.
KernelRow bench_scores_stream(Commands&, int64_t bytes, std::string name);

std::vector<KernelRow> bench_attention(Commands&);  // dense, verify with scores, selected, prefill
std::vector<KernelRow> bench_products(Commands&);   // few rows, many rows, every encoding
std::vector<KernelRow> bench_experts(Commands&);    // of a layer, few rows and many
std::vector<KernelRow> bench_nsa(Commands&);        // sparse branches, rows apart and in groups
std::vector<KernelRow> bench_top_k(Commands&);      // selection, few sets and many

}
