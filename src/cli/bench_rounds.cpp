// hunch bench rounds, on a model file or random weights of a known shape. Acceptance is given, so every line says "synthetic".
// hunch bench kernels: kernels of a device alone against what its memory gives.
#include <fmt/ranges.h>

#include "checkpoint/random_checkpoint.h"
#include "cli/bench.h"
#include "cli/generating.h"
#include "cli/report.h"
#include "engine/bench.h"
#include "engine/defaults.h"
#include "engine/round_bench.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

struct RoundFlags {
  ModelFlags model;
  SamplingFlags sampling;
  SpeculationFlags speculation;
  std::vector<int64_t> batches{1}, depths{4096}, gammas{7};
  std::vector<double> acceptance, ratios;
  std::vector<std::string> policies;  // by the names of bench accept; empty: what the speculation flags say
  int64_t rounds = 8;
  bool json = false;
};

void add_flags(FlagSet& set, RoundFlags& flags) {
  set.group("What to measure");
  add_random_flags(set, flags.model);
  add_list(set, {"-np", "--parallel"}, "requests at once (default 1)", {1, 1024}, flags.batches, 2);
  add_list(set, {"-d", "--depths", "--n-depth"}, "entries in the cache of each (default 4096)", {64, 1 << 24}, flags.depths, 2);
  add_list(set, {"--gammas"}, "drafts a round; with --tree so many on a path (default 7)", {1, 64}, flags.gammas);
  set.value({"--synthetic-acceptance"}, "LIST",
      "chance that a draft is kept if those before it were, by position; the last one goes on (default 0.9)",
      set_numbers(flags.acceptance, {0, 1}));
  set.value({"--policies"}, "LIST", "several policies, by the names of bench accept (default: what the flags below say)",
      [&flags](auto, auto text) { return parse_policies(text, flags.policies); });
  set.value({"--ratios"}, "LIST", "with --policies: shares of the KV cache that guesses read (default: 0.07, default's own 0.03)",
      set_numbers(flags.ratios, {0, 1, true}));
  set.whole({"--rounds"}, "rounds timed, 1..1000 (default 8)", {1, 1000}, flags.rounds);
  set.group("Output");
  add_format_flag(set, flags.json);
}

// Bytes a second that reading memory reaches on this backend; 0 where nobody knows.
double read_ceiling(Backend& backend) {
  if (!backend.asynchronous()) return streaming_read_ceiling(backend.threads(), size_t(1) << 30, 5);
  for (const KernelRow& row : backend.bench_kernels("ceiling"))
    if (row.name == "ceiling: read") return row.bytes / (row.ms * 1e-3);
  return 0;
}

// What guesses, and its name in the rows.
struct Guesser {
  std::string policy;
  SpeculationOptions options;
};

Result<std::vector<Guesser>> guessers(const RoundFlags& flags, const SpeculationOptions& speculation) {
  if (flags.policies.empty()) return std::vector<Guesser>{{speculation.policy, speculation}};
  std::vector<Guesser> out;
  for (const std::string& policy : flags.policies) {
    HUNCH_TRY(SpeculationOptions options, named_policy(policy));
    if (options.proposer != "self") return usage_error("--policies: {} is no policy of method self", policy);
    for (const double ratio : flags.ratios.empty() ? std::vector<double>{named_ratio(policy)} : flags.ratios) {
      options.ratio = ratio;
      out.push_back({policy, options});
    }
  }
  return out;
}

double ratio_of(const SpeculationOptions& options) {
  return options.policy == "full" ? 0 : options.ratio > 0 ? options.ratio : defaults::kRatio;
}

ordered_json row_of(const char* what, int64_t batch, int64_t depth, int gamma, const Guesser& guesser, const RoundCost& cost,
    double plain_ms, double ceiling) {
  const BackendCounters& c = cost.per_round;
  const double bytes = double(c.weight_bytes + c.kv_bytes + c.score_bytes + c.gather_bytes);
  const double bound = ceiling > 0 ? bytes / ceiling * 1e3 : 0;
  ordered_json row{
      {"what", what},
      {"synthetic", true},
      {"lossless", guesser.options.lossless()},
      {"batch", batch},
      {"depth", depth},
      {"rule", guesser.options.rule.empty() ? "match" : guesser.options.rule},
      {"policy", gamma > 0 ? ordered_json(guesser.policy) : ordered_json()},
      {"ratio", gamma > 0 ? ordered_json(ratio_of(guesser.options)) : ordered_json()},
      {"gamma", gamma},
      {"beside", gamma > 0 ? guesser.options.tree_tokens : 0},
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
      {"waits", c.waits},
  };
  if (c.experts_read > 0) row["experts"] = c.experts_read;
  return row;
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
          : value.is_boolean()       ? fmt::format("| {} ", value.get<bool>() ? name : "LOSSY")
          : value.is_null()          ? "| "
          : value.is_string()        ? fmt::format("| {} ", value.get<std::string>())
                                     : fmt::format("| {} ", value.get<int64_t>());
    out += "|\n";
  }
  return out;
}

Result<std::vector<ordered_json>> measure(Engine& engine, const RoundFlags& flags, const std::vector<Guesser>& all) {
  EngineParts& parts = engine.parts();
  const double ceiling = read_ceiling(*parts.backend);
  const int64_t most = std::ranges::max(flags.gammas);
  Request request = request_of(flags.sampling, {});
  std::vector<ordered_json> rows;
  for (const int64_t depth : flags.depths)
    for (const int64_t batch : flags.batches) {
      double plain_ms = 0;
      for (const Guesser& guesser : all) {
        request.speculation = guesser.options;
        if (request.speculation.proposer == "auto") request.speculation.proposer = "self";
        if (request.speculation.rule.empty()) request.speculation.rule = "match";
        HUNCH_TRY(auto bench,
            RoundBench::make(parts, request,
                {.batch = int(batch),
                    .gamma = int(most),
                    .beside = guesser.options.tree_tokens,
                    .rounds = int(flags.rounds),
                    .depth = depth,
                    .acceptance = flags.acceptance}));
        if (plain_ms == 0) {  // once: it reads no selection
          HUNCH_TRY(const RoundCost plain, bench->run(0, int(flags.rounds)));
          plain_ms = plain.round_ms;
          rows.push_back(row_of("plain", batch, depth, 0, guesser, plain, plain_ms, ceiling));
        }
        for (const int64_t gamma : flags.gammas) {
          HUNCH_TRY(const RoundCost cost, bench->run(int(gamma), int(flags.rounds)));
          rows.push_back(row_of("round", batch, depth, int(gamma), guesser, cost, plain_ms, ceiling));
        }
      }
    }
  return rows;
}

}

void add_random_flags(FlagSet& set, ModelFlags& flags) {
  flags.random_type = "bf16";
  set.text({"--random"}, "NAME",
      fmt::format("random weights of a known shape: {}, or the path of a config.json", fmt::join(random_model_names(), ", ")),
      flags.random);
  set.choice({"--random-type"}, "TYPE", "type of those weights (default bf16; experts of gpt-oss are MXFP4)",
      {"bf16", "f16", "q8_0", "q4_0"}, flags.random_type);
}

Result<int> bench_rounds_command(Arguments arguments) {
  RoundFlags flags;
  FlagSet set("hunch bench rounds [flags]",
      "Times plain steps and rounds of drafting and verifying at a depth filled with noise. The acceptance is synthetic: "
      "given, not found.");
  add_flags(set, flags);
  add_model_flags(set, flags.model);
  flags.sampling = {.temperature = 0.8, .top_p = 0.95, .top_k = 20, .seed = 1};
  add_sampling_flags(set, flags.sampling);
  add_speculation_flags(set, flags.speculation);
  if (const auto ended = parsed(set, arguments)) return *ended;
  if (flags.acceptance.empty()) flags.acceptance = {0.9};
  HUNCH_TRY(auto speculation, resolve_speculation(flags.speculation));
  if (flags.policies.empty() && !flags.ratios.empty()) return usage_error("--ratios goes with --policies; else --ratio");
  HUNCH_TRY(auto all, guessers(flags, speculation));
  HUNCH_TRY(auto options, engine_options(flags.model, &flags.speculation));
  // Pages for the largest case, and no more.
  const int64_t batch = std::ranges::max(flags.batches);
  const int64_t depth = std::ranges::max(flags.depths);
  const int64_t gamma = std::ranges::max(flags.gammas);
  int64_t nodes = gamma, growth = 0;
  for (const Guesser& guesser : all) {
    nodes = std::max(nodes, gamma + guesser.options.tree_tokens);
    if (guesser.options.proposer != "self") growth = RoundBench::growth(int(gamma), int(flags.rounds));
  }
  options.max_num_seqs = int(batch);
  options.context_len = (depth + nodes + 2 + growth + 63) / 64 * 64;
  if (options.kv_memory_bytes == 0) options.kv_memory_bytes = int64_t(1) << 62;  // what they need, all of them
  options.prefix_caching = false;
  options.max_num_batched_tokens = int(std::max<int64_t>(batch * (nodes + 1), 512 + batch));
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(options, progress));
  HUNCH_TRY(auto rows, measure(*engine, flags, all));
  if (flags.json) return print_json_and_exit_code({{"engine", engine->description()}, {"rows", rows}});
  return print_and_exit_code(engine->description() + "\n\n" + markdown(rows));
}

Result<int> bench_kernels_command(Arguments arguments) {
  std::string device = "cuda";
  std::optional<std::string> only;
  bool json = false;
  FlagSet set("hunch bench kernels [flags]", "Times the kernels of a device alone.");
  set.text({"--device"}, "NAME", "the device (default cuda)", device);
  set.text({"--only"}, "GROUP", "attention, products, experts or top-k (default: all), or nsa", only);
  set.toggle({"--json"}, "print JSON", json);
  if (const auto ended = parsed(set, arguments)) return *ended;
  const auto* part = Register<Backend>::find(device);
  if (!part) return usage_error("unknown device '{}'; known: {}", device, Register<Backend>::names());
  HUNCH_TRY(auto backend, part->make({}));
  const auto rows = backend->bench_kernels(only.value_or(""));
  if (rows.empty()) return usage_error("the device '{}' has no kernels to time alone", device);
  const double ceiling = rows[0].bytes / (rows[0].ms * 1e-3);
  ordered_json all;
  std::string text = backend->description() + "\n";
  for (const KernelRow& row : rows) {
    const double rate = row.bytes / (row.ms * 1e-3);
    all.push_back({{"name", row.name}, {"ms", row.ms}, {"bytes", row.bytes}, {"flops", row.flops}, {"of_read", rate / ceiling},
        {"note", row.note}});
    text += fmt::format("{:58} {:9.4f} ms  {:7.3f} TB/s  {:5.1f} %  {:7.1f} TFLOP/s  {}\n", row.name, row.ms, rate * 1e-12,
        100 * rate / ceiling, row.flops / (row.ms * 1e-3) * 1e-12, row.note);
  }
  return print_and_exit_code(json ? json_line({{"engine", backend->description()}, {"rows", all}}) + "\n" : text);
}

}
