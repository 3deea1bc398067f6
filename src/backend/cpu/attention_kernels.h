// Arguments of the attention kernels: plain structs of pointers, since bodies compiled for an instruction set use nothing else.
// Filled by attention.cpp, read by attention_body.h. Layout of a chunk: kv_store.h.
#pragma once

#include "backend/ops/kv.h"

namespace hunch {

// K and V of one layer and KV head, as far as one sequence uses them.
struct KeyPlane {
  std::byte* first_chunk = nullptr;
  const int32_t* pages = nullptr;  // [blocks]
  size_t chunk_bytes = 0;
  int head_dim = 0, padded_dim = 0;
  KvScale scale;  // FP8
};

// Query rows of one run that share the plane: `num_rows` rows times `group` heads.
struct QueryRows {
  int num_rows = 0, group = 1;
  const float* q = nullptr;  // [row][head of the group][head_dim]
  int64_t row_stride = 0, head_stride = 0;
  const int32_t* last = nullptr;  // [row] newest entry read; ascending unless the rows form a tree
  int window = 0;                 // 0: everything up to `last`
  int64_t first = 0;              // entries before it do not exist
  float scale = 1;
  // Tree (ops/attention.h): parents of all rows of the round, null for a chain; the round's row that is row 0 here; the entry of
  // the round's row 0.
  const int32_t* parents = nullptr;
  int tree_row = 0;
  int64_t tree_entry = 0;
};

// Scores collected for the entries [0, prefix_len) of one item; metric 0 none, 1 logit, 2 weight (ops/attention.h).
struct ScoreSink {
  int metric = 0;
  bool maximum = false;               // combine rows by max; else by sum
  const uint8_t* row_used = nullptr;  // [row]
  const float* lse = nullptr;         // [row][head of the group]
  int64_t lse_row_stride = 0, lse_head_stride = 1;
  int64_t prefix_len = 0;
  float mean = 1;       // 1 / heads of the set
  bool blocks = false;  // out: the greatest of each 8 entries
  float* out = nullptr;
  // One set for all heads: sums of a row over heads so far, [row][kSplitLen] of the item's split; null: a set per KV head.
  float* row_sums = nullptr;
  bool first_head = true;  // row_sums are overwritten, not added to
};

// One item: rows against the splits [first_split, end_split) of the entries.
struct AttendItem {
  KeyPlane keys;
  QueryRows rows;
  int64_t first_split = 0, end_split = 0;
  // Either the state of every split and query row, for merge(): [split][row group + head][state_len(padded_dim)] ...
  float* partial = nullptr;
  int64_t partial_split_stride = 0;
  // ... or, with `partial` null and all splits in the item, the result itself.
  float* out = nullptr;  // [row][head of the group][head_dim]
  int64_t out_row_stride = 0, out_head_stride = 0;
  float* lse = nullptr;  // [row][head of the group], may be null
  int64_t lse_row_stride = 0, lse_head_stride = 1;
  const float* sinks = nullptr;  // [head of the group], may be null
  ScoreSink scores;
  std::byte* scratch = nullptr;  // attend_scratch_bytes()
};

// Rows to write to entries first_entry, ... of one plane.
struct StoreItem {
  KeyPlane keys;
  const float *k = nullptr, *v = nullptr;  // [row][head_dim]
  int64_t k_stride = 0, v_stride = 0;
  int64_t num_rows = 0, first_entry = 0;
};

// Floats of a query row's state after one split: accumulators, then what weights are relative to (log2) and their sum.
constexpr int64_t state_len(int padded_dim) { return padded_dim + 16; }

// A tree's rows from the block of its first entry on: kMaxTreeRows entries that begin anywhere in a block lie in five.
inline constexpr int kMaxTreeRows = 257, kTreeBlocks = 5;

inline constexpr int kMostWidened = 128;  // dimensions of heads whose blocks of FP8 are widened for all rows
// Scratch of attend() and score(); num_rows counts query rows (rows times group).
constexpr size_t attend_scratch_bytes(int64_t num_rows, int padded_dim, size_t chunk_bytes) {
  return size_t(num_rows) * (size_t(padded_dim) * 12 + 256) + 16 * 64 * 8 + 64 * 8 + 1024 + 2 * 64 * 4 * kMostWidened +
      kTreeBlocks * chunk_bytes;
}

struct AttentionKernels {
  // Indexed by DType: F32, F16, BF16, I16, Q8_0, FP8.
  void (*attend[kNumDTypes])(const AttendItem&) = {};
  void (*score[kNumDTypes])(const AttendItem&) = {};  // scores alone, by K alone; entries of the item's splits
  void (*store[kNumDTypes])(const StoreItem&) = {};
  // Folds the states of an item's splits in ascending order and writes out and lse.
  void (*merge)(const AttendItem&) = nullptr;
  // One set for all heads, after the last head: row_sums to out, for the entries of one split.
  void (*combine_rows)(const ScoreSink&, int num_rows, int64_t split) = nullptr;
  DType preferred = DType::F16;  // of 16 bits: what the machine multiplies as it is
};

}
