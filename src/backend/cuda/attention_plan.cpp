// See attention_plan.h. Nothing here changes a bit of the results: items are whole splits, and partials are exact.
#include "backend/cuda/attention_plan.h"

#include <iterator>

#include "base/check.h"

namespace hunch {
namespace {

using Group = PlannedGroup;
// In blocks: what beginning and ending a split takes, and a path's tile, whose rows lie apart and which some rows do not read.
constexpr int kSplitCost = 2, kPathCost = 3;
// A byte of partials costs so many of keys and values; from this share of the workers on they take all that memory gives.
constexpr double kStoreCost = 5, kEnough = 0.7;

void plan_paths(AttentionPlan& plan, const PlannedRun& run, int first, int end, std::vector<int32_t>& leaf_of_row, Group& group) {
  group.item.leaf_begin = int32_t(plan.leaves.size());
  group.item.leaf_block = int32_t(run.tree_entry / kPageLen);
  // Parents come before children: from the last row backwards, a row without a leaf below it is one.
  std::vector<int32_t>& leaf = plan.leaf;
  leaf.assign(run.parents.size(), -1);
  for (int i = end - 1; i >= first; --i) {
    const int row = run.rows[i], x = run.tree_first + row;
    if (leaf[x] < 0) {
      const int32_t index = int32_t(plan.leaves.size());
      LeafDevice added;
      added.depth = run.last[i] - int32_t(run.tree_entry);
      added.path = int32_t(plan.paths.size());
      added.end_block = int32_t((run.tree_entry + added.depth) / kPageLen + 1);
      plan.paths.resize(plan.paths.size() + size_t(added.depth) + 1);
      int at = added.depth;
      for (int y = x; y >= 0; y = run.parents[y], --at) {
        plan.paths[added.path + at] = y;
        if (leaf[y] < 0) leaf[y] = index;
      }
      HUNCH_CHECK(at == -1);  // last says what the tree says
      plan.leaves.push_back(added);
    }
    leaf_of_row[row] = leaf[x];
  }
  group.item.leaf_end = int32_t(plan.leaves.size());
}

Group plan_group(AttentionPlan& plan, const PlannedRun& run, int run_index, int mgroup, int padded_group) {
  Group group;
  AttentionItemDevice& item = group.item;
  item.run = run_index, item.mgroup = mgroup, item.split_blocks = run.split_blocks;
  const int packed = int(run.rows.size()) * padded_group, per_group = plan.tiles_per_group * kTileRows;
  const int begin = mgroup * per_group, end = std::min(packed, begin + per_group);
  group.tiles = (end - begin + kTileRows - 1) / kTileRows;
  for (int t = 0; t < 2; ++t) item.rows[t] = std::clamp(end - begin - t * kTileRows, 0, kTileRows);
  const int first = begin / padded_group, last_row = (end - 1) / padded_group;
  if (run.end_entry > 0) {
    item.block_end = int32_t((run.end_entry + kPageLen - 1) / kPageLen);
    item.clean_end = item.end_entry = int32_t(run.end_entry);
    group.end_split = (item.block_end + run.split_blocks - 1) / run.split_blocks;
    return group;
  }
  int64_t begin_entry = kFarFuture, end_entry = 0, clean_begin = 0, clean_end = kFarFuture;
  for (int i = first; i <= last_row; ++i) {
    const int64_t last = run.last[i], from = std::max(run.first, run.window ? last + 1 - run.window : 0);
    begin_entry = std::min(begin_entry, from), clean_begin = std::max(clean_begin, from);
    end_entry = std::max(end_entry, last + 1), clean_end = std::min(clean_end, last + 1);
  }
  begin_entry = std::min(begin_entry, std::max<int64_t>(0, end_entry - 1));  // rows that read nothing need a tile to say so
  item.clean_begin = int32_t(clean_begin), item.clean_end = int32_t(clean_end), item.end_entry = int32_t(end_entry);
  item.block_begin = int32_t(begin_entry / kPageLen), item.block_end = int32_t((end_entry + kPageLen - 1) / kPageLen);
  group.first_split = item.block_begin / run.split_blocks;
  group.end_split = (item.block_end + run.split_blocks - 1) / run.split_blocks;
  if (!run.parents.empty()) {
    plan_paths(plan, run, first, last_row + 1, plan.leaf_of_row[run_index], group);
    item.block_end = std::min(item.block_end, item.leaf_block);
    group.path_split = item.leaf_block / run.split_blocks;
  }
  return group;
}

// The splits [begin, end) of one M group and KV head, appended as items; slots of partials are taken in order.
class Cutter {
 public:
  // most_parts: items that share a split's paths.
  Cutter(AttentionPlan& plan, int head_dim, int most_parts) : plan_(plan), head_dim_(head_dim), most_parts_(most_parts) {}
  // Starts the units of a group: its tiles' partials follow each other tile by tile, so their number must be known.
  void add(const Group& group, int kv_head, int begin, int end, AttentionUnitDevice* const units[2]) {
    for (int split = begin; split < end;) {
      AttentionItemDevice item = group.item;
      item.kv_head = kv_head, item.first_split = split;
      item.fold = split % kSuperSplits == 0 || split == group.first_split;
      const int super_end = (split / kSuperSplits + 1) * kSuperSplits;
      const bool of_paths = split >= group.path_split;
      item.num_splits = of_paths ? 1 : std::min({end, super_end, group.path_split}) - split;
      const int slots = item.fold ? 1 : item.num_splits;
      for (int t = 0; t < group.tiles && head_dim_ > 0; ++t) {
        item.partial[t] = plan_.partial_floats;
        plan_.partial_floats += slots * partial_floats(item.rows[t], head_dim_);
        plan_.slots.push_back({units[t], item.partial[t], slots, int(plan_.slots.size()), item.fold != 0});
      }
      if (of_paths) add_paths(item);
      else plan_.items.push_back(item);
      split += item.num_splits;
    }
  }

 private:
  // A path is a chain of tiles of its own, and rows on one wait for nobody on another: they are dealt out.
  void add_paths(AttentionItemDevice item) {
    const int first = item.leaf_begin, paths = item.leaf_end - first, begin = item.first_split * item.split_blocks;
    // A part stores its rows after its last tile, so each must have one: the entries before the tree, or any of its paths.
    bool all_have_tiles = std::max(item.block_begin, begin) < std::min(item.block_end, begin + item.split_blocks);
    if (!all_have_tiles)
      all_have_tiles = std::all_of(plan_.leaves.begin() + first, plan_.leaves.begin() + item.leaf_end,
          [&](const LeafDevice& leaf) { return leaf.end_block > std::max(begin, item.leaf_block); });
    const int parts = all_have_tiles ? std::min(paths, most_parts_) : 1;
    for (int i = 0; i < parts; ++i) {
      item.part = parts > 1 ? i + 1 : 0;
      item.leaf_begin = first + paths * i / parts, item.leaf_end = first + paths * (i + 1) / parts;
      plan_.path_items.push_back(item);
    }
  }
  AttentionPlan& plan_;
  int head_dim_, most_parts_;
};

// Every item to the worker that has least so far, the longest first: paths too, which as leftovers for all would begin only once
// the kernel before has ended and somebody has asked for them.
void deal_out(AttentionPlan& plan, int workers) {
  const auto cost_of = [](const AttentionItemDevice& item) {
    const int begin = item.first_split * item.split_blocks, end = begin + item.num_splits * item.split_blocks;
    const int paths = end > item.leaf_block ? item.leaf_end - item.leaf_begin : 0;
    return std::max(0, std::min(item.block_end, end) - std::max(item.block_begin, begin)) + kSplitCost + kPathCost * paths;
  };
  auto &order = plan.order, &loads = plan.loads;
  plan.path_items.insert(plan.path_items.end(), plan.items.begin(), plan.items.end());
  for (const AttentionItemDevice& item : plan.path_items) order.push_back({cost_of(item), int(order.size())});
  std::ranges::sort(
      order, [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  // A heap with the least on top: at first one of each block's consumers, then the others.
  for (int worker = 0; worker < workers; ++worker) loads.push_back({0, worker});
  for (auto& [cost, item] : order) {
    std::ranges::pop_heap(loads, std::greater<>());
    auto& [load, worker] = loads.back();
    load += cost, cost = worker;
    std::ranges::push_heap(loads, std::greater<>());
  }
  std::ranges::sort(order);  // by worker
  plan.items.clear();
  for (const auto& [worker, item] : order) {
    while (int(plan.worker_items.size()) <= worker) plan.worker_items.push_back(int32_t(plan.items.size()));
    plan.items.push_back(plan.path_items[item]);
  }
  plan.path_items.clear();
}

using Lengths = std::array<int64_t, kSuperSplits + 1>;  // super-splits or items, by their splits

// What workers take for items dealt out the longest first, in times of a split while all of them work.
double time_of(const Lengths& items, int workers, std::vector<int64_t>& with_load) {
  with_load.assign(1, workers);
  size_t least = 0;
  for (size_t length = kSuperSplits; length > 0; --length)
    for (int64_t left = items[length], some; left > 0; left -= some) {
      while (with_load[least] == 0) ++least;
      with_load.resize(std::max(with_load.size(), least + length + 1));
      some = std::min(left, with_load[least]);
      with_load[least] -= some, with_load[least + length] += some;
    }
  double time = 0;
  int64_t working = workers;
  for (const int64_t done : with_load)
    if ((working -= done) > 0) time += std::max(kEnough, double(working) / workers);
  return time;
}

// A super-split that is one item leaves one partial. Of those with `length` splits, the most that any has, all but `whole` are
// cut into items of `step`, the first of which leaves one partial, the others one a split: where workers end sooner by it.
struct Cut {
  int length = kSuperSplits, step = kSuperSplits;
  int64_t whole = 0;
};
Cut best_cut(AttentionPlan& plan, const Lengths& supers, int workers, int split_blocks, int packed) {
  const double item_cost = 1.0 / split_blocks,
               partial_cost = kStoreCost * packed / (split_blocks * kPageLen);  // of a split's time
  Cut best;
  while (best.length > 1 && supers[best.length] == 0) --best.length;
  const int length = best.length;
  const int64_t count = supers[length], last_turn = count % workers;
  double least = 0;
  for (const int64_t cut : {int64_t(0), std::min<int64_t>(count, workers / 8), last_turn, std::min(count, last_turn + workers)})
    for (int step = kSuperSplits / 2; step > 0; step /= 2) {
      if (step >= length) continue;
      Lengths items = supers;
      items[length] -= cut, items[step] += cut * (length / step), items[length % step] += cut;
      const double added = (length - 1) / step * item_cost + (length - step) * partial_cost;
      const double time = time_of(items, workers, plan.with_load) + double(cut) * added / workers;
      if (least == 0 || time < least) least = time, best.step = step, best.whole = count - cut;
    }
  return best;
}

}

bool is_chain(const TreeRows& tree, int64_t num_rows) {
  for (int64_t x = 0; x < tree.first + num_rows; ++x)
    if (tree.parents[x] != x - 1) return false;
  return true;
}

void plan_attention(
    AttentionPlan& plan, std::span<const PlannedRun> runs, int padded_group, int head_dim, bool paired, int workers) {
  const auto clear = [](auto&... lists) { (lists.clear(), ...); };
  clear(plan.items, plan.worker_items, plan.units, plan.run_units, plan.run_tiles, plan.supers, plan.slot_list, plan.leaves);
  clear(plan.paths, plan.leaf_of_row, plan.groups, plan.run_groups, plan.slots, plan.path_items, plan.order, plan.loads);
  plan.partial_floats = 0, plan.reread = false, plan.tiles_per_group = paired ? 2 : 1;
  auto& groups = plan.groups;
  auto& run_groups = plan.run_groups;
  for (size_t r = 0; r < runs.size(); ++r) {
    const int packed = int(runs[r].rows.size()) * padded_group, tiles = (packed + kTileRows - 1) / kTileRows;
    const int mgroups = (tiles + plan.tiles_per_group - 1) / plan.tiles_per_group;
    plan.leaf_of_row.add().assign(runs[r].parents.empty() ? 0 : runs[r].rows.size(), 0);
    plan.run_units.push_back(int32_t(plan.units.size())), plan.run_tiles.push_back(tiles);
    plan.units.resize(plan.units.size() + size_t(tiles * runs[r].kv_heads));
    plan.reread = plan.reread || mgroups > 1;
    run_groups.push_back({int(groups.size()), int(groups.size()) + mgroups});
    for (int m = 0; m < mgroups; ++m) groups.push_back(plan_group(plan, runs[r], int(r), m, padded_group));
  }
  int trees = 0;  // with a KV head each
  for (const Group& group : groups)
    if (group.path_split != kFarFuture) trees += runs[group.item.run].kv_heads;
  Cutter cutter(plan, head_dim, std::max(1, workers / std::max(1, trees)));
  const auto add = [&](const Group& group, int kv_head, int begin, int end) {
    const int r = group.item.run,
              unit = plan.run_units[r] + kv_head * plan.run_tiles[r] + group.item.mgroup * plan.tiles_per_group;
    AttentionUnitDevice* const units[2] = {&plan.units[unit], group.tiles > 1 ? &plan.units[unit + 1] : nullptr};
    for (int t = 0; t < group.tiles; ++t) units[t]->rows = group.item.rows[t];
    cutter.add(group, kv_head, begin, end, units);
  };
  int64_t total = 0;  // splits
  Lengths lengths = {};
  int most_packed = 0;
  for (const Group& group : groups) {
    const int kv_heads = runs[group.item.run].kv_heads;
    for (int begin = group.first_split, end; begin < group.end_split; begin = end) {
      end = std::min(group.end_split, (begin / kSuperSplits + 1) * kSuperSplits);
      lengths[end - begin] += kv_heads, total += int64_t(kv_heads) * (end - begin);
    }
    most_packed = std::max(most_packed, group.item.rows[0] + group.item.rows[1]);
  }
  // Where splits are fewer than blocks each has a block for itself: two consumers of one take longer than one.
  const int busy = paired || 2 * total > workers ? workers : std::max(1, workers / 2);
  // Few splits: each worker has its share, in a row, so that it seldom changes sequence or head (which costs a look at other
  // queries), or with trees split by split. Else items go by their length, the longest first.
  const bool few = total < 2 * busy && !plan.reread, dealt = few && trees > 0, in_a_row = few && !dealt;
  const bool by_length = !few && !plan.reread;
  const Cut cut = by_length ? best_cut(plan, lengths, busy, runs[0].split_blocks, most_packed) : Cut();
  // Where groups read again what others have read, partials are large: the longest items that end nearly as soon as shorter ones.
  int alike = kSuperSplits;
  const auto rounds = [&](int step) { return (total + int64_t(step) * busy - 1) / (int64_t(step) * busy) * step; };
  for (int step = alike / 2; step > 0; step /= 2)
    if (10 * rounds(step) < 8 * rounds(alike)) alike = step;
  int64_t whole = cut.whole, done = 0;
  plan.worker_items.assign(1, 0);
  for (size_t r = 0; r < runs.size(); ++r)
    for (int kv_head = 0; kv_head < runs[r].kv_heads; ++kv_head) {
      // Groups of a run read the same keys and so run side by side, that the L2 has what the first of them fetched.
      int first = kFarFuture, end = 0;
      for (int g = run_groups[r].first; g < run_groups[r].second; ++g)
        first = std::min(first, groups[g].first_split), end = std::max(end, groups[g].end_split);
      int piece = 1;
      for (int split = first; split < end;) {
        const int super_end = std::min(end, (split / kSuperSplits + 1) * kSuperSplits);
        int step = 1;
        if (in_a_row) {
          while (split + step < super_end && (done + step) * busy < total * std::ssize(plan.worker_items)) ++step;
        } else if (plan.reread) {
          const bool many = total >= 64 * busy;
          piece = many ? kSuperSplits : alike;
          while (many && piece > 1 && int64_t(piece) * busy > total - done) piece /= 2;
        } else if (by_length && (split == first || split % kSuperSplits == 0)) {
          piece = super_end - split == cut.length && whole-- <= 0 ? cut.step : kSuperSplits;
        }
        if (!few) step = std::min(piece - split % piece, super_end - split);
        for (int g = run_groups[r].first; g < run_groups[r].second; ++g) {
          const Group& group = groups[g];
          const int from = std::max(split, group.first_split), to = std::min(split + step, group.end_split);
          if (from >= to) continue;
          add(group, kv_head, from, to);
          done += to - from;
        }
        split += step;
        while (in_a_row && int(plan.worker_items.size()) <= busy && done * busy >= total * std::ssize(plan.worker_items))
          plan.worker_items.push_back(int32_t(plan.items.size()));
      }
    }
  if (dealt) deal_out(plan, workers);
  if (by_length) {  // one for each, neighbours for the consumers of a block, the others for all
    plan.sorted.clear();
    for (int length = kSuperSplits; length > 0; --length)
      std::ranges::copy_if(plan.items, std::back_inserter(plan.sorted),
          [&](const AttentionItemDevice& item) { return item.num_splits == length; });
    plan.items.assign(plan.sorted.begin(), plan.sorted.end());
    const int own = std::min(busy, int(plan.items.size())), half = paired ? 0 : own / 2;
    for (int i = 0; i < 2 * half; ++i) plan.items[i] = plan.sorted[i % half * 2 + i / half];
    for (int worker = 1; worker <= own; ++worker) plan.worker_items.push_back(worker);
  }
  plan.worker_items.resize(size_t(workers) + 1, few ? int32_t(plan.items.size()) : plan.worker_items.back());
  // First of what is left for all: they take longest.
  plan.items.insert(plan.items.begin() + plan.worker_items.back(), plan.path_items.begin(), plan.path_items.end());
  HUNCH_CHECK(plan.partial_floats < int64_t(UINT32_MAX));
  // Slots of a unit lie in one stretch, in the order of splits, and so do its super-splits; partials may lie anywhere.
  const auto before = [](const auto& a, const auto& b) { return a.unit != b.unit ? a.unit < b.unit : a.order < b.order; };
  if (!std::ranges::is_sorted(plan.slots, before)) std::ranges::sort(plan.slots, before);
  AttentionUnitDevice* unit = nullptr;
  for (const PlannedSlots& slots : plan.slots) {
    if (slots.unit != unit) unit = slots.unit, unit->first_super = int32_t(plan.supers.size());
    if (slots.starts_super) plan.supers.push_back({int32_t(plan.slot_list.size()), 0}), ++unit->num_supers;
    plan.supers.back().num_slots += slots.count;
    for (int i = 0; i < slots.count; ++i)
      plan.slot_list.push_back(
          AttentionSlot(slots.partial + i * partial_floats(unit->rows, head_dim) + (slots.starts_super && i == 0)));
  }
}

}
