// What hunch bench reads from its flags: lists, and policies by the names of the reference study.
#include "cli/bench.h"

#include <gtest/gtest.h>

#include <tuple>

namespace hunch {
namespace {

SpeculationOptions named(const char* name) { return named_policy(name).value(); }

TEST(Bench, ReadsPoliciesByTheStudysNames) {
  const SpeculationOptions full = named("vegas-dweight-all-max-perkv-spread16");
  EXPECT_EQ(std::tie(full.policy, full.metric, full.rows, full.combine, full.share, full.spread),
      std::tuple("vegas", "weight", "all", "max", "kv_head", 16));
  const SpeculationOptions published = named("vegas-logit");
  EXPECT_EQ(std::tie(published.metric, published.rows, published.combine, published.share, published.spread),
      std::tuple("logit", "first_last", "sum", "layer", 0));
  EXPECT_EQ(named("vegas-weight").metric, "true_weight");
  EXPECT_EQ(named("streamingllm").policy, "streamingllm");
  EXPECT_EQ(named("default").spread, SpeculationOptions().spread);
}

TEST(Bench, ReadsCheaperDraftsBehindAnyPolicysName) {
  const SpeculationOptions o = named("default-skip2-step3-lookup");
  EXPECT_EQ(o.draft_skip_layers, "2");
  EXPECT_EQ(o.layer_step, 3);
  EXPECT_EQ(o.self_lookup, "ngram");
  EXPECT_EQ(o.spread, SpeculationOptions().spread);
  const SpeculationOptions study = named("vegas-weight-all-skip3.5");
  EXPECT_EQ(study.draft_skip_layers, "3,5");
  EXPECT_EQ(study.rows, "all");
  EXPECT_EQ(named("default").draft_weights, "auto");
  EXPECT_EQ(named("default-target").draft_weights, "target");
  EXPECT_EQ(named("vegas-logit").draft_weights, "target");
  EXPECT_EQ(named("vegas-logit-q4_0").draft_weights, "q4_0");
  EXPECT_EQ(named("vegas-logit-q4_0").metric, "logit");
  EXPECT_EQ(named("vegas-dweight-block8").block, 8);
  EXPECT_EQ(named("quest-page4-perkv").page, 4);
}

TEST(Bench, ReadsMethodsAmongThePolicies) {
  EXPECT_EQ(named("eagle3").proposer, "eagle3");
  EXPECT_EQ(named("eagle3").tree_tokens, 0);
  EXPECT_EQ(named("draft_model-tree54").proposer, "draft_model");
  EXPECT_EQ(named("draft_model-tree54").tree_tokens, 54);
  const SpeculationOptions both = named("draft_model-5-tree10");
  EXPECT_EQ(both.num_tokens, 5);
  EXPECT_EQ(both.tree_tokens, 10);
  EXPECT_EQ(named("ngram").proposer, "ngram");
  EXPECT_EQ(named("ngram").num_tokens, 0);
}

TEST(Bench, RefusesPoliciesItDoesNotHave) {
  for (const char* bad : {"", "nosuch", "vegas-nosuch", "vegas-spread", "vegas-spreadx", "vegas-", "default-skipx",
           "default-q4_1", "vegas-block0", "quest-page", "default-step0", "default-step", "default-lookup-perkv", "eagle3-tree",
           "eagle3-tree0", "eagle3-tree256", "mtp-perkv", "eagle4", "suffix-0"})
    EXPECT_FALSE(named_policy(bad).ok()) << bad;
  EXPECT_TRUE(named_policy("nosuch").error().message.starts_with("--policies: \"nosuch\" is no policy; there are default, "));
}

TEST(Bench, AlignsTables) {
  const BenchTable table{"x", "Title", {{{"rows", 2}, {"ms", 12.34}}, {{"rows", 12}, {"ms", 1.5}}}, ""};
  EXPECT_EQ(table_text(table), "Title\n  rows    ms\n     2  12.3\n    12  1.50\n");
}

}
}
