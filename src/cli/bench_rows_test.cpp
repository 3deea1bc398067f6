// llama-bench's rows: lists and ranges, names of tests, the fields and the four formats.
#include "cli/bench_rows.h"

#include <algorithm>
#include <cmath>

#include "base/test_results.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;
using test::expect_part;
using Numbers = std::vector<int64_t>;

Numbers ranges(std::string_view text) { return parse_ranges("-d", text, {0, 1e6}).value(); }

TEST(BenchRows, ReadsListsAndRangesAsLlamaBenchDoes) {
  EXPECT_EQ(ranges("512"), (Numbers{512}));
  EXPECT_EQ(ranges("0,4096"), (Numbers{0, 4096}));
  EXPECT_EQ(ranges("1-4"), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(ranges("1-9+4,64"), (Numbers{1, 5, 9, 64}));
  EXPECT_EQ(ranges("128-1024*2"), (Numbers{128, 256, 512, 1024}));
}

TEST(BenchRows, RefusesRangesThatEndNowhere) {
  for (const char* bad : {"", ",", "4-1", "0-8*2", "1-8*1", "1-8+0", "1-", "1-8+", "-1", "0-1000000", "a-b", "1-2-3"})
    EXPECT_FALSE(parse_ranges("-d", bad, {0, 1e6}).ok()) << bad;
  EXPECT_EQ(parse_ranges("-d", "0,,1", {0, 9}).error().message, "-d needs a whole number in 0..9, not \"\"");
  EXPECT_EQ(parse_ranges("-d", "12", {0, 9}).error().message, "-d must be in 0..9, not \"12\"");
}

TEST(BenchRows, ListsReplaceOrAdd) {
  Numbers target{7};
  EXPECT_TRUE(add_ranges(target, {0, 9})("-d", "1-2").ok());
  EXPECT_EQ(target, (Numbers{7, 1, 2}));
  EXPECT_TRUE(set_ranges(target, {0, 9})("-d", "3").ok());
  EXPECT_EQ(target, (Numbers{3}));
  EXPECT_FALSE(set_ranges(target, {0, 9})("-d", "10").ok());
}

TEST(BenchRows, NamesTestsAsLlamaBenchDoes) {
  EXPECT_EQ((BenchTest{512, 0, 0}).name(), "pp512");
  EXPECT_EQ((BenchTest{0, 128, 16384}).name(), "tg128 @ d16384");
  EXPECT_EQ((BenchTest{512, 128, 0}).name(), "pp512+tg128");
}

TEST(BenchRows, MeansAndDeviationsAreOfTheSample) {
  const auto two = mean_and_deviation({1, 3});
  EXPECT_DOUBLE_EQ(two.mean, 2);
  EXPECT_DOUBLE_EQ(two.deviation, std::sqrt(2.0));
  EXPECT_EQ(mean_and_deviation({5}).deviation, 0);
}

ordered_json a_row() {
  return bench_row(
      {{"model_type", "q \"x\""}, {"model_size", 1 << 20}, {"model_n_params", 2000000}, {"backends", "CPU"}, {"n_threads", 2}},
      {0, 10, 64}, {1000000000, 500000000}, {{"drafter", "self"}, {"speedup", 1.5}});
}

TEST(BenchRows, SpeedsComeFromTheSamples) {
  const ordered_json row = a_row();
  EXPECT_EQ(row["samples_ts"], (ordered_json{10.0, 20.0}));
  EXPECT_DOUBLE_EQ(row["avg_ts"], 15);
  EXPECT_EQ(row["avg_ns"], 750000000);
  EXPECT_EQ(row["n_gen"], 10);
  EXPECT_EQ(row["n_depth"], 64);
}

TEST(BenchRows, JsonIsAnArrayWhateverTheNumberOfRows) {
  for (int rows = 0; rows < 3; ++rows) {
    RowPrinter printer(RowFormat::Json, {});
    std::string out;
    for (int i = 0; i < rows; ++i) out += printer.row(a_row());
    out += printer.end();
    const auto parsed = ordered_json::parse(out, nullptr, false);
    ASSERT_TRUE(parsed.is_array()) << out;
    EXPECT_EQ(parsed.size(), size_t(rows));
  }
}

TEST(BenchRows, JsonLinesAreOneObjectALine) {
  RowPrinter printer(RowFormat::JsonLines, {});
  const auto out = printer.row(a_row()) + printer.end();
  EXPECT_EQ(std::ranges::count(out, '\n'), 1);
  EXPECT_EQ(ordered_json::parse(out, nullptr, false)["drafter"], "self");
}

TEST(BenchRows, CsvQuotesEveryCellAndLeavesSamplesOut) {
  RowPrinter printer(RowFormat::Csv, {});
  const auto out = printer.row(a_row());
  EXPECT_TRUE(out.starts_with("model_type,model_size,")) << out;
  EXPECT_EQ(out.find("samples"), out.npos);
  expect_part(out, "\"q \"\"x\"\"\",\"1048576\"");
}

TEST(BenchRows, MarkdownLinesUpAndHasTheOptionalColumns) {
  RowPrinter printer(RowFormat::Markdown, {"drafter", "speedup"});
  const auto out = printer.row(a_row());
  std::vector<size_t> widths;  // in columns: plus-minus is two bytes
  for (size_t at = 0; at < out.size();) {
    const size_t end = out.find('\n', at);
    const std::string line = out.substr(at, end - at);
    widths.push_back(line.size() - (line.find("±") != line.npos));
    at = end + 1;
  }
  EXPECT_EQ(widths, std::vector<size_t>(3, widths[0])) << out;
  expect_part(out, "speed-up");
  expect_part(out, "tg10 @ d64");
  expect_part(out, "15.00 ± 7.07");
}

}
}
