// Who reads what: the rows of an attention call packed into M tiles, and the splits of every sequence and KV head cut into items
// that workers take one after the other, long ones first, so that all end at about the same time. Pure host code; used by
// attention.cu alone.
#pragma once

#include <algorithm>

#include "backend/cuda/attention_args.h"

namespace hunch {

// A list whose elements keep the memory they have when it is emptied: steps do not allocate once the largest has been seen.
template <class T>
class KeptList {
 public:
  T& add() {  // whatever it held before
    if (count_ == items_.size()) items_.emplace_back();
    return items_[count_++];
  }
  void clear() { count_ = 0; }
  void reserve(size_t n) { items_.reserve(n); }
  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  T& operator[](size_t i) { return items_[i]; }
  const T& operator[](size_t i) const { return items_[i]; }
  T& back() { return items_[count_ - 1]; }
  std::span<T> all() { return {items_.data(), count_}; }
  std::span<const T> all() const { return {items_.data(), count_}; }
  bool operator==(const KeptList& o) const { return std::ranges::equal(all(), o.all()); }
  void copy(const KeptList& o) {
    clear();
    for (const T& item : o.all()) add() = item;
  }

 private:
  std::vector<T> items_;
  size_t count_ = 0;
};

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
  int64_t first_row = 0;  // in q and out
  bool operator==(const PlannedRun&) const = default;
  void reset() {
    rows.clear(), last.clear(), parents.clear();
    kv_heads = window = tree_first = 0, split_blocks = kSplitBlocks, tree_entry = end_entry = first = first_row = 0;
  }
};

// One M group of a run: its rows, and the entries they read.
struct PlannedGroup {
  AttentionItemDevice item;  // all but the splits and the KV head
  int first_split = 0, end_split = 0;
  int path_split = kFarFuture;  // the first that holds a part of the tree
  int tiles = 0;
};
// Partials of a tile that one item leaves.
struct PlannedSlots {
  AttentionUnitDevice* unit;
  int64_t partial;
  int count, order;  // order: in which they were made
  bool starts_super;
};

struct AttentionPlan {
  int tiles_per_group = 1;                 // 2: paired
  std::vector<AttentionItemDevice> items;  // each worker's own, then those that are left for all
  std::vector<int32_t> worker_items;       // [workers + 1] first of each worker's own
  std::vector<AttentionUnitDevice> units;
  std::vector<int32_t> run_units, run_tiles;
  std::vector<AttentionSuperDevice> supers;
  std::vector<AttentionSlot> slot_list;
  int64_t partial_floats = 0;
  bool reread = false;
  // Trees.
  std::vector<LeafDevice> leaves;
  std::vector<int32_t> paths;
  KeptList<std::vector<int32_t>> leaf_of_row;  // [run][run's row]
  // Of the making only.
  std::vector<PlannedGroup> groups;
  std::vector<std::pair<int, int>> run_groups;  // first and end, by run
  std::vector<PlannedSlots> slots;
  std::vector<AttentionItemDevice> path_items, sorted;
  std::vector<int64_t> with_load;          // workers
  std::vector<std::pair<int, int>> order;  // of items that are dealt out: cost, then worker; item
  std::vector<std::pair<int, int>> loads;  // cost, worker
  std::vector<int32_t> leaf;
};

// `workers` without pairing is the number of consumers, with pairing that of blocks. head_dim 0: no partials (scores only). What
// `plan` held is overwritten; its memory is used again.
void plan_attention(
    AttentionPlan& plan, std::span<const PlannedRun> runs, int padded_group, int head_dim, bool paired, int workers);

// Whether every row reads what stands before it in the order of entries.
bool is_chain(const TreeRows& tree, int64_t num_rows);

}
