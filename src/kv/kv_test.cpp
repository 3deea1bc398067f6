// Pages, page tables and commits.

#include <set>

#include "base/test_results.h"
#include "kv/commit.h"

namespace hunch {
namespace {

TEST(PagePool, GivesTheLowestPageFirstAndNoneWhenEmpty) {
  PagePool pool(3);
  EXPECT_EQ(pool.take(), 0);
  EXPECT_EQ(pool.take(), 1);
  pool.give_back(0);
  EXPECT_EQ(pool.take(), 0);
  EXPECT_EQ(pool.take(), 2);
  EXPECT_EQ(pool.take(), std::nullopt);
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(PagePoolDeathTest, RefusesPagesItNeverGave) {
  PagePool pool(2);
  EXPECT_DEATH(pool.give_back(1), "check failed");
  pool.take();
  EXPECT_DEATH(pool.give_back(2), "check failed");
}

TEST(PageTable, OwnsAsManyPagesAsItsEntriesNeed) {
  struct Case {
    int64_t entries, pages;
  };
  for (const Case c : {Case{0, 0}, {1, 1}, {63, 1}, {64, 1}, {65, 2}, {128, 2}, {129, 3}}) {
    PagePool pool(4);
    PageTable table(256);
    EXPECT_TRUE(table.grow_to(c.entries, pool));
    EXPECT_EQ(table.view().extent[0], c.pages);
    EXPECT_EQ(pool.num_free(), 4 - c.pages);
    EXPECT_TRUE(table.grow_to(0, pool));  // never shrinks
    EXPECT_EQ(table.capacity(), c.pages * kPageLen);
  }
}

TEST(PageTable, ReleasesWholePagesPastAnEntry) {
  PagePool pool(4);
  PageTable table(256);
  ASSERT_TRUE(table.grow_to(256, pool));
  for (const int64_t entries : {200, 193, 192, 65, 64, 1, 0}) {
    table.release_past(entries, pool);
    EXPECT_EQ(table.view().extent[0], (entries + kPageLen - 1) / kPageLen) << entries;
    EXPECT_EQ(pool.num_free(), 4 - table.view().extent[0]);
  }
  table.release_past(0, pool);  // nothing left to give
  EXPECT_EQ(pool.num_free(), 4);
}

TEST(PageTable, KeepsWhatItGotWhenThePoolRunsOut) {
  PagePool pool(2);
  PageTable table(256);
  EXPECT_FALSE(table.grow_to(192, pool));
  EXPECT_EQ(table.capacity(), 128);
  table.release_past(0, pool);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(PageTable, ItsViewStaysValidWhileItGrows) {
  PagePool pool(8);
  PageTable table(512);
  ASSERT_TRUE(table.grow_to(1, pool));
  const auto before = table.view();
  ASSERT_TRUE(table.grow_to(512, pool));
  EXPECT_EQ(before.data, table.view().data);
  std::set<int32_t> pages;
  for (int64_t i = 0; i < 8; ++i) pages.insert(table.view()(i));
  EXPECT_EQ(pages.size(), 8u);
}

TEST(Commit, AppendsAcceptedDraftsAndLeavesTheNextTokenPending) {
  for (const int accepted : {0, 1, 3}) {
    Sequence sequence;
    sequence.tokens = {5, 6, 7};
    sequence.committed_len = 2;
    const Ints drafts{10, 11, 12};
    const Commit commit = commit_path(sequence, 4, std::span(drafts.data(), size_t(accepted)), 99);
    EXPECT_EQ(commit.first, 2);
    EXPECT_EQ(commit.num_rows, 4);
    EXPECT_EQ(commit.accepted, accepted);
    EXPECT_EQ(sequence.committed_len, 3 + accepted);
    EXPECT_EQ(sequence.len(), sequence.committed_len + 1);
    EXPECT_EQ(sequence.pending(), 99);
    EXPECT_EQ(sequence.tokens[2], 7);
    for (int i = 0; i < accepted; ++i) EXPECT_EQ(sequence.tokens[3 + i], drafts[i]);
  }
}

TEST(CommitDeathTest, RefusesMoreDraftsThanRows) {
  Sequence sequence;
  sequence.tokens = {5, 6, 7};
  sequence.committed_len = 2;
  const Ints drafts{10, 11};
  EXPECT_DEATH(commit_path(sequence, 2, drafts, 99), "check failed");
}

}
}
