// CpuAttention: cuts the runs of a pass into items for the threads, merges their parts, stores new rows. Owned by CpuBackend.
#pragma once

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/kv_store.h"
#include "backend/cpu/threads.h"
#include "backend/ops/attention.h"
#include "backend/ops/kv.h"

namespace hunch {

// What the kernels see of one head's entries.
KeyPlane key_plane(const KvRef& kv, int layer, int kv_head);

class CpuAttention {
 public:
  // Both outlive it.
  CpuAttention(Threads& threads, const AttentionKernels& kernels) : threads_(threads), kernels_(kernels) {}

  // Each returns the K and V bytes of the blocks that it reads, once per run and KV head.
  size_t attention(const AttentionArgs& args);
  size_t score_keys(const ScoreKeysArgs& args);
  void store_kv(const StoreKvArgs& args);

 private:
  // A unit is what one merge finishes: the rows of a run under one KV head, or under all heads where they share one score set.
  struct Unit {
    const AttentionRun* run = nullptr;
    int first_head = 0, num_heads = 1;  // KV heads
    int64_t first_item = 0, num_items = 0;
    int64_t first_split = 0, num_splits = 0;
    int rows_per_item = 0;       // 0: an item is one split of all rows; else these rows with all their splits
    int64_t partial_offset = 0;  // floats
  };
  void plan(const AttentionArgs& args);
  void run_item(const AttentionArgs& args, const Unit& unit, int64_t index, int worker, std::byte* scratch, float* row_sums);
  AttendItem item_of(const AttentionArgs& args, const Unit& unit, int kv_head, int64_t first_row, int64_t num_rows) const;
  void score_rows(int layer, float scale, View<const float, 3> q, const KvRef& kv, const ScoreArgs& scores);

  Threads& threads_;
  const AttentionKernels& kernels_;
  std::vector<Unit> units_;
  Buffer partials_;  // states of splits
  Buffer pending_;   // per unit: items not yet done
};

}
