// What hunch bench reads from its flags: lists, and policies by the names of the reference study.
#include "cli/bench.h"

#include <gtest/gtest.h>

namespace hunch {
namespace {

TEST(Bench, ReadsPoliciesByTheStudysNames) {
  const SpeculationOptions full = named_policy("vegas-dweight-all-max-perkv-spread16").value();
  EXPECT_EQ(full.policy, "vegas");
  EXPECT_EQ(full.metric, "weight");
  EXPECT_EQ(full.rows, "all");
  EXPECT_EQ(full.combine, "max");
  EXPECT_EQ(full.share, "kv_head");
  EXPECT_EQ(full.spread, 16);
  const SpeculationOptions published = named_policy("vegas-logit").value();
  EXPECT_EQ(published.metric, "logit");
  EXPECT_EQ(published.rows, "first_last");
  EXPECT_EQ(published.combine, "sum");
  EXPECT_EQ(published.share, "layer");
  EXPECT_EQ(published.spread, 0);
  EXPECT_EQ(named_policy("vegas-weight").value().metric, "true_weight");
  EXPECT_EQ(named_policy("streamingllm").value().policy, "streamingllm");
  EXPECT_EQ(named_policy("default").value().spread, SpeculationOptions().spread);
}

TEST(Bench, ReadsCheaperDraftsBehindAnyPolicysName) {
  const SpeculationOptions o = named_policy("default-skip2-step3-lookup").value();
  EXPECT_EQ(o.draft_skip_layers, "2");
  EXPECT_EQ(o.layer_step, 3);
  EXPECT_EQ(o.self_lookup, "ngram");
  EXPECT_EQ(o.spread, SpeculationOptions().spread);
  const SpeculationOptions study = named_policy("vegas-weight-all-skip3.5").value();
  EXPECT_EQ(study.draft_skip_layers, "3,5");
  EXPECT_EQ(study.rows, "all");
  EXPECT_EQ(named_policy("default").value().draft_weights, "auto");
  EXPECT_EQ(named_policy("default-target").value().draft_weights, "target");
  EXPECT_EQ(named_policy("vegas-logit").value().draft_weights, "target");
  EXPECT_EQ(named_policy("vegas-logit-q4_0").value().draft_weights, "q4_0");
  EXPECT_EQ(named_policy("vegas-logit-q4_0").value().metric, "logit");
  EXPECT_EQ(named_policy("vegas-dweight-block8").value().block, 8);
  EXPECT_EQ(named_policy("quest-page4-perkv").value().page, 4);
  for (const char* bad :
       {"default-skipx", "default-q4_1", "vegas-block0", "quest-page", "default-step0", "default-step", "default-lookup-perkv"})
    EXPECT_FALSE(named_policy(bad).ok()) << bad;
}

TEST(Bench, ReadsMethodsAmongThePolicies) {
  EXPECT_EQ(named_policy("eagle3").value().proposer, "eagle3");
  EXPECT_EQ(named_policy("eagle3").value().tree_tokens, 0);
  EXPECT_EQ(named_policy("draft_model-tree54").value().proposer, "draft_model");
  EXPECT_EQ(named_policy("draft_model-tree54").value().tree_tokens, 54);
  const SpeculationOptions both = named_policy("draft_model-5-tree10").value();
  EXPECT_EQ(both.num_tokens, 5);
  EXPECT_EQ(both.tree_tokens, 10);
  EXPECT_EQ(named_policy("ngram").value().proposer, "ngram");
  EXPECT_EQ(named_policy("ngram").value().num_tokens, 0);
  for (const char* bad : {"eagle3-tree", "eagle3-tree0", "eagle3-tree256", "mtp-perkv", "eagle4", "suffix-0"})
    EXPECT_FALSE(named_policy(bad).ok()) << bad;
}

TEST(Bench, RefusesPoliciesItDoesNotHave) {
  for (const char* bad : {"", "nosuch", "vegas-nosuch", "vegas-spread", "vegas-spreadx", "vegas-"})
    EXPECT_FALSE(named_policy(bad).ok()) << bad;
  EXPECT_TRUE(named_policy("nosuch").error().message.starts_with("--policies: \"nosuch\" is no policy; there are default, "));
}

TEST(Bench, AlignsTables) {
  const BenchTable table{"x", "Title", {{{"rows", 2}, {"ms", 12.34}}, {{"rows", 12}, {"ms", 1.5}}}, ""};
  EXPECT_EQ(table_text(table), "Title\n  rows    ms\n     2  12.3\n    12  1.50\n");
}

}  // namespace
}  // namespace hunch
