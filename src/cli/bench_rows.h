// Rows of figures under llama-bench's names in four formats. A row is a JSON object; Markdown and CSV are made from it, so that
// no two formats can disagree. Used by hunch bench and hunch bench batch; hunch report reads them back.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "hunch/hunch.h"

namespace hunch {

enum class RowFormat { Markdown, Json, JsonLines, Csv };
Result<RowFormat> parse_row_format(std::string_view flag, std::string_view text);

// Whole numbers as llama-bench takes them: "512", "0,4096", "1-4", "1-9+2" (steps), "128-1024*2" (factors).
Result<std::vector<int64_t>> parse_ranges(std::string_view flag, std::string_view text, const Range& range);
// Setters of flags that take them: instead of what the target holds, or behind it (a repeated flag of llama-bench adds).
FlagSet::Set set_ranges(std::vector<int64_t>& target, Range range);
FlagSet::Set add_ranges(std::vector<int64_t>& target, Range range);
// A flag whose setter is the former.
void add_list(
    FlagSet& set, FlagSet::Names names, std::string help, Range range, std::vector<int64_t>& target, int shown_names = -1);
// Sets `target` to the numbers of a list by comma.
FlagSet::Set set_numbers(std::vector<double>& target, Range range);

// One test: a prompt of n_prompt tokens, then n_gen generated ones, behind n_depth others.
struct BenchTest {
  int64_t n_prompt = 0, n_gen = 0, n_depth = 0;
  std::string name() const;  // "pp512", "tg128 @ d16384", "pp512+tg128"
  int64_t tokens() const { return n_prompt + n_gen; }
};

// What holds for all tests of one engine, llama-bench's fields in its order.
nlohmann::ordered_json engine_fields(Engine& engine, const std::string& model, int64_t n_batch, int64_t n_ubatch);

// The fields of a finished test behind those of its engine. `extra`: fields of this engine's own, before the samples.
nlohmann::ordered_json bench_row(const nlohmann::ordered_json& engine, const BenchTest& test,
    const std::vector<int64_t>& samples_ns, const nlohmann::ordered_json& extra);

struct MeanAndDeviation {
  double mean = 0, deviation = 0;  // of the sample (n - 1); 0 for one value
};
MeanAndDeviation mean_and_deviation(const std::vector<double>& values);

// Text of rows as they come. Each call returns what to print.
class RowPrinter {
 public:
  // `optional`: names of columns that Markdown shows besides the fixed ones, where a row may lack them ("-").
  RowPrinter(RowFormat format, std::vector<std::string> optional) : format_(format), optional_(std::move(optional)) {}
  std::string row(const nlohmann::ordered_json& row);
  std::string end();

 private:
  std::string markdown(const nlohmann::ordered_json& row) const;
  std::string header(const nlohmann::ordered_json& row) const;

  RowFormat format_;
  std::vector<std::string> optional_;
  int printed_ = 0;
  std::string header_;  // of csv, as it was printed last
};

// "2026-11-21T09:30:00Z", now.
std::string utc_time();

}
