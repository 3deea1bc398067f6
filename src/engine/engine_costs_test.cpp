#include "engine/engine_costs.h"

#include <gtest/gtest.h>

#include "engine/planner_testing.h"

namespace hunch {
namespace {

TEST(BreakEven, IsWhereTheBestLengthNeitherGainsNorLoses) {
  CostTable table(test::small_priors());
  const Arm self = test::self_arm(), lookup{.name = "ngram"};
  for (double context : {1024.0, 4096.0, 28672.0})
    for (int batch : {1, 8})
      for (const Arm& arm : {self, lookup}) {
        const BreakEven at = break_even(table, arm, context, batch);
        ASSERT_TRUE(at.possible);
        int gamma = 0;
        EXPECT_NEAR(best_gain(table, arm, context, batch, at.acceptance, gamma), 1, 1e-6);
        EXPECT_LT(best_gain(table, arm, context, batch, at.acceptance - 0.01, gamma), 1);
        EXPECT_GT(best_gain(table, arm, context, batch, at.acceptance + 0.01, gamma), 1);
      }
  EXPECT_LT(break_even(table, lookup, 28672, 1).acceptance, break_even(table, self, 28672, 1).acceptance);
  EXPECT_LT(break_even(table, self, 28672, 1).acceptance, break_even(table, self, 1024, 1).acceptance);
}

// Costs are kept by this name: what costs something else has another.
TEST(DraftKindName, TellsWhatADraftReads) {
  RequestPlan plan;
  plan.policy.ratio = 0.03;
  EXPECT_EQ(draft_kind_name(plan), "target@0.03");
  plan.draft_weights = DType::Q4_0, plan.policy.skip_layers = {0, 1, 1}, plan.policy.layer_step = 2;
  plan.proposing.self_lookup = "suffix";
  EXPECT_EQ(draft_kind_name(plan), "q4_0@0.03 without 2 layers step 2 with suffix");
}

TEST(BreakEven, SaysSoWhereNothingCanPay) {
  CostTable table({.drafts = {{"target@1", 35e6}}});
  for (int i = 0; i < 60; ++i) {
    table.verify.record({1, 1, 4096}, 1);
    table.drafts[0].step.record({1, 1, 4096}, 3);
  }
  EXPECT_FALSE(break_even(table, {.passes = true, .draft_kind = 0, .ratio = 1}, 4096, 1).possible);
}

}
}
