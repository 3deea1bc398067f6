// Who reads what: the rows of an attention call packed into M tiles, and the splits of every sequence and KV head cut into items
// that workers take one after the other, long ones first, so that all end at about the same time. Pure host code; used by
// attention.cu alone.
#pragma once

#include <span>
#include <vector>

#include "backend/cuda/attention_args.h"

namespace hunch {

// One run as the plan sees it.
struct PlannedRun {
  int kv_heads = 0;
  std::vector<int32_t> rows;  // the run's row of each packed row
  std::vector<int32_t> last;  // of each of these; keys only: empty
  int window = 0;
  int64_t first = 0;
  int split_blocks = kSplitBlocks;
  std::vector<int32_t> parents;  // of a tree (TreeRows); empty: a chain
  int tree_first = 0;
  int64_t tree_entry = 0;
  int64_t end_entry = 0;  // keys only: the prefix; else 0, and `last` says
  bool operator==(const PlannedRun&) const = default;
};

struct AttentionPlan {
  int tiles_per_group = 1;                 // 2: paired
  std::vector<AttentionItemDevice> items;  // each worker's own, then those that are left for all
  std::vector<int32_t> worker_items;       // [workers + 1] first of each worker's own
  std::vector<AttentionUnitDevice> units;
  std::vector<int32_t> run_units, run_tiles;
  std::vector<AttentionSuperDevice> supers;
  std::vector<int64_t> slot_partial;  // [slots] offset of the slot's partial in floats
  int64_t partial_floats = 0;
  bool reread = false;
  // Trees.
  std::vector<LeafDevice> leaves;
  std::vector<int32_t> paths;
  std::vector<std::vector<int32_t>> leaf_of_row;  // [run][run's row]
};

// `workers` without pairing is the number of consumers, with pairing that of blocks. head_dim 0: no partials (scores only).
void plan_attention(AttentionPlan& plan, std::span<const PlannedRun> runs, int padded_group, int head_dim, bool paired,
                    int workers);

// Whether every row reads what stands before it in the order of entries.
bool is_chain(const TreeRows& tree, int64_t num_rows);

}  // namespace hunch
