// Trees grown on the device against the reference, bit for bit: chances, frontiers and the nodes chosen in the end.
#include "backend/cuda/tree.h"

#include <random>

#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;

struct Shape {
  int depth, k, rows, most;
};

struct CudaTree : CommandsTest<> {
  void grow_both(std::mt19937& random, const Shape& shape);
};

void CudaTree::grow_both(std::mt19937& random, const Shape& shape) {
  const size_t capacity = size_t(shape.k + shape.depth * shape.rows * shape.k), most = size_t(shape.most);
  Ints tokens(capacity), parents(capacity), frontier(size_t(shape.rows), -7), own(1000);
  std::vector<double> chances(capacity);
  for (int32_t& id : own) id = int32_t(random() % 5000);
  const DeviceArray<int32_t> tokens_there(tokens), parents_there(parents), frontier_there(frontier), own_there(own);
  const DeviceArray<double> chances_there(chances);
  const TreeSlots here{view(tokens), view(parents), view(chances), view(frontier)},
      there{view(tokens_there), view(parents_there), view(chances_there), view(frontier_there)};
  int64_t slots = 0;
  for (int level = 0, rows = 1; level < shape.depth; ++level) {
    const size_t count = size_t(rows * shape.k),
                 next = size_t(level + 1 == shape.depth ? 0 : std::min(shape.rows, rows * shape.k));
    Ints ranked(count), ids(next), from(next);
    Floats shares(count);
    for (size_t i = 0; i < count; ++i) {
      ranked[i] = random() % 5 ? int32_t(random() % 1000) : -1;
      shares[i] = random() % 3 ? float(random() % 8) / 8 : std::ldexp(1.0f, -int(random() % 140));
    }
    const DeviceArray<int32_t> ranked_there(ranked), ids_there(ids), from_there(from);
    const DeviceArray<float> shares_there(shares);
    const bool other_ids = level % 2;
    reference.grow_tree({here, slots, view(ranked, rows, shape.k), view(shares, rows, shape.k), view(ids), view(from),
        other_ids ? view(own) : View<const int32_t, 1>{}});
    enqueue_grow_tree(*commands,
        {there, slots, view(ranked_there, rows, shape.k), view(shares_there, rows, shape.k), view(ids_there), view(from_there),
            other_ids ? view(own_there) : View<const int32_t, 1>{}});
    finish();
    ASSERT_EQ(ids_there.get(), ids);
    ASSERT_EQ(from_there.get(), from);
    slots += int64_t(count), rows = int(next);
  }
  ASSERT_EQ(tokens_there.get(), tokens);
  ASSERT_EQ(parents_there.get(), parents);
  ASSERT_EQ(chances_there.get(), chances);
  ASSERT_EQ(frontier_there.get(), frontier);
  Ints nodes(most), node_parents(most), number(1);
  const DeviceArray<int32_t> nodes_there(nodes), node_parents_there(nodes), number_there(number);
  reference.choose_nodes({here, slots, view(nodes), view(node_parents), view(number)});
  enqueue_choose_nodes(*commands, {there, slots, view(nodes_there), view(node_parents_there), view(number_there)});
  finish();
  EXPECT_EQ(number_there.get(), number);
  EXPECT_EQ(nodes_there.get(), nodes);
  EXPECT_EQ(node_parents_there.get(), node_parents);
}

TEST_F(CudaTree, GrowsAndChoosesWhatTheReferenceDoes) {
  std::mt19937 random(11);
  for (const Shape& shape :
      {Shape{1, 1, 1, 1}, {1, 16, 1, 9}, {6, 10, 10, 60}, {3, 16, 16, 1000}, {40, 16, 16, 255}, {7, 4, 2, 500}})
    for (int turn = 0; turn < 4; ++turn) {
      SCOPED_TRACE(testing::Message() << shape.depth << " levels of " << shape.k << " by " << shape.rows);
      grow_both(random, shape);
    }
}

}
}
