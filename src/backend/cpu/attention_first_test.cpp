// Runs whose cache begins at a later entry (AttentionRun::first): the reference's values, the bits of the same bound given by a
// window, whatever stands before it, and zeros where a row has nothing to read.
#include "backend/cpu/kv_fixture.h"

namespace hunch {
namespace {

AttendRequest chunk_from(const KvShape& shape, int64_t begin, int64_t rows, int64_t first, int window = 0) {
  AttendRequest request = chunk(shape, begin, rows, 13, window);
  request.first = first;
  return request;
}

// Rows of a tree of 9 whose root stands at `root`.
AttendRequest tree_from(const KvShape& shape, int64_t root, int64_t first, int window = 0) {
  AttendRequest request = chunk_from(shape, root, 9, first, window);
  request.parents = {-1, 0, 1, 1, 0, 4, 2, 6, 5}, request.tree_entry = root;
  const Ints depths = {0, 1, 2, 2, 1, 2, 3, 4, 3};
  for (size_t x = 0; x < depths.size(); ++x) request.last[x] = int32_t(root) + depths[x];
  return request;
}

TEST(CpuFirstEntry, EqualsReferenceWithNaNBeforeIt) {
  for (DType dtype : kKvTypes)
    for (int64_t first : {1, 15, 16, 37, 63, 64, 65, 1000, 1023, 1024, 1030})
      for (int window : {0, 3, 70}) {
        const KvShape shape{dtype, 2, 2, 24};
        expect_reference(2, shape, chunk_from(shape, first, 1, first, window));
        expect_reference(2, shape, chunk_from(shape, first + 20, 7, first, window));
        expect_reference(1, shape, chunk_from(shape, first + 1040, 3, first, window));
        expect_reference(2, shape, tree_from(shape, first, first, window));
        expect_reference(2, shape, tree_from(shape, first + 61, first, window));
      }
}

TEST(CpuFirstEntry, LeavesARowWithoutEntriesAtZero) {
  for (DType dtype : kKvTypes)
    for (int64_t begin : {0, 60, 1020}) {
      const KvShape shape{dtype, 1, 2, 24};
      expect_reference(2, shape, chunk_from(shape, begin, 8, begin + 4));  // the first four
      expect_reference(2, shape, chunk_from(shape, begin, 100, begin + 80));
      expect_reference(2, shape, chunk_from(shape, begin, 3, begin + 3));  // all
      expect_reference(2, shape, chunk_from(shape, begin, 70, begin + 3000));
      expect_reference(2, shape, tree_from(shape, begin, begin + 2));
      expect_reference(2, shape, tree_from(shape, begin, begin + 200));
    }
}

// The same lower bound has the same bits, whoever says it; and what stands before it changes none.
TEST(CpuFirstEntry, HasTheBitsOfAWindowThatBeginsThere) {
  for (const auto& [isa, dtype] : every_store())
    for (int64_t first : {1, 40, 64, 1000, 1024, 1100})
      for (int64_t last : {first, first + 1, first + 30, first + 64, first + 1100}) {
        const KvShape shape{dtype, 1, 2, 40};
        const auto backend = make_cpu(isa, 2);
        const KvCase numbers(*backend, shape, last + 5), poisoned(*backend, shape, last + 5);
        poisoned.store->poison(poisoned.pages(), 0, first);
        const AttendResult a = attend_one(*backend, numbers, chunk_from(shape, last, 1, 0, int(last - first + 1)));
        const AttendResult b = attend_one(*backend, poisoned, chunk_from(shape, last, 1, first));
        ASSERT_TRUE(same_bits(a, b)) << isa << " " << shape.name() << " from " << first << " to " << last;
      }
}

TEST(CpuFirstEntry, GivesARowTheSameBitsAloneAndAmongOthers) {
  for (const auto& [isa, dtype] : every_store())
    for (int64_t first : {1, 970, 1010, 1024}) {
      const KvShape shape{dtype, 1, 2, 40};
      const auto one_thread = make_cpu(isa, 1), three_threads = make_cpu(isa, 3);
      const AttendRequest all = chunk_from(shape, 985, 90, first);
      const KvCase kv(*one_thread, shape, 1080), other(*one_thread, shape, 500, 7);
      kv.store->poison(kv.pages(), 0, first);
      const AttendResult together = attend_one(*three_threads, kv, all);
      const auto beside = attend_together(*one_thread, {&other, &kv}, {chunk(shape, 400, 30), all});
      EXPECT_TRUE(same_bits(together, beside[1])) << isa;
      for (int64_t r = 0; r < 90; r += 1 + r % 7) {
        const AttendResult row = attend_one(*one_thread, kv, rows_of(all, r, 1, shape));
        ASSERT_TRUE(stands_at(row.out, together.out, r * shape.width())) << isa << " row " << r;
        ASSERT_TRUE(stands_at(row.lse, together.lse, r * shape.heads())) << isa << " row " << r;
      }
    }
}

TEST(CpuFirstEntry, GivesARowOfATreeTheBitsOfItsTokensInAChain) {
  for (const auto& [isa, dtype] : every_store())
    for (int64_t root : {5, 62, 1022})
      for (int64_t first : {int64_t(1), root - 3, root, root + 2}) {
        const KvShape shape{dtype, 1, 2, 24};
        const auto backend = make_cpu(isa, 2);
        const KvCase tree_kv(*backend, shape, root + 9);
        KvCase chain_kv(*backend, shape, root + 9);
        tree_kv.store->poison(tree_kv.pages(), 0, first);
        const AttendRequest tree = tree_from(shape, root, first);
        const AttendResult whole = attend_one(*backend, tree_kv, tree);
        // The path 0, 1, 2, 6, 7: its rows, moved to the entries of a chain.
        const std::vector<int64_t> path = {0, 1, 2, 6, 7}, from = {root + 6, root + 7}, to = {root + 3, root + 4};
        backend->move_kv({chain_kv.ref(), from, to});
        chain_kv.store->poison(chain_kv.pages(), 0, first);
        for (size_t d = 0; d < path.size(); ++d) {
          AttendRequest row = rows_of(tree, path[d], 1, shape);
          row.parents.clear(), row.tree_first = 0, row.tree_entry = 0;
          const AttendResult alone = attend_one(*backend, chain_kv, row);
          ASSERT_TRUE(stands_at(alone.out, whole.out, path[d] * shape.width()))
              << isa << " " << shape.name() << " root " << root << " from " << first << " depth " << d;
        }
      }
}

TEST(CpuFirstEntryDeathTest, RefusesScoresAndSelectionsBesideIt) {
  const auto cpu = make_cpu("");
  const KvShape shape{DType::F32, 1, 1, 16};
  const KvCase kv(*cpu, shape, 20);
  AttendRequest request = chunk_from(shape, 10, 1, 1);
  request.metric = ScoreMetric::Logit, request.prefix_len = 8, request.sets = 1, request.row_used = {1}, request.lse = {0};
  EXPECT_DEATH(attend_one(*cpu, kv, request), "first_allowed");
}

}
}
