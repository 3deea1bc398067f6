// The planner with a drafter's chains and trees beside self and a look-up: near the best in simulations, never below plain
// decoding; within its limits.
#include "engine/planner_sim.h"
#include "engine/planner_testing.h"

namespace hunch {
namespace {

using namespace sim;

constexpr int kChain = 2, kTree = 3, kWidth = 3;

CostPriors priors() { return {.weight_bytes = 35e6, .drafts = {{"q4_0@0.03", 19e6}, {"eagle3", 6e6, 1024}}}; }
std::vector<Arm> arms() {
  return {
      test::self_arm(0.85),
      {.name = "ngram", .prior_acceptance = 0.6},
      {.name = "eagle3", .passes = true, .ready = true, .draft_kind = 1, .prior_acceptance = 0.6},
      {.name = "eagle3 tree",
          .passes = true,
          .ready = true,
          .draft_kind = 1,
          .width = kWidth,
          .max_gamma = 8,
          .prior_acceptance = 0.75},
  };
}

std::vector<Text> texts() {
  const auto by_arm = [](double self, double ngram, double chain, double tree) {
    return [=](int arm, int, int64_t) { return arm == kSelf ? self : arm == kNgram ? ngram : arm == kChain ? chain : tree; };
  };
  const auto none = [](int64_t) { return 0.0; };
  return {
      {"tree", by_arm(0.6, 0, 0.6, 0.88), none},
      {"chain", by_arm(0.6, 0, 0.82, 0.84), none},
      {"self", by_arm(0.93, 0, 0.1, 0.2), none},
      {"hopeless", by_arm(0, 0, 0, 0), none},
      {"wrong matches", by_arm(0.3, 0, 0.6, 0.8), [](int64_t) { return 1.0; }},
      {"matches", by_arm(0.6, 0.92, 0.6, 0.8), [](int64_t) { return 0.5; }},
      {"alternating", [](int arm, int, int64_t t) { return t / 128 % 2 ? 0.1
                                                        : arm == kTree ? 0.88
                                                                       : 0.6; }, none},
  };
}

class TreeArms : public testing::TestWithParam<int> {};

TEST_P(TreeArms, AreChosenWhereTheyPayAndNeverBelowPlainDecoding) {
  constexpr double kMean = 0.08, kWorst = 0.27, kPlainLeast = 0.97;
  const Text text = texts()[GetParam()];
  double regret = 0, count = 0;
  int trees = 0;
  for (const double slope : {0.05, 1.0, 2.0})
    for (const double context : {64.0, 4096.0, 28672.0})
      for (const int batch : {1, 4}) {
        if (batch > 1 && slope > 1) continue;
        const sim::Setup setup{{slope}, text, context, batch};
        const Cell cell = measure(setup, priors(), arms(), {1, 2, 3, 4, 5, 7, 8, 10, 13}, 3);
        trees += cell.choice.arm == kTree;
        SCOPED_TRACE(description(setup, cell));
        EXPECT_LE(cell.regret(cell.warm), kWorst);
        EXPECT_GE(cell.plain / cell.warm, kPlainLeast);
        EXPECT_GE(cell.plain / cell.cold, kPlainLeast);
        regret += cell.regret(cell.warm), ++count;
      }
  EXPECT_LE(regret / count, kMean);
  RecordProperty("warm_regret", std::to_string(regret / count));
  if (text.name == std::string("tree")) { EXPECT_GE(trees, 3) << "a tree is the best choice now and then"; }
}

INSTANTIATE_TEST_SUITE_P(
    Planner, TreeArms, testing::Range(0, int(texts().size())), [](const auto& which) { return test_name(texts()[which.param]); });

// Rows hide behind memory up to 64, a step of the network costs next to nothing.
CostTable wide_table() {
  CostTable table(priors());
  for (int i = 0; i < 30; ++i)
    for (int batch : {1, 2, 4, 8})
      for (double rows : {1.0, 2.0, 4.0, 8.0, 16.0, 32.0})
        table.verify.record({rows * batch, batch, 20000.0 * batch}, 4 + 0.01 * batch),
            table.drafts[1].step.record({std::min(rows, 3.0) * batch, batch, 20000.0 * batch}, 0.1),
            table.drafts[0].step.record({double(batch), batch, 600.0 * batch}, 2),
            table.drafts[0].learn.record({double(batch), batch, 20000.0 * batch}, 1);
  return table;
}
RequestView view(int slot) { return {.slot = slot, .context_len = 20000}; }

TEST(TreesInAuto, ObeyRoomNodesAndWhetherTheRuleTakesThem) {
  const CostTable table = wide_table();
  Planner planner(table, {.arms = arms(), .max_slots = 1});
  const double kept[] = {0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9}, refused[] = {0.3, 0.3};
  planner.seed(kTree, 20000, kept, 500), planner.seed(kChain, 20000, refused, 500);
  EXPECT_EQ(planner.decide(view(0)).arm, kTree);
  EXPECT_GE(planner.decide(view(0)).gamma, 6);
  EXPECT_EQ(planner.decide(view(0)).stop_below, 0) << "a tree is as deep as was asked for";
  for (int room = 0; room <= 16; ++room)
    for (int nodes = 0; nodes <= 48; nodes += 4) {
      RequestView v = view(0);
      v.room = room, v.nodes = nodes;
      planner.open(0);
      const Decision d = planner.decide(v);
      EXPECT_LE(d.gamma, room);
      if (d.arm == kTree) { EXPECT_LE(d.gamma * kWidth, nodes); }
      if (room >= 2 && nodes >= 8) { EXPECT_EQ(d.arm, kTree) << room << " " << nodes; }
    }
}

TEST(TreesInAuto, PayForEveryRow) {
  CostTable table(priors());
  for (int i = 0; i < 30; ++i)
    for (double rows : {1.0, 2.0, 4.0, 8.0, 16.0, 32.0}) {
      table.verify.record({rows, 1, 20000}, 4 + rows);
      table.drafts[1].step.record({std::min(rows, 3.0), 1, 20000}, 0.05);
      table.drafts[0].learn.record({1, 1, 20000}, 100);
    }
  Planner planner(table, {.arms = arms(), .max_slots = 1});
  const double chain[] = {0.7, 0.7, 0.7, 0.7}, tree[] = {0.8, 0.8, 0.8, 0.8};
  planner.seed(kChain, 20000, chain, 1000), planner.seed(kTree, 20000, tree, 1000);
  EXPECT_EQ(planner.decide(view(0)).arm, kChain) << "a little more is kept, for three times the rows";
}

TEST(TreesInAuto, GiveWayLevelByLevelWhereRowsAreShort) {
  const CostTable table = wide_table();
  for (int budget = 8; budget <= 120; ++budget) {
    Planner planner(table, {.arms = arms(), .max_slots = 8});
    const double kept[] = {0.9, 0.9, 0.9, 0.9};
    planner.seed(kTree, 20000, kept, 500);
    int rows = 0;
    for (const Decision& d : test::decide_batch(planner, 8, budget, [](int slot) { return view(slot); })) {
      rows += 1 + d.gamma * (d.arm == kTree ? kWidth : 1);
      EXPECT_EQ(d.arm == kPlain, d.gamma == 0);
    }
    EXPECT_LE(rows, budget);
  }
}

}
}
