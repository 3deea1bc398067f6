// What flags and --speculative-config amount to together: the drafters to load and the options of a request. Declared in
// speculation_settings.h.
#include <fmt/format.h>

#include "api/drafter_paths.h"
#include "api/speculation_settings.h"
#include "checkpoint/drafter_method.h"
#include "engine/plan.h"

namespace hunch {
namespace {

std::string text_of(const SettingValue& v) {
  return std::holds_alternative<double>(v) ? fmt::format("{:g}", std::get<double>(v)) : std::get<std::string>(v);
}

size_t index_of(std::string_view flag) {
  const auto& all = speculation_settings();
  return size_t(std::ranges::find(all, flag, &SpeculationSetting::flag) - all.begin());
}

// Flags and configuration in one; values by index, so that options are applied in the table's order.
Result<SpeculativeConfig> merge(const SpeculationFlags& flags) {
  SpeculativeConfig out{flags.flags, {}};
  if (!flags.config) return out;
  const auto& settings = speculation_settings();
  HUNCH_TRY(SpeculativeConfig config, parse_speculative_config(*flags.config));
  for (auto& [i, value] : config.values) {  // agreeing twice is fine: scripts add flags to configurations
    const auto typed = out.values.find(i);
    if (typed != out.values.end() && typed->second != value)
      return usage_error("{} {} contradicts \"{}\": {} in --speculative-config; say it once", settings[i].flag,
          text_of(typed->second), settings[i].key, text_of(value));
    out.values[i] = std::move(value);
  }
  out.model = std::move(config.model);
  return out;
}

// Empty where nobody said one.
std::string said_method(const SettingValues& values) {
  const auto at = values.find(0);
  return at == values.end() ? std::string() : std::get<std::string>(at->second);
}

Result<std::vector<DrafterOptions>> drafters_of(const SpeculationFlags& flags, const SpeculativeConfig& merged) {
  if (flags.loaded) return *flags.loaded;
  std::vector<std::string> paths = flags.drafters;
  if (merged.model) paths.push_back(*merged.model);
  HUNCH_TRY(auto drafters, open_drafters(paths, said_method(merged.values), merged.model));
  // The prediction module lies in the model's own checkpoint: an empty path.
  if (drafters.empty() && said_method(merged.values) == "mtp") drafters.push_back({.method = "mtp"});
  // What is said of how a drafter is loaded holds for all of them; each takes what it knows.
  for (DrafterOptions& drafter : drafters)
    for (const auto& [flag, member] :
        {std::pair("--draft-vocab", &DrafterOptions::vocab_mode), std::pair("--mtp-feed-norm", &DrafterOptions::feed_norm),
            std::pair("--mtp-recycle-norm", &DrafterOptions::recycle_norm)})
      if (const auto said = merged.values.find(index_of(flag)); said != merged.values.end())
        drafter.*member = text_of(said->second);
  return drafters;
}

std::string listed(const std::vector<DrafterOptions>& drafters) {
  std::string out;
  for (const DrafterOptions& d : drafters) out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", d.method, d.path);
  return out.empty() ? "none" : out;
}

// The method of the request: what was said, else that of the drafter that was named.
Status choose_method(const SpeculationFlags& flags, const SpeculativeConfig& merged, const std::vector<DrafterOptions>& drafters,
    SpeculationOptions& options) {
  const std::string said = said_method(merged.values);
  if (!said.empty() && said != "auto" && merged.model && !is_drafter_method(said))
    return usage_error("--speculative-config: \"model\" names a drafter, and method {} has none: leave one out{}", said,
        said == "self" ? "; self guesses with the target's own weights" : "");
  if (merged.model) {
    const auto at = std::ranges::find(drafters, *merged.model, &DrafterOptions::path);
    if (at == drafters.end())
      return usage_error(
          "--speculative-config: \"model\": {} is not loaded; loaded drafters: {}", *merged.model, listed(drafters));
    if (is_drafter_method(said) && at->method != said)
      return usage_error(
          "--speculative-config: \"model\": {} is a drafter of method {}, not {}", *merged.model, at->method, said);
    if (said.empty()) options.proposer = at->method;
  } else if (said.empty() && !flags.loaded && !drafters.empty()) {
    if (drafters.size() > 1)
      return usage_error("several drafters are loaded: {}; name the one that guesses with --spec", listed(drafters));
    options.proposer = drafters[0].method;
  }
  return check_drafter(options.proposer, drafters);
}

// vLLM counts a tree's nodes in num_speculative_tokens; here the deepest path and the rest are told apart.
Status settle_tree(const SettingValues& values, SpeculationOptions& options) {
  if (options.token_tree.empty()) return {};
  const int nodes = int(options.token_tree.size());
  for (const std::string_view other : {"--tree", "--tree-top-k"})
    if (values.contains(index_of(other))) return usage_error("{} grows trees and --token-tree fixes one: leave one out", other);
  if (options.num_tokens != 0 && options.num_tokens != nodes)
    return usage_error("--draft {} contradicts a tree of {} tokens: leave it out", options.num_tokens, nodes);
  options.num_tokens = options.tree_tokens = 0;  // the tree says both
  return {};
}

void remark(const SettingValues& values, const SpeculationOptions& options, std::vector<std::string>& notes) {
  const auto given = [&](std::string_view flag) { return values.contains(index_of(flag)); };
  const auto say = [&](std::string_view flag, std::string_view part, std::string_view name) {
    if (given(flag)) notes.push_back(fmt::format("{} has no effect with {} {}", flag, part, name));
  };
  const std::string& method = options.proposer;
  const bool open = method == "auto" || method == "profile";
  const bool passes = !is_drafter_method(method) && method != "none" && method != "ngram" && method != "suffix";
  if (options.policy != "vegas" && (open || passes))
    for (std::string_view flag : {"--metric", "--rows", "--combine", "--spread", "--block"})
      say(flag, "--policy", options.policy);
  if (given("--layer-step") && options.layer_step > 1)
    for (std::string_view each : {"quest", "streamingllm", "oracle", "random", "full"})
      if (options.policy == each) say("--layer-step", "--policy", each);
  if (options.policy == "full" && given("--ratio"))
    notes.push_back("--ratio has no effect with --policy full, which reads everything");
  if (!options.sparse.on && !options.sparse.drafts)
    for (const auto& [i, value] : values)
      if (speculation_settings()[i].flag.starts_with("--verify-"))
        notes.push_back(fmt::format("{} has no effect without --verify sparse or drafts", speculation_settings()[i].flag));
  for (const auto& [flag, part] : {std::pair("--group-rows", "approx"), {"--traversal", "approx"}, {"--reuse-set", "reuse"}})
    if (given(flag) && options.precision_class.find(part) == std::string::npos)
      notes.push_back(fmt::format("{} has no effect without --precision-class {}", flag, part));
  if (open) return;
  const auto first = [&](std::string_view lookup) {
    return method == lookup || (method != "staged" && passes && options.self_lookup == lookup) ||
        (method != "self" && passes && options.cascade_first == lookup);
  };
  const std::pair<bool, std::vector<std::string_view>> reach[] = {
      {passes,
          {"--policy", "--ratio", "--min-tokens", "--metric", "--rows", "--combine", "--share", "--spread", "--block", "--sinks",
              "--recent", "--draft-weights", "--max-entries", "--layer-step", "--skip-layers", "--page"}},
      {passes && method != "staged", {"--self-lookup"}},
      {passes && method != "self", {"--cascade-first"}},
      {first("ngram"), {"--ngram-min", "--ngram-max"}},
      {first("suffix"), {"--suffix-depth", "--suffix-requests", "--suffix-factor", "--suffix-probability"}},
      {method != "none" && method != "ngram", {"--tree"}},
      {method != "none", {"--draft", "--rule"}},
      {is_drafter_method(method), {"--tree-top-k"}},
      {method == "mtp", {"--mtp-feed-norm", "--mtp-recycle-norm"}},
      {method == "draft_model", {"--draft-vocab"}},
  };
  for (const auto& [reached, flags] : reach)
    for (const std::string_view flag : flags)
      if (!reached) say(flag, "method", method);
}

}

Result<std::vector<DrafterOptions>> resolve_drafters(const SpeculationFlags& flags) {
  HUNCH_TRY(const SpeculativeConfig merged, merge(flags));
  return drafters_of(flags, merged);
}

Result<SpeculationOptions> resolve_speculation(const SpeculationFlags& flags, std::vector<std::string>* notes) {
  HUNCH_TRY(const SpeculativeConfig merged, merge(flags));
  const SettingValues& values = merged.values;
  const auto& settings = speculation_settings();
  SpeculationOptions options;
  for (const auto& [i, value] : values) settings[i].apply(value, options);
  HUNCH_TRY(const auto drafters, drafters_of(flags, merged));
  HUNCH_OK(choose_method(flags, merged, drafters, options));
  HUNCH_OK(settle_tree(values, options));

  if (options.metric == "logit") {  // raw logits gain nothing from dilation, and the paper's rule has neither it nor blocks
    if (!values.contains(index_of("--block"))) options.block = 1;
    if (values.contains(index_of("--spread")) && options.spread > 0)
      return usage_error("--spread needs --metric weight or true_weight: raw logits are not spread; leave it out or set it to 0");
    options.spread = 0;
  }
  if (notes) remark(values, options, *notes);
  if (flags.unverified) {
    if (options.proposer != "self" || options.policy != "streamingllm")
      return usage_error("--unverified is lossy decoding and needs --spec self --policy streamingllm");
    options.verify = false;
  }
  return options;
}

}
