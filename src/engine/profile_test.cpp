#include "engine/profile.h"

#include <gtest/gtest.h>

#include "engine/planner_testing.h"

namespace hunch {
namespace {

const CostKey kKey{"some processor", 2, "0.1.0", "wren", "bf16", 35650000};
Profile profile() { return {.ratio = 0.03, .gamma = 6, .seen = {{4096, 500, {0.5, 0.4}}, {28672, 700, {0.95, 0.93, 0.9}}}}; }

TEST(Profile, ReadsBackWhatItWrote) {
  const Profile read = Profile::from_json(profile().to_json(kKey), kKey).value();
  EXPECT_EQ(read.ratio, 0.03);
  EXPECT_EQ(read.gamma, 6);
  ASSERT_EQ(read.seen.size(), 2u);
  EXPECT_EQ(read.seen[1].context_len, 28672);
  EXPECT_EQ(read.seen[1].acceptance, profile().seen[1].acceptance);
}

TEST(Profile, RefusesForeignAndDamagedText) {
  CostKey other = kKey;
  other.build = "0.2.0";
  EXPECT_EQ(Profile::from_json(profile().to_json(kKey), other).error().message, "it is of another machine, build or model");
  const std::string good = profile().to_json(kKey);
  EXPECT_FALSE(Profile::from_json(good.substr(0, good.size() / 2), kKey).ok());
  for (const char* part : {"\"ratio\":0.03", "\"gamma\":6", "0.93", "\"version\":1"}) {
    std::string bad = good;
    const size_t at = bad.find(part);
    ASSERT_NE(at, bad.npos) << part;
    const size_t value = bad.find_first_of("0123456789", at);
    bad.insert(value, "9");
    if (std::string_view(part) == "\"gamma\":6") bad.insert(value, "99999");
    EXPECT_FALSE(Profile::from_json(bad, kKey).ok()) << bad;
  }
}

TEST(Profile, IsThePriorOfAPlannerByContext) {
  CostTable table({.drafts = {{"q4_0@0.03"}}});
  Planner planner(table, {.arms = {test::self_arm()}});
  profile().apply(planner, 0);
  EXPECT_LT(planner.acceptance(0, 5000)[0], 0.65);
  EXPECT_GT(planner.acceptance(0, 30000)[0], 0.88);
}

TEST(Profile, CarriesWhatAnArmSawToAnotherPlanner) {
  CostTable table({.drafts = {{"q4_0@0.03"}}});
  const PlannerOptions options{.arms = {{.name = "suffix"}, test::self_arm(0.85)}};
  Planner first(table, options), next(table, options);
  const std::vector<double> good(kMaxPlannedDraft, 0.97), bad(kMaxPlannedDraft, 0.1);
  first.seed(0, 0, bad, 30, 2), first.seed(0, 0, good, 30, 5), first.seed(1, 30000, good, 500), first.seed(1, 700, bad, 25);
  for (const int arm : {0, 1}) {
    const Profile seen = Profile::of(first, arm);
    EXPECT_EQ(seen.seen.size(), 2u);
    Profile::from_json(seen.to_json(kKey), kKey).value().apply(next, arm);
  }
  EXPECT_LT(next.acceptance(0, 4096, 2)[0], 0.3);
  EXPECT_GT(next.acceptance(0, 4096, 5)[0], 0.8);
  EXPECT_GT(next.acceptance(1, 30000, 2)[3], 0.9);
  EXPECT_LT(next.acceptance(1, 700, 5)[0], 0.4);
  EXPECT_EQ(next.rounds_seen(1, 30000), 40);  // no more: the next text may be another
}

}
}
