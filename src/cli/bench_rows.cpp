// The column widths of the Markdown table are llama-bench's, so that tables of both line up below each other.
#include "cli/bench_rows.h"

#include <fmt/chrono.h>

#include <ctime>

#include "base/machine.h"
#include "checkpoint/model_info.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "engine/parts.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

// "qwen3 33.6M Q8_0": family, parameters, the encoding of most of the weights.
std::string model_type(const ModelInfo& info) {
  std::string encoding = "?";
  uint64_t most = 0;
  for (const EncodingShare& share : info.encodings)
    if (share.bytes > most) most = share.bytes, encoding = dtype_info(share.dtype).name;
  for (char& c : encoding)
    if (c >= 'a' && c <= 'z') c = char(c - 'a' + 'A');
  const double parameters = info.parameters;
  return fmt::format("{} {} {}", info.family,
      parameters >= 1e9 ? fmt::format("{:.1f}B", parameters / 1e9) : fmt::format("{:.1f}M", parameters / 1e6), encoding);
}

struct Column {
  std::string name, title;
  int width;  // negative: left
};

constexpr int kSpeedWidth = 20;

std::vector<Column> columns(const std::vector<std::string>& optional) {
  std::vector<Column> out{
      {"model_type", "model", -30},
      {"model_size", "size", 10},
      {"model_n_params", "params", 10},
      {"backends", "backend", -10},
      {"n_threads", "threads", 7},
  };
  for (const std::string& name : optional) {
    if (name == "mean_acceptance_length") out.push_back({name, "tokens/round", 12});
    else if (name == "speedup") out.push_back({name, "speed-up", 15});
    else if (name == "drafter") out.push_back({name, name, 14});
    else out.push_back({name, name, std::max(8, int(name.size()))});
  }
  out.push_back({"test", "test", 15});
  out.push_back({"t/s", "t/s", kSpeedWidth});
  return out;
}

std::string padded(const std::string& text, int width) {
  // The sign of plus-minus is two bytes and one column.
  const int columns = int(text.size()) - int(text.find("±") != text.npos);
  const std::string space(std::max(0, std::abs(width) - columns), ' ');
  return width < 0 ? text + space : space + text;
}

std::string cell(const ordered_json& row, const std::string& name) {
  const auto figure = [&](const char* key) { return row.value(key, 0.0); };
  if (name == "t/s") return fmt::format("{:.2f} ± {:.2f}", figure("avg_ts"), figure("stddev_ts"));
  if (!row.contains(name) || row[name].is_null()) return "-";
  const ordered_json& v = row[name];
  if (name == "model_size") {
    const double mib = v.get<double>() / 0x1p20;
    return mib < 1024 ? fmt::format("{:.2f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024);
  }
  if (name == "model_n_params") {
    const double m = v.get<double>() / 1e6;
    return m < 1000 ? fmt::format("{:.2f} M", m) : fmt::format("{:.2f} B", m / 1e3);
  }
  if (name == "speedup" && row.contains("stddev_speedup"))
    return fmt::format("{:.2f} ± {:.2f}", v.get<double>(), row["stddev_speedup"].get<double>());
  if (name == "drafter" && !row.value("lossless", true)) return v.get<std::string>() + " (LOSSY)";
  if (v.is_string()) return v.get<std::string>();
  return v.is_number_float() ? fmt::format("{:.2f}", v.get<double>()) : v.dump();
}

std::string quoted_for_csv(const ordered_json& v) {
  std::string text = v.is_string() ? v.get<std::string>() : v.is_boolean() ? (v.get<bool>() ? "1" : "0") : v.dump();
  std::string out = "\"";
  for (char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

}

Result<RowFormat> parse_row_format(std::string_view flag, std::string_view text) {
  static constexpr std::string_view kFormats[] = {"md", "json", "jsonl", "csv"};
  if (text == "sql") return usage_error("{}: sql is not written here; jsonl and csv load into any database", flag);
  HUNCH_TRY(const std::string name, parse_choice(flag, text, kFormats));
  return RowFormat(std::find(std::begin(kFormats), std::end(kFormats), name) - std::begin(kFormats));
}

Result<std::vector<int64_t>> parse_ranges(std::string_view flag, std::string_view text, const Range& range) {
  constexpr size_t kMost = 4096;  // more tests than that is a typing error
  std::vector<int64_t> out;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const size_t dash = item.find('-', 1);
    if (dash == item.npos) {
      HUNCH_TRY(const int64_t value, parse_whole(flag, item, range));
      out.push_back(value);
    } else {
      const size_t sign = item.find_first_of("+*", dash + 1);
      HUNCH_TRY(const int64_t first, parse_whole(flag, item.substr(0, dash), range));
      const size_t length = sign == item.npos ? item.npos : sign - dash - 1;
      HUNCH_TRY(const int64_t last, parse_whole(flag, item.substr(dash + 1, length), range));
      const bool factor = sign != item.npos && item[sign] == '*';
      int64_t step = 1;
      if (sign != item.npos) { HUNCH_TRY(step, parse_whole(flag, item.substr(sign + 1), {factor ? 2. : 1., 1e9})); }
      if (first > last || (factor && first < 1)) return usage_error("{}: {} is an empty or endless range", flag, excerpt(item));
      for (int64_t value = first; value <= last && out.size() <= kMost; value = factor ? value * step : value + step)
        out.push_back(value);
    }
    if (out.size() > kMost) return usage_error("{}: more than {} values in {}", flag, kMost, excerpt(text));
    if (comma == text.npos) return out;
    text.remove_prefix(comma + 1);
  }
}

FlagSet::Set set_ranges(std::vector<int64_t>& target, Range range) {
  return FlagSet::stored(target, [range](auto flag, auto text) { return parse_ranges(flag, text, range); });
}

void add_list(FlagSet& set, FlagSet::Names names, std::string help, Range range, std::vector<int64_t>& target, int shown_names) {
  set.value(std::move(names), "LIST", std::move(help), set_ranges(target, range), shown_names);
}

FlagSet::Set add_ranges(std::vector<int64_t>& target, Range range) {
  return [&target, range](auto flag, auto text) -> Status {
    HUNCH_TRY(const auto values, parse_ranges(flag, text, range));
    target.insert(target.end(), values.begin(), values.end());
    return {};
  };
}

FlagSet::Set set_numbers(std::vector<double>& target, Range range) {
  return [&target, range](auto flag, auto text) -> Status {
    target.clear();
    return each_item(text, [&](auto item) -> Status {
      HUNCH_TRY(target.emplace_back(), parse_number(flag, item, range));
      return {};
    });
  };
}

std::string BenchTest::name() const {
  std::string out;
  if (n_prompt > 0) out += fmt::format("pp{}", n_prompt);
  if (n_gen > 0) out += fmt::format("{}tg{}", out.empty() ? "" : "+", n_gen);
  if (n_depth > 0) out += fmt::format(" @ d{}", n_depth);
  return out;
}

MeanAndDeviation mean_and_deviation(const std::vector<double>& values) {
  MeanAndDeviation out;
  for (double v : values) out.mean += v / values.size();
  double square = 0;
  for (double v : values) square += (v - out.mean) * (v - out.mean);
  if (values.size() > 1) out.deviation = std::sqrt(square / double(values.size() - 1));
  return out;
}

std::string utc_time() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

ordered_json engine_fields(Engine& engine, const std::string& model, int64_t n_batch, int64_t n_ubatch) {
  EngineParts& parts = engine.parts();
  const ModelInfo info = describe(*parts.checkpoint);
  const std::string kv = std::string(dtype_info(parts.geometry.dtype).name);
  const std::string processor = machine_fact("/proc/cpuinfo", "model name");
  return {{"build_commit", build_commit()}, {"build_number", 0}, {"cpu_info", processor.empty() ? "unknown" : processor},
      {"gpu_info", ""}, {"backends", parts.options.device == "cpu" ? "CPU" : parts.options.device}, {"engine", "hunch"},
      {"engine_info", engine.description()}, {"model_filename", model}, {"model_type", model_type(info)},
      {"model_size", info.tensor_bytes}, {"model_n_params", info.parameters}, {"n_batch", n_batch}, {"n_ubatch", n_ubatch},
      {"n_threads", parts.backend->threads()}, {"type_k", kv}, {"type_v", kv}, {"n_gpu_layers", 0}, {"flash_attn", true}};
}

ordered_json bench_row(
    const ordered_json& engine, const BenchTest& test, const std::vector<int64_t>& samples_ns, const ordered_json& extra) {
  std::vector<double> times, speeds;
  for (int64_t ns : samples_ns) {
    times.push_back(double(ns));
    speeds.push_back(test.tokens() * 1e9 / double(std::max<int64_t>(1, ns)));
  }
  const auto time = mean_and_deviation(times), speed = mean_and_deviation(speeds);
  ordered_json row = engine;
  row.update({{"n_prompt", test.n_prompt}, {"n_gen", test.n_gen}, {"n_depth", test.n_depth}, {"test", test.name()},
      {"test_time", utc_time()}, {"avg_ns", int64_t(time.mean)}, {"stddev_ns", int64_t(time.deviation)}, {"avg_ts", speed.mean},
      {"stddev_ts", speed.deviation}});
  for (const auto& [name, value] : extra.items()) row[name] = value;
  row["samples_ns"] = samples_ns;
  row["samples_ts"] = speeds;
  return row;
}

std::string RowPrinter::row(const ordered_json& row) {
  std::string out;
  const bool first = printed_++ == 0;
  switch (format_) {
    case RowFormat::Json: return (first ? "[\n  " : ",\n  ") + json_line(row);
    case RowFormat::JsonLines: return json_line(row) + "\n";
    case RowFormat::Csv:
      if (std::string names = header(row); names != header_) out += header_ = std::move(names);  // also where columns change
      for (const char* comma = ""; const auto& [name, value] : row.items()) {
        if (value.is_structured()) continue;
        out += comma + quoted_for_csv(value), comma = ",";
      }
      return out + "\n";
    case RowFormat::Markdown: return (first ? header(row) : "") + markdown(row);
  }
  return out;
}

std::string RowPrinter::end() {
  if (format_ == RowFormat::Json) return printed_ == 0 ? "[]\n" : "\n]\n";
  return "";
}

std::string RowPrinter::header(const ordered_json& row) const {
  std::string out, line;
  if (format_ == RowFormat::Csv) {
    for (const auto& [name, value] : row.items())
      if (!value.is_structured()) out += (out.empty() ? "" : ",") + name;
    return out + "\n";
  }
  out = line = "|";
  for (const Column& c : columns(optional_)) {
    out += " " + padded(c.title, c.width) + " |";
    line += " " + std::string(std::abs(c.width) - (c.width > 0), '-') + (c.width > 0 ? ":" : "") + " |";
  }
  return out + "\n" + line + "\n";
}

std::string RowPrinter::markdown(const ordered_json& row) const {
  std::string out = "|";
  for (const Column& c : columns(optional_)) out += " " + padded(cell(row, c.name), c.width) + " |";
  return out + "\n";
}

}
