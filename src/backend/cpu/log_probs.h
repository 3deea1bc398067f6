// CpuLogProbs: op log_probs (backend/ops/log_probs.h) with the scans of sampling (rows_kernels.h). Owned by CpuBackend.
#pragma once

#include "backend/cpu/rows_kernels.h"
#include "backend/cpu/threads.h"
#include "backend/ops/log_probs.h"

namespace hunch {

class CpuLogProbs {
 public:
  // Both outlive it.
  CpuLogProbs(Threads& threads, const RowsKernels& kernels);
  void log_probs(const LogProbsArgs& args);

 private:
  struct Scratch {
    std::vector<int32_t> ids;       // room for vocab + 16
    std::vector<float> group_best;  // of RowsKernels::scan
    std::vector<float> ratios;      // [vocab]
  };
  void log_probs_of_row(const LogProbsArgs& args, int64_t row, Scratch& scratch) const;

  Threads& threads_;
  const RowsKernels& kernels_;
  std::vector<Scratch> scratch_;  // one per worker
};

}
