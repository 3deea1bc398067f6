// Ways to guess by name, for hunch bench accept: policies of `self` as the reference study names them, and other methods.
#include <fmt/ranges.h>

#include "checkpoint/drafter_method.h"
#include "cli/bench.h"
#include "engine/defaults.h"
#include "model/skipped_layers.h"
#include "sparse/policy.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

// eagle3, eagle3-5 (five drafts), eagle3-5-tree10 (and ten tokens beside them).
Result<SpeculationOptions> method_named(const std::vector<std::string>& words) {
  SpeculationOptions o;
  o.proposer = words[0];
  for (size_t i = 1; i < words.size(); ++i) {
    const bool tree = words[i].starts_with("tree");
    auto tokens = parse_whole("--policies", words[i].substr(tree ? 4 : 0), {1, 64});
    if (!tokens.ok())
      return usage_error(
          "--policies: {}-{}: behind a method there is -N, -treeN or both, N in 1..64", words[0], excerpt(words[i]));
    (tree ? o.tree_tokens : o.num_tokens) = int(*tokens);
  }
  return o;
}

// What the words behind a policy's name set.
using Options = SpeculationOptions;
struct Word {
  std::string_view name;
  std::string Options::*setting;
  const char* value;
};
constexpr Word kWords[] = {{"logit", &Options::metric, "logit"}, {"weight", &Options::metric, "true_weight"},
    {"dweight", &Options::metric, "weight"}, {"all", &Options::rows, "all"}, {"last", &Options::rows, "last"},
    {"accepted", &Options::rows, "accepted"}, {"max", &Options::combine, "max"}, {"sum", &Options::combine, "sum"},
    {"perkv", &Options::share, "kv_head"}};
struct Number {
  std::string_view name;
  int Options::*setting;
  Range range;
};
constexpr Number kNumbers[] = {
    {"spread", &Options::spread, {0, 1024}}, {"block", &Options::block, {1, 64}}, {"page", &Options::page, {1, 64}}};

bool guesses_by_itself(std::string_view word) {
  return is_drafter_method(word) || word == "auto" || word == "ngram" || word == "suffix" || word == "cascade" ||
      word == "staged";
}

}

Result<SpeculationOptions> named_policy(const std::string& name) {
  SpeculationOptions o;
  o.proposer = "self";
  std::vector<std::string> words;
  for (size_t at = 0; at <= name.size();) {
    const size_t dash = std::min(name.find('-', at), name.size());
    words.push_back(name.substr(at, dash - at));
    at = dash + 1;
  }
  if (guesses_by_itself(words[0])) return method_named(words);
  // Cheaper drafts, of any policy: these words come last.
  for (; words.size() > 1; words.pop_back()) {
    const std::string& w = words.back();
    if (w.starts_with("step")) {
      HUNCH_TRY(const int64_t step, parse_whole("step", w.substr(4), {1, 64}));
      o.layer_step = int(step);
    } else if (w.starts_with("skip")) {
      o.draft_skip_layers = w.substr(4);
      std::ranges::replace(o.draft_skip_layers, '.', ',');
      HUNCH_OK(skipped_layers(o.draft_skip_layers, 1 << 20));
    } else if (w == "lookup") {
      o.self_lookup = "ngram";
    } else if (w == "target" || w == "q4_0" || w == "q8_0") {
      o.draft_weights = w;
    } else break;
  }
  if (words[0] == "default" && words.size() == 1) return o;
  if (o.draft_weights == "auto") o.draft_weights = "target";  // the study's drafts read the target's own weights
  o.policy = words[0] == "stream" ? "streamingllm" : words[0];
  o.metric = "logit", o.rows = "first_last", o.combine = "sum", o.share = "layer", o.spread = 0, o.block = 1;
  if (o.policy == "lastaccepted") o.policy = "last_accepted";
  bool known = Register<SparsePolicy>::find(o.policy) != nullptr;
  for (size_t i = 1; i < words.size() && known; ++i) {
    const std::string& w = words[i];
    const auto word = std::ranges::find(kWords, w, &Word::name);
    const auto number = std::ranges::find_if(kNumbers, [&](const Number& n) { return w.starts_with(n.name); });
    if (word != std::end(kWords)) {
      o.*word->setting = word->value;
    } else if (number != std::end(kNumbers)) {
      HUNCH_TRY(o.*number->setting, parse_whole(number->name, w.substr(number->name.size()), number->range));
    } else known = false;
  }
  if (!known)
    return usage_error(
        "--policies: {} is no policy; there are default, {}, each with -perkv for a set per KV head, and vegas with -logit, "
        "-weight, -dweight, -all, -last, -accepted, -sum, -max, -spreadN, -blockN, quest with -pageN; last, for all of them, "
        "-skipN, -stepN, -lookup, -target, -q8_0, -q4_0; and methods: auto, ngram, suffix, cascade, staged, {}, each with -N "
        "drafts and -treeN tokens beside them",
        excerpt(name), Register<SparsePolicy>::names(), fmt::join(kDrafterMethods, ", "));
  return o;
}

Status parse_policies(std::string_view text, std::vector<std::string>& out) {
  out.clear();
  return each_item(text, [&](auto item) -> Status {
    HUNCH_OK(named_policy(out.emplace_back(item)));
    return {};
  });
}

double named_ratio(const std::string& name) {
  return name.starts_with("default") || name.starts_with("staged") ? defaults::kRatio : 0.07;
}

}
