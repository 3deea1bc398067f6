// hunch bench accept, over a file of prompts (bench_prompts.h). Beside the means stands how often each position was reached and
// kept, of which tokens a round follow for any shorter chain.
#include "api/drafter_paths.h"
#include "cli/bench.h"
#include "cli/bench_prompts.h"
#include "cli/generating.h"
#include "cli/report.h"
#include "engine/approximation.h"
#include "engine/defaults.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;
using Numbers = std::vector<double>;

// Which side of the norms a prediction module reads (proposers/mtp.cpp): of the target's state, and of its own.
struct NormSides {
  std::string feed, recycle;
};

struct AcceptFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::optional<std::string> file;
  std::vector<int64_t> contexts, seeds{1};
  std::vector<std::string> policies;  // empty: the drafters that are loaded, else two of the study's
  std::vector<std::string> drafters;  // paths
  std::vector<NormSides> mtp_norms;   // empty: as the drafter is loaded by default
  std::optional<int64_t> prompts, draft, min_tokens;
  Numbers ratios;        // empty: each policy's own
  SettingValues verify;  // of the settings of --verify, by their place in the table
  std::string rule = "ratio";
  bool speed = false, json = false;
};

// One way to guess, and what it came to.
struct Cell {
  std::string policy;
  double ratio = 0;
  int gamma = 0;
  Numbers per_prompt;  // tokens a round, mean over the seeds
  std::map<std::string, Numbers> by_kind;
  Numbers speedups, plain_speeds;  // per prompt, with --speed
  std::map<std::string, Numbers> speedups_by_kind;
  std::vector<int64_t> reached, accepted;  // by position
  int64_t drafted = 0, passes = 0;
  bool lossless = true;
  Approximation left_out;  // by checks, or by passes that drafted
};

double mean(const Numbers& values) { return mean_and_deviation(values).mean; }
double standard_error(const Numbers& values) {
  return mean_and_deviation(values).deviation / std::sqrt(std::max(1.0, double(values.size())));
}

void count(const Generation& g, Cell& cell) {
  const size_t gamma = g.drafted_by_position.size();
  cell.drafted += g.drafted, cell.passes += g.draft_passes, cell.lossless &= g.lossless;
  cell.left_out.add(g.lossless ? g.thinned : g.approximation);
  cell.reached.resize(std::max(cell.reached.size(), gamma)), cell.accepted.resize(std::max(cell.accepted.size(), gamma));
  for (size_t i = 0; i < gamma; ++i) {
    // Reached: drafted, and all before it accepted.
    cell.reached[i] += i == 0 ? g.drafted_by_position[0] : std::min(g.accepted_by_position[i - 1], g.drafted_by_position[i]);
    cell.accepted[i] += g.accepted_by_position[i];
  }
}

class Accept {
 public:
  // `rows` receives what was measured. `sides`: of the drafter's norms, where they are compared.
  Accept(Engine& engine, const AcceptFlags& flags, const NormSides* sides, ProgressLine& progress, ordered_json& rows)
      : engine_(engine), flags_(flags), sides_(sides), progress_(progress), rows_(rows) {}

  Result<int> run() {
    HUNCH_TRY(auto all, read_prompts(engine_.tokenizer(), *flags_.file, flags_.contexts));
    std::vector<int64_t> contexts = flags_.contexts;
    if (contexts.empty()) {
      for (const BenchPrompt& p : all)
        if (std::ranges::find(contexts, p.context) == contexts.end()) contexts.push_back(p.context);
      std::ranges::sort(contexts);
    }
    for (int64_t context : contexts) {
      std::vector<BenchPrompt> prompts;
      for (const BenchPrompt& p : all)
        if (p.context == context) prompts.push_back(p);
      const int64_t new_tokens = *flags_.sampling.max_tokens;
      prompts = dealt(std::move(prompts), flags_.prompts.value_or(0), engine_.context_len() - new_tokens - 80);
      if (prompts.empty()) {
        note(fmt::format("no prompts of context {}", context));
        continue;
      }
      HUNCH_OK(cells(context, prompts));
      if (interrupts_.stopped()) break;
    }
    return interrupts_.exit_code();
  }

 private:
  // Prompts outside, policies inside: a prompt is prefilled once.
  Status cells(int64_t context, const std::vector<BenchPrompt>& prompts) {
    std::vector<Cell> out;
    for (const std::string& policy : flags_.policies)
      for (const double ratio : flags_.ratios.empty() ? Numbers{named_ratio(policy)} : flags_.ratios) {
        Cell& cell = out.emplace_back();
        cell.policy = policy, cell.ratio = ratio;
      }
    for (const BenchPrompt& prompt : prompts) {
      for (Cell& cell : out) {
        HUNCH_OK(measure(prompt, cell));
        if (interrupts_.stopped()) return {};
      }
    }
    for (const Cell& cell : out) emit(context, std::ssize(prompts[0].ids), cell);
    return {};
  }

  // Seeds are averaged within a prompt first: prompts, not runs, are the sample.
  Status measure(const BenchPrompt& prompt, Cell& out) {
    HUNCH_TRY(SpeculationOptions speculation, named_policy(out.policy));
    speculation.num_tokens = gamma_of(out.policy, speculation);
    if (speculation.proposer == "self") {
      speculation.ratio = out.ratio;
      speculation.min_tokens = int(flags_.min_tokens.value_or(16));
    }
    speculation.rule = flags_.rule;
    for (const auto& [i, value] : flags_.verify) speculation_settings()[i].apply(value, speculation);
    Request request = request_of(flags_.sampling, speculation);
    request.ignore_eos = true;
    request.prompt = prompt.ids;
    request.cache_prompt = true;
    request.cache_salt = "bench";  // look-ups see no earlier run
    // Room behind the last token wanted, so that the last round drafts as long a chain as the others.
    const int64_t wanted = request.max_tokens;
    request.max_tokens += (speculation.num_tokens > 0 ? speculation.num_tokens : defaults::kDraftTokens) + 1;
    Numbers seeds, speedups, plain_speeds;
    for (int64_t seed : flags_.seeds) {
      request.sampling.seed = seed;
      const auto on_token = [&](const TokenEvent& event) { return progress_.clear(), event.index + 1 < wanted; };
      HUNCH_TRY(const Generation g, engine_.generate(request, on_token, interrupts_.flag()));
      if (interrupts_.stopped()) return {};
      seeds.push_back(g.mean_acceptance_length());
      count(g, out), out.gamma = g.gamma;
      if (!flags_.speed) continue;
      Request plain = request;  // right after it, on the same cache: what the machine does to one it does to the other
      plain.speculation = plain_decoding();
      HUNCH_TRY(const Generation p, engine_.generate(plain, on_token, interrupts_.flag()));
      if (interrupts_.stopped()) return {};
      plain_speeds.push_back(p.tokens_per_second());
      speedups.push_back(g.tokens_per_second() / p.tokens_per_second());
    }
    out.per_prompt.push_back(mean(seeds));
    out.by_kind[prompt.kind].push_back(mean(seeds));
    if (flags_.speed) {
      out.speedups.push_back(mean(speedups));
      out.plain_speeds.push_back(mean(plain_speeds));
      out.speedups_by_kind[prompt.kind].push_back(mean(speedups));
    }
    return {};
  }

  // The study's 7 and 7 %, or what `--spec self` means; 0: what the method means by itself.
  int gamma_of(const std::string& policy, const SpeculationOptions& named) const {
    if (named.num_tokens > 0) return named.num_tokens;
    if (flags_.draft) return int(*flags_.draft);
    return named.proposer != "self" ? 0 : policy.starts_with("default") ? defaults::kDraftTokens : 7;
  }
  void emit(int64_t context, int64_t length, const Cell& cell) {
    const std::string& policy = cell.policy;
    ordered_json row = {{"context", context}, {"length", length}, {"prompts", cell.per_prompt.size()},
        {"seeds", flags_.seeds.size()}, {"policy", policy}, {"rule", flags_.rule}, {"gamma", cell.gamma}, {"ratio", cell.ratio},
        {"mean_tokens_per_round", mean(cell.per_prompt)}, {"standard_error", standard_error(cell.per_prompt)}};
    const bool sides = sides_ && policy.starts_with("mtp");
    if (sides) row["mtp_feed_norm"] = sides_->feed, row["mtp_recycle_norm"] = sides_->recycle;
    std::string conditional, kinds;
    for (size_t i = 0; i < cell.reached.size(); ++i) {
      const double a = cell.reached[i] > 0 ? double(cell.accepted[i]) / cell.reached[i] : 0;
      row["conditional_acceptance"].push_back(a);
      conditional += fmt::format(" {:.2f}", a);
    }
    for (const auto& [kind, values] : cell.by_kind) {
      row["by_kind"][kind] = mean(values);
      kinds += fmt::format(" {} {:.2f}", kind.empty() ? "all" : kind, mean(values));
    }
    row["reached"] = cell.reached, row["kept"] = cell.accepted;
    row["per_prompt"] = cell.per_prompt;
    row["passes_per_draft"] = double(cell.passes) / double(std::max<int64_t>(1, cell.drafted));
    row["lossless"] = cell.lossless;
    if (cell.left_out.any()) row["left_out"] = approximation_json(cell.left_out);
    std::string speed = cell.lossless ? "" : "  " + approximation_text(cell.left_out) + "\n";
    if (flags_.speed) {
      row["plain_tokens_per_second"] = mean(cell.plain_speeds);
      row["speedup"] = mean(cell.speedups);
      speed +=
          fmt::format("  {:.2f} times plain decoding's {:.1f} tokens/s; by kind:", mean(cell.speedups), mean(cell.plain_speeds));
      for (const auto& [kind, values] : cell.speedups_by_kind) {
        row["speedup_by_kind"][kind] = mean(values);
        speed += fmt::format(" {} {:.2f}", kind.empty() ? "all" : kind, mean(values));
      }
      speed += "\n";
    }
    rows_.push_back(row);
    if (flags_.json) return;
    progress_.clear();
    write_stdout(fmt::format(
        "context {} ({} prompts of {} tokens)  {}, ratio {}{}\n  {:.3f} +- {:.3f} tokens a round; by kind:{}\n  conditional "
        "acceptance:{}\n{}",
        context, cell.per_prompt.size(), length, policy, cell.ratio,
        sides ? fmt::format("  feed norm {}, recycle norm {}", sides_->feed, sides_->recycle) : "", mean(cell.per_prompt),
        standard_error(cell.per_prompt), kinds, conditional, speed));
  }

  Engine& engine_;
  const AcceptFlags& flags_;
  const NormSides* sides_;
  ProgressLine& progress_;
  InterruptScope interrupts_;
  ordered_json& rows_;
};

// "all", or a list of pairs: of the target's state, of the module's own.
Status parse_norms(std::string_view flag, std::string_view text, std::vector<NormSides>& out) {
  static constexpr std::string_view kPairs[] = {"post-post", "post-pre", "pre-post", "pre-pre"};
  out.clear();
  const auto add = [&](std::string_view pair) {
    const size_t dash = pair.find('-');
    out.push_back({std::string(pair.substr(0, dash)), std::string(pair.substr(dash + 1))});
  };
  if (text == "all") {
    for (const std::string_view pair : kPairs) add(pair);
    return {};
  }
  return each_item(text, [&](auto item) -> Status {
    HUNCH_TRY(const std::string pair, parse_choice(flag, item, kPairs));
    add(pair);
    return {};
  });
}

// What to measure where it was not said, and the drafters that it takes.
Status settle(AcceptFlags& flags, EngineOptions& options) {
  HUNCH_TRY(options.drafters, open_drafters(flags.drafters, "", std::nullopt));
  if (flags.policies.empty() && !flags.mtp_norms.empty()) flags.policies = {"mtp"};
  if (flags.policies.empty())
    for (const DrafterOptions& drafter : options.drafters) flags.policies.push_back(drafter.method);
  if (flags.policies.empty()) flags.policies = {"streamingllm", "vegas-dweight-all-max-perkv-spread16"};
  bool module = false;
  for (const std::string& policy : flags.policies) {
    HUNCH_TRY(const SpeculationOptions speculation, named_policy(policy));
    // The prediction module lies in the model's own checkpoint, unless a path says otherwise.
    const bool loaded =
        std::ranges::any_of(options.drafters, [&](const DrafterOptions& d) { return d.method == speculation.proposer; });
    if (speculation.proposer == "mtp" && !loaded) options.drafters.push_back({.method = "mtp"});
    module |= speculation.proposer == "mtp";
    HUNCH_OK(check_drafter(speculation.proposer, options.drafters));
  }
  if (!flags.mtp_norms.empty() && !module) return usage_error("--mtp-norms compares forms of method mtp: add it to --policies");
  return {};
}

void add_accept_flags(FlagSet& set, AcceptFlags& flags) {
  set.positional(
      "FILE", true, "prompts: a JSON object a line with \"text\", and optionally \"kind\" and \"context\"", flags.file);
  set.group("What to measure");
  add_list(set, {"--contexts"}, "values of \"context\" to take (default: all)", {0, 1 << 24}, flags.contexts);
  add_list(set, {"--seeds"}, "seeds, each a run of every prompt (default 1)", {0, 0x1p62}, flags.seeds);
  set.value({"--policies"}, "LIST",
      "default, streamingllm, full, quest-perkv, vegas-logit, vegas-weight-all, vegas-dweight-all-max-perkv-spread16, ... "
      "(weight: true weights; dweight: by the drafts' log-sum-exp); or methods: auto, ngram, suffix, "
      "cascade, staged, eagle3, mtp-5 (five drafts), eagle3-5-tree54 (and 54 tokens beside them), ...",
      [&flags](auto, auto v) { return parse_policies(v, flags.policies); });
  set.value({"-md", "--model-draft"}, "PATH", "a drafter to load; may be repeated (default --policies: those that are loaded)",
      append_path(flags.drafters));
  set.value({"--mtp-norms"}, "LIST",
      "method mtp with these sides of its norms, of the target's state and of its own: post-post,pre-post, ... or all",
      [&flags](auto flag, auto v) { return parse_norms(flag, v, flags.mtp_norms); });
  set.whole({"--n", "--prompts"}, "prompts per context, one per kind in turn (default: all)", {1, 1 << 20}, flags.prompts);
  set.whole({"--draft"}, "tokens guessed per round, 1..64 (default 7; of policy default: its own)", {1, 64}, flags.draft);
  set.value({"--ratio", "--ratios"}, "LIST",
      "shares of the KV cache that guesses read (default 0.07; of policy default: its own)",
      set_numbers(flags.ratios, {0, 1, true}));
  set.whole({"--min-tokens"}, "least entries that guesses read (default 16)", {1, 1 << 24}, flags.min_tokens);
  set.choice({"--rule"}, "RULE", "ratio (default) or match", {"match", "ratio"}, flags.rule);
  for (size_t i = 0; i < speculation_settings().size(); ++i)
    if (const SpeculationSetting& setting = speculation_settings()[i]; setting.flag.starts_with("--verify"))
      set.value(
          {setting.flag}, setting.value_name, std::string(setting.about), [&flags, &setting, i](auto flag, auto value) -> Status {
            HUNCH_TRY(flags.verify[i], parse_setting(setting, flag, value));
            return {};
          });
  set.toggle({"--speed"}, "also decode plainly, and print the speed over that", flags.speed);
  set.toggle({"--json"}, "print one JSON object and nothing else on stdout", flags.json);
  add_model_flags(set, flags.model);
  add_sampling_flags(set, flags.sampling);
}

}

Result<int> bench_accept_command(Arguments arguments) {
  AcceptFlags flags;
  // The published tables are at temperature 0.8 and no other filter, not at the model's defaults.
  flags.sampling = {.temperature = 0.8, .top_p = 1, .min_p = 0, .top_k = 0, .seed = {}, .max_tokens = 96, .ignore_eos = true};
  FlagSet set("hunch bench accept FILE [flags]",
      "Tokens a round emits, the corrected or bonus token included: mean over the prompts and its standard error, by "
      "context and policy, with the acceptance of each position given that all before it were accepted.");
  add_accept_flags(set, flags);
  if (const auto ended = parsed(set, arguments)) return *ended;
  if (flags.sampling.max_tokens < 1) return usage_error("bench accept needs -n 1 or more");
  HUNCH_TRY(auto options, engine_options(flags.model));
  HUNCH_OK(settle(flags, options));
  ordered_json rows = ordered_json::array();
  const size_t forms = std::max<size_t>(1, flags.mtp_norms.size());
  int code = 0;
  for (size_t i = 0; i < forms && code == 0; ++i) {
    const NormSides* sides = flags.mtp_norms.empty() ? nullptr : &flags.mtp_norms[i];
    for (DrafterOptions& drafter : options.drafters)
      if (sides && drafter.method == "mtp") drafter.feed_norm = sides->feed, drafter.recycle_norm = sides->recycle;
    ProgressLine progress;
    HUNCH_TRY(auto engine, load_engine(options, progress));
    HUNCH_TRY(code, Accept(*engine, flags, sides, progress, rows).run());
  }
  if (flags.json && code != 1 && code != 2) write_stdout(json_line({{"rows", rows}}) + "\n");
  return code;
}

}
