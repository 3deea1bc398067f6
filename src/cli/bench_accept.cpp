// hunch bench accept FILE: how many tokens a round emits, by policy and context, over a file of prompts (a JSON object a line
// with `text`, and optionally `kind`, `context`, `id`). Figures are means over prompts, as the published tables of such policies
// are.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "checkpoint/drafter_method.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/generating.h"
#include "cli/report.h"
#include "engine/defaults.h"
#include "model/skipped_layers.h"
#include "sparse/policy.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

struct AcceptFlags {
  ModelFlags model;
  SamplingFlags sampling;
  SpeculationFlags drafters;  // --model-draft alone
  std::optional<std::string> file;
  std::vector<int64_t> contexts, seeds{1};
  std::vector<std::string> policies{"streamingllm", "vegas-dweight-all-max-perkv-spread16"};
  std::optional<int64_t> prompts, draft, min_tokens;
  std::optional<double> ratio;
  std::string rule = "ratio";
  bool speed = false, json = false;
};

struct Prompt {
  std::string kind;
  int64_t context = 0;
  std::vector<int32_t> ids;
};

Result<std::vector<Prompt>> read_prompts(const Engine& engine, const AcceptFlags& flags) {
  HUNCH_TRY(const std::string text, read_text_file(*flags.file));
  std::vector<Prompt> out;
  int line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1, ++line_number;
    if (line.empty()) continue;
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || !object.contains("text") || !object["text"].is_string())
      return Error{fmt::format("{}: line {} is not a JSON object with a \"text\"", *flags.file, line_number)};
    Prompt prompt;
    if (object.contains("kind") && object["kind"].is_string()) prompt.kind = object["kind"].get<std::string>();
    if (object.contains("context") && object["context"].is_number_integer()) prompt.context = object["context"].get<int64_t>();
    if (!flags.contexts.empty() &&
        std::find(flags.contexts.begin(), flags.contexts.end(), prompt.context) == flags.contexts.end())
      continue;
    HUNCH_TRY(prompt.ids, engine.tokenizer().encode(object["text"].get_ref<const std::string&>()));
    out.push_back(std::move(prompt));
  }
  if (out.empty()) return Error{fmt::format("{}: no prompts of the contexts asked for", *flags.file)};
  return out;
}

// One per kind in turn, in the file's order; then all cut to the shortest, keeping the end: what is compared has one length.
std::vector<Prompt> dealt(std::vector<Prompt> prompts, int64_t most, int64_t room) {
  std::vector<std::string> kinds;
  std::map<std::string, std::vector<Prompt>> by_kind;
  for (Prompt& p : prompts) {
    if (!by_kind.contains(p.kind)) kinds.push_back(p.kind);
    by_kind[p.kind].push_back(std::move(p));
  }
  std::vector<Prompt> out;
  for (size_t turn = 0, taken = 1; taken > 0; ++turn) {
    taken = 0;
    for (const std::string& kind : kinds)
      if (turn < by_kind[kind].size()) out.push_back(by_kind[kind][turn]), ++taken;
  }
  if (most > 0 && int64_t(out.size()) > most) out.resize(size_t(most));
  int64_t shortest = room;
  for (const Prompt& p : out) shortest = std::min(shortest, int64_t(p.ids.size()));
  for (Prompt& p : out) p.ids.erase(p.ids.begin(), p.ids.end() - ptrdiff_t(shortest));
  return out;
}

struct Cell {
  std::vector<double> per_prompt;  // tokens a round, mean over the seeds
  std::map<std::string, std::vector<double>> by_kind;
  std::vector<double> speedups, plain_speeds;  // per prompt, with --speed
  std::map<std::string, std::vector<double>> speedups_by_kind;
  std::vector<int64_t> reached, accepted;  // by position
  int64_t drafted = 0, passes = 0;
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v;
  return values.empty() ? 0 : sum / double(values.size());
}
double standard_error(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  double square = 0;
  for (double v : values) square += (v - mean(values)) * (v - mean(values));
  return std::sqrt(square / double(values.size() - 1) / double(values.size()));
}

void count(const Generation& g, Cell& cell) {
  const size_t gamma = g.drafted_by_position.size();
  cell.drafted += g.drafted, cell.passes += g.draft_passes;
  cell.reached.resize(std::max(cell.reached.size(), gamma)), cell.accepted.resize(std::max(cell.accepted.size(), gamma));
  for (size_t i = 0; i < gamma; ++i) {
    // Reached: drafted, and all before it accepted.
    cell.reached[i] += i == 0 ? g.drafted_by_position[0] : std::min(g.accepted_by_position[i - 1], g.drafted_by_position[i]);
    cell.accepted[i] += g.accepted_by_position[i];
  }
}

// Whether a name is a method, not a policy of `self`: eagle3, eagle3-5 (five drafts), eagle3-5-tree10 (and ten beside them).
bool guesses_by_itself(std::string_view name) {
  const std::string_view method = name.substr(0, name.find('-'));
  return is_drafter_method(method) || method == "auto" || method == "ngram" || method == "suffix" || method == "cascade";
}

Result<SpeculationOptions> named_method(std::string_view name) {
  SpeculationOptions o;
  size_t at = std::min(name.find('-'), name.size());
  o.proposer = name.substr(0, at);
  while (at < name.size()) {
    const size_t end = std::min(name.find('-', at + 1), name.size());
    const std::string_view word = name.substr(at + 1, end - at - 1);
    const bool tree = word.starts_with("tree");
    HUNCH_TRY(const int64_t tokens, parse_whole(name, word.substr(tree ? 4 : 0), {1, 255}));
    (tree ? o.tree_tokens : o.num_tokens) = int(tokens);
    at = end;
  }
  return o;
}

class Accept {
 public:
  Accept(Engine& engine, const AcceptFlags& flags, ProgressLine& progress)
      : engine_(engine), flags_(flags), progress_(progress) {}

  int run() {
    auto all = read_prompts(engine_, flags_);
    if (!all.ok()) return fail(all.error());
    std::vector<int64_t> contexts = flags_.contexts;
    if (contexts.empty()) {
      for (const Prompt& p : *all)
        if (std::find(contexts.begin(), contexts.end(), p.context) == contexts.end()) contexts.push_back(p.context);
      std::sort(contexts.begin(), contexts.end());
    }
    for (int64_t context : contexts) {
      std::vector<Prompt> prompts;
      for (const Prompt& p : *all)
        if (p.context == context) prompts.push_back(p);
      const int64_t new_tokens = *flags_.sampling.max_tokens;
      prompts = dealt(std::move(prompts), flags_.prompts.value_or(0), engine_.context_len() - new_tokens - 80);
      if (prompts.empty()) {
        note(fmt::format("no prompts of context {}", context));
        continue;
      }
      const Status status = cells(context, prompts);
      if (!status.ok()) return fail(status.error());
      if (interrupts_.stopped()) break;
    }
    if (flags_.json) write_stdout(json_line({{"rows", rows_}}) + "\n");
    return interrupts_.exit_code();
  }

 private:
  // Prompts outside, policies inside: a prompt is prefilled once and its entries are reused by every run over it.
  Status cells(int64_t context, const std::vector<Prompt>& prompts) {
    std::vector<Cell> out(flags_.policies.size());
    for (const Prompt& prompt : prompts) {
      for (size_t i = 0; i < out.size(); ++i) {
        HUNCH_OK(measure(prompt, flags_.policies[i], out[i]));
        if (interrupts_.stopped()) return {};
      }
    }
    for (size_t i = 0; i < out.size(); ++i) emit(context, flags_.policies[i], int64_t(prompts[0].ids.size()), out[i]);
    return {};
  }

  // Seeds are averaged within a prompt first: prompts, not runs, are the sample.
  Status measure(const Prompt& prompt, const std::string& policy, Cell& out) {
    HUNCH_TRY(SpeculationOptions speculation, named_policy(policy));
    speculation.num_tokens = gamma_of(policy, speculation);
    speculation.rule = flags_.rule;
    if (speculation.proposer == "self") {
      speculation.ratio = ratio_of(policy);
      speculation.min_tokens = int(flags_.min_tokens.value_or(16));
    }
    Request request = request_of(flags_.sampling, speculation);
    request.ignore_eos = true;
    request.prompt = prompt.ids;
    request.cache_prompt = true;
    // Room behind the last token wanted, so that the last round drafts as long a chain as the others.
    const int64_t wanted = request.max_tokens;
    request.max_tokens += speculation.num_tokens + 1;
    std::vector<double> seeds, speedups, plain_speeds;
    for (int64_t seed : flags_.seeds) {
      request.sampling.seed = uint64_t(seed);
      const auto on_token = [&](const TokenEvent& event) { return progress_.clear(), event.index + 1 < wanted; };
      HUNCH_TRY(const Generation g, engine_.generate(request, on_token, interrupts_.flag()));
      if (interrupts_.stopped()) return {};
      seeds.push_back(g.mean_acceptance_length());
      count(g, out);
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
    return guesses_by_itself(policy) ? 0 : policy.starts_with("default") ? defaults::kDraftTokens : 7;
  }
  double ratio_of(const std::string& policy) const {
    return flags_.ratio.value_or(policy.starts_with("default") ? defaults::kRatio : 0.07);
  }

  void emit(int64_t context, const std::string& policy, int64_t length, const Cell& cell) {
    ordered_json row = {{"context", context},
                        {"length", length},
                        {"prompts", cell.per_prompt.size()},
                        {"seeds", flags_.seeds.size()},
                        {"policy", policy},
                        {"rule", flags_.rule},
                        {"gamma", gamma_of(policy, named_policy(policy).value())},
                        {"ratio", ratio_of(policy)},
                        {"mean_tokens_per_round", mean(cell.per_prompt)},
                        {"standard_error", standard_error(cell.per_prompt)}};
    std::string conditional, kinds;
    for (size_t i = 0; i < cell.reached.size(); ++i) {
      const double a = cell.reached[i] > 0 ? double(cell.accepted[i]) / double(cell.reached[i]) : 0;
      row["conditional_acceptance"].push_back(a);
      conditional += fmt::format(" {:.2f}", a);
    }
    for (const auto& [kind, values] : cell.by_kind) {
      row["by_kind"][kind] = mean(values);
      kinds += fmt::format(" {} {:.2f}", kind.empty() ? "all" : kind, mean(values));
    }
    row["per_prompt"] = cell.per_prompt;
    row["passes_per_draft"] = double(cell.passes) / double(std::max<int64_t>(1, cell.drafted));
    std::string speed;
    if (flags_.speed) {
      row["plain_tokens_per_second"] = mean(cell.plain_speeds);
      row["speedup"] = mean(cell.speedups);
      speed =
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
    write_stdout(
        fmt::format("context {} ({} prompts of {} tokens)  {}\n  {:.3f} +- {:.3f} tokens a round; by kind:{}\n  conditional "
                    "acceptance:{}\n{}",
                    context, cell.per_prompt.size(), length, policy, mean(cell.per_prompt), standard_error(cell.per_prompt),
                    kinds, conditional, speed));
  }

  Engine& engine_;
  const AcceptFlags& flags_;
  ProgressLine& progress_;
  InterruptScope interrupts_;
  ordered_json rows_ = ordered_json::array();
};

Status parse_policies(std::string_view text, std::vector<std::string>& out) {
  out.clear();
  while (true) {
    const size_t comma = text.find(',');
    out.emplace_back(text.substr(0, comma));
    HUNCH_OK(named_policy(out.back()));
    if (comma == std::string_view::npos) return {};
    text.remove_prefix(comma + 1);
  }
}

void add_accept_flags(FlagSet& set, AcceptFlags& flags) {
  set.positional("FILE", true, "prompts: a JSON object a line with \"text\", and optionally \"kind\" and \"context\"",
                 flags.file);
  set.group("What to measure");
  set.value({"--contexts"}, "LIST", "values of \"context\" to take (default: all)", set_ranges(flags.contexts, {0, 1 << 24}));
  set.value({"--seeds"}, "LIST", "seeds, each a run of every prompt (default 1)", set_ranges(flags.seeds, {0, 0x1p62}));
  set.value({"--policies"}, "LIST",
            "default, streamingllm, full, quest-perkv, vegas-logit, vegas-weight-all, vegas-dweight-all-max-perkv-spread16, ... "
            "(weight: true weights; dweight: by the drafts' log-sum-exp); or methods: auto, ngram, suffix, cascade, a drafter's; "
            "eagle3-5-tree10: five drafts "
            "and ten tokens beside them",
            [&flags](std::string_view, std::string_view v) { return parse_policies(v, flags.policies); });
  set.value({"--model-draft"}, "PATH", "a learned drafter, to be named among --policies: first, so that it reads the prompts",
            [&flags](std::string_view, std::string_view v) -> Status {
              flags.drafters.drafters.emplace_back(v);
              return {};
            });
  set.whole({"--n", "--prompts"}, "prompts per context, one per kind in turn (default: all)", {1, 1 << 20}, flags.prompts);
  set.whole({"--draft"}, "tokens guessed per round, 1..64 (default 7; of policy default: its own)", {1, 64}, flags.draft);
  set.number({"--ratio"}, "share of the KV cache that guesses read (default 0.07; of policy default: its own)", {0, 1, true},
             flags.ratio);
  set.whole({"--min-tokens"}, "least entries that guesses read (default 16)", {1, 1 << 24}, flags.min_tokens);
  set.value({"--rule"}, "RULE", "ratio (default) or match", [&flags](std::string_view flag, std::string_view v) -> Status {
    static constexpr std::string_view kRules[] = {"match", "ratio"};
    HUNCH_TRY(flags.rule, parse_choice(flag, v, kRules));
    return {};
  });
  set.toggle({"--speed"}, "also decode plainly, and print the speed over that", [&flags] { flags.speed = true; });
  set.toggle({"--json"}, "print one JSON object and nothing else on stdout", [&flags] { flags.json = true; });
  add_model_flags(set, flags.model);
  add_sampling_flags(set, flags.sampling);
}

}  // namespace

Result<SpeculationOptions> named_policy(const std::string& name) {
  if (guesses_by_itself(name)) return named_method(name);
  SpeculationOptions o;
  o.proposer = "self";
  std::vector<std::string> words;
  for (size_t at = 0; at <= name.size();) {
    const size_t dash = std::min(name.find('-', at), name.size());
    words.push_back(name.substr(at, dash - at));
    at = dash + 1;
  }
  // Cheaper drafts, of any policy: these words come last.
  for (; words.size() > 1; words.pop_back()) {
    const std::string& w = words.back();
    if (w.starts_with("step")) {
      HUNCH_TRY(const int64_t step, parse_whole("step", w.substr(4), {1, 64}));
      o.layer_step = int(step);
    } else if (w.starts_with("skip")) {
      o.draft_skip_layers = w.substr(4);
      std::replace(o.draft_skip_layers.begin(), o.draft_skip_layers.end(), '.', ',');
      HUNCH_OK(skipped_layers(o.draft_skip_layers, 1 << 20));
    } else if (w == "lookup") o.self_lookup = "ngram";
    else break;
  }
  if (words[0] == "default" && words.size() == 1) return o;
  o.draft_weights = "target";  // the study's drafts read the target's own weights
  o.policy = words[0] == "stream" ? "streamingllm" : words[0];
  o.metric = "logit", o.rows = "first_last", o.combine = "sum", o.share = "layer", o.spread = 0;
  if (o.policy == "lastaccepted") o.policy = "last_accepted";
  bool known = Register<SparsePolicy>::find(o.policy) != nullptr;
  for (size_t i = 1; i < words.size() && known; ++i) {
    const std::string& w = words[i];
    if (w == "logit") o.metric = "logit";
    else if (w == "weight") o.metric = "true_weight";
    else if (w == "dweight") o.metric = "weight";
    else if (w == "all") o.rows = "all";
    else if (w == "last") o.rows = "last";
    else if (w == "accepted") o.rows = "accepted";
    else if (w == "max") o.combine = "max";
    else if (w == "sum") o.combine = "sum";
    else if (w == "perkv") o.share = "kv_head";
    else if (w.starts_with("spread")) {
      HUNCH_TRY(const int64_t spread, parse_whole("spread", w.substr(6), {0, 1024}));
      o.spread = int(spread);
    } else known = false;
  }
  if (!known)
    return usage_error(fmt::format(
        "--policies: {} is no policy; there are default, {}, each with -perkv for a set per KV head, and vegas with -logit, "
        "-weight, -dweight, -all, -last, -accepted, -sum, -max, -spreadN; last, for all of them, -skipN, -stepN, -lookup; "
        "and methods: auto, ngram, suffix, cascade, draft_model, medusa, eagle, eagle3, mtp",
        excerpt(name), Register<SparsePolicy>::names()));
  return o;
}

int bench_accept_command(Arguments arguments) {
  AcceptFlags flags;
  // The published tables are at temperature 0.8 and no other filter, not at the model's defaults.
  flags.sampling = {.temperature = 0.8, .top_p = 1, .min_p = 0, .top_k = 0, .seed = {}, .max_tokens = 96, .ignore_eos = true};
  FlagSet set("hunch bench accept FILE [flags]",
              "Tokens a round emits, the corrected or bonus token included: mean over the prompts and its standard error, by "
              "context and policy, with the acceptance of each position given that all before it were accepted.");
  add_accept_flags(set, flags);
  if (const Status status = set.parse(arguments); !status.ok()) return fail(status.error());
  if (set.help_wanted()) return print_and_exit_code(set.help());
  auto options = engine_options(flags.model, &flags.drafters);
  if (!options.ok()) return fail(options.error());
  ProgressLine progress;
  auto engine = load_engine(*options, progress);
  if (!engine.ok()) return fail(engine.error());
  return Accept(**engine, flags, progress).run();
}

}  // namespace hunch
