#include "model/index_sharing.h"
#include "base/test_results.h"

#include <numeric>

namespace hunch {
namespace {

TEST(IndexSharing, GroupsATreeLevelByLevelOrAlongItsPaths) {
  //      0
  //    1   3
  //   2 5   4
  const Ints parents = {-1, 0, 1, 0, 3, 1};
  std::vector<int> order;
  traverse(parents, 6, false, order);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 3, 2, 5, 4}));
  traverse(parents, 6, true, order);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 5, 3, 4}));
  traverse({}, 4, true, order);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
}

TEST(IndexSharing, LetsTheLongestPrefixChoose) {
  const Ints positions = {9, 10, 11, 10, 11};
  const View<const int32_t, 1> view(positions.data(), 5);
  EXPECT_EQ(chooser_of(std::vector<int>{1, 4, 2}, view), 4);
  EXPECT_EQ(chooser_of(std::vector<int>{3, 0}, view), 3);
}

TEST(IndexSharing, KeepsForcedBlocksOfTheRowAndLeavesOutWhatIsBehindIt) {
  const NsaShape s{.variant = "std", .sel_block = 16, .sel_count = 6, .init_blocks = 1, .local_blocks = 2};
  ASSERT_EQ(shared_list_len(s), 9);
  const Ints chosen = {0, 3, 5, 9, 10, -1};
  Ints got(9);
  const auto taken = [&](int64_t position) { return take_shared(s, position, chosen.data(), got.data()), got; };
  EXPECT_EQ(taken(10 * 16), (Ints{0, 3, 5, 9, 10, -1, -1, -1, -1}));
  EXPECT_EQ(taken(10 * 16 - 1), (Ints{0, 3, 5, 8, 9, -1, -1, -1, -1}));
  EXPECT_EQ(taken(7 * 16), (Ints{0, 3, 5, 6, 7, -1, -1, -1, -1}));
  EXPECT_EQ(taken(5), (Ints{0, -1, -1, -1, -1, -1, -1, -1, -1}));
  NsaShape many = s;
  many.sel_count = 40;
  EXPECT_EQ(shared_list_len(many), 40) << "what every row reads is listed";
  many.sel_count = 31;
  Ints chosen_of_many(31), listed(33);
  std::iota(chosen_of_many.begin(), chosen_of_many.end(), 1);
  take_shared(many, 99 * 16, chosen_of_many.data(), listed.data());
  EXPECT_EQ(std::pair(listed[31], listed[32]), std::pair(99, 0)) << "no more than fit";
}

TEST(IndexSharing, KnowsWhenThereIsNone) {
  EXPECT_FALSE(IndexSharing{}.any());
  EXPECT_FALSE((IndexSharing{.reused = {0, 0}, .depth_first = true}).any());
  EXPECT_TRUE((IndexSharing{.reused = {0, 1}}).any());
  EXPECT_TRUE((IndexSharing{.group_rows = 2}).any());
}

}
}
