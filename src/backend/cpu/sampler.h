// CpuSampler: op sample (backend/ops/sample.h). The steps of backend/reference/sample.cpp, in the same fp64 while few ids
// survive; vector kernels do the scans, and the noise where many do. Owned by CpuBackend.
#pragma once

#include "backend/cpu/rows_kernels.h"
#include "backend/cpu/threads.h"
#include "backend/ops/logit_patch.h"
#include "backend/ops/sample.h"

namespace hunch {

class CpuSampler {
 public:
  // Both outlive it.
  CpuSampler(Threads& threads, const RowsKernels& kernels);
  void sample(const SampleArgs& args);

 private:
  struct Scored {
    int32_t id;
    double score;
  };
  struct Scratch {
    std::vector<int32_t> ids;       // room for vocab + 16
    std::vector<float> group_best;  // of RowsKernels::scan
    std::vector<float> ratios;      // [vocab]
    std::vector<float> scores;      // [vocab], where many ids are ranked
    std::vector<Scored> few;
    std::vector<double> masses;  // of ratios that share their first bits, greatest ratios first
    LogitPatch patch;            // the row as its request's rules make it
  };
  void sample_row(const SampleArgs& args, int64_t row, Scratch& scratch) const;
  void rank_few(const SampleArgs& args, int64_t r, Scratch& scratch) const;
  void rank_many(const SampleArgs& args, int64_t r, const float* scores, Scratch& scratch) const;
  int32_t last_of_top_p(const SampleRow& row, double top_p, Scratch& scratch) const;

  Threads& threads_;
  const RowsKernels& kernels_;
  std::vector<Scratch> scratch_;  // one per worker
};

}
