// hunch tune --reuse-layers: which layers may take the choice of the one before, by greedy calibration (engine/reuse_schedule.h).
// hunch tune --profile: for every precision class and range of contexts the strategies that a drafter and the class allow, each
// run over the sample, and ranked (engine/strategy_profile.h).
#include <fmt/ranges.h>

#include "cli/bench.h"
#include "cli/report.h"
#include "cli/tune.h"
#include "engine/approximation.h"
#include "engine/strategy_profile.h"

namespace hunch {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

Result<int> written(const TuneFlags& flags, const std::string& file, const ordered_json& out, const std::string& text) {
  HUNCH_OK(write_atomically(*flags.out, file));
  if (flags.json) return print_json_and_exit_code(out);
  return print_and_exit_code(text + fmt::format("written: {}\n", *flags.out));
}

// Depth and nodes of what a drafter is asked for; trees only where it can branch.
std::vector<RankedStrategy> shapes(bool trees, int most) {
  std::vector<RankedStrategy> out{{}};
  for (const int depth : {2, 4, 7})
    for (const int nodes : {depth, 2 * depth + 4, 32})
      if (nodes <= most && (trees || nodes == depth))
        out.push_back({.depth = depth, .nodes = nodes, .top_k = nodes > depth ? 4 : 1});
  return out;
}

class StrategyTrials : Measurement<TuneFlags> {
 public:
  using Measurement::Measurement;

  Result<StrategyProfile> run() {
    EngineParts& parts = engine_.parts();
    StrategyProfile out{.model = identity_of(*parts.checkpoint), .drafter = speculation_.proposer};
    if (speculation_.proposer == "auto" || speculation_.proposer == "none" || speculation_.proposer == "profile")
      return usage_error("strategies are of one drafter: name it by --model-draft PATH or --spec suffix");
    const bool nsa = parts.model->shape().nsa.used();
    if (nsa && !speculation_.reuse_layers.empty()) {
      HUNCH_TRY(out.reuse_layers, reuse_layers_of(speculation_.reuse_layers, parts.model->shape().layers));
    } else if (parts.reuse_layers) {
      out.reuse_layers = *parts.reuse_layers;
    }
    HUNCH_TRY(const auto texts, sample_texts(engine_, *flags_.file, flags_.most));
    const bool trees = parts.learned_named(speculation_.proposer) != nullptr;
    const int64_t new_tokens = *flags_.sampling.max_tokens, room = engine_.context_len() - new_tokens - 80;
    for (const std::string_view name : precision_classes()) {
      const bool reuses = name.ends_with("reuse"), groups = name.starts_with("approx");
      if (name != "strict" && (!nsa || (reuses && out.reuse_layers.empty()))) continue;
      int64_t first = 0;
      for (const int64_t last : strategy_regimes(room)) {
        StrategyProfile::Row row{std::string(name), first, last};
        HUNCH_TRY(row.ranked, ranked(row, texts, trees, groups, std::min((first + last) / 2, room)));
        first = last;
        if (interrupts_.stopped()) return Error{"interrupted: nothing is stored"};
        if (!row.ranked.empty()) out.rows.push_back(std::move(row));
      }
    }
    if (out.rows.empty()) return usage_error("no text of the sample is long enough for a range of contexts");
    return out;
  }

 private:
  Result<std::vector<RankedStrategy>> ranked(
      const StrategyProfile::Row& row, const std::vector<Tokens>& texts, bool trees, bool groups, int64_t length) {
    std::vector<RankedStrategy> all;
    for (const RankedStrategy& shape : shapes(trees, engine_.parts().options.max_draft))
      for (const int group : groups&& shape.nodes > 0 ? std::vector<int>{2, 4, 16} : std::vector<int>{1})
        for (const bool dfs : {false, true}) {
          if (dfs && (group == 1 || shape.nodes == shape.depth)) continue;  // nothing that an order would change
          if (group > shape.nodes + 1) continue;
          RankedStrategy strategy = shape;
          strategy.group_rows = group, strategy.depth_first = dfs;
          HUNCH_OK(measure(row, texts, length, strategy));
          if (interrupts_.stopped()) return all;
          if (strategy.tokens_per_second > 0) all.push_back(strategy);
        }
    std::ranges::stable_sort(all, [](const auto& a, const auto& b) { return a.tokens_per_second > b.tokens_per_second; });
    // The safety net stays, however slow.
    const auto plain = std::ranges::find_if(all, [](const RankedStrategy& s) { return s.depth == 0; });
    if (plain - all.begin() >= ptrdiff_t(kRankedStrategies)) std::swap(*plain, all[kRankedStrategies - 1]);
    if (all.size() > kRankedStrategies) all.resize(kRankedStrategies);
    return all;
  }

  Status measure(const StrategyProfile::Row& row, const std::vector<Tokens>& texts, int64_t length, RankedStrategy& strategy) {
    Generation sums;
    double tokens = 0;
    for (const auto& text : texts) {
      if (std::ssize(text) < length && std::ssize(text) <= row.first_len) continue;
      Request request = request_of(flags_.sampling, speculation_);
      request.prompt.assign(text.end() - std::min<int64_t>(length, std::ssize(text)), text.end());
      request.ignore_eos = true;
      if (!request.sampling.seed) request.sampling.seed = 1;
      SpeculationOptions& o = request.speculation;
      o.precision_class = row.precision_class, o.group_rows = strategy.group_rows;
      o.traversal = strategy.depth_first ? "dfs" : "bfs";
      if (strategy.depth == 0) o.proposer = "none", o.tree_tokens = 0;
      else o.num_tokens = strategy.depth, o.tree_tokens = strategy.nodes - strategy.depth, o.tree_top_k = strategy.top_k;
      progress_.show(row.precision_class, ++done_, 0);
      HUNCH_TRY(const Generation g, engine_.generate(request, {}, interrupts_.flag()));
      if (interrupts_.stopped()) return {};
      add_counts(g, sums), tokens += double(g.tokens.size()) - 1;
    }
    const double ms = sums.milliseconds.first_to_last_token;
    strategy.tokens_per_second = ms > 0 ? tokens / ms * 1e3 : 0;
    strategy.accepted = sums.rounds > 0 ? double(sums.accepted) / sums.rounds : 0;
    return {};
  }

  int64_t done_ = 0;
};

}

Result<int> tune_reuse_layers(Engine& engine, const TuneFlags& flags, ProgressLine& progress) {
  HUNCH_TRY(auto texts, sample_texts(engine, *flags.file, flags.most));
  for (auto& text : texts)  // the end is what is scored
    if (std::ssize(text) > engine.context_len()) text.erase(text.begin(), text.end() - engine.context_len());
  const InterruptScope interrupts;
  auto found = calibrate_reuse(engine.parts(), texts, flags.scored, [&](int done, int total) {
    progress.show("calibrating", done, total);
    return !interrupts.stopped();
  });
  progress.clear();
  if (interrupts.stopped()) return complain("interrupted: nothing is stored"), interrupts.exit_code();
  if (!found.ok()) return found.error();
  found->budget = flags.budget;
  auto text = fmt::format("{} tokens scored; {:.4f} nats a token where every layer chooses\n  layer  nats/token    more\n",
      found->tokens, found->loss);
  for (const auto& step : found->steps)
    text += fmt::format("  {:>5}  {:10.4f}  {:5.2f} %\n", step.layer, step.loss, 100 * (step.loss / found->loss - 1));
  text += fmt::format("within {} % more: layers {} reuse the choice of the one before\n", 100 * found->budget,
      found->layers().empty() ? "none" : fmt::format("{}", fmt::join(found->layers(), ",")));
  ordered_json out = ordered_json::parse(found->to_json());
  out["file"] = *flags.out;
  return written(flags, found->to_json(), out, text);
}

Result<int> tune_strategies(
    Engine& engine, const TuneFlags& flags, const SpeculationOptions& speculation, ProgressLine& progress) {
  auto profile = StrategyTrials(engine, flags, speculation, progress).run();
  progress.clear();
  if (!profile.ok()) return profile.error();
  std::string text;
  for (const auto& row : profile->rows) {
    text += fmt::format("{}, contexts {} to {}\n  depth  nodes  rows a choice  order  tokens/s  accepted a round\n",
        row.precision_class, row.first_len, row.last_len);
    for (const RankedStrategy& s : row.ranked)
      text += fmt::format("  {:>5}  {:>5}  {:>13}  {:>5}  {:8.1f}  {:.2f}\n", s.depth, s.nodes, s.group_rows,
          s.depth_first ? "dfs" : "bfs", s.tokens_per_second, s.accepted);
  }
  ordered_json out = ordered_json::parse(profile->to_json());
  out["file"] = *flags.out;
  return written(flags, profile->to_json(), out, text);
}

}
