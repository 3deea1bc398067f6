// The page of hunch report: what it draws, and that files cannot put markup into it.
#include "cli/html_report.h"

#include "base/test_results.h"
#include "cli/plots.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;
using test::expect_part;

TEST(HtmlReport, ReadsLinesArraysAndObjectsWithRows) {
  EXPECT_EQ(result_rows("{\"a\":1}\n\n{\"a\":2}\n", "f").value().size(), 2u);
  EXPECT_EQ(result_rows("[{\"a\":1},{\"a\":2},{\"a\":3}]", "f").value().size(), 3u);
  EXPECT_EQ(result_rows("{\"rows\":[{\"a\":1}]}", "f").value().size(), 1u);
  EXPECT_EQ(result_rows("{\"a\":1}\n{\"a\"\n", "f").error().message, "f: line 2 is not JSON");
  EXPECT_FALSE(result_rows("[1]", "f").ok());
  EXPECT_FALSE(result_rows("7", "f").ok());
}

TEST(HtmlReport, DrawsAPlotForEachKindOfRow) {
  const std::vector<ordered_json> rows{
      {{"n_gen", 8}, {"n_depth", 1024}, {"avg_ts", 90.0}, {"drafter", "none"}},
      {
          {"n_gen", 8},
          {"n_depth", 1024},
          {"avg_ts", 180.0},
          {"drafter", "self"},
          {"speedup", 2.0},
          {"acceptance_by_position", {0.9, 0.5}},
          {"milliseconds", {{"draft", 1.0}, {"verify", 2.0}, {"select", 0.5}, {"decode", 4.0}}},
      },
      {{"n_parallel", 4}, {"avg_ts", 300.0}},
      {{"context", 512}, {"perplexity", 12.0}},
      {{"context", 512}, {"accuracy", 0.5}, {"lossless", false}},
  };
  const auto page = html_report(rows, "t");
  for (const char* title : {"Speed-up over plain", "Generation by context", "Acceptance by position", "Where the time",
           "Throughput of many", "Perplexity by context", "Facts found"})
    expect_part(page, title);
  expect_part(page, "no (LOSSY)");
}

TEST(HtmlReport, NeedsNothingFromElsewhere) {
  const auto page = html_report({{{"context", 512}, {"perplexity", 12.0}}}, "t");
  for (const char* bad : {"<script", "http://", "https://", "@import", "url("}) EXPECT_EQ(page.find(bad), page.npos) << bad;
  expect_part(page, "prefers-color-scheme:dark");
}

TEST(HtmlReport, TextFromFilesStaysText) {
  const std::vector<ordered_json> rows{
      {{"drafter", "<script>alert(1)</script>"}, {"n_depth", 8}, {"speedup", 1.0}, {"engine_info", "a&b<c"}}};
  const auto page = html_report(rows, "<b>");
  EXPECT_EQ(page.find("<script"), page.npos);
  EXPECT_EQ(page.find("<b>"), page.npos);
  expect_part(page, "a&amp;b&lt;c");
}

TEST(HtmlReport, SurvivesFieldsOfTheWrongType) {
  const std::vector<ordered_json> rows{
      {{"n_depth", "x"}, {"speedup", {1, 2}}, {"milliseconds", 3}, {"acceptance_by_position", {"a"}}},
      {{"n_depth", -4}, {"speedup", 1e308}, {"lossless", "maybe"}}, ordered_json::object()};
  expect_part(html_report(rows, "t"), "</html>");
}

TEST(Plots, NothingToDrawIsNoPicture) {
  EXPECT_EQ(svg(LinePlot{.title = "t"}), "");
  EXPECT_EQ(svg(StackedBars{}), "");
}

TEST(Plots, LabelsAreShort) {
  EXPECT_EQ(axis_label(1024), "1K");
  EXPECT_EQ(axis_label(28672), "28K");
  EXPECT_EQ(axis_label(1.5), "1.5");
  EXPECT_EQ(axis_label(12345), "12.3k");
}

}
}
