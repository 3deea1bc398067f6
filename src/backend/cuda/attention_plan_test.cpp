// The cutting of attention into items: every split of every M tile once, in the order of folding. Needs no device.
#include "backend/cuda/attention_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <tuple>

namespace hunch {
namespace {

PlannedRun chain(int kv_heads, int64_t len, int rows, int window) {
  PlannedRun run;
  run.kv_heads = kv_heads, run.window = window;
  for (int r = 0; r < rows; ++r) run.rows.push_back(r), run.last.push_back(int32_t(len - rows + r));
  return run;
}

AttentionPlan planned(const std::vector<PlannedRun>& runs, int padded_group, int head_dim, bool paired, int workers) {
  AttentionPlan plan;
  plan_attention(plan, runs, padded_group, head_dim, paired, workers);
  return plan;
}

void expect_every_split_once(const std::vector<PlannedRun>& runs, int padded_group, bool paired, int workers) {
  const AttentionPlan plan = planned(runs, padded_group, 64, paired, workers);
  ASSERT_EQ(plan.worker_items.size(), size_t(workers + 1));
  ASSERT_TRUE(std::ranges::is_sorted(plan.worker_items));
  ASSERT_LE(plan.worker_items.back(), int(plan.items.size()));
  std::map<std::tuple<int, int, int>, std::vector<const AttentionItemDevice*>> by_tile;  // run, KV head, tile
  std::map<int64_t, int64_t> partials;                                                   // offset and end
  for (const AttentionItemDevice& item : plan.items) {
    ASSERT_GT(item.num_splits, 0);
    ASSERT_EQ(item.first_split / kSuperSplits, (item.first_split + item.num_splits - 1) / kSuperSplits);
    for (int t = 0; t < plan.tiles_per_group && item.rows[t] > 0; ++t) {
      by_tile[{item.run, item.kv_head, item.mgroup * plan.tiles_per_group + t}].push_back(&item);
      const int slots = item.fold ? 1 : item.num_splits;
      partials[item.partial[t]] = item.partial[t] + slots * partial_floats(item.rows[t], 64);
    }
  }
  int64_t end = 0;
  for (const auto& [offset, past] : partials) {
    ASSERT_EQ(offset, end);  // no overlap, no hole
    end = past;
  }
  ASSERT_EQ(end, plan.partial_floats);
  for (size_t r = 0; r < runs.size(); ++r) {
    const PlannedRun& run = runs[r];
    const int packed = int(run.rows.size()) * padded_group, tiles = (packed + kTileRows - 1) / kTileRows;
    ASSERT_EQ(plan.run_tiles[r], tiles);
    for (int head = 0; head < run.kv_heads; ++head)
      for (int tile = 0; tile < tiles; ++tile) {
        auto& items = by_tile[{int(r), head, tile}];
        ASSERT_FALSE(items.empty());
        std::ranges::sort(items, [](auto* a, auto* b) { return a->first_split < b->first_split; });
        const int last_row = std::min(int(run.rows.size()), ((tile + 1) * kTileRows - 1) / padded_group + 1) - 1;
        ASSERT_GT(items.back()->block_end * kPageLen, run.last[last_row]);
        const AttentionUnitDevice& unit = plan.units[plan.run_units[r] + head * tiles + tile];
        ASSERT_EQ(unit.rows, std::min(kTileRows, packed - tile * kTileRows));
        int split = items[0]->first_split, super = unit.first_super - 1, slot = 0;
        for (const AttentionItemDevice* item : items) {
          ASSERT_EQ(item->first_split, split);
          ASSERT_EQ(item->fold != 0, split % kSuperSplits == 0 || item == items[0]);
          for (int i = 0; i < (item->fold ? 1 : item->num_splits); ++i) {
            const bool starts_super = i == 0 && item->fold;
            if (starts_super) ++super, slot = 0;
            const AttentionSuperDevice& of = plan.supers[super];
            ASSERT_LT(slot, of.num_slots);
            const int64_t partial = item->partial[tile % plan.tiles_per_group] + i * partial_floats(unit.rows, 64);
            ASSERT_EQ(plan.slot_list[of.first_slot + slot++], partial + starts_super);
          }
          split += item->num_splits;
        }
        ASSERT_EQ(super + 1, unit.first_super + unit.num_supers);
        ASSERT_EQ(split, (items.back()->block_end + kSplitBlocks - 1) / kSplitBlocks);
      }
  }
}

// What a step may not do is allocate: the same memory, and the same plan as from nothing.
TEST(AttentionPlan, IsMadeAgainWithoutNewMemory) {
  AttentionPlan plan;
  std::vector<PlannedRun> most, some;
  for (int i = 0; i < 6; ++i) most.push_back(chain(8, 3000 + 700 * i, 12, 0));
  most[2].parents.resize(12), most[2].tree_entry = most[2].last[0];
  for (int i = 0; i < 12; ++i) most[2].parents[i] = i - 1;
  plan_attention(plan, most, 4, 64, true, 132);
  const auto* items = plan.items.data();
  const auto* slots = plan.slots.data();
  const auto* groups = plan.groups.data();
  for (int i = 0; i < 3; ++i) some.push_back(chain(8, 2000 + 500 * i, 9, 0));
  plan_attention(plan, some, 4, 64, true, 132);
  plan_attention(plan, most, 4, 64, true, 132);
  EXPECT_EQ(plan.items.data(), items);
  EXPECT_EQ(plan.slots.data(), slots);
  EXPECT_EQ(plan.groups.data(), groups);
  const AttentionPlan fresh = planned(most, 4, 64, true, 132);
  EXPECT_EQ(plan.worker_items, fresh.worker_items);
  EXPECT_EQ(plan.slot_list, fresh.slot_list);
  EXPECT_EQ(plan.paths, fresh.paths);
  EXPECT_TRUE(plan.leaf_of_row == fresh.leaf_of_row);
  EXPECT_EQ(plan.partial_floats, fresh.partial_floats);
  ASSERT_EQ(plan.items.size(), fresh.items.size());
  for (size_t i = 0; i < fresh.items.size(); ++i)
    EXPECT_EQ(std::memcmp(&plan.items[i], &fresh.items[i], sizeof(AttentionItemDevice)), 0) << i;
}

// The first half of the workers are one consumer of each block.
TEST(AttentionPlan, GivesFewSplitsABlockEach) {
  for (const int64_t len : {900, 2048, 16384}) {
    const AttentionPlan plan = planned({chain(8, len, 8, 0)}, 4, 128, false, 264);
    const int splits = 8 * int((len + kSplitEntries - 1) / kSplitEntries);
    ASSERT_LE(splits, 132);
    ASSERT_EQ(plan.worker_items[132], splits);
    for (int w = 0; w < 132; ++w) ASSERT_LE(plan.worker_items[w + 1] - plan.worker_items[w], 1) << w;
  }
}

TEST(AttentionPlan, CutsWhatIsReadAgainIntoLongItems) {
  const AttentionPlan plan = planned({chain(8, 32768, 64, 0)}, 4, 128, true, 132);
  for (const AttentionItemDevice& item : plan.items) ASSERT_EQ(item.num_splits, 4);
}

// A partial a super-split, but for a last turn that too few workers would have; the longest first.
TEST(AttentionPlan, CutsSuperSplitsOnlyWhereMostWorkersWouldWait) {
  for (const auto& [len, whole, halves] : {std::tuple{131072, 512u, 0u}, {90112, 264u, 176u}}) {
    const AttentionPlan plan = planned(std::vector<PlannedRun>(4, chain(8, len, 8, 0)), 4, 128, false, 264);
    ASSERT_EQ(plan.items.size(), whole + halves);
    for (size_t i = 0; i < plan.items.size(); ++i) ASSERT_EQ(plan.items[i].num_splits, i < whole ? kSuperSplits : 4);
    EXPECT_EQ(plan.slot_list.size(), whole + halves / 2 * 5);  // halves that begin no super-split leave four
    for (int worker = 0; worker <= 264; ++worker) ASSERT_EQ(plan.worker_items[worker], worker);
  }
}

TEST(AttentionPlan, HasEverySplitOfEveryTileOnceInOrder) {
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) {
    std::vector<PlannedRun> runs;
    const bool paired = i % 3 == 2;
    const int group = 1 << random() % 4;
    for (int r = 0; r <= int(random() % 5); ++r) {
      const int rows = paired ? 200 + int(random() % 200) : 1 + int(random() % uint32_t(kTileRows / group));
      runs.push_back(
          chain(1 + int(random() % 3), rows + int64_t(random() % 60000), rows, random() % 3 ? 0 : 1 + int(random() % 5000)));
    }
    for (const int workers : {1, 7, 264}) expect_every_split_once(runs, group, paired, workers);
  }
}

TEST(AttentionPlan, BeginsAtTheFirstEntryAndKeepsATileForRowsThatReadNothing) {
  std::mt19937 random(2);
  for (int i = 0; i < 30; ++i) {
    const bool paired = i % 3 == 2;
    const int rows = paired ? 250 : 1 + int(random() % 16);
    PlannedRun run = chain(2, rows + int64_t(random() % 30000), rows, i % 2 ? 0 : 700);
    run.first = int64_t(random() % uint32_t(run.last.back() + 300));
    for (const int workers : {1, 7, 264}) expect_every_split_once({run}, 4, paired, workers);
    const AttentionPlan plan = planned({run}, 4, 64, paired, 7);
    for (const AttentionItemDevice& item : plan.items) {
      ASSERT_LT(item.block_begin, item.block_end);
      ASSERT_TRUE(run.first > run.last[0] || item.block_begin >= run.first / kPageLen);
      ASSERT_TRUE(item.clean_begin >= item.clean_end || item.clean_begin >= run.first);
    }
  }
}

TEST(AttentionPlan, GivesARowOfATreeThePathOfOneLeafBelowIt) {
  PlannedRun run;
  run.kv_heads = 1, run.parents = {-1, 0, 1, 1, 0, 4}, run.tree_entry = 100;
  run.rows = {0, 1, 2, 3, 4, 5}, run.last = {100, 101, 102, 102, 101, 102};
  const AttentionPlan plan = planned({run}, 1, 64, false, 4);
  ASSERT_EQ(plan.leaves.size(), 3u);
  for (size_t row = 0; row < 6; ++row) {
    const LeafDevice& leaf = plan.leaves[plan.leaf_of_row[0][row]];
    int32_t x = int32_t(row);
    for (int depth = run.last[row] - 100; depth >= 0; --depth, x = run.parents[x])
      EXPECT_EQ(plan.paths[leaf.path + depth], x) << "row " << row;
    EXPECT_EQ(leaf.end_block, 2);
  }
}

// Every row of a tree is stored by one item a split, whose paths it stands on, and every item that stores none of a split's rows
// knows it.
TEST(AttentionPlan, DealsOutThePathsOfATree) {
  std::mt19937 random(3);
  for (int i = 0; i < 40; ++i) {
    const bool paired = i % 2;
    PlannedRun run;
    run.kv_heads = 1 + int(random() % 8), run.tree_entry = i % 4 ? int64_t(random() % 5000) : 1022;
    if (i % 8 == 4) run.first = 1024;  // some rows read nothing
    const int rows = paired ? 64 : 12;
    for (int row = 0; row < rows; ++row) {
      const int parent = row == 0 ? -1 : int(random() % uint32_t(row));
      run.parents.push_back(parent), run.rows.push_back(row);
      run.last.push_back(parent < 0 ? int32_t(run.tree_entry) : run.last[parent] + 1);
    }
    const AttentionPlan plan = planned({run}, 4, 64, paired, 132);
    std::map<std::pair<int, int>, std::vector<int>> stored;  // by KV head and row: splits
    size_t parts = 0;
    for (const AttentionItemDevice& item : plan.items) {
      parts += item.part > 0;
      if (item.first_split * kSplitBlocks + kSplitBlocks <= item.leaf_block) { ASSERT_EQ(item.part, 0); }
      const int begin_block = item.first_split * kSplitBlocks;
      bool has_tile = std::max(item.block_begin, begin_block) < item.block_end;
      for (int leaf = item.leaf_begin; leaf < item.leaf_end; ++leaf)
        has_tile = has_tile || plan.leaves[leaf].end_block > std::max(begin_block, item.leaf_block);
      ASSERT_TRUE(has_tile) << "split " << item.first_split;
      const int begin = item.mgroup * plan.tiles_per_group * kTileRows / 4, end = begin + (item.rows[0] + item.rows[1]) / 4;
      for (int row = begin; row < end; ++row) {
        const int leaf = plan.leaf_of_row[0][row];
        if (item.part && (leaf < item.leaf_begin || leaf >= item.leaf_end)) continue;
        for (int split = 0; split < item.num_splits; ++split) stored[{item.kv_head, row}].push_back(item.first_split + split);
      }
    }
    if (run.first == 0) { EXPECT_GT(parts, size_t(run.kv_heads)); }
    // Few enough for everybody: all have a worker of their own, none is left to be asked for.
    if (!paired && plan.items.size() <= 132) {
      ASSERT_EQ(plan.worker_items.size(), 133u);
      ASSERT_EQ(plan.worker_items.back(), int(plan.items.size()));
      for (int w = 0; w < 132; ++w) ASSERT_EQ(plan.worker_items[w + 1] - plan.worker_items[w], w < int(plan.items.size())) << w;
    }
    ASSERT_EQ(stored.size(), size_t(run.kv_heads * rows));
    for (auto& [row, splits] : stored) {
      std::ranges::sort(splits);
      for (size_t s = 1; s < splits.size(); ++s) ASSERT_EQ(splits[s], splits[s - 1] + 1);
      ASSERT_EQ(splits[0], run.first / kSplitEntries);
      EXPECT_GT((splits.back() + 1) * kSplitEntries, run.last[row.second]);
    }
  }
}

}
}
