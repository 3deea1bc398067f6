// The tree that a device grows by ops is the host's, node by node: for any number of levels, candidates and rows, where shares
// are equal, or one, or vanish, and where fewer candidates are possible than asked for.

#include <random>

#include "backend/backend.h"
#include "base/test_results.h"
#include "draft/dynamic_tree.h"

namespace hunch {
namespace {

struct Node {
  int32_t token;
  int parent;
  bool operator==(const Node&) const = default;
};
using Nodes = std::vector<Node>;

// What a drafter says behind one row: k tokens, the likeliest first, and their shares.
struct Said {
  Ints tokens;
  std::vector<float> shares;
};
Said say(std::mt19937& random, int k) {
  Said said;
  const bool even = random() % 4 == 0;
  float left = 1;
  const int possible = random() % 3 ? k : int(random() % unsigned(k + 1));
  for (int i = 0; i < k; ++i) {
    const bool some = i < possible;
    const float share = even ? 0.25f : random() % 5 == 0 ? left : left * float(random() % 8) / 8;
    said.tokens.push_back(some ? int32_t(random() % 1000) : -1), said.shares.push_back(some ? share : 0);
    left = std::max(0.0f, left - share);
  }
  return said;
}

// One tree by both; every level of the one that ops grow has all its rows, empty or not.
void grow_both(std::mt19937& random, int depth, int k, int most_rows, int most_nodes) {
  const auto made = Register<Backend>::find("reference")->make({}).value();
  Backend& backend = *made;
  const int64_t capacity = k + int64_t(depth) * most_rows * k;
  Ints tokens(capacity), parents(tokens), frontier(most_rows, -7), own_ids(1000);
  for (int id = 0; id < 1000; ++id) own_ids[id] = 5000 - id;
  std::vector<double> chances(tokens.size());
  const auto view = [](auto& x) { return View<std::remove_reference_t<decltype(x[0])>, 1>(x.data(), std::ssize(x)); };
  const TreeSlots tree{view(tokens), view(parents), view(chances), view(frontier)};
  DynamicTree host;
  host.reserve(std::max(k, most_rows), depth);
  host.begin();
  int64_t slots = 0;
  int rows = 1, live = 1;
  for (int level = 0; level < depth; ++level) {
    Ints ranked;
    std::vector<float> shares;
    for (int row = 0; row < rows; ++row) {
      const Said said = say(random, k);
      ranked.insert(ranked.end(), said.tokens.begin(), said.tokens.end());
      shares.insert(shares.end(), said.shares.begin(), said.shares.end());
      if (row < live) host.try_children(level == 0 ? -1 : row, said.tokens, said.shares);
    }
    const int next = level + 1 == depth ? 0 : std::min(most_rows, rows * k);
    Ints ids(next, -9), from(next, -9);
    backend.grow_tree({
        .tree = tree,
        .first_slot = slots,
        .ranked = View<const int32_t, 2>(ranked.data(), rows, k),
        .shares = View<const float, 2>(shares.data(), rows, k),
        .ids = view(ids),
        .rows = view(from),
        .own_ids = level % 2 ? view(own_ids) : View<const int32_t, 1>{},
    });
    slots += rows * k;
    const auto goes_on = host.advance(next, 100 * (level + 1));
    for (int i = 0; i < next; ++i) {
      ASSERT_TRUE(from[i] >= (i > 0 ? from[i - 1] : 0) && from[i] < rows);
      if (i >= int(goes_on.size())) {
        EXPECT_EQ(ids[i], -1);
        continue;
      }
      const DynamicTree::Node& node = host.node(goes_on[i]);
      EXPECT_EQ(ids[i], level % 2 ? 5000 - node.token : node.token);
      if (node.parent >= 0) { EXPECT_EQ(from[i], host.node(node.parent).row - 100 * level); }
    }
    rows = next, live = int(goes_on.size());
  }
  Nodes expected, found;
  host.choose(most_nodes, [&](int, int32_t token, int parent) { expected.push_back({token, parent}); });
  Ints chosen(most_nodes), chosen_parents(chosen), count(1);
  backend.choose_nodes({tree, slots, view(chosen), view(chosen_parents), view(count)});
  for (int i = 0; i < count[0]; ++i) found.push_back({chosen[i], chosen_parents[i]});
  EXPECT_EQ(found, expected);
  for (int i = count[0]; i < most_nodes; ++i) EXPECT_TRUE(chosen[i] == -1 && chosen_parents[i] == -1);
}

TEST(GrownTree, IsTheTreeOfTheHostNodeByNode) {
  std::mt19937 random(3);
  for (int turn = 0; turn < 400; ++turn) {
    const int k = 1 + int(random() % 12), depth = 1 + int(random() % 7), most_rows = 1 + int(random() % 12);
    SCOPED_TRACE(testing::Message() << "turn " << turn << ": " << k << " candidates, depth " << depth << ", rows " << most_rows);
    grow_both(random, depth, k, most_rows, 1 + int(random() % 80));
    if (testing::Test::HasFailure()) return;
  }
}

}
}
