// CpuExperts: experts with the products and gates of CpuBackend, which owns it. Rows that share an expert go together, so that
// its weights are read once.
#pragma once

#include "backend/cpu/matmul.h"
#include "backend/cpu/rows_kernels.h"
#include "backend/cpu/threads.h"
#include "backend/ops/experts.h"

namespace hunch {

class CpuExperts {
 public:
  struct Read {
    size_t bytes = 0, experts = 0;  // of weights; distinct experts
  };
  // All outlive it.
  CpuExperts(Threads& threads, CpuMatmul& matmul, const RowsKernels& kernels)
      : threads_(threads), matmul_(matmul), kernels_(kernels) {}

  Read experts(const ExpertsArgs& args);

 private:
  struct Pair {
    int32_t row;
    float share;
  };
  void sort(const ExpertsArgs& args);

  Threads& threads_;
  CpuMatmul& matmul_;
  const RowsKernels& kernels_;
  std::vector<int64_t> first_;  // [experts + 1] of pairs_
  std::vector<Pair> pairs_;     // by expert, then by row; both grow with the first passes, then stay
};

}
