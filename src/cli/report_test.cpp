// The promised fields of --json, the statistics block, and when colour is used.
#include "cli/report.h"

#include "base/test_results.h"

namespace hunch {
namespace {

using test::expect_part;

Generation speculated() {
  Generation g;
  g.tokens = {5, 6, 7, 8};
  g.rule = "match", g.policy = "vegas", g.proposer = "self";
  g.seed = 18446744073709551615u;
  g.ratio = 0.07, g.gamma = 2, g.prompt_tokens = 100, g.rounds = 2, g.drafted = 4, g.accepted = 2;
  g.drafted_by_position = {2, 2}, g.accepted_by_position = {2, 0};
  g.kv_bytes_read = 3000;
  g.milliseconds.first_to_last_token = 30, g.milliseconds.draft = 6, g.milliseconds.verify = 15, g.milliseconds.select = 3;
  return g;
}

TEST(Report, JsonIsOneLineWithEveryPromisedField) {
  const auto g = speculated();
  const std::string line = json_line(report_json({g, "two\nlines", "wren", 10}));
  EXPECT_EQ(line.find('\n'), line.npos);
  const auto j = nlohmann::json::parse(line);
  EXPECT_EQ(j["text"], "two\nlines");
  EXPECT_EQ(j["tokens"], (Ints{5, 6, 7, 8}));
  EXPECT_EQ(j["prompt_tokens"], 100);
  EXPECT_EQ(j["decode_tokens_per_second"], 100.0);
  EXPECT_EQ(j["mean_acceptance_length"], 2.0);
  EXPECT_EQ(j["acceptance_by_position"], (std::vector<double>{1, 0}));
  EXPECT_EQ(j["kv_bytes_read_per_token"], 1000.0);
  EXPECT_EQ(j["lossless"], true);
  EXPECT_EQ(j["seed"], 18446744073709551615u);
  EXPECT_EQ(j["ratio"], 0.07);
  for (const char* part : {"load", "prefill", "draft", "verify", "select"})
    EXPECT_TRUE(j["milliseconds"][part].is_number()) << part;
}

TEST(Report, ExpertsAreSpokenOfWhereThereAreAny) {
  auto g = speculated();
  EXPECT_FALSE(nlohmann::json::parse(json_line(report_json({g, "", "m", 0}))).contains("experts_read_per_step"));
  g.steps = 4, g.experts_read = 50;
  EXPECT_EQ(nlohmann::json::parse(json_line(report_json({g, "", "m", 0})))["experts_read_per_step"], 12.5);
  expect_part(report_text({g, "", "m", 0}, Paint{}), "12.5, over all layers");
}

TEST(Report, JsonSurvivesBytesThatAreNoText) {
  const auto g = speculated();
  const auto j = nlohmann::json::parse(json_line(report_json({g, "a\xffz", "m", 0})));
  EXPECT_EQ(j["text"], "a\xef\xbf\xbdz");
}

TEST(Report, TextHoldsTheLineThatPeopleGrep) {
  const auto g = speculated();
  const auto text = report_text({g, "", "wren", 10}, Paint{});
  expect_part(text, "draft acceptance rate = 0.50000 (    2 accepted /     4 generated)");
  expect_part(text, "draft 20 %, verify 50 %, select 10 %, other 20 %");
  expect_part(text, "1.0 kB (plain decoding: 1.3 kB)");  // 10 bytes x 2 pages of 64
  EXPECT_EQ(text.find('\033'), text.npos);
}

TEST(Report, SaysLossyOutLoud) {
  auto g = speculated();
  g.lossless = false;
  expect_part(report_text({g, "", "wren", 10}, Paint{}), "LOSSY");
  EXPECT_FALSE(report_json({g, "", "wren", 10}).contains("approx"));
  g.approximation = {.precision_class = "approx-reuse", .group_rows = 8, .traversal = "dfs"};
  g.approximation.own_choices = 5, g.approximation.shared_choices = 40, g.approximation.reused_choices = 90;
  g.approximation.reuse_layers = {2, 3};
  expect_part(report_text({g, "", "wren", 10}, Paint{}), "LOSSY: precision class approx-reuse");
  EXPECT_EQ(report_json({g, "", "wren", 10})["approx"].dump(),
      R"({"precision_class":"approx-reuse","group_rows":8,"traversal":"dfs","reuse_layers":[2,3],)"
      R"("choices":{"own":5,"shared":40,"reused":90}})");
}

TEST(Terminal, ColorFollowsFlagThenEnvironmentThenTerminal) {
  unsetenv("NO_COLOR"), unsetenv("CLICOLOR_FORCE"), unsetenv("TERM");
  EXPECT_TRUE(color_wanted(ColorWish::Auto, true));
  EXPECT_FALSE(color_wanted(ColorWish::Auto, false));
  setenv("CLICOLOR_FORCE", "1", 1);
  EXPECT_TRUE(color_wanted(ColorWish::Auto, false));
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(color_wanted(ColorWish::Auto, true));
  EXPECT_TRUE(color_wanted(ColorWish::Always, false));
  unsetenv("NO_COLOR"), unsetenv("CLICOLOR_FORCE");
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(color_wanted(ColorWish::Auto, true));
  unsetenv("TERM");
}

TEST(Terminal, DrawsBars) {
  EXPECT_EQ(bar(0.5, 4, false), "##..");
  EXPECT_EQ(bar(1, 2, true), "██");
  EXPECT_EQ(bar(0.5, 1, true), "▌");
  EXPECT_EQ(bar(std::nan(""), 2, false), "..");
  EXPECT_EQ(bar(7, 2, false), "##");
}

}
}
