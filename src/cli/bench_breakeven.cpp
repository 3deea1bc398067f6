// hunch bench breakeven. The passes it times go into the table of costs that the planner reads.
#include "cli/bench.h"
#include "cli/generating.h"
#include "cli/report.h"
#include "engine/engine_costs.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

struct BreakEvenFlags {
  ModelFlags model;
  SpeculationFlags speculation;
  std::vector<int64_t> depths{512, 4096, 16384, 28672}, batches{1, 4, 16}, rows{2, 4, 8, 12, 16};
  int64_t repeats = 7;
  bool json = false, keep = true;
};

void add_flags(FlagSet& set, BreakEvenFlags& flags) {
  set.group("What to measure");
  add_list(set, {"-d", "--depths"}, "context depths (default 512,4096,16384,28672)", {64, 1 << 24}, flags.depths);
  add_list(set, {"--batches"}, "requests in a step (default 1,4,16)", {1, 64}, flags.batches);
  add_list(set, {"--rows"}, "rows of the verify passes timed, 2..64 (default 2,4,8,12,16)", {2, 64}, flags.rows);
  set.whole({"-r", "--repetitions"}, "repetitions, 1..1000 (default 7)", {1, 1000}, flags.repeats);
  set.toggle({"--no-keep"}, "do not store what was measured for later runs", flags.keep, false);
  set.group("Output");
  add_format_flag(set, flags.json);
}

ordered_json row_of(const CostTable& table, const Arm& self, const Arm& lookup, int64_t context, int batch) {
  const double entries = context;
  const auto acceptance = [](const BreakEven& at) { return at.possible ? ordered_json(at.acceptance) : ordered_json(); };
  const BreakEven at = break_even(table, self, entries, batch);
  int gamma = 0;
  const double gain = best_gain(table, self, entries, batch, 0.9, gamma);
  return {
      {"context", context},
      {"batch", batch},
      {"plain_ms", table.verify.ms({.rows = double(batch), .sequences = batch, .entries = entries * batch})},
      {"self_pays_from", acceptance(at)},
      {"with_gamma", at.possible ? ordered_json(at.gamma) : ordered_json()},
      {"lookup_pays_from", acceptance(break_even(table, lookup, entries, batch))},
      {"self_at_0.9", gain},
      {"best_gamma_at_0.9", gamma},
  };
}

std::string markdown(const std::vector<ordered_json>& rows) {
  std::string out =
      "| context | batch | plain, ms | self pays from | with gamma | lookup pays from | self at 0.9 | best gamma at 0.9 |\n"
      "|---|---|---|---|---|---|---|---|\n";
  const auto number = [](const ordered_json& v) {
    return v.is_null()          ? "never"
        : v.is_number_integer() ? fmt::format("{}", v.get<int64_t>())
                                : fmt::format("{:.2f}", v.get<double>());
  };
  for (const ordered_json& row : rows) {
    for (const auto& [name, value] : row.items()) out += "| " + number(value) + " ";
    out += "|\n";
  }
  return out;
}

Result<int> run(Engine& engine, const BreakEvenFlags& flags, const SpeculationOptions& speculation) {
  EngineParts& parts = engine.parts();
  HUNCH_TRY(const RequestPlan plan, plan_for(engine, speculation, speculation.num_tokens));
  const CostKey key = cost_key(parts);
  const std::string path = cache_path("costs", key);
  CostTable table(cost_priors(parts, plan));
  if (flags.keep)
    if (const Status status = table.load(path, key); !status.ok()) note(status.error().message);
  HUNCH_OK(measure_costs(parts, plan, flags.depths, flags.rows, int(flags.repeats), table));
  if (flags.keep) {
    const Status status = table.save(path, key);
    note(status.ok() ? fmt::format("what was measured is kept for later runs: {}", path) : status.error().message);
  }

  const Arm self{
      .name = "self",
      .passes = true,
      .draft_kind = 0,
      .ratio = plan.policy.ratio,
      .min_entries = double(plan.policy.min_tokens),
  };
  const Arm lookup{.name = "lookup"};
  std::vector<ordered_json> rows;
  for (const int64_t context : flags.depths)
    for (const int64_t batch : flags.batches)
      if (context < engine.context_len()) rows.push_back(row_of(table, self, lookup, context, int(batch)));
  if (flags.json)
    return print_json_and_exit_code({{"engine", engine.description()}, {"draft", draft_kind_name(plan)}, {"rows", rows}});
  return print_and_exit_code(fmt::format(
      "{}; drafts {}\n\n{}\nAcceptance: of a drafted token, given that all before it were accepted. Lookup: guesses that cost no "
      "passes (n-gram, suffix).\nBatches above 1 are computed from terms fitted to passes of one request.\n",
      engine.description(), draft_kind_name(plan), markdown(rows)));
}

}

Result<int> bench_breakeven_command(Arguments arguments) {
  BreakEvenFlags flags;
  FlagSet set("hunch bench breakeven [flags]",
      "Times plain, verify, draft and selecting passes, and prints from which acceptance on guessing is faster than plain "
      "decoding, by context and batch.");
  add_flags(set, flags);
  add_model_flags(set, flags.model);
  add_speculation_flags(set, flags.speculation);
  if (const auto ended = parsed(set, arguments)) return *ended;
  HUNCH_TRY(auto speculation, resolve_speculation(flags.speculation));
  HUNCH_TRY(auto options, engine_options(flags.model, &flags.speculation));
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(options, progress));
  return run(*engine, flags, speculation);
}

}
