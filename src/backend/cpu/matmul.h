// CpuMatmul: weights as panels and the products with them. Owned by CpuBackend, which forwards load_weight, matmul and embed.
#pragma once

#include "backend/cpu/matmul_kernels.h"
#include "backend/cpu/threads.h"
#include "backend/ops/matmul.h"
#include "checkpoint/checkpoint.h"

namespace hunch {

class CpuMatmul {
 public:
  // Both outlive it.
  CpuMatmul(Threads& threads, const MatmulKernels& kernels) : threads_(threads), kernels_(kernels) {}

  // The result lives in memory of this object, as long as that.
  std::unique_ptr<Weight> load_weight(const Tensor& matrix);
  // One fork and join for all products of the call. Returns the weight bytes read.
  size_t matmul(const MatmulArgs& args);
  void embed(const EmbedArgs& args);

 private:
  std::byte* take(size_t bytes);
  void quantise(View<const float, 2> x);

  Threads& threads_;
  const MatmulKernels& kernels_;
  std::vector<Buffer> pools_;  // of packed weights, whole huge pages
  size_t pool_used_ = 0;
  Buffer blocks_;  // quantised activations of the running call
};

}
