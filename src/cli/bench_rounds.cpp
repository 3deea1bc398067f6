// hunch bench rounds: plain steps and whole rounds of drafts and verification, several requests at a context filled with noise,
// on a model file or on random weights of a known shape. Acceptance is given on the command line, so every line says "synthetic".
// hunch bench kernels: kernels of a device alone against what its memory gives.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/random_checkpoint.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/generating.h"
#include "cli/report.h"
#include "engine/bench.h"
#include "engine/round_bench.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

std::string random_names() {
  std::string out;
  for (const std::string& name : random_model_names()) out += fmt::format("{}{}", out.empty() ? "" : ", ", name);
  return out;
}

struct RoundFlags {
  ModelFlags model;
  SpeculationFlags speculation;
  std::optional<std::string> random;
  std::string random_type = "bf16";
  std::vector<int64_t> batches{1}, depths{4096}, gammas{7};
  std::vector<double> acceptance;
  int64_t rounds = 8;
  bool json = false;
};

FlagSet::Set numbers(std::vector<double>& target) {
  return [&target](std::string_view flag, std::string_view text) -> Status {
    target.clear();
    while (true) {
      const size_t comma = text.find(',');
      HUNCH_TRY(const double value, parse_number(flag, text.substr(0, comma), {0, 1}));
      target.push_back(value);
      if (comma == std::string_view::npos) return {};
      text.remove_prefix(comma + 1);
    }
  };
}

void add_flags(FlagSet& set, RoundFlags& flags) {
  set.group("What to measure");
  set.value({"--random"}, "NAME",
            fmt::format("random weights of a known shape: {}, or the path of a config.json", random_names()),
            [&flags](std::string_view, std::string_view text) -> Status {
              flags.random = std::string(text);
              return {};
            });
  set.value({"--random-type"}, "TYPE", "type of those weights (default bf16)",
            [&flags](std::string_view flag, std::string_view text) -> Status {
              static constexpr std::string_view kTypes[] = {"bf16", "f16", "q8_0", "q4_0"};
              HUNCH_TRY(flags.random_type, parse_choice(flag, text, kTypes));
              return {};
            });
  set.value({"-np", "--parallel"}, "LIST", "requests at once (default 1)", set_ranges(flags.batches, {1, 1024}), 2);
  set.value({"-d", "--depths", "--n-depth"}, "LIST", "entries in the cache of each (default 4096)",
            set_ranges(flags.depths, {64, 1 << 24}), 2);
  set.value({"--gammas"}, "LIST", "drafts a round; with --tree so many on a path (default 7)", set_ranges(flags.gammas, {1, 64}));
  set.value({"--synthetic-acceptance"}, "LIST",
            "chance that a draft is kept if those before it were, by position; the last one goes on (default 0.9)",
            numbers(flags.acceptance));
  set.value({"--rounds"}, "N", "rounds timed, 1..1000 (default 8)",
            [&flags](std::string_view flag, std::string_view text) -> Status {
              HUNCH_TRY(flags.rounds, parse_whole(flag, text, {1, 1000}));
              return {};
            });
  set.group("Output");
  set.value({"-o", "--output"}, "FORMAT", "md (default) or json",
            [&flags](std::string_view flag, std::string_view text) -> Status {
              static constexpr std::string_view kFormats[] = {"md", "json"};
              HUNCH_OK(parse_choice(flag, text, kFormats));
              flags.json = text == "json";
              return {};
            });
}

// Bytes a second that reading memory reaches on this backend; 0 where nobody knows.
double read_ceiling(Backend& backend) {
  if (!backend.asynchronous()) return streaming_read_ceiling(backend.threads(), size_t(1) << 30, 5);
  for (const KernelRow& row : backend.bench_kernels("ceiling"))
    if (row.name == "ceiling: read") return row.bytes / (row.ms * 1e-3);
  return 0;
}

ordered_json row_of(const char* what, int64_t batch, int64_t depth, int gamma, int beside, const RoundCost& cost, double plain_ms,
                    double ceiling) {
  const BackendCounters& c = cost.per_round;
  const double bytes = double(c.weight_bytes + c.kv_bytes + c.score_bytes + c.gather_bytes);
  const double bound = ceiling > 0 ? bytes / ceiling * 1e3 : 0;
  return {{"what", what},
          {"synthetic", true},
          {"batch", batch},
          {"depth", depth},
          {"gamma", gamma},
          {"beside", beside},
          {"ms", cost.round_ms},
          {"draft_ms", cost.draft_ms},
          {"verify_ms", cost.verify_ms},
          {"drafted", cost.drafted},
          {"tokens", cost.tokens},
          {"tokens_per_second", double(batch) * cost.tokens / cost.round_ms * 1e3},
          {"speedup", cost.tokens * plain_ms / cost.round_ms},
          {"gigabytes", bytes * 1e-9},
          {"bound_ms", bound},
          {"of_bound", cost.round_ms / std::max(bound, 1e-9)},
          // Between waits the host works and a device may have nothing to do.
          {"host_ms", c.waits > 0 ? std::max(0.0, cost.round_ms - double(c.waited_ns) * 1e-6) : 0},
          {"kernels", c.kernels},
          {"launches", c.kernel_launches},
          {"graphs", c.graph_launches},
          {"waits", c.waits}};
}

std::string markdown(const std::vector<ordered_json>& rows) {
  std::string out;
  for (const auto& [name, value] : rows[0].items()) out += fmt::format("| {} ", name);
  out += "|\n";
  for (size_t i = 0; i < rows[0].size(); ++i) out += "|---";
  out += "|\n";
  for (const ordered_json& row : rows) {
    for (const auto& [name, value] : row.items())
      out += value.is_number_float() ? fmt::format("| {:.3f} ", value.get<double>())
             : value.is_boolean()    ? "| synthetic "
             : value.is_string()     ? fmt::format("| {} ", value.get<std::string>())
                                     : fmt::format("| {} ", value.get<int64_t>());
    out += "|\n";
  }
  return out;
}

Result<std::vector<ordered_json>> measure(Engine& engine, const RoundFlags& flags, const SpeculationOptions& speculation) {
  EngineParts& parts = engine.parts();
  const double ceiling = read_ceiling(*parts.backend);
  Request request;
  request.sampling.temperature = 0.8, request.sampling.top_k = 20, request.sampling.top_p = 0.95, request.sampling.seed = 1;
  request.speculation = speculation;
  if (request.speculation.proposer == "auto") request.speculation.proposer = "self";
  request.speculation.rule = "match";
  std::vector<ordered_json> rows;
  for (const int64_t depth : flags.depths)
    for (const int64_t batch : flags.batches) {
      const int64_t most = *std::max_element(flags.gammas.begin(), flags.gammas.end());
      HUNCH_TRY(auto bench, RoundBench::make(parts, request,
                                             {.batch = int(batch),
                                              .gamma = int(most),
                                              .beside = speculation.tree_tokens,
                                              .rounds = int(flags.rounds),
                                              .depth = depth,
                                              .acceptance = flags.acceptance}));
      HUNCH_TRY(const RoundCost plain, bench->run(0, int(flags.rounds)));
      rows.push_back(row_of("plain", batch, depth, 0, 0, plain, plain.round_ms, ceiling));
      for (const int64_t gamma : flags.gammas) {
        HUNCH_TRY(const RoundCost cost, bench->run(int(gamma), int(flags.rounds)));
        rows.push_back(row_of("round", batch, depth, int(gamma), speculation.tree_tokens, cost, plain.round_ms, ceiling));
      }
    }
  return rows;
}

}  // namespace

int bench_rounds_command(Arguments arguments) {
  RoundFlags flags;
  FlagSet set("hunch bench rounds [flags]",
              "Times plain steps and rounds of drafting and verifying at a depth filled with noise. The acceptance is synthetic: "
              "given, not found.");
  add_flags(set, flags);
  add_model_flags(set, flags.model);
  add_speculation_flags(set, flags.speculation);
  if (const Status status = set.parse(arguments); !status.ok()) return fail(status.error());
  if (set.help_wanted()) return print_and_exit_code(set.help());
  if (flags.acceptance.empty()) flags.acceptance = {0.9};
  if (flags.random && flags.model.model) return fail(usage_error("--random and --model name two models: give one"));
  auto speculation = resolve_speculation(flags.speculation);
  if (!speculation.ok()) return fail(speculation.error());
  flags.model.random = flags.random;
  flags.model.random_type = flags.random_type;
  auto options = engine_options(flags.model, &flags.speculation);
  if (!options.ok()) return fail(options.error());
  // Pages for the largest case, and no more.
  const int64_t batch = *std::max_element(flags.batches.begin(), flags.batches.end());
  const int64_t depth = *std::max_element(flags.depths.begin(), flags.depths.end());
  const int64_t gamma = *std::max_element(flags.gammas.begin(), flags.gammas.end());
  const int64_t nodes = gamma + speculation->tree_tokens;
  options->max_num_seqs = int(batch);
  options->context_len = (depth + nodes + 2 + RoundBench::growth(int(gamma), int(flags.rounds)) + 63) / 64 * 64;
  if (options->kv_memory_bytes == 0) options->kv_memory_bytes = int64_t(1) << 62;  // what they need, all of them
  options->max_num_batched_tokens = int(std::max<int64_t>(batch * (nodes + 1), 512 + batch));
  ProgressLine progress;
  auto engine = load_engine(*options, progress);
  if (!engine.ok()) return fail(engine.error());
  auto rows = measure(**engine, flags, *speculation);
  if (!rows.ok()) return fail(rows.error());
  if (flags.json) return print_and_exit_code(json_line({{"engine", (*engine)->description()}, {"rows", *rows}}) + "\n");
  return print_and_exit_code((*engine)->description() + "\n\n" + markdown(*rows));
}

int bench_kernels_command(Arguments arguments) {
  std::string device = "cuda";
  std::optional<std::string> only;
  bool json = false;
  FlagSet set("hunch bench kernels [flags]", "Times the kernels of a device alone.");
  set.value({"--device"}, "NAME", "the device (default cuda)", [&device](std::string_view, std::string_view text) -> Status {
    device = std::string(text);
    return {};
  });
  set.text({"--only"}, "GROUP", "attention, products or rows (default: all)", only);
  set.toggle({"--json"}, "print JSON", [&json] { json = true; });
  if (const Status status = set.parse(arguments); !status.ok()) return fail(status.error());
  if (set.help_wanted()) return print_and_exit_code(set.help());
  const auto* part = Register<Backend>::find(device);
  if (!part) return fail(usage_error(fmt::format("unknown device '{}'; known: {}", device, Register<Backend>::names())));
  auto backend = part->make({});
  if (!backend.ok()) return fail(backend.error());
  const auto rows = (*backend)->bench_kernels(only.value_or(""));
  if (rows.empty()) return fail(usage_error(fmt::format("the device '{}' has no kernels to time alone", device)));
  const double ceiling = rows[0].bytes / (rows[0].ms * 1e-3);
  ordered_json all;
  std::string text = (*backend)->description() + "\n";
  for (const KernelRow& row : rows) {
    const double rate = row.bytes / (row.ms * 1e-3);
    all.push_back({{"name", row.name},
                   {"ms", row.ms},
                   {"bytes", row.bytes},
                   {"flops", row.flops},
                   {"of_read", rate / ceiling},
                   {"note", row.note}});
    text += fmt::format("{:58} {:9.4f} ms  {:7.3f} TB/s  {:5.1f} %  {:7.1f} TFLOP/s  {}\n", row.name, row.ms, rate * 1e-12,
                        100 * rate / ceiling, row.flops / (row.ms * 1e-3) * 1e-12, row.note);
  }
  return print_and_exit_code(json ? json_line({{"engine", (*backend)->description()}, {"rows", all}}) + "\n" : text);
}

}  // namespace hunch
