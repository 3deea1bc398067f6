// hunch bench passes: flags, the sequence of sections, tables. The ceiling is measured in the same run: it moves with neighbours.
#include "cli/bench.h"

#include <fmt/ranges.h>

#include "cli/generating.h"
#include "cli/report.h"
#include "engine/bench.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;
constexpr std::string_view kSections[] = {"ceiling", "plain", "verify", "draft", "end-to-end", "start"};
constexpr size_t kCeilingBytes = size_t(1) << 30;  // far past any cache
constexpr int kCeilingRepeats = 7;

bool wanted(const BenchFlags& flags, std::string_view section) {
  return flags.only.empty() || std::ranges::find(flags.only, section) != flags.only.end();
}

std::string cell(const ordered_json& v) {
  if (v.is_null()) return "-";
  if (v.is_string()) return v.get<std::string>();
  if (v.is_boolean()) return v.get<bool>() ? "yes" : "no";
  if (v.is_number_integer()) return fmt::format("{}", v.get<int64_t>());
  const double x = v.get<double>();
  return fmt::format("{:.{}f}", x, std::abs(x) < 0.1 ? 4 : std::abs(x) < 10 ? 2 : 1);
}

class Bench : Measurement<BenchFlags> {
 public:
  using Measurement::Measurement;

  Result<int> run() {
    out_["engine"] = engine_.description();
    if (!flags_.json) print(engine_.description() + "\n");
    double ceiling = 0;
    if (wanted(flags_, "ceiling") || wanted(flags_, "plain")) {
      const int threads = engine_.parts().backend->threads();
      ceiling = streaming_read_ceiling(threads, kCeilingBytes, kCeilingRepeats);
      BenchTable table{"ceiling", "Streaming read", {{{"threads", threads}, {"GiB_buffer", 1}, {"GB_per_s", ceiling / 1e9}}}, ""};
      add(std::move(table));
    }
    const std::pair<const char*, std::function<Result<BenchTable>()>> sections[] = {
        {"plain", [&] { return bench_plain(engine_, flags_, ceiling); }},
        {"verify", [&] { return bench_verify(engine_, flags_, speculation_); }},
        {"draft", [&] { return bench_draft(engine_, flags_, speculation_); }},
        {"end-to-end", [&] { return bench_end_to_end(engine_, flags_, speculation_, interrupts_, progress_); }},
        {"start", [&] { return bench_start(engine_.parts().options.model, engine_.parts().backend->threads()); }}};
    for (const auto& [name, section] : sections) {
      if (!wanted(flags_, name) || interrupts_.stopped()) continue;
      auto table = section();
      progress_.clear();
      if (!table.ok()) return table.error();
      add(std::move(*table));
    }
    if (flags_.json) print(json_line(out_) + "\n");
    if (interrupts_.stopped()) complain("interrupted: the sections so far are all there is");
    return written_ ? interrupts_.exit_code() : 1;
  }

 private:
  void add(BenchTable table) {
    if (!flags_.json) return print("\n" + table_text(table));
    out_[table.name] = table.rows;
  }
  void print(const std::string& text) { written_ = written_ && write_stdout(text); }

  ordered_json out_;
  bool written_ = true;
};

void add_bench_flags(FlagSet& set, BenchFlags& flags) {
  set.group("What to measure");
  set.value({"--only"}, "LIST", fmt::format("sections: {} (default: all)", comma_list(kSections)),
      [&flags](auto flag, auto v) -> Status {
        flags.only.clear();
        return each_item(v, [&](auto item) -> Status {
          HUNCH_TRY(flags.only.emplace_back(), parse_choice(flag, item, kSections));
          return {};
        });
      });
  add_list(set, {"-d", "--depths", "--n-depth"}, "context depths (default 0,4096,16384,28672)", {0, 1 << 24}, flags.depths, 2);
  add_list(set, {"--rows"}, "rows of a verify pass, 1..64 (default 2,4,8,12)", {1, 64}, flags.rows);
  add_list(set, {"--trees"}, "guesses of trees that a verify pass checks, 1..64", {1, 64}, flags.trees);
  add_list(set, {"--contexts"}, "prompt lengths of the end-to-end rows (default 16384,28672)", {1024, 1 << 24}, flags.contexts);
  add_list(set, {"--gammas"}, "guesses a round of the end-to-end rows, 1..64 (default 1,3,5,7,10,15)", {1, 64}, flags.gammas);
  set.whole({"--new"}, "tokens of an end-to-end run (default 96)", {2, 1 << 20}, flags.new_tokens);
  set.whole({"-r", "--repetitions"}, "repetitions, 1..1000 (default 9)", {1, 1000}, flags.repeats);
  set.group("Output");
  set.toggle({"--json"}, "print one JSON object and nothing else on stdout", flags.json);
  add_format_flag(set, flags.json);
}

}

std::string table_text(const BenchTable& table) {
  std::string out = table.title + "\n";
  if (table.rows.empty()) return out + "  (nothing to measure)\n";
  std::vector<std::string> names;
  for (const auto& [name, value] : table.rows[0].items()) names.push_back(name);
  std::vector<size_t> widths;
  for (const std::string& name : names) {
    size_t width = name.size();
    for (const auto& row : table.rows) width = std::max(width, cell(row[name]).size());
    widths.push_back(width);
  }
  for (size_t i = 0; i < names.size(); ++i) out += fmt::format("  {:>{}}", names[i], widths[i]);
  out += "\n";
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < names.size(); ++i) out += fmt::format("  {:>{}}", cell(row[names[i]]), widths[i]);
    out += "\n";
  }
  return table.note.empty() ? out : out + "  " + wrapped(table.note, 78, 2) + "\n";
}

Result<int> bench_passes_command(Arguments arguments) {
  BenchFlags flags;
  FlagSet set("hunch bench passes [flags]",
      "Measures, in one run: what memory reads reach, plain decoding at depth, verify passes, draft steps, whole requests by "
      "guesses a round, and the time from start to the first token.");
  add_bench_flags(set, flags);
  add_model_flags(set, flags.model);
  add_speculation_flags(set, flags.speculation);
  add_foreign_flags(set);
  if (const auto ended = parsed(set, arguments)) return *ended;
  HUNCH_TRY(auto speculation, resolve_speculation(flags.speculation));
  speculation.proposer = "self";
  HUNCH_TRY(auto options, engine_options(flags.model, &flags.speculation));
  note_ignored(set);
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(options, progress));
  return Bench(*engine, flags, speculation, progress).run();
}

}
