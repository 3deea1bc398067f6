// Ops whose kernels need clusters of blocks (choice of entries, sampling, log-probabilities), for devices that have none: results
// of the device are awaited, the reference backend computes on the host, and what it wrote goes back. Right, and slow: every call
// waits. Used by CudaBackend where the device is not Hopper.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/reference/reference_backend.h"

namespace hunch {

class HostOps {
 public:
  // After an error of the device nothing is computed: the next wait says what happened.
  void top_k(Commands& commands, const TopKArgs& args);
  void sample(Commands& commands, const SampleArgs& args);  // state included
  void log_probs(Commands& commands, const LogProbsArgs& args);

 private:
  View<const float, 2> fetch(View<const float, 2> rows, int64_t columns);

  ReferenceBackend reference_;
  std::vector<float> in_, out_, values_, shares_;
  std::vector<int32_t> ids_, tokens_, seconds_;
};

}
