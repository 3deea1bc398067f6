// Rows of a tree: each has the bits of its own tokens in a chain, on every instruction set, whatever else is in the tree,
// wherever the tree stands in its blocks and splits, and however it is cut into runs.
#include "backend/cpu/kv_fixture.h"

namespace hunch {
namespace {

// The rows of a path as a chain of their own behind the same prefix.
AttendResult chain_result(Backend& backend, KvCase& kv, const AttendRequest& tree, const std::vector<int>& path) {
  kv.store->poison(kv.pages(), tree.tree_entry, std::ssize(kv.table) * kPageLen);
  for (size_t d = 0; d < path.size(); ++d) store_row(backend, kv, tree.tree_entry + int64_t(d), path[d]);
  return attend_one(backend, kv, chain_of(tree, path, kv.shape));
}

struct TreeCase {
  KvShape shape;
  Ints parents;
  int64_t first_entry = 0;
  int window = 0, threads = 1;
};

void expect_chains(const std::string& isa, const TreeCase& c) {
  const auto backend = make_cpu(isa, c.threads);
  KvCase kv(*backend, c.shape, c.first_entry + 270), chain(*backend, c.shape, c.first_entry + 270);
  kv.store->poison(kv.pages(), c.first_entry, std::ssize(kv.table) * kPageLen);
  const int rows = int(c.parents.size());
  for (int x = 0; x < rows; ++x) store_row(*backend, kv, c.first_entry + x, x);
  const AttendRequest request = tree_request(c.shape, c.parents, c.first_entry, c.window);
  const AttendResult whole = attend_one(*backend, kv, request);
  const size_t width = c.shape.width(), heads = c.shape.heads();
  SCOPED_TRACE(
      fmt::format("{} {} rows {} at {} window {} threads {}", isa, c.shape.name(), rows, c.first_entry, c.window, c.threads));
  for (int x = 0; x < rows; ++x) {
    if (std::ranges::find(c.parents, x) != c.parents.end()) continue;  // a leaf's chain holds its ancestors
    const auto path = path_to(c.parents, x);
    const AttendResult expected = chain_result(*backend, chain, request, path);
    for (size_t d = 0; d < path.size(); ++d) {
      const size_t row = path[d];
      ASSERT_FALSE(std::isnan(whole.out[row * width])) << "row " << row;
      ASSERT_TRUE(same_bits(&whole.out[row * width], &expected.out[d * width], width)) << "row " << row;
      ASSERT_TRUE(same_bits(&whole.lse[row * heads], &expected.lse[d * heads], heads)) << "row " << row;
    }
  }
  // A part of the tree, with NaN in every row that is no ancestor of the part's one row.
  const int x = rows - 1;
  poison_beside(kv, c.first_entry, rows, path_to(c.parents, x));
  const AttendResult part = attend_one(*backend, kv, rows_of(request, x, 1, c.shape));
  ASSERT_TRUE(stands_at(part.out, whole.out, x * c.shape.width())) << "alone";
}

TEST(CpuTree, GivesARowTheBitsOfItsTokensInAChain) {
  std::mt19937 random(3);
  for (const auto& [isa, dtype] : every_store())
    for (int64_t first_entry : {0, 1, 15, 37, 62, 63, 64, 127, 150, 960, 1000, 1022, 1023, 1024, 1060})
      for (double chain : {0.2, 0.8}) {
        const KvShape shape{dtype, 1, 2, 24};
        const int rows = 2 + int(random() % 20);
        expect_chains(isa, {shape, random_tree(rows, chain, random), first_entry, 0, 1 + int(random() % 3)});
      }
}

TEST(CpuTree, HoldsForTheLargestTreesAndForEveryHeadShape) {
  std::mt19937 random(4);
  for (const auto& [isa, dtype] : every_store())
    for (int64_t first_entry : {31, 63, 1020}) {
      expect_chains(isa, {{dtype, 2, 1, 64}, random_tree(65, 0.3, random), first_entry, 0, 2});
      expect_chains(isa, {{dtype, 1, 3, 40}, random_tree(65, 0.98, random), first_entry, 0, 1});
      expect_chains(isa, {{dtype, 2, 4, 16}, random_tree(80, 0.9, random), first_entry, 0, 3});
      expect_chains(isa, {{dtype, 1, 1, 16}, random_tree(257, 0.98, random), first_entry, 0, 2});
    }
}

TEST(CpuTree, CountsAWindowInTheTokensOfAChain) {
  std::mt19937 random(5);
  for (const auto& [isa, dtype] : every_store())
    for (int window : {1, 2, 5, 60, 64, 100, 1024})
      expect_chains(isa, {{dtype, 1, 2, 16}, random_tree(16, 0.5, random), 1010, window, 2});
}

TEST(CpuTree, EqualsReference) {
  std::mt19937 random(6);
  ReferenceBackend reference;
  for (const auto& [isa, dtype] : every_store())
    for (int64_t first_entry : {0, 60, 200, 1020}) {
      const KvShape shape{dtype, 2, 2, 24};
      const auto cpu = make_cpu(isa, 2);
      const KvCase a(reference, shape, first_entry + 20), b(*cpu, shape, first_entry + 20);
      const auto parents = random_tree(16, 0.5, random);
      for (int x = 0; x < 16; ++x) store_row(reference, a, first_entry + x, x), store_row(*cpu, b, first_entry + x, x);
      const AttendRequest request = tree_request(shape, parents, first_entry, 0);
      const AttendResult expected = attend_one(reference, a, request), got = attend_one(*cpu, b, request);
      EXPECT_LE(distance(got.out, expected.out), out_tolerance(isa, dtype)) << isa << " " << shape.name();
      EXPECT_LE(distance(got.lse, expected.lse), logit_tolerance(shape.dtype)) << isa << " " << shape.name();
    }
}

// Scores of the prefix are those of the rows of a chain with the same queries: the prefix is the same for all of them.
TEST(CpuTree, ScoresThePrefixAsAChainDoes) {
  std::mt19937 random(7);
  for (const auto& [isa, dtype] : every_store())
    for (bool shared : {false, true})
      for (int64_t first_entry : {70, 1022}) {
        const KvShape shape{dtype, 2, 2, 16};
        const auto backend = make_cpu(isa, 2);
        const KvCase kv(*backend, shape, first_entry + 12);
        AttendRequest tree = tree_request(shape, random_tree(10, 0.4, random), first_entry, 0);
        tree.metric = ScoreMetric::Weight, tree.combine = ScoreCombine::Max, tree.prefix_len = first_entry;
        tree.sets = shared ? 1 : 2, tree.row_used = {1, 1, 0, 1, 1, 1, 0, 1, 1, 1};
        tree.lse.assign(10 * shape.heads(), 6);
        AttendRequest chain = tree;
        chain.parents.clear();
        std::iota(chain.last.begin(), chain.last.end(), int32_t(first_entry));
        const AttendResult a = attend_one(*backend, kv, tree), b = attend_one(*backend, kv, chain);
        for (size_t set = 0; set < a.scores.size(); ++set) EXPECT_TRUE(same_bits(a.scores[set], b.scores[set])) << isa;
      }
}

}
}
