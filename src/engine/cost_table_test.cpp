// The table of costs: what it learns, how it shrugs off outliers, what it does with foreign files.
#include "engine/cost_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

namespace hunch {
namespace {

CostPriors priors() { return {.weight_bytes = 35e6, .drafts = {{"q4_0@0.03", 19e6}}}; }
const CostKey kKey{"some processor", 2, "0.1.0", "wren", "bf16", 35650000};

double measured(double rows, double context) {  // plain 5.4 ms at 28K, eight rows 8.8
  return 0.5 + context * 1.7e-4 * (rows <= 4 ? 1 + 0.02 * (rows - 1) : 1.06 + 0.14 * (rows - 4));
}

// What looks dear is never tried: on a device rows beside one another must look as cheap as they are there.
TEST(CostTable, ExpectsRowsToHideBehindMemoryOnADevice) {
  for (const CostPriors& priors : {CostPriors{.weight_bytes = 16e9, .kv_bytes_per_token = 147456, .device_layers = 36},
           CostPriors{.weight_bytes = 36e6, .kv_bytes_per_token = 8192, .device_layers = 8}})
    for (const int sequences : {1, 8, 32}) {
      CostPriors device = priors;
      device.bytes_per_second = 3e12, device.drafts = {{.name = "q4_0@0.03", .weight_bytes = priors.weight_bytes / 4}};
      CostTable table(device);
      const double entries = 10000.0 * sequences;
      // A pass that took what was expected teaches nothing new, however small the terms are.
      const PassShape plain{.rows = double(sequences), .sequences = sequences, .entries = entries};
      table.verify.record(plain, 0.95 * table.verify.ms(plain));
      PassShape verify = plain, draft = plain;
      verify.rows *= 8, draft.entries *= 0.03;
      EXPECT_LT(table.verify.ms(verify), 2.6 * table.verify.ms(plain)) << sequences;
      EXPECT_LT(table.drafts[0].step.ms(draft), 1.01 * table.verify.ms(plain)) << sequences;
    }
}

TEST(CostTable, LearnsPassesThatItsPriorMissesByAFactor) {
  CostTable table({.weight_bytes = 35e6, .bytes_per_second = 8e9});
  for (int i = 0; i < 40; ++i)
    for (double rows : {1.0, 4.0, 8.0})
      for (double context : {4096.0, 28672.0}) table.verify.record({rows, 1, context}, measured(rows, context));
  for (double rows : {1.0, 4.0, 8.0})
    for (double context : {4096.0, 28672.0})
      EXPECT_NEAR(table.verify.ms({rows, 1, context}) / measured(rows, context), 1, 0.05) << rows << " rows, " << context;
  EXPECT_NEAR(table.verify.ms({6, 1, 16384}) / measured(6, 16384), 1, 0.25) << "between what was seen";
}

TEST(CostTable, OnePassTellsMostAboutPassesOfOtherContexts) {
  CostTable table({.weight_bytes = 35e6, .bytes_per_second = 8e9});
  const double before = table.verify.ms({1, 1, 20000});
  table.verify.record({1, 1, 28672}, measured(1, 28672));
  const double truth = measured(1, 20000);
  EXPECT_LT(std::abs(std::log(table.verify.ms({1, 1, 20000}) / truth)), 0.5 * std::abs(std::log(before / truth)));
}

TEST(CostTable, OutliersMoveItLittleAndNonsenseNotAtAll) {
  CostTable table(priors());
  const PassShape shape{8, 1, 28672};
  for (int i = 0; i < 50; ++i) table.verify.record(shape, 8.8);
  const double before = table.verify.ms(shape);
  table.verify.record(shape, 8800);
  EXPECT_LT(table.verify.ms(shape), 1.1 * before);
  const double after = table.verify.ms(shape);
  for (double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), HUGE_VAL}) table.verify.record(shape, bad);
  EXPECT_EQ(table.verify.ms(shape), after);
}

TEST(CostTable, FollowsAMachineThatSlowsDown) {
  CostTable table(priors());
  const PassShape shape{1, 1, 28672};
  for (int i = 0; i < 200; ++i) table.verify.record(shape, 5.4);
  for (int i = 0; i < 60; ++i) table.verify.record(shape, 7.3);
  EXPECT_NEAR(table.verify.ms(shape), 7.3, 0.3);
}

TEST(CostTable, KnowsWhatItHasSeen) {
  CostTable table(priors());
  EXPECT_FALSE(table.verify.known({1, 1, 28672}));
  table.verify.record({1, 1, 28672}, 5.4);
  EXPECT_TRUE(table.verify.known({1, 1, 28672}));
  EXPECT_TRUE(table.verify.known({1, 1, 25000}));
  EXPECT_FALSE(table.verify.known({1, 1, 1024}));
  EXPECT_FALSE(table.verify.known({16, 16, 16 * 28672.0}));
}

TEST(CostTable, SurvivesAFileUnchanged) {
  const auto path = testing::TempDir() + "/hunch_costs/a/table.json";
  CostTable table(priors()), other(priors());
  for (int i = 0; i < 9; ++i) {
    table.verify.record({8, 1, 9000}, 3.3);
    table.drafts[0].step.record({1, 1, 300}, 0.31);
    table.drafts[0].learn.record({1, 1, 9000}, 0.4);
  }
  ASSERT_TRUE(table.save(path, kKey).ok());
  bool found = false;
  ASSERT_TRUE(other.load(path, kKey, &found).ok());
  EXPECT_TRUE(found);
  EXPECT_EQ(other.verify.ms({7, 1, 9000}), table.verify.ms({7, 1, 9000}));
  EXPECT_EQ(other.drafts[0].step.ms({1, 1, 280}), table.drafts[0].step.ms({1, 1, 280}));
  EXPECT_EQ(other.drafts[0].learn.ms({1, 1, 8000}), table.drafts[0].learn.ms({1, 1, 8000}));
  EXPECT_TRUE(other.verify.known({8, 1, 9000}));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(path).parent_path())) {
    ++files;
    EXPECT_EQ(entry.path().filename(), "table.json") << "no temporary stays";
  }
  EXPECT_EQ(files, 1);
  std::filesystem::create_symlink("table.json", path + ".link");
  ASSERT_TRUE(table.save(path + ".link", kKey).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(path + ".link")) << "what it leads to is written";
  std::filesystem::remove_all(testing::TempDir() + "/hunch_costs");
}

TEST(CostTable, AMissingFileIsNoError) {
  CostTable table(priors());
  bool found = true;
  EXPECT_TRUE(table.load(testing::TempDir() + "/hunch_no_such_file.json", kKey, &found).ok());
  EXPECT_FALSE(found);
}

TEST(CostTable, TellsTheStartOfAChainFromItsSteps) {
  CostTable table(priors());
  CostTable::Draft& kind = table.drafts[0];
  const PassShape shape{1, 1, 4000};
  const double start = 0.13, step = 0.06;
  for (int i = 0; i < 60; ++i) {
    const int steps = 1 + i * 5 % 7;
    kind.record_chain(shape, steps, (start + steps * step) * (i % 2 ? 1.05 : 0.95));
  }
  EXPECT_NEAR(kind.step.ms(shape), step, 0.2 * step);
  EXPECT_NEAR(kind.start.steps(), start / step, 0.5);
  CostTable read(priors());
  ASSERT_TRUE(read.from_json(table.to_json(kKey), kKey).ok());
  EXPECT_EQ(read.drafts[0].start.steps(), kind.start.steps());
  for (int i = 0; i < 150; ++i) kind.record_chain(shape, 1 + i % 5, (1 + i % 5) * step);  // nothing goes first any more
  EXPECT_LT(kind.start.steps(), 0.3);
}

TEST(CostTable, IgnoresForeignAndDamagedTables) {
  CostTable table(priors());
  table.verify.record({8, 1, 9000}, 3.3);
  const std::string good = table.to_json(kKey);
  CostTable other(priors());
  const double before = other.verify.ms({8, 1, 9000});
  CostKey foreign = kKey;
  foreign.threads = 3;
  EXPECT_EQ(other.from_json(good, foreign).error().message, "it is of another machine, build or model");
  for (size_t cut : {size_t(0), size_t(1), good.size() / 2, good.size() - 1})
    EXPECT_FALSE(other.from_json(good.substr(0, cut), kKey).ok());
  for (const char* part : {"\"terms\":[[", "\"nodes\":[[", "\"version\":", "\"recorded\":"}) {
    for (const char* bad : {"1e99,", "\"x\",", "null,", "[],", "-1,"}) {
      std::string text = good;
      const size_t at = text.find(part);
      ASSERT_NE(at, text.npos) << part;
      const size_t value = at + std::string(part).size();
      text.replace(value, text.find_first_of(",]}", value) - value, std::string(bad).substr(0, std::string(bad).size() - 1));
      if (text != good && std::string(bad) != "-1,") { EXPECT_FALSE(other.from_json(text, kKey).ok()) << part << bad; }
    }
  }
  std::string more = good;  // a term too many
  more.insert(more.rfind("]]") + 1, ",[0,0.1]");
  EXPECT_FALSE(other.from_json(more, kKey).ok());
  more = good;
  const size_t node = more.find("\"nodes\":[[") + 10;
  more.replace(node, more.find(',', node) - node, "441");  // 7 * 9 * 7 are all there are
  EXPECT_FALSE(other.from_json(more, kKey).ok());
  EXPECT_EQ(other.verify.ms({8, 1, 9000}), before);
}

TEST(CostTable, PathsDifferByMachineBuildAndModel) {
  CostKey other = kKey;
  other.model_bytes += 1;
  EXPECT_NE(cache_path("costs", kKey), cache_path("costs", other));
  other = kKey, other.kv_type = "f16";
  EXPECT_NE(cache_path("costs", kKey), cache_path("costs", other));
  EXPECT_NE(cache_path("costs", kKey), cache_path("profile", kKey));
}

}
}
