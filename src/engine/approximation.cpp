#include "engine/approximation.h"

#include <fmt/ranges.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/failure.h"
#include "engine/parts.h"
#include "engine/strategy_profile.h"

namespace hunch {
namespace {

constexpr int kMostGrouped = 64;

}

const std::vector<std::string_view>& precision_classes() {
  static const std::vector<std::string_view> all = {"strict", "reuse", "approx", "approx-reuse"};
  return all;
}

Result<std::vector<int>> reuse_layers_of(std::string_view text, int layers) {
  std::vector<int> out;
  if (text == "none") return out;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    int layer = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), layer);
    if (word.empty() || error != std::errc() || end != word.data() + word.size() || layer < 0)
      return usage_error("reuse layers: name them with commas, counted from 0 (3,5), or say none");
    if (layer == 0) return usage_error("reuse layers: layer 0 always chooses, there is none before it; leave it out");
    if (layer >= layers) return usage_error("reuse layers: the model has {}, there is no layer {}", layers, layer);
    out.push_back(layer);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Status plan_approximation(const SpeculationOptions& o, const EngineParts& parts, RequestPlan& plan) {
  const auto& classes = precision_classes();
  const ModelShape& shape = parts.model->shape();
  if (std::ranges::find(classes, o.precision_class) == classes.end())
    return usage_error("unknown precision class '{}'; known: {}", o.precision_class, fmt::join(classes, ", "));
  if (o.group_rows < 1 || o.group_rows > kMostGrouped)
    return usage_error("groups of {} rows: one choice serves 1 to {} rows", o.group_rows, kMostGrouped);
  if (o.traversal != "bfs" && o.traversal != "dfs") return usage_error("unknown traversal '{}'; known: bfs, dfs", o.traversal);
  if (o.precision_class == "strict") return {};
  if (!shape.nsa.used())
    return usage_error(
        "precision class {} is for models with natively trained sparse attention, and this one ({}) has none: use strict",
        o.precision_class, shape.family);
  if (!o.verify) return usage_error("precision class {} and unverified decoding: choose one", o.precision_class);
  Approximation& a = plan.approximation;
  a.precision_class = o.precision_class;
  if (o.precision_class.starts_with("approx"))
    a.group_rows = plan.sharing.group_rows = o.group_rows, a.traversal = o.traversal,
    plan.sharing.depth_first = o.traversal == "dfs";
  if (!o.precision_class.ends_with("reuse")) return {};
  if (!o.reuse_layers.empty()) {
    HUNCH_TRY(a.reuse_layers, reuse_layers_of(o.reuse_layers, shape.layers));
  } else if (parts.reuse_layers) {
    a.reuse_layers = *parts.reuse_layers;
  } else if (plan.profiled && parts.strategies) {
    a.reuse_layers = parts.strategies->reuse_layers;
  } else {
    return usage_error(
        "precision class {} needs to know which layers reuse a choice: name a file of hunch tune "
        "--reuse-layers by --reuse-schedule, or the layers by --reuse-set",
        o.precision_class);
  }
  plan.sharing.reused.assign(shape.layers, 0);
  for (const int layer : a.reuse_layers) plan.sharing.reused[layer] = 1;
  return {};
}

Status plan_profiled(const EngineParts& parts, RequestPlan& plan) {
  if (!plan.profiled) return {};
  if (!parts.strategies)
    return usage_error("method profile needs ranked strategies: name a file of hunch tune --profile by --strategies");
  const StrategyProfile& all = *parts.strategies;
  const std::string& wanted = plan.approximation.precision_class;
  if (!all.row_for(wanted, 0))
    return usage_error(
        "{} has no strategies of precision class {}: hunch tune --profile makes them, with reuse where "
        "--reuse-schedule names the layers",
        parts.options.strategies, wanted);
  HUNCH_OK(check_drafter(all.drafter, parts.options.drafters));
  plan.drafters = {all.drafter};
  plan.approximation.group_rows = 1;  // as the strategies say, from round to round
  plan.gamma = std::max(1, std::min(all.most(&RankedStrategy::depth), parts.options.max_draft));
  plan.nodes = std::max(plan.gamma, std::min(all.most(&RankedStrategy::nodes), parts.options.max_draft));
  return {};
}

void count_choices(const IndexSharing* sharing, int layers, int rows, Approximation& out) {
  const int64_t reused = sharing ? sharing->layers_reused() : 0, choosing = layers - reused;
  const int most = sharing ? sharing->group_rows : 1, groups = (rows + most - 1) / most;
  out.reused_choices += rows * reused, out.own_choices += groups * choosing, out.shared_choices += (rows - groups) * choosing;
}

void Approximation::add(const Approximation& a) {
  if (a.since_token >= 0) since_token = since_token < 0 ? a.since_token : std::min(since_token, a.since_token);
  passes += a.passes, rows += a.rows, entries += a.entries, entries_read += a.entries_read;
  channels += a.channels, channels_skipped += a.channels_skipped;
  channel_rows += a.channel_rows, channel_rows_below += a.channel_rows_below;
  experts += a.experts, experts_skipped += a.experts_skipped;
  own_choices += a.own_choices, shared_choices += a.shared_choices, reused_choices += a.reused_choices;
  if (!a.reuse_layers.empty()) reuse_layers = a.reuse_layers;
  if (a.asked.on || a.asked.drafts) asked = a.asked;
  if (a.precision_class != "strict") precision_class = a.precision_class, group_rows = a.group_rows, traversal = a.traversal;
}

nlohmann::ordered_json approximation_json(const Approximation& a) {
  if (!a.any()) return {};
  const auto share = [](int64_t part, int64_t whole) { return whole > 0 ? double(part) / whole : 0.0; };
  auto out = nlohmann::ordered_json::object();
  if (a.precision_class != "strict") {
    out["precision_class"] = a.precision_class;
    if (!a.traversal.empty()) out["group_rows"] = a.group_rows, out["traversal"] = a.traversal;
    if (a.precision_class.ends_with("reuse")) out["reuse_layers"] = a.reuse_layers;
    out["choices"] = {{"own", a.own_choices}, {"shared", a.shared_choices}, {"reused", a.reused_choices}};
  }
  if (a.passes == 0) return out;
  const SparseVerification& s = a.asked;
  if (a.entries > 0)
    out["attention"] = {
        {"ratio", s.ratio},
        {"dense_len", s.dense_len},
        {"block", s.block},
        {"budget_scope", s.scope},
        {"sparsity", 1 - share(a.entries_read, a.entries)},
    };
  if (a.channels > 0)
    out["ffn"] = {
        {"threshold", s.channel_threshold},
        {"share", s.channel_share},
        {"union_sparsity", share(a.channels_skipped, a.channels)},
        {"row_sparsity", share(a.channel_rows_below, a.channel_rows)},
    };
  if (a.experts > 0)
    out["moe"] = {{"mode", s.expert_mode}, {"experts", s.skip_experts}, {"sparsity", share(a.experts_skipped, a.experts)}};
  out["reuse_layers"] = a.reuse_layers;
  if (a.since_token >= 0) out["since_token"] = a.since_token;
  out["passes"] = a.passes, out["rows"] = a.rows;
  return out;
}

std::string approximation_text(const Approximation& a) {
  if (a.precision_class != "strict") return fmt::format("LOSSY: precision class {}", a.precision_class);
  std::string out;
  const auto add = [&](std::string_view what, int64_t part, int64_t whole) {
    if (part < whole)
      out += fmt::format("{}{:.0f} % of {}", out.empty() ? "LOSSY: the check read " : ", ", 100.0 * part / whole, what);
  };
  add("the entries", a.entries_read, a.entries);
  add("the channels", a.channels - a.channels_skipped, a.channels);
  add("the experts", a.experts - a.experts_skipped, a.experts);
  return out;
}

}
