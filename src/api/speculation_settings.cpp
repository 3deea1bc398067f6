// The table of settings. A new setting is one entry here: its flag, its configuration key, its
// range and its line of help come from the same place.
#include "api/speculation_settings.h"

#include "accept/rule.h"
#include "api/drafter_paths.h"
#include "api/token_tree.h"
#include "checkpoint/drafter_method.h"
#include "draft/proposer.h"
#include "draft/static_tree.h"
#include "engine/approximation.h"
#include "model/skipped_layers.h"
#include "sparse/policy.h"

namespace hunch {
namespace {

using Kind = SpeculationSetting::Kind;
using enum Kind;
using Options = SpeculationOptions;
using Check = SparseVerification;
using Text = std::string_view;

// The names that an interface's parts registered under: adding a part adds a choice.
template <class Interface>
std::vector<Text> registered() {
  std::vector<Text> names;
  for (const auto& part : Register<Interface>::all()) names.push_back(part.name);
  return names;
}

std::vector<Text> methods() {
  std::vector<Text> names = registered<Proposer>();
  names.insert(names.begin(), "auto"), names.emplace_back("profile");
  for (const Text method : kDrafterMethods)
    if (std::ranges::find(names, method) == names.end()) names.push_back(method);
  std::sort(names.begin() + 1, names.end());
  return names;
}

const std::string& word(const SettingValue& v) { return std::get<std::string>(v); }

// Where a value goes: a field of the options, or of those of a sparse check.
void put(const SettingValue& v, std::string& field) { field = word(v); }
void put(const SettingValue& v, auto& field) { field = std::decay_t<decltype(field)>(std::get<double>(v)); }
template <auto kField>
void into(const SettingValue& v, Options& options) {
  if constexpr (requires { options.*kField; }) put(v, options.*kField);
  else put(v, options.sparse.*kField);
}
void nowhere(const SettingValue&, Options&) {}  // of a drafter, which is loaded with it

using Apply = void (*)(const SettingValue&, Options&);

SpeculationSetting choice(Text flag, Text key, Text value, Text about, std::vector<Text> choices, Apply apply) {
  return {flag, key, value, about, Choice, std::move(choices), {}, apply};
}
SpeculationSetting whole(Text flag, Text key, Text about, Range range, Apply apply, Text value = "N") {
  return {flag, key, value, about, Whole, {}, range, apply};
}
SpeculationSetting number(Text flag, Text key, Text about, Range range, Apply apply) {
  return {flag, key, "X", about, Number, {}, range, apply};
}
SpeculationSetting listed(Text flag, Text key, Text value, Text about, Kind kind, Apply apply) {
  return {flag, key, value, about, kind, {}, {}, apply};
}

// Proposers of other engines, by the names that people type; an honest "not yet" beats "unknown".
constexpr Text kOtherMethods[] = {"mlp_speculator", "dflash", "dspark", "custom_class", "draft-dflash", "draft-dspark"};

}

const std::vector<SpeculationSetting>& speculation_settings() {
  static const std::vector<SpeculationSetting> settings = {
      choice("--spec", "method", "METHOD",
          "who guesses: auto (default: whatever pays, nothing included), none, self (the same model over a few per cent of "
          "its KV cache), ngram or suffix (what followed before), cascade, staged; with --model-draft its method; profile (with "
          "--strategies)",
          methods(), into<&Options::proposer>),
      whole("--draft", "num_speculative_tokens", "tokens guessed per round, 1..64 (default: 7; auto, self: as pays)", {1, 64},
          into<&Options::num_tokens>),
      whole("--tree", "tree_tokens",
          "self: where a guess is unsure also try the second choice; drafters: a tree. Up to N tokens a round beside the chain "
          "(default 0)",
          {0, 63}, into<&Options::tree_tokens>),
      choice("--policy", "sparse_attn_algorithm", "NAME",
          "what guesses read: vegas (default), quest, sparsespec, snapkv, last_accepted, streamingllm, full; oracle and "
          "random to compare",
          registered<SparsePolicy>(), into<&Options::policy>),
      number("--ratio", "sparse_attn_ratio", "share of the KV cache that guesses read, above 0 and at most 1", {0, 1, true},
          into<&Options::ratio>),
      whole("--min-tokens", "sparse_attn_min_tokens", "least entries that guesses read (default 16)", {1, 1 << 24},
          into<&Options::min_tokens>),
      choice("--metric", "sparse_attn_metric", "NAME",
          "vegas: scores by weight (default; the drafts' log-sum-exp), true_weight or logit", {"weight", "true_weight", "logit"},
          into<&Options::metric>),
      choice("--rows", "sparse_attn_rows", "ROWS",
          "vegas: rows of the check that vote: all (default), first_last, last or accepted",
          {"all", "first_last", "last", "accepted"}, into<&Options::rows>),
      choice("--combine", "sparse_attn_combine", "HOW", "vegas: max (default) or sum over the rows", {"max", "sum"},
          into<&Options::combine>),
      choice("--share", "sparse_attn_share", "HOW", "a set of entries per kv_head (default) or per layer", {"kv_head", "layer"},
          into<&Options::share>),
      whole("--spread", "sparse_attn_spread", "vegas: also read N entries behind each one scored high (default 16)", {0, 1024},
          into<&Options::spread>),
      whole("--block", "sparse_attn_block", "vegas: blocks of N entries are chosen whole (default 8; with --metric logit 1)",
          {1, 64}, into<&Options::block>),
      whole("--sinks", "sparse_attn_sinks", "first entries that are always read (default: 4 for streamingllm, 0 for vegas)",
          {0, 1 << 24}, into<&Options::sinks>),
      whole("--recent", "sparse_attn_recent", "last entries that are always read (default 0)", {0, 1 << 24},
          into<&Options::recent>),
      choice("--rule", "rule", "RULE",
          "match: the stream of plain decoding, bit for bit (default when greedy or seeded); ratio, point: its distribution",
          registered<AcceptanceRule>(), into<&Options::rule>),
      choice("--draft-weights", "sparse_attn_draft_weights", "TYPE",
          "what guesses read: target (the same weights), a copy as q4_0 or q8_0, or auto (q4_0 where that halves them; default)",
          {"auto", "target", "q4_0", "q8_0"}, into<&Options::draft_weights>),
      whole("--max-entries", "sparse_attn_max_tokens", "guesses read at most N entries, whatever the ratio says", {1, 1 << 24},
          into<&Options::max_entries>),
      whole("--layer-step", "sparse_attn_layer_step",
          "vegas and its kin: every Nth layer chooses what guesses read, the layers behind it follow (default 1)", {1, 64},
          into<&Options::layer_step>),
      listed("--skip-layers", "sparse_attn_skip_layers", "N|LIST",
          "self: guesses leave out N layers, spread evenly, or those of a list (3,5 or 3, counted from 0; default 0)", Layers,
          into<&Options::draft_skip_layers>),
      choice("--self-lookup", "self_lookup", "METHOD",
          "self: what ngram or suffix finds runs along with the first pass of a guess: fewer passes, the same guesses",
          {"ngram", "suffix"}, into<&Options::self_lookup>),
      whole("--page", "sparse_attn_page", "quest: entries of a page (default 16)", {1, 64}, into<&Options::page>),
      whole("--ngram-min", "prompt_lookup_min", "ngram: shortest run of tokens looked up (default: as --ngram-max, else 5)",
          {1, 1024}, into<&Options::ngram_min>),
      whole("--ngram-max", "prompt_lookup_max", "ngram: longest run of tokens looked up (default: as --ngram-min, else 5)",
          {1, 1024}, into<&Options::ngram_max>),
      whole("--suffix-depth", "suffix_decoding_max_tree_depth", "suffix: longest match and guess together (default 24)", {1, 64},
          into<&Options::suffix_depth>),
      whole("--suffix-requests", "suffix_decoding_max_cached_requests",
          "suffix: earlier outputs looked up too (default 10000; 0: none)", {0, 1 << 24}, into<&Options::suffix_cached_requests>),
      number("--suffix-factor", "suffix_decoding_max_spec_factor", "suffix: guessed tokens per matched token (default 1)",
          {0, 1000}, into<&Options::suffix_factor>),
      number("--suffix-probability", "suffix_decoding_min_token_prob",
          "suffix: a guess ends below this probability (default 0.1)", {0, 1}, into<&Options::suffix_min_probability>),
      choice("--cascade-first", "cascade_first", "METHOD",
          "cascade: who is asked before self, staged: whose guesses passes check: ngram (default) or suffix", {"ngram", "suffix"},
          into<&Options::cascade_first>),
      whole("--tree-top-k", "tree_top_k", "drafters: with --tree, the K likeliest tokens of each node are tried (default 10)",
          {1, 16}, into<&Options::tree_top_k>, "K"),
      listed("--token-tree", "speculative_token_tree", "TREE",
          "drafters: always this tree, a list of ranks for each node: \"[(0,), (1,), (0, 0)]\"", Tree,
          [](const SettingValue& v, Options& o) { o.token_tree = *parse_token_tree("", word(v)); }),
      choice("--precision-class", "precision_class", "CLASS",
          "models with natively trained sparse attention: strict (default); LOSSY: reuse (layers take the choice of the one "
          "before), approx (rows of a round share one), approx-reuse",
          precision_classes(), into<&Options::precision_class>),
      whole("--group-rows", "group_rows", "approx: rows of a round that share one choice (default 4)", {1, 64},
          into<&Options::group_rows>, "C"),
      choice("--traversal", "traversal", "ORDER",
          "approx: a tree's rows are grouped bfs, level by level (default), or dfs, along its paths", {"bfs", "dfs"},
          into<&Options::traversal>),
      listed("--reuse-set", "reuse_layers", "LIST",
          "reuse: the layers that take the choice of the one before, counted from 0 (3,5), or none; default: --reuse-schedule",
          LayerList, into<&Options::reuse_layers>),
      choice("--draft-vocab", "draft_vocab_mode", "MODE",
          "draft_model: same (default; the target's tokens) or intersection (another vocabulary: what both spell alike is "
          "guessed)",
          {"same", "intersection"}, nowhere),
      choice("--mtp-feed-norm", "mtp_feed_norm", "SIDE", "mtp: reads the target's state post (default) or pre its final norm",
          {"post", "pre"}, nowhere),
      choice("--mtp-recycle-norm", "mtp_recycle_norm", "SIDE",
          "mtp: further guesses read its own state post (default) or pre its norm", {"post", "pre"}, nowhere),
      choice("--verify", "verify", "HOW",
          "exact (default); sparse: LOSSY, the check itself leaves out what the --verify-... settings say; drafts: the model's "
          "passes that draft do (self, cascade, staged), and an exact check follows",
          {"exact", "sparse", "drafts"},
          [](const SettingValue& v, Options& o) { o.sparse.on = word(v) == "sparse", o.sparse.drafts = word(v) == "drafts"; }),
      number("--verify-ratio", "verify_attn_ratio",
          "sparse check: share of the entries behind --verify-dense that is read (default 0.1; 1: all)", {0, 1, true},
          into<&Check::ratio>),
      whole("--verify-dense", "verify_attn_dense_len", "sparse check: up to N entries all are read (default 4096)", {0, 1 << 24},
          into<&Check::dense_len>),
      whole(
          "--verify-block", "verify_attn_block", "sparse check: entries of a block (default 32)", {1, 1024}, into<&Check::block>),
      whole("--verify-sinks", "verify_attn_sink_blocks", "sparse check: first blocks that are always read (default 1)",
          {0, 1 << 16}, into<&Check::sink_blocks>),
      whole("--verify-recent", "verify_attn_recent_blocks",
          "sparse check: last blocks that are always read (default: as the rows of a round need, 2 or more)", {1, 1 << 16},
          into<&Check::recent_blocks>),
      choice("--verify-scope", "verify_attn_budget_scope", "SCOPE",
          "sparse check: a budget per_head (default) or a joint one for all KV heads", {"per_head", "joint"},
          into<&Check::scope>),
      choice("--verify-group", "verify_attn_group", "HOW",
          "sparse check: query heads score a block by their sum (default) or max", {"sum", "max"}, into<&Check::group>),
      choice("--verify-reuse", "verify_attn_reuse", "WHICH",
          "sparse check: every layer chooses (none, default), or calibrated anchors for those behind them",
          {"none", "calibrated"}, [](const SettingValue& v, Options& o) { o.sparse.reuse_layers = word(v) == "calibrated"; }),
      number("--verify-channels", "verify_ffn_threshold",
          "sparse check: channels of the feed-forward block below X in every row are left out (default 0: none)", {0, 1000},
          into<&Check::channel_threshold>),
      number("--verify-channel-share", "verify_ffn_share",
          "sparse check: the same with thresholds that a share X of the channels was below when calibrated", {0, 0.95},
          into<&Check::channel_share>),
      whole("--verify-experts", "verify_experts", "sparse check: up to N experts of a row are left out (default 0)", {0, 64},
          into<&Check::skip_experts>),
      choice("--verify-expert-mode", "verify_expert_mode", "MODE",
          "sparse check: literal (default) or graded, by calibrated thresholds; tail_mass or union_aware, by "
          "--verify-expert-mass",
          {"literal", "graded", "tail_mass", "union_aware"}, into<&Check::expert_mode>),
      number("--verify-expert-mass", "verify_expert_mass",
          "sparse check: share of the weights of a row's experts that may go (default 0.1)", {0, 0.99},
          into<&Check::expert_mass>),
      choice("--verify-expert-renorm", "verify_expert_renorm", "WHETHER",
          "sparse check: weights of experts that stay are scaled up for those that go (default off)", {"off", "on"},
          [](const SettingValue& v, Options& o) { o.sparse.expert_renorm = word(v) == "on"; }),
  };
  return settings;
}

Result<SettingValue> parse_setting(const SpeculationSetting& setting, Text spelled_as, Text text) {
  if (setting.kind == Whole) {
    HUNCH_TRY(const int64_t n, parse_whole(spelled_as, text, setting.range));
    return SettingValue(double(n));
  }
  if (setting.kind == Number) {
    HUNCH_TRY(const double x, parse_number(spelled_as, text, setting.range));
    return SettingValue(x);
  }
  const auto checked = [&](const auto& form) -> Result<SettingValue> {  // how many layers there are the model knows
    if (!form.ok()) return usage_error("{}: {}", spelled_as, form.error().message);
    return SettingValue(std::string(text));
  };
  if (setting.kind == Layers) return checked(skipped_layers(text, 1 << 20));
  if (setting.kind == LayerList) return checked(reuse_layers_of(text, 1 << 20));
  if (setting.kind == Tree) {
    HUNCH_TRY(const auto paths, parse_token_tree(spelled_as, text));
    HUNCH_TRY(const StaticTree tree, StaticTree::make(paths, int(paths.size())));
    return SettingValue(tree.text());  // so that two spellings of one tree agree
  }
  std::vector<Text> names = setting.choices;
  if (setting.key == "method") {
    text = drafter_method_named(text);
    if (text == "sparse_attn") text = "self";                                     // the Vegas release's word
    for (Text alias : {"ngram_gpu", "ngram-simple", "ngram-map-k", "ngram-mod"})  // the same guess by other means
      if (text == alias) text = "ngram";
    for (Text alias : {"ngram-map-k4v", "ngram-cache"})  // what came most often behind the same tokens
      if (text == alias) text = "suffix";
    if (std::ranges::find(kOtherMethods, text) != std::end(kOtherMethods))
      return usage_error(
          "{}: {} is not available yet; there are {} (self also spelled sparse_attn)", spelled_as, text, comma_list(methods()));
    names.push_back("sparse_attn");
  }
  HUNCH_TRY(std::string name, parse_choice(spelled_as, text, names));
  return SettingValue(std::move(name));
}

}
