// How trees of draws take their form: never from the draws, always from what was known before, within their limits.
#include "draft/drawn_tree.h"

#include <map>

#include "draft/test_drafts.h"

namespace hunch {
namespace {

using Draws = std::array<int32_t, 4>;

struct Grown {
  Ints parents, depths, children;
  Ints tokens;
  int levels = 0;
};

// kept(path) of a row's law; draws(path) of the row. `most`: rows that go on.
template <class Kept, class Drawn>
Grown grow(DrawnTree& tree, int nodes, int depth, int most, Kept&& kept, Drawn&& drawn, const StaticTree* shape = nullptr) {
  Grown out;
  tree.begin(nodes, depth, 4, 0.6f, shape);
  std::vector<Ints> paths{{}};
  int rows = 1;
  while (!paths.empty()) {
    std::vector<float> first_kept;
    for (const auto& path : paths) first_kept.push_back(kept(path));
    tree.plan(first_kept);
    for (size_t i = 0; i < paths.size(); ++i) tree.take(int(i), drawn(paths[i]));
    ++out.levels;
    const auto frontier = tree.advance(most, rows);
    rows += int(frontier.size());
    paths.clear();
    for (int node : frontier) {
      Ints path;
      for (; node >= 0; node = tree.node(node).parent) path.insert(path.begin(), tree.node(node).token);
      paths.push_back(path);
    }
  }
  out.children.assign(tree.size() + 1, 0);
  for (int i = 0; i < tree.size(); ++i) {
    const DrawnTree::Node& node = tree.node(i);
    EXPECT_LT(node.parent, i);
    EXPECT_EQ(node.nth, out.children[node.parent + 1]++) << "in the order of drawing";
    out.parents.push_back(node.parent), out.tokens.push_back(node.token);
    out.depths.push_back(node.parent < 0 ? 1 : out.depths[node.parent] + 1);
  }
  return out;
}

// Of the root, and of all nodes behind it.
Draws draws(const Ints& path) { return path.empty() ? Draws{1, 2, 3, 4} : Draws{5, 6, 7, 8}; }

Draws some(test::Dice& dice, bool few) {
  Draws out{10 + dice.below(9), 20 + dice.below(9), 30 + dice.below(9), 40 + dice.below(9)};
  if (few && dice.below(3) == 0) out[1 + dice.below(3)] = -1;  // the law allows no more
  return out;
}

TEST(DrawnTree, KeepsItsLimitsAndUsesItsNodes) {
  test::Dice dice(1);
  DrawnTree tree;
  tree.reserve(64, 12);
  for (int i = 0; i < 300; ++i) {
    const int nodes = 1 + dice.below(60), depth = 1 + dice.below(std::min(nodes, 12)), most = 1 + dice.below(10);
    const bool few = dice.below(2) == 0;
    const auto kept = [&](const auto&) { return 0.1f + 0.08f * float(dice.below(11)); };
    const Grown got = grow(tree, nodes, depth, most, kept, [&](const auto&) { return some(dice, few); });
    ASSERT_GE(tree.size(), 1);
    ASSERT_LE(tree.size(), nodes);
    for (const int at : got.depths) ASSERT_LE(at, depth);
    for (const int count : got.children) ASSERT_LE(count, 4);
    if (!few && most >= 4 && depth >= 6 && nodes < 40) { ASSERT_EQ(tree.size(), nodes); }
  }
}

// The shape below the first level, whatever came out of the level's draws: only the tokens differ.
TEST(DrawnTree, IsDecidedBeforeItIsLookedAt) {
  DrawnTree tree;
  tree.reserve(64, 4);
  std::map<Ints, int> seen;
  for (const float kept : {0.2f, 0.5f, 0.95f}) {
    Ints parents;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      test::Dice dice(seed);
      const Grown got = grow(
          tree, 20, 4, 4, [&](const auto& path) { return path.size() % 2 ? 0.9f : kept; },
          [&](const auto&) { return some(dice, false); });
      if (parents.empty()) ++seen[parents = got.parents];
      ASSERT_EQ(got.parents, parents) << kept << " " << seed;
    }
  }
  EXPECT_EQ(seen.size(), 3u) << "what is known of the laws decides";
}

TEST(DrawnTree, AnUnsureLawGetsMoreChildren) {
  DrawnTree tree;
  tree.reserve(64, 3);
  const Grown got = grow(
      tree, 12, 2, 4, [](const auto& path) { return path.empty() ? 0.5f
                                                 : path[0] == 1  ? 0.4f
                                                                 : 0.99f; }, draws);
  ASSERT_GE(got.children[0], 2);
  EXPECT_GE(got.children[1], 3) << "behind token 1";
  EXPECT_LT(got.children[2], got.children[1]) << "behind token 2";
}

TEST(DrawnTree, AShapesRanksCountDraws) {
  const std::vector<Ints> paths{{0}, {1}, {3}, {0, 0}, {0, 2}, {3, 1}};
  const StaticTree shape = StaticTree::make(paths, 16).value();
  DrawnTree tree;
  tree.reserve(16, 4);
  const auto half = [](const auto&) { return 0.5f; };
  const Grown got = grow(tree, 16, 3, 16, half, draws, &shape);
  EXPECT_EQ(got.tokens, (Ints{1, 2, 3, 5, 6, 5}));
  EXPECT_EQ(got.parents, (Ints{-1, -1, -1, 0, 0, 2}));
  EXPECT_EQ(grow(tree, 4, 3, 16, half, draws, &shape).tokens, (Ints{1, 2, 3, 5}));
  EXPECT_EQ(grow(tree, 16, 1, 16, half, draws, &shape).tokens, (Ints{1, 2, 3}));
}

TEST(DrawnTree, ReportsEveryRowWhoseChildrenWereLookedAt) {
  DrawnTree tree;
  tree.reserve(64, 3);
  const auto draws = [](const auto& path) { return path.empty() ? Draws{1, 2, -1, -1} : Draws{5, 6, -1, -1}; };
  grow(
      tree, 6, 3, 4, [](const auto&) { return 0.4f; }, draws);
  ASSERT_EQ(tree.node(0).row, 1);
  ASSERT_EQ(tree.node(2).parent, 0);
  ASSERT_EQ(tree.node(3).parent, 0);
  const auto outcome = [&](const Ints& path) {
    std::vector<std::pair<int, bool>> out;
    tree.outcome(path, [&](int row, bool kept) { out.emplace_back(row, kept); });
    return out;
  };
  using Out = std::vector<std::pair<int, bool>>;
  const Out one{{0, true}, {1, false}};
  EXPECT_EQ(outcome({}), (Out{{0, false}}));
  EXPECT_EQ(outcome({0}), one);
  const Out second = outcome({0, 3});
  ASSERT_GE(second.size(), 2u);
  EXPECT_EQ((Out{second[0], second[1]}), one);
}

}
}
