// What the kernels of attention read: written by attention_plan.cpp on the host, copied to the device with the list.
//
// Order of arithmetic, the same for a row in any company: keys are cut at multiples of kSplitEntries; a split starts afresh and
// folds its blocks of 64 in ascending order; a super-split (kSuperSplits splits) folds its splits left to right, and the
// super-splits are folded left to right (merge()), the sink last. Within a split a row's
// weights stand relative to a reference, which becomes the greatest logit of a block where that one's weight, rounded, would be
// above 256. Weights of a block are added by entries 8 apart in a group of 16, blocks by these sums, which at the end of a split
// are added over the entries of a group, then over groups. What a row does not read leaves its state bit for bit as it was.
#pragma once

#include <cuda.h>

#include "backend/cuda/kv_store.h"
#include "backend/ops/attention.h"

namespace hunch {

inline constexpr int kSplitEntries = 1024, kSplitBlocks = kSplitEntries / kPageLen;
// Of selections, which are short and drafts only: more blocks share one, so that a few of them fill the device.
inline constexpr int kSelectedSplitEntries = 256, kSelectedSplitBlocks = kSelectedSplitEntries / kPageLen;
inline constexpr int kSuperSplits = 8;  // splits of a super-split; a power of two
inline constexpr int kTileRows = 64;    // packed rows (row x padded group) of an M tile
inline constexpr int kFarFuture = 0x7fffffff;

// A path of a tree from the root to one of the rows of an M group; rows on the way to it read its tile.
struct LeafDevice {
  int32_t path = 0;       // offset in AttentionRunDevice::paths: the round's row at depth 0, 1, ...
  int32_t depth = 0;      // of the leaf
  int32_t end_block = 0;  // past the block that holds the leaf's own place
  int32_t pad = 0;
};

enum class ScoreSink : int32_t {
  None,
  Direct,  // out[kv_head][entry]: all used rows of the KV head are in one tile
  Blocks,  // out[kv_head][block]: the same, the greatest of kScoreBlock entries
  Groups,  // planes[tile][kv_head][entry], combined over rows
  Rows,    // planes[used row][kv_head][entry], the sum over the group
};

struct AttentionRunDevice {
  KvPlane plane;
  const int32_t* pages = nullptr;
  const int32_t* index = nullptr;  // a selection; null: none
  int64_t index_stride = 0;        // 0: shared by KV heads
  int32_t count = 0, tail_first = 0;
  int32_t settled = 0;                  // places before it may be read before the kernels in front are done
  int32_t first_row = 0, num_rows = 0;  // in q and out
  const int32_t* rows = nullptr;        // the run's row of list row i; null: i itself (scores of used rows only)
  const int32_t* last = nullptr;        // [run's row]
  int32_t window = 0, first = 0;        // first: entries before it do not exist
  // Trees: rows whose ancestors are not the entries before them.
  int32_t tree_entry = 0;
  const int32_t* leaf_of_row = nullptr;  // [run's row] index in `leaves`; null: a chain
  const LeafDevice* leaves = nullptr;
  const int32_t* paths = nullptr;
  // Scores.
  ScoreSink sink = ScoreSink::None;
  int32_t weight = 0, sum = 0;          // metric Weight; combine Sum
  int32_t prefix_len = 0, block = 1;    // ScoreArgs::block
  float mean = 0;                       // 1 / query heads of a set
  const uint8_t* row_used = nullptr;    // [run's row]
  const int32_t* used_index = nullptr;  // [run's row] its plane, Rows only
  const float* lse = nullptr;
  int64_t lse_row = 0, lse_head = 0;  // strides
  float* scores = nullptr;            // out or planes
  int64_t scores_stride = 0;          // of a set or plane
};

// A stretch of splits of one KV head and M group: what one worker does in one go.
struct AttentionItemDevice {
  int32_t run = 0, kv_head = 0, mgroup = 0;
  int32_t first_split = 0, num_splits = 0;
  int32_t split_blocks = kSplitBlocks;                   // of a split
  int32_t fold = 0;                                      // starts a super-split: one partial for all; else one for each split
  int32_t block_begin = 0, block_end = 0;                // read by some row of the group in the order of entries
  int32_t clean_begin = 0, clean_end = 0;                // entries that every row of the group reads there
  int32_t leaf_begin = 0, leaf_end = 0, leaf_block = 0;  // of the group's tree paths, and the first block read along them
  int32_t end_entry = 0;                                 // past what any row reads
  int32_t part =
      0;  // of those paths (1: the first), with the split's other entries for all rows; rows on them are stored. 0: all
  int32_t rows[2] = {0, 0};     // packed rows of each tile of the group
  int64_t partial[2] = {0, 0};  // offset of the first partial of each tile, in floats
};

// The partials of one M tile of one KV head, in order.
struct AttentionUnitDevice {
  int32_t rows = 0;  // packed rows: a partial is [rows][head_dim] sums, then [rows][2] greatest logit (base 2) and total
  int32_t first_super = 0, num_supers = 0;  // in CombineDevice::supers
};
// The partials of one super-split, left to right.
struct AttentionSuperDevice {
  int32_t first_slot = 0, num_slots = 0;  // in CombineDevice::slots
};
// Where a slot's partial lies, in floats, a multiple of four; plus one if it is the first of its super-split.
using AttentionSlot = uint32_t;
inline constexpr int64_t partial_floats(int rows, int head_dim) { return (int64_t(rows) * (head_dim + 2) + 3) / 4 * 4; }

struct AttentionDevice {
  const AttentionRunDevice* runs = nullptr;
  const AttentionItemDevice* items = nullptr;
  const int32_t* worker_items = nullptr;  // [workers + 1] first item of each worker's own; tensor-core kernels only
  int32_t num_items = 0,
          first_shared = 0;   // from first_shared on, workers that are done with their own take one after the other,
  uint32_t* taken = nullptr;  // counted here: a count that only grows
  uint32_t taken_before = 0;  // and stands at this when the launch begins
  const float* q = nullptr;
  int64_t q_row = 0, q_head = 0;  // strides
  float* partials = nullptr;
  float scale_log2 = 0;                // scale log2(e)
  int32_t group = 1, group_shift = 0;  // query heads of a KV head, and the logarithm of their padded number
  int32_t keys_only = 0;               // scores without attention
  int32_t reread = 0;                  // several M groups read the same keys: keep them in the L2
};

// The partials of one row's query heads of a KV head.
struct CombineRowDevice {
  int32_t first_super = 0, num_supers = 0;
  int32_t rows = 0, in_tile = 0;  // packed rows of the tile; that of the first of these heads
  int32_t out_row = 0, kv_head = 0;
};
// Those of a tile of many rows.
struct CombineTileDevice {
  int32_t first_slot = 0, num_slots = 0;
  int32_t rows = 0;                         // packed
  int32_t first_row = 0, first_packed = 0;  // of the run, in out; of the tile, in the run
  int32_t padded_group = 1, kv_head = 0;
};
struct CombineDevice {
  const CombineRowDevice* rows = nullptr;    // few rows: [rows x kv_heads]
  const CombineTileDevice* tiles = nullptr;  // many
  const AttentionSuperDevice* supers = nullptr;
  const AttentionSlot* slots = nullptr;
  const float* partials = nullptr;
  float *out = nullptr, *lse = nullptr;
  int64_t out_row = 0, out_head = 0, lse_row = 0, lse_head = 0;  // strides
  int32_t count = 0;                                             // of rows and their heads, of tiles
  int32_t heads = 0, group = 1, head_dim = 0;
  float value_scale = 1;         // of values that were summed without it
  const float* sinks = nullptr;  // [head]; null: none
  std::byte* packed = nullptr;   // all heads of a row as products take them (packed_rows.cuh); null: not wanted
  int32_t packed_blocks = 0;
  int32_t rows_of_warp = 1, blocks_of_tile = 1;
};

// Planes of scores to one score per set and entry.
struct ReduceScoresDevice {
  const float* planes = nullptr;
  int64_t plane_stride = 0, out_stride = 0;
  float* out = nullptr;
  int32_t prefix_len = 0, block = 1, sum = 0, kv_heads = 0;
  int32_t groups = 0;   // planes [groups][kv_heads]
  int32_t by_rows = 0;  // Rows: sum over KV heads, times mean, combined over groups into one set; else sets are KV heads
  float mean = 0;
};

}
