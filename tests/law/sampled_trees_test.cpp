// Trees of sampled nodes keep the target's law under rule ratio: chi-square through the production loop (joint.h), for `self` and
// drafters of wider trees; and whether a sibling exists does not depend on what was drawn.
#include "draft/confidence.h"
#include "joint.h"

namespace hunch {
namespace {

using namespace law;

struct Case {
  int sampling, gamma, tree;
  const char* device = "reference";
};
class SelfTrees : public testing::TestWithParam<Case> {};

TEST_P(SelfTrees, KeepTheJointOfThreeTokens) {
  const auto [sampling, gamma, tree, device] = GetParam();
  const Sampling& s = kSamplings[sampling];
  Request request = toy_request(gamma, "ratio", s);
  request.speculation.tree_tokens = tree;
  const Outcome run = sample_joint(far_tables, device, request);
  expect_law(run, exact_joint(random_rows(1), s));
  EXPECT_GT(run.beside, kSamples / 20) << "it does not branch";
  EXPECT_LT(run.accepted, run.drafted);
}

INSTANTIATE_TEST_SUITE_P(Reference, SelfTrees,
    testing::ValuesIn(std::vector<Case>{{1, 1, 1}, {1, 2, 4}, {1, 3, 12}, {0, 2, 4}, {2, 2, 4}, {3, 2, 4}, {4, 2, 4}}),
    [](const auto& info) {
      const Case& c = info.param;
      return test::test_name(fmt::format("{}_gamma{}", kSamplings[c.sampling].name, c.gamma));
    });
INSTANTIATE_TEST_SUITE_P(Cpu, SelfTrees, testing::Values(Case{1, 2, 4, "cpu"}));

// A selection has seen the rejected rows of the round before: fresh noise for every draw, a sibling's too.
TEST(SampledTrees, KeepTheLawWhereTheDrafterLearnsFromRejectedDrafts) {
  Request request = toy_request(3, "ratio", kSamplings[1]);
  request.speculation.tree_tokens = 6;
  expect_law(sample_joint(learning_tables, "reference", request), exact_joint(random_rows(1), kSamplings[1]));
}

// A tree of any shape from the far drafter's table: so many children by depth, drawn by the sampler (`ranked`); numbered depth or
// breadth first.
class Drawn final : public Proposer {
 public:
  struct How {
    std::vector<int> widths;
    bool depth_first;
  };
  Drawn(Backend& backend, How how)
      : backend_(backend), how_(std::move(how)), table_(table_of(far_from(random_rows(1), 2))), logits_(kVocab) {}

  bool uses_policy() const override { return true; }  // its trees have q
  void propose(std::span<const DraftTask> tasks) override {
    for (const DraftTask& task : tasks) {
      task.tree->size = 0, task.tree->law = DraftLaw::Given;
      depths_.assign(1, 0);
      if (task.limits.max_tokens <= 0) continue;
      grow(task, 0);
      for (int row = 1; !how_.depth_first && row <= task.tree->size; ++row) grow(task, row);
    }
  }

 private:
  void grow(const DraftTask& task, int row) {
    DraftTree& tree = *task.tree;
    const Sequence& sequence = *task.sequence;
    const int depth = depths_[row], room = std::min(task.limits.max_tokens, int(tree.q.extent[0]));
    if (depth == int(how_.widths.size()) || depth == task.limits.longest() || tree.size >= room) return;
    const int32_t token = row == 0 ? sequence.pending() : tree.tokens(row - 1);
    const int32_t position = int32_t(sequence.len()) + depth;
    table_(position - 1, token, logits_.data());
    int32_t choice, children[3];
    backend_.sample({
        .logits = View<const float, 2>(logits_.data(), 1, kVocab),
        .params = sequence.sampling,
        .key = sequence.noise,
        .stream = draft_stream(depth),
        .positions = View<const int32_t, 1>(&position, 1),
        .tokens = View<int32_t, 1>(&choice, 1),
        .probs = tree.q.slice(row, 1),
        .ranked = View<int32_t, 2>(children, 1, 3),
    });
    // An inner node that is sure of itself has one child: a function of q.
    const bool sure = Confidence::class_of_law(View<const float, 2>(tree.q)[row]) > 3;
    const int width = depth > 0 && sure ? 1 : how_.widths[depth];
    for (int i = 0; i < width && children[i] >= 0 && tree.size < room; ++i) {
      tree.tokens(tree.size) = children[i], tree.parents[tree.size] = row - 1;
      depths_.push_back(depth + 1);
      ++tree.size;
      if (how_.depth_first) grow(task, tree.size);
    }
  }

  Backend& backend_;
  How how_;
  toy::Table table_;
  std::vector<float> logits_;
  std::vector<int> depths_;  // of rows
};

template <int First, int Second, bool DepthFirst>
Result<std::unique_ptr<Proposer>> make_drawn(const Proposer::Setup& setup) {
  std::vector<int> widths{First};
  if (Second > 0) widths.push_back(Second);
  return std::unique_ptr<Proposer>(new Drawn(*setup.backend, {widths, DepthFirst}));
}
const Register<Proposer> three{"three", "for tests", make_drawn<3, 0, false>},
    broad{"broad", "for tests", make_drawn<3, 2, false>}, deep{"deep", "for tests", make_drawn<2, 2, true>};

class DrawnTrees : public testing::TestWithParam<const char*> {};

TEST_P(DrawnTrees, KeepTheJointOfThreeTokens) {
  Request request = toy_request(2, "ratio", kSamplings[1]);
  test::guess(request, GetParam(), 2, 10);
  const Outcome run = sample_joint(far_tables, "reference", request);
  expect_law(run, exact_joint(random_rows(1), kSamplings[1]));
  EXPECT_GT(run.beside, kSamples / 2);
}

INSTANTIATE_TEST_SUITE_P(Wide, DrawnTrees, testing::Values("three", "broad", "deep"), test::param_name);

// What a tree looks like below the root and below its first level is the same for all draws from the same q.
TEST(SampledTrees, WhatWasDrawnDoesNotDecideAboutSiblings) {
  std::map<int, int> root_widths;
  for (uint64_t far = 2; far < 10; ++far) {
    const Rows target = random_rows(1), drafter = far_from(target, far);
    int children = -1;
    std::map<Ints, Ints> shape_below;  // by the first level's tokens
    for (uint64_t key = 0; key < 150; ++key) {
      auto parts = toy::make_parts({kVocab, table_of(target), table_of(drafter)}, "reference", kPositions);
      Request request = toy_request(2, "ratio", kSamplings[1]);
      request.speculation.tree_tokens = 4;
      auto plan = test::good(plan_request(request, {}, 64));
      plan.noise.seed = key;
      const auto step = test::good(Solo::make(*parts, plan, request));
      ASSERT_TRUE(step->prefill(nullptr).ok());
      DraftTree drafted;
      Ints first_level;
      step->hot_loop().after_drafts = [&](Running& who) {
        drafted = who.tree();
        for (int node = 0; node < drafted.size && drafted.parents[node] < 0; ++node) first_level.push_back(drafted.tokens(node));
      };
      ASSERT_TRUE(step->round().ok());
      ASSERT_TRUE(first_level.size() < 2 || first_level[0] != first_level[1]);
      if (children < 0) ++root_widths[children = int(first_level.size())];
      ASSERT_EQ(int(first_level.size()), children) << "far " << far << " key " << key;
      const Ints parents(drafted.parents.begin(), drafted.parents.begin() + drafted.size);
      const auto [known, fresh] = shape_below.emplace(first_level, parents);
      ASSERT_EQ(known->second, parents) << "far " << far << " key " << key;
    }
    EXPECT_GE(shape_below.size(), 2u);
  }
  EXPECT_EQ(root_widths.size(), 2u) << "some laws make it unsure, some do not";
}

}
}
