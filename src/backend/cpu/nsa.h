// CpuNsa: natively trained sparse attention on the threads (ops/nsa.h). Owned by CpuBackend.
#pragma once

#include <atomic>

#include "backend/cpu/nsa_kernels.h"
#include "backend/cpu/threads.h"
#include "backend/ops/nsa.h"

namespace hunch {

class CpuNsa {
 public:
  // All outlive it.
  CpuNsa(Threads& threads, const NsaKernels& kernels, const AttentionKernels& stores)
      : threads_(threads), kernels_(kernels), stores_(stores), compressors_(size_t(threads.count())) {}

  // Both return the bytes of K and V that they read, once per item.
  size_t compress(const CompressKvArgs& args);
  size_t attention(const NsaAttentionArgs& args);

 private:
  // Rows of one run under one KV head.
  struct Item {
    const NsaRun* run = nullptr;
    size_t tree = 0;  // of trees_, where the run is one
    int kv_head = 0;
    int64_t first_row = 0, num_rows = 0;
  };
  // What the nodes of a tree own, and where they stand on their paths.
  struct Tree {
    std::vector<int32_t> entry_place, row_place;  // [nodes]
    int64_t kept = 0;                             // compressed rows of the prefix
    Buffer owned;                                 // [kv_head][blocks of nodes], chunks
    size_t chunks = 0;                            // of one head
  };
  // A worker's part of scratch beside the kernels'.
  struct Plan;

  void plan(const NsaAttentionArgs& args);
  void grow_tree(const NsaAttentionArgs& args, const NsaRun& run, Tree& tree);
  NsaItem item_of(const NsaAttentionArgs& args, const Item& item, int32_t* visible) const;
  void run_item(const NsaAttentionArgs& args, const Item& item, std::byte* scratch);
  size_t scratch_bytes(const NsaAttentionArgs& args, const NsaItem& item, int64_t num_blocks) const {
    const int64_t rows = item.query.num_rows;
    return (nsa_scratch_bytes(item) + 63) / 64 * 64 + size_t(rows * item.importance_stride) * sizeof(float) +
        size_t(rows * args.nsa.shape->sel_count) * sizeof(int32_t) + size_t(num_blocks) * (sizeof(float) + 12 + 16) +
        kNsaRows * sizeof(int32_t) + 16 * 64;
  }

  Threads& threads_;
  const NsaKernels& kernels_;
  const AttentionKernels& stores_;
  std::vector<Compressor> compressors_;  // [worker]
  std::vector<Item> items_;
  std::vector<Tree> trees_;
  std::vector<int32_t> identity_;  // page tables of trees' own chunks
  size_t num_trees_ = 0;
  std::atomic<size_t> bytes_{0};
};

}
