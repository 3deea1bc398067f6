// Shapes of trees: what a request may bring, and the trees that grow from accuracies, against a search over all trees.
#include "draft/static_tree.h"

#include <functional>

#include "base/test_results.h"
#include "draft/dynamic_tree.h"
#include "draft/rank_accuracy.h"

namespace hunch {
namespace {

using Paths = std::vector<Ints>;

StaticTree make(const Paths& paths) { return test::good(StaticTree::make(paths, 64)); }

TEST(StaticTree, PutsParentsFirstLevelByLevelWhateverTheOrderOfThePaths) {
  const StaticTree tree = make({{1, 0}, {0, 2, 1}, {0}, {0, 2}, {0, 0}, {1}});
  EXPECT_EQ(tree.text(), "[(0,), (1,), (0, 0), (0, 2), (1, 0), (0, 2, 1)]");
  const int parents[] = {-1, -1, 0, 0, 1, 3}, ranks[] = {0, 1, 0, 2, 0, 1}, depths[] = {1, 1, 2, 2, 2, 3};
  const bool goes_on[] = {true, true, false, true, false, false};
  ASSERT_EQ(tree.size(), 6);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(tree.node(i).parent, parents[i]);
    EXPECT_EQ(tree.node(i).rank, ranks[i]);
    EXPECT_EQ(tree.node(i).depth, depths[i]);
    EXPECT_EQ(tree.goes_on(i), goes_on[i]);
  }
  EXPECT_EQ(tree.depth(), 3);
  EXPECT_EQ(tree.ranks(), 3);
  EXPECT_TRUE(tree.branches());
  EXPECT_FALSE(make({{0}, {0, 0}, {0, 0, 4}}).branches());
  EXPECT_TRUE(make({{0}, {1}}).branches());
}

TEST(StaticTree, RefusesWhatIsNoTreeAndNamesTheNode) {
  const auto refusal = [](const Paths& paths, int most = 64) {
    const auto made = StaticTree::make(paths, most);
    EXPECT_TRUE(!made.ok() && made.error().kind == Error::Kind::Usage);
    return test::error_of(made);
  };
  EXPECT_EQ(refusal({{0}, {1, 0}}), "node (1, 0) of the token tree has no parent: add (1,)");
  EXPECT_EQ(refusal({{0}, {0, 0, 1}}), "node (0, 0, 1) of the token tree has no parent: add (0, 0)");
  EXPECT_EQ(refusal({{0}, {0, 1}, {0, 1}}), "node (0, 1) of the token tree is there twice");
  EXPECT_EQ(refusal({{0}, {0, 16}}), "node (0, 16) of the token tree: rank 16 is outside [0, 15]");
  EXPECT_EQ(refusal({{-1}}), "node (-1,) of the token tree: rank -1 is outside [0, 15]");
  EXPECT_EQ(refusal({{0}, {}}), "a node of the token tree is empty: it must be a list of ranks, such as (0, 1)");
  EXPECT_EQ(refusal({{0}, {1}, {2}}, 2), "a token tree of 3 nodes: at most 2 guesses a round are possible");
}

// The greatest sum of values over all trees of `nodes` nodes, by trying to take or leave every node of the full tree.
float best_of_all(const std::vector<std::vector<float>>& accuracies, int nodes) {
  struct Candidate {
    float value;
    size_t depth;
  };
  float best = 0;
  const std::function<void(std::vector<Candidate>, size_t, int, float)> search = [&](std::vector<Candidate> open, size_t at,
                                                                                     int left, float sum) {
    best = std::max(best, sum);
    if (left == 0 || at == open.size()) return;
    search(open, at + 1, left, sum);
    const Candidate taken = open[at];
    if (taken.depth < accuracies.size())
      for (const float a : accuracies[taken.depth]) open.push_back({taken.value * a, taken.depth + 1});
    search(open, at + 1, left - 1, sum + taken.value);
  };
  std::vector<Candidate> roots;
  for (const float a : accuracies[0]) roots.push_back({a, 1});
  search(roots, 0, nodes, 0);
  return best;
}

TEST(StaticTree, GrowsTheTreeOfTheMostAcceptedTokensAndEachOfItsBeginningsIsTheBestOfItsSize) {
  const std::vector<std::vector<std::vector<float>>> tables = {
      {{0.5f, 0.2f, 0.1f}, {0.4f, 0.3f, 0.1f}, {0.5f, 0.1f, 0.05f}},
      {{0.1f, 0.6f, 0.2f}, {0.05f, 0.2f, 0.7f}, {0.3f, 0.3f, 0.3f}},  // the likeliest token is not always the most accurate
      {{0.9f, 0.0f, 0.0f}, {0.9f, 0.1f, 0.0f}, {0.0f, 0.0f, 0.0f}},
  };
  for (const auto& table : tables) {
    std::vector<float> flat;
    for (const auto& row : table) flat.insert(flat.end(), row.begin(), row.end());
    StaticTree tree;
    tree.grow(View<const float, 2>(flat.data(), 3, 3), 6);
    std::vector<float> values;
    float sum = 0;
    for (int i = 0; i < tree.size(); ++i) {
      const StaticTree::Node& node = tree.node(i);
      ASSERT_LT(node.parent, i);
      EXPECT_EQ(node.depth, node.parent < 0 ? 1 : tree.node(node.parent).depth + 1);
      for (int j = 0; j < i; ++j) EXPECT_FALSE(tree.node(j).parent == node.parent && tree.node(j).rank == node.rank);
      values.push_back((node.parent < 0 ? 1 : values[node.parent]) * table[node.depth - 1][node.rank]);
      sum += values.back();
      EXPECT_NEAR(sum, best_of_all(table, i + 1), 1e-6) << tree.text();
    }
    EXPECT_EQ(tree.size(), table[2][0] == 0 ? 3 : 6) << "nodes that are never right are left out";
  }
}

TEST(StaticTree, BreaksTiesTheSameWayEveryTime) {
  const std::vector<float> even(4, 0.5f);
  for (int time = 0; time < 2; ++time) {
    StaticTree tree;
    tree.grow(View<const float, 2>(even.data(), 2, 2), 5);
    EXPECT_EQ(tree.text(), "[(0,), (1,), (0, 0), (0, 1), (1, 0)]");
  }
}

TEST(RankAccuracy, BeginsWithAFallingPriorAndLearnsWhichRanksAreRight) {
  RankAccuracy accuracy(3, 12);
  EXPECT_TRUE(accuracy.tree().text().starts_with("[(0,), (0, 0),"));
  EXPECT_EQ(accuracy.tree().size(), 12);
  for (int round = 0; round < 320; ++round) {  // the second candidate is the right one, behind it any
    for (int rank = 0; rank < 4; ++rank) accuracy.record(0, rank, rank == 1);
    for (int rank = 0; rank < 4; ++rank) accuracy.record(1, rank, rank == round % 4);
    accuracy.end_round();
  }
  EXPECT_GT(accuracy.of(0, 1), 0.95f);
  EXPECT_LT(accuracy.of(0, 0), 0.05f);
  EXPECT_NEAR(accuracy.of(1, 3), 0.25f, 0.02f);
  EXPECT_TRUE(accuracy.tree().text().starts_with("[(1,), (1, 0),")) << accuracy.tree().text();
  test::expect_part(accuracy.tree().text(), "(1, 3)");
  for (int round = 0; round < 6000; ++round) accuracy.record(2, 0, round < 3000);
  EXPECT_LT(accuracy.of(2, 0), 0.4f) << "what is long ago counts less";
}

// The same calls that follower.cpp makes: what goes on, and what is emitted.
TEST(DynamicTree, OfAFixedShapeTriesItsNodesAndNoOthers) {
  const StaticTree shape = make({{0}, {2}, {0, 1}, {2, 0}, {2, 1}, {2, 1, 0}});
  DynamicTree tree;
  tree.reserve(4, 8);
  tree.begin(&shape);
  const Ints first{10, 11, 12}, second{20, 21, 22}, third{30, 31, -1}, fourth{40, 41, 42};
  const std::vector<float> shares{0.1f, 0.2f, 0.7f};
  tree.try_children(-1, first, shares);
  ASSERT_EQ(tree.advance(8, 1).size(), 2u);
  tree.try_children(0, second, shares);
  tree.try_children(1, third, shares);
  const auto frontier = tree.advance(8, 3);
  ASSERT_EQ(frontier.size(), 1u);  // of (0, 1), (2, 0), (2, 1) the last goes on
  EXPECT_EQ(tree.node(frontier[0]).token, 31);
  EXPECT_EQ(tree.node(tree.node(frontier[0]).parent).row, 2);
  tree.try_children(0, fourth, shares);
  EXPECT_TRUE(tree.advance(8, 4).empty());
  std::vector<std::pair<int32_t, int>> emitted;
  EXPECT_EQ(tree.choose(5, [&](int, int32_t token, int parent) { emitted.emplace_back(token, parent); }), 5);
  EXPECT_EQ(emitted, (std::vector<std::pair<int32_t, int>>{{10, -1}, {12, -1}, {21, 0}, {30, 1}, {31, 1}}));
}

}
}
