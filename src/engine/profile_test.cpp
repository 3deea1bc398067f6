#include "engine/profile.h"

#include <gtest/gtest.h>

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
  for (const char* part : {"\"ratio\":0.03", "\"gamma\":6", "0.93"}) {
    std::string bad = good;
    const size_t at = bad.find(part);
    ASSERT_NE(at, std::string::npos) << part;
    const size_t value = bad.find_first_of("0123456789", at);
    bad.insert(value, "9");
    if (std::string_view(part) == "\"gamma\":6") bad.insert(value, "99999");
    EXPECT_FALSE(Profile::from_json(bad, kKey).ok()) << bad;
  }
}

TEST(Profile, IsThePriorOfAPlannerByContext) {
  CostTable table({.drafts = {{"q4_0@0.03"}}});
  Planner planner(table, {.arms = {{.name = "self", .passes = true, .draft_kind = 0, .ratio = 0.03}}});
  profile().apply(planner, 0);
  EXPECT_LT(planner.acceptance(0, 5000)[0], 0.65);
  EXPECT_GT(planner.acceptance(0, 30000)[0], 0.88);
}

}  // namespace
}  // namespace hunch
