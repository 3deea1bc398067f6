// K and V of a chunk of a prompt from stores of codes (FP8, Q8_0) as a store of fp16 would have them. A chunk reads a page many
// times, by every 64 packed rows: it is widened once, with the bits that producers of few rows give it (attention_codes.cuh).
#pragma once

#include "backend/backend.h"
#include "backend/cuda/commands.h"
#include "backend/cuda/kv_store.h"

namespace hunch {

class UnpackedKv {
 public:
  struct Run {
    KvPlane plane;  // of its own pages, which follow each other
    const int32_t* pages = nullptr;
  };
  // Rows of a run from which on the widening is worth its time. Codes with scales cost producers more.
  static constexpr int64_t fewest_rows(DType codes) { return codes == DType::Q8_0 ? 256 : 512; }

  // Lists what makes them: runs of one head_dim over stores of one such type. They hold until the next call. Empty: the device
  // has no memory to spare for them.
  std::span<const Run> enqueue(Commands&, int layer, std::span<const AttentionRun* const>);

 private:
  CudaKvStore* store_of(Commands&, int head_dim, int64_t pages);

  std::unique_ptr<CudaKvStore> stores_[2];  // heads of 64, of 128: a KV head of a run has pages of its own
  int64_t refused_ = INT64_MAX;             // pages that there was no memory for
  std::vector<Run> runs_;
  std::vector<int32_t> in_order_;  // 0, 1, ...
};

}
