// Which blocks of the cache a sparse check reads: the budget, the scores and the choice of "Accelerate Speculative Decoding with
// Sparse Computation in Verification", section 3.1. LOSSY: the check is then another model's. Host memory only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/ops/kv.h"
#include "tensor/view.h"

namespace hunch {

struct BlockBudget {
  double ratio = 0.1;         // rho, (0, 1]
  int64_t dense_len = 4096;   // L0: up to so many entries all are read
  int block = 32;             // B: entries of a block
  int sinks = 1;              // first blocks, never left out
  int recent = 0;             // last blocks, likewise; 0: max(2, ceil(rows of the step / B) + 1)
  bool joint = false;         // one budget for all KV heads, blocks of all heads side by side; else the same for each
  bool max_of_group = false;  // a KV head's score is that of its best query head; else of their sum
};

// Equation 6: blocks that `heads` KV heads may read together of `len` entries: ((len - L0) rho + L0) heads / B, rounded up, at
// most all.
int64_t budget_blocks(const BlockBudget&, int64_t len, int heads);
int recent_blocks(const BlockBudget&, int rows);

// kept[h] becomes the ascending blocks of KV head h: its first `sinks` and last `recent`, which count inside the budget and stay
// even where they exceed it, then the best by score (NaN ranks lowest, ties to the lower block and head). `budget`: of each head,
// or with `joint` of all together.
void choose_blocks(View<const float, 2> scores, int64_t blocks, int64_t budget, int sinks, int recent, bool joint,
                   std::vector<std::vector<int32_t>>& kept);  // scores [heads][>= blocks]

// Means of the rotated keys of every block as stored, by running sums. Entries are added once, when they are final.
class BlockMeans {
 public:
  // Room for a sequence; what was summed is forgotten.
  void open(int layers, int kv_heads, int head_dim, int block, int64_t max_len);
  // Adds the entries of this layer up to `committed`.
  void extend(int layer, const KvRef&, int64_t committed);
  // out[h][b] = q . mean key, q the sum of the query heads of KV head h, or the greatest of their products. A last block that is
  // not full counts by the entries that it has.
  void score(int layer, View<const float, 2> q, bool max_of_group, View<float, 2> out) const;  // q [heads][head_dim]
  size_t bytes() const { return sums_.size() * sizeof(float); }

 private:
  float* sum(int layer, int head, int64_t block) {
    return sums_.data() + ((int64_t(layer) * kv_heads_ + head) * max_blocks_ + block) * head_dim_;
  }
  int kv_heads_ = 0, head_dim_ = 0, block_ = 1;
  int64_t max_blocks_ = 0;
  std::vector<float> sums_;    // [layer][kv_head][block][head_dim]
  std::vector<int64_t> done_;  // [layer] entries summed
  std::vector<float> k_, v_;
};

}  // namespace hunch
