// Rows are recognised by their fields (bench_rows.h, eval.cpp, bench accept), never by file name. What is not a number is not
// drawn.
#include "cli/html_report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "cli/commands.h"
#include "cli/plots.h"
#include "cli/request_flags.h"
#include "engine/cost_table.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kStyle = R"(<style>
:root{--ink:#1b1f24;--faint:#59636e;--grid:#d9dee3;--paper:#fff;--panel:#f6f8fa;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#b08900;--c5:#56b4e9;--c6:#7f4fc9;--c7:#6b6b6b}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--faint:#9aa4af;--grid:#30363d;--paper:#0d1117;--panel:#161b22;
--c0:#4aa8e0;--c1:#f58b45;--c2:#3fc39b;--c3:#e39cc4;--c4:#dcb93c;--c5:#8fd0f7;--c6:#b392f0;--c7:#a8a8a8}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1360px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}p{color:var(--faint)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,32rem),1fr));gap:1rem}
figure{margin:0;background:var(--panel);border:1px solid var(--grid);border-radius:8px;padding:.75rem}
svg{width:100%;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--ink)}svg .faint{fill:var(--faint)}
svg .title{font-weight:600;font-size:14px}svg .on{fill:var(--paper);font-weight:600}
svg .grid{stroke:var(--grid)}svg .mark{stroke:var(--faint);stroke-dasharray:5 4}svg .line{fill:none;stroke-width:2}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:13px;white-space:nowrap}
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid var(--grid)}th{color:var(--faint);font-weight:600}
td:first-child,th:first-child{text-align:left}.lossy{color:var(--c1);font-weight:600}
</style>
)";

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double number(const ordered_json& row, const char* key) {
  const auto it = row.find(key);
  return it != row.end() && it->is_number() ? it->get<double>() : kNone;
}
std::string word(const ordered_json& row, const char* key) {
  const auto it = row.find(key);
  return it != row.end() && it->is_string() ? it->get<std::string>() : "";
}

// The tokens before the ones that were timed.
double context_of(const ordered_json& row) {
  const double depth = number(row, "n_depth");
  return std::isfinite(depth) ? depth : number(row, "context");
}

class Page {
 public:
  explicit Page(const std::vector<ordered_json>& rows) : rows_(rows) {
    for (const char* key : {"model_type", "engine", "type_k", "n_threads"}) {
      std::set<std::string> values;
      for (const ordered_json& row : rows)
        if (const auto it = row.find(key); it != row.end() && !it->is_structured()) values.insert(it->dump());
      if (values.size() > 1) differing_.push_back(key);
    }
  }

  std::string plots() const {
    std::string out;
    const auto add = [&](const std::string& picture) {
      if (!picture.empty()) out += "<figure>" + picture + "</figure>\n";
    };
    const auto draw = [&](LinePlot plot, const char* y, const auto& x_of) {
      plot.log_x = true, plot.series = curves(y, x_of);
      add(svg(plot));
    };
    const std::string context = "context, tokens";
    draw({.title = "Speed-up over plain decoding", .x_title = context, .y_title = "times plain", .reference = 1}, "speedup",
        [](const ordered_json& row) { return row.contains("n_parallel") ? kNone : context_of(row); });
    draw({.title = "Generation by context", .x_title = context, .y_title = "tokens/s"}, "avg_ts", [](const ordered_json& row) {
      return row.contains("n_parallel") || number(row, "n_prompt") > 0 || !(number(row, "n_gen") > 0) ? kNone : context_of(row);
    });
    add(svg(acceptance()));
    add(svg(time_split()));
    draw({.title = "Throughput of many requests", .x_title = "requests at once", .y_title = "tokens/s, all together"}, "avg_ts",
        [](const ordered_json& row) { return number(row, "n_parallel"); });
    draw({.title = "Perplexity by context", .x_title = "window, tokens", .y_title = "perplexity"}, "perplexity", context_of);
    draw(
        {.title = "Facts found in a record book", .x_title = context, .y_title = "found", .share = true}, "accuracy", context_of);
    return out.empty() ? "<p>No row of these files has figures that can be drawn.</p>\n"
                       : "<div class=\"plots\">\n" + out + "</div>\n";
  }

  std::string table() const {
    constexpr const char* kColumns[] = {"test", "eval", "what", "context", "model_type", "engine", "type_k", "n_threads",
        "n_parallel", "drafter", "policy", "avg_ts", "stddev_ts", "mean_acceptance_length", "mean_tokens_per_round", "speedup",
        "perplexity", "accuracy", "lossless"};
    std::vector<std::string> used;
    for (const char* key : kColumns)
      if (std::ranges::any_of(rows_, [&](const ordered_json& row) { return row.contains(key); })) used.emplace_back(key);
    std::string out = "<div class=\"table\"><table>\n<tr>";
    for (const std::string& key : used) out += "<th>" + html_escaped(key) + "</th>";
    out += "</tr>\n";
    for (const ordered_json& row : rows_) {
      out += "<tr>";
      for (const std::string& key : used) {
        const ordered_json value = row.value(key, ordered_json());
        const bool lossy = key == "lossless" && value == false;
        const std::string text = value.is_null() ? ""
            : value.is_string()                  ? value.get<std::string>()
            : value.is_number_float()            ? fmt::format("{:.4g}", value.get<double>())
            : lossy                              ? "no (LOSSY)"
            : value == true                      ? "yes"
                                                 : value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
        out += fmt::format("<td{}>{}</td>", lossy ? " class=\"lossy\"" : "", html_escaped(text));
      }
      out += "</tr>\n";
    }
    return out + "</table></div>\n";
  }

 private:
  // What tells one curve from another: drafter and policy, then whatever differs between the files.
  std::string label(const ordered_json& row) const {
    std::string out = word(row, "drafter");
    if (const std::string policy = word(row, "policy"); !policy.empty() && policy != "none")
      out += (out.empty() ? "" : " ") + policy;
    for (const char* key : differing_) {
      const auto it = row.find(key);
      if (it == row.end()) continue;
      const std::string value = it->is_string() ? it->get<std::string>() : it->dump();
      if (value != "hunch") out += fmt::format("{}{}", out.empty() ? "" : ", ", value);
    }
    return out.empty() || out == "none" ? "plain" : out;
  }

  // One curve per label; rows without `y` or without an x are left out. Several rows at one x are averaged.
  template <class X>
  std::vector<Series> curves(const char* y, X x_of) const {
    std::vector<std::string> order;
    std::map<std::string, std::map<double, std::pair<double, int>>> sums;
    for (const ordered_json& row : rows_) {
      const double x = x_of(row), value = number(row, y);
      if (!std::isfinite(x) || !std::isfinite(value)) continue;
      const std::string name = label(row);
      if (!sums.contains(name)) order.push_back(name);
      auto& [sum, count] = sums[name][x];
      sum += value, ++count;
    }
    std::vector<Series> out;
    for (const std::string& name : order) {
      out.push_back({name, {}});
      for (const auto& [x, sum] : sums[name]) out.back().points.emplace_back(x, sum.first / sum.second);
    }
    return out;
  }

  std::string at_context(const ordered_json& row) const {
    const double context = context_of(row);
    return label(row) + (std::isfinite(context) ? fmt::format(" at {}", axis_label(context)) : "");
  }

  LinePlot acceptance() const {
    LinePlot plot{
        .title = "Acceptance by position in the draft", .x_title = "position", .y_title = "accepted of drafted", .share = true};
    for (const ordered_json& row : rows_) {
      const auto it = row.find("acceptance_by_position");
      if (it == row.end() || !it->is_array() || it->empty()) continue;
      Series series{at_context(row), {}};
      for (size_t i = 0; i < it->size(); ++i)
        if ((*it)[i].is_number()) series.points.emplace_back(double(i + 1), (*it)[i].template get<double>());
      plot.series.push_back(std::move(series));
    }
    return plot;
  }

  StackedBars time_split() const {
    StackedBars plot{"Where the time of a generation goes", {"draft", "verify", "select", "other"}, {}};
    for (const ordered_json& row : rows_) {
      const auto it = row.find("milliseconds");
      if (it == row.end() || !it->is_object()) continue;
      const double draft = number(*it, "draft"), verify = number(*it, "verify"), select = number(*it, "select"),
                   all = number(*it, "decode");
      if (!(draft + verify + select > 0)) continue;
      plot.bars.push_back(
          {at_context(row), {draft, verify, select, std::isfinite(all) ? std::max(0.0, all - draft - verify - select) : 0}});
    }
    return plot;
  }

  const std::vector<ordered_json>& rows_;
  std::vector<const char*> differing_;
};

}

Result<std::vector<ordered_json>> result_rows(std::string_view text, const std::string& name) {
  std::vector<ordered_json> out;
  const auto take = [&](ordered_json value, const std::string& where) -> Status {
    if (value.is_object() && value.contains("rows") && value["rows"].is_array()) value = ordered_json(value["rows"]);
    if (value.is_object()) return out.push_back(std::move(value)), Status();
    if (!value.is_array()) return failure("{}: not a result row (a JSON object)", where);
    for (ordered_json& row : value) {
      if (!row.is_object()) return failure("{}: holds something that is no result row (a JSON object)", where);
      out.push_back(std::move(row));
    }
    return {};
  };
  if (ordered_json whole = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false); !whole.is_discarded()) {
    HUNCH_OK(take(std::move(whole), name));
    return out;
  }
  int number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    ordered_json value = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) return failure("{}: line {} is not JSON", name, number);
    HUNCH_OK(take(std::move(value), fmt::format("{}: line {}", name, number)));
  }
  return out;
}

std::string html_report(const std::vector<ordered_json>& rows, const std::string& title) {
  const Page page(rows);
  std::string out =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>" +
      html_escaped(title) + "</title>\n";
  out += kStyle;
  out += "</head>\n<body>\n<h1>" + html_escaped(title) + "</h1>\n";
  for (const char* key : {"engine_info", "cpu_info", "test_time"})
    for (const ordered_json& row : rows)
      if (const std::string value = word(row, key); !value.empty()) {
        out += "<p>" + html_escaped(value) + "</p>\n";
        break;
      }
  out += page.plots() + "<h2>Rows</h2>\n" + page.table() + "</body>\n</html>\n";
  return out;
}

Result<int> report_command(Arguments arguments) {
  // Files come as many arguments without a dash; FlagSet knows a fixed number of them.
  std::vector<std::string> files, flags_only;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool takes_value = arguments[i] == "-o" || arguments[i] == "--output" || arguments[i] == "--title";
    if (takes_value || (arguments[i].size() > 1 && arguments[i][0] == '-')) {
      flags_only.push_back(arguments[i]);
      if (takes_value && i + 1 < arguments.size()) flags_only.push_back(arguments[++i]);
    } else {
      files.push_back(arguments[i]);
    }
  }
  std::optional<std::string> output, title;
  FlagSet set("hunch report FILE... [-o report.html]",
      "Draws result files of hunch bench (-o jsonl or json), bench batch, bench accept --json and eval --json as one HTML page "
      "that needs nothing else.");
  set.text({"-o", "--output"}, "FILE", "the page (default: the standard output)", output);
  set.text({"--title"}, "TEXT", "its title (default: hunch report)", title);
  if (const auto ended = parsed(set, flags_only)) return *ended;
  if (files.empty()) return usage_error("name result files: hunch report results.jsonl -o report.html");
  std::vector<ordered_json> rows;
  for (const std::string& file : files) {
    HUNCH_OK(keeps(file, output));
    HUNCH_TRY(auto text, read_text_file(file));
    HUNCH_TRY(auto some, result_rows(text, file));
    rows.insert(rows.end(), some.begin(), some.end());
  }
  const std::string page = html_report(rows, title.value_or("hunch report"));
  if (!output || *output == "-") return print_and_exit_code(page);
  HUNCH_OK(write_atomically(*output, page));
  note(fmt::format("{} rows of {} files in {}", rows.size(), files.size(), *output));
  return 0;
}

}
