// Which blocks of the cache a sparse check reads: the budget, the scores and the choice of "Accelerate Speculative Decoding with
// Sparse Computation in Verification", section 3.1. LOSSY: the check is then another model's.
#pragma once

#include "backend/backend.h"

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
// or with `joint` of all together. Host memory only.
void choose_blocks(View<const float, 2> scores, int64_t blocks, int64_t budget, int sinks, int recent, bool joint,
    std::vector<std::vector<int32_t>>& kept);  // scores [heads][>= blocks]

// Means of the rotated keys of whole blocks as stored: keys of a store of the backend, an entry a block, made when the block is
// final.
class BlockMeans {
 public:
  // Room for `blocks` of a sequence; what was made is forgotten.
  void open(Backend&, const KvGeometry&, int block, int64_t blocks);
  // Makes those of this layer up to `blocks`.
  void extend(int layer, const KvRef&, int64_t blocks);
  // out[h][b] = q . mean key for the first `blocks`, q the mean of the query heads of KV head h, or the greatest of their
  // products.
  void score(
      int layer, View<const float, 2> q, bool max_of_group, int64_t blocks, View<float, 2> out) const;  // q [heads][head_dim]
  size_t bytes() const { return store_ ? store_->bytes : 0; }

 private:
  KvRef means() const { return {store_.get(), View<const int32_t, 1>(pages_.data(), pages_.size())}; }
  Backend* backend_ = nullptr;
  int block_ = 1;
  std::unique_ptr<KvStore> store_;
  std::vector<int32_t> pages_;
  std::vector<int64_t> done_;  // [layer] blocks made
};

}
