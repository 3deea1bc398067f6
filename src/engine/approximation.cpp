#include "engine/approximation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "engine/parts.h"
#include "engine/strategy_profile.h"

namespace hunch {
namespace {

constexpr int kMostGrouped = 64;

}  // namespace

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
    if (layer >= layers) return usage_error(fmt::format("reuse layers: the model has {}, there is no layer {}", layers, layer));
    out.push_back(layer);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Status plan_approximation(const SpeculationOptions& o, const EngineParts& parts, RequestPlan& plan) {
  const auto& classes = precision_classes();
  const ModelShape& shape = parts.model->shape();
  if (std::find(classes.begin(), classes.end(), o.precision_class) == classes.end())
    return usage_error(fmt::format("unknown precision class '{}'; known: {}", o.precision_class, fmt::join(classes, ", ")));
  if (o.group_rows < 1 || o.group_rows > kMostGrouped)
    return usage_error(fmt::format("groups of {} rows: one choice serves 1 to {} rows", o.group_rows, kMostGrouped));
  if (o.traversal != "bfs" && o.traversal != "dfs")
    return usage_error(fmt::format("unknown traversal '{}'; known: bfs, dfs", o.traversal));
  if (o.precision_class == "strict") return {};
  if (!shape.nsa.used())
    return usage_error(
        fmt::format("precision class {} is for models with natively trained sparse attention, and this one ({}) has "
                    "none: use strict",
                    o.precision_class, shape.family));
  if (!o.verify) return usage_error(fmt::format("precision class {} and unverified decoding: choose one", o.precision_class));
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
        fmt::format("precision class {} needs to know which layers reuse a choice: name a file of hunch tune "
                    "--reuse-layers by --reuse-schedule, or the layers by --reuse-set",
                    o.precision_class));
  }
  plan.sharing.reused.assign(size_t(shape.layers), 0);
  for (const int layer : a.reuse_layers) plan.sharing.reused[size_t(layer)] = 1;
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
        fmt::format("{} has no strategies of precision class {}: hunch tune --profile makes them, with reuse where "
                    "--reuse-schedule names the layers",
                    parts.options.strategies, wanted));
  HUNCH_OK(check_drafter(all.drafter, parts.options.drafters));
  plan.drafters = {all.drafter};
  plan.approximation.group_rows = 1;  // as the strategies say, from round to round
  plan.gamma = std::max(1, std::min(all.most_depth(), parts.options.max_draft));
  plan.nodes = std::max(plan.gamma, std::min(all.most_nodes(), parts.options.max_draft));
  return {};
}

void count_choices(const IndexSharing* sharing, int layers, int rows, Approximation& out) {
  const int64_t reused = sharing ? sharing->layers_reused() : 0, choosing = layers - reused;
  const int most = sharing ? sharing->group_rows : 1, groups = (rows + most - 1) / most;
  out.reused_choices += rows * reused, out.own_choices += groups * choosing, out.shared_choices += (rows - groups) * choosing;
}

nlohmann::ordered_json approximation_json(const Approximation& a) {
  nlohmann::ordered_json out{{"precision_class", a.precision_class}};
  if (!a.traversal.empty()) out["group_rows"] = a.group_rows, out["traversal"] = a.traversal;
  if (a.precision_class.ends_with("reuse")) out["reuse_layers"] = a.reuse_layers;
  out["choices"] = {{"own", a.own_choices}, {"shared", a.shared_choices}, {"reused", a.reused_choices}};
  return out;
}

void add_choices(const Approximation& from, Approximation& to) {
  const int64_t own = to.own_choices, shared = to.shared_choices, reused = to.reused_choices;
  if (from.any()) to = from, to.own_choices += own, to.shared_choices += shared, to.reused_choices += reused;
}

}  // namespace hunch
