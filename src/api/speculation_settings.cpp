// The table of settings. A new setting is one entry here: its flag, its configuration key, its
// range and its line of help come from the same place.
#include "api/speculation_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "accept/rule.h"
#include "api/drafter_paths.h"
#include "api/nearest.h"
#include "api/token_tree.h"
#include "checkpoint/drafter_method.h"
#include "draft/proposer.h"
#include "draft/static_tree.h"
#include "engine/approximation.h"
#include "model/skipped_layers.h"
#include "sparse/policy.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using Kind = SpeculationSetting::Kind;

// The names that an interface's parts registered under: adding a part adds a choice.
template <class Interface>
std::vector<std::string_view> registered() {
  std::vector<std::string_view> names;
  for (const auto& part : Register<Interface>::all()) names.push_back(part.name);
  return names;
}

std::vector<std::string_view> methods() {
  std::vector<std::string_view> names = registered<Proposer>();
  names.insert(names.begin(), "auto"), names.emplace_back("profile");
  for (const std::string_view method : kDrafterMethods)
    if (std::find(names.begin(), names.end(), method) == names.end()) names.push_back(method);
  std::sort(names.begin() + 1, names.end());
  return names;
}

int whole(const SettingValue& v) { return int(std::get<double>(v)); }
const std::string& word(const SettingValue& v) { return std::get<std::string>(v); }

// Proposers of other engines, by the names that people type; an honest "not yet" beats "unknown".
constexpr std::string_view kOtherMethods[] = {"mlp_speculator", "dflash",       "dspark",        "custom_class",
                                              "draft-dflash",   "draft-dspark", "ngram-map-k4v", "ngram-cache"};

bool is_other_method(std::string_view name) {
  return std::find(std::begin(kOtherMethods), std::end(kOtherMethods), name) != std::end(kOtherMethods);
}

}  // namespace

const std::vector<SpeculationSetting>& speculation_settings() {
  static const std::vector<SpeculationSetting> settings = {
      {"--spec",
       "method",
       "METHOD",
       "who guesses: auto (default: whatever pays, nothing included), none, self (the same model over a few per cent of its KV "
       "cache), ngram or suffix (what followed before), cascade; with --model-draft its method; profile (with --strategies)",
       Kind::Choice,
       methods(),
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.proposer = word(v); }},
      {"--draft",
       "num_speculative_tokens",
       "N",
       "tokens guessed per round, 1..64",
       Kind::Whole,
       {},
       {1, 64},
       [](const SettingValue& v, SpeculationOptions& o) { o.num_tokens = whole(v); }},
      {"--tree",
       "tree_tokens",
       "N",
       "self: where a guess is unsure also try the second choice; drafters: a tree. Up to N tokens a round beside the chain "
       "(default 0)",
       Kind::Whole,
       {},
       {0, 63},
       [](const SettingValue& v, SpeculationOptions& o) { o.tree_tokens = whole(v); }},
      {"--policy",
       "sparse_attn_algorithm",
       "NAME",
       "what guesses read: vegas (default), quest, sparsespec, snapkv, last_accepted, streamingllm, full; oracle and random to "
       "compare",
       Kind::Choice,
       registered<SparsePolicy>(),
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.policy = word(v); }},
      {"--ratio",
       "sparse_attn_ratio",
       "X",
       "share of the KV cache that guesses read, above 0 and at most 1",
       Kind::Number,
       {},
       {0, 1, true},
       [](const SettingValue& v, SpeculationOptions& o) { o.ratio = std::get<double>(v); }},
      {"--min-tokens",
       "sparse_attn_min_tokens",
       "N",
       "least entries that guesses read (default 16)",
       Kind::Whole,
       {},
       {1, 1 << 24},
       [](const SettingValue& v, SpeculationOptions& o) { o.min_tokens = whole(v); }},
      {"--metric",
       "sparse_attn_metric",
       "NAME",
       "vegas: scores by weight (default; the drafts' log-sum-exp), true_weight or logit",
       Kind::Choice,
       {"weight", "true_weight", "logit"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.metric = word(v); }},
      {"--rows",
       "sparse_attn_rows",
       "ROWS",
       "vegas: rows of the check that vote: all (default), first_last, last or accepted",
       Kind::Choice,
       {"all", "first_last", "last", "accepted"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.rows = word(v); }},
      {"--combine",
       "sparse_attn_combine",
       "HOW",
       "vegas: max (default) or sum over the rows",
       Kind::Choice,
       {"max", "sum"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.combine = word(v); }},
      {"--share",
       "sparse_attn_share",
       "HOW",
       "vegas: a set of entries per kv_head (default) or per layer",
       Kind::Choice,
       {"kv_head", "layer"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.share = word(v); }},
      {"--spread",
       "sparse_attn_spread",
       "N",
       "vegas: also read N entries behind each one scored high (default 16)",
       Kind::Whole,
       {},
       {0, 1024},
       [](const SettingValue& v, SpeculationOptions& o) { o.spread = whole(v); }},
      {"--sinks",
       "sparse_attn_sinks",
       "N",
       "first entries that are always read (default: 4 for streamingllm, 0 for vegas)",
       Kind::Whole,
       {},
       {0, 1 << 24},
       [](const SettingValue& v, SpeculationOptions& o) { o.sinks = whole(v); }},
      {"--recent",
       "sparse_attn_recent",
       "N",
       "last entries that are always read (default 0)",
       Kind::Whole,
       {},
       {0, 1 << 24},
       [](const SettingValue& v, SpeculationOptions& o) { o.recent = whole(v); }},
      {"--rule",
       "rule",
       "RULE",
       "match: the stream of plain decoding, bit for bit (default when greedy or seeded); ratio: its distribution",
       Kind::Choice,
       registered<AcceptanceRule>(),
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.rule = word(v); }},
      {"--draft-weights",
       "sparse_attn_draft_weights",
       "TYPE",
       "what guesses read: target (the same weights), a copy as q4_0 or q8_0, or auto (q4_0 where that halves them; default)",
       Kind::Choice,
       {"auto", "target", "q4_0", "q8_0"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.draft_weights = word(v); }},
      {"--max-entries",
       "sparse_attn_max_tokens",
       "N",
       "guesses read at most N entries, whatever the ratio says",
       Kind::Whole,
       {},
       {1, 1 << 24},
       [](const SettingValue& v, SpeculationOptions& o) { o.max_entries = whole(v); }},
      {"--layer-step",
       "sparse_attn_layer_step",
       "N",
       "vegas and its kin: every Nth layer chooses what guesses read, the layers behind it follow (default 1)",
       Kind::Whole,
       {},
       {1, 64},
       [](const SettingValue& v, SpeculationOptions& o) { o.layer_step = whole(v); }},
      {"--skip-layers",
       "sparse_attn_skip_layers",
       "N|LIST",
       "self: guesses leave out N layers, spread evenly, or those of a list (3,5 or 3, counted from 0; default 0)",
       Kind::Layers,
       {},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.draft_skip_layers = word(v); }},
      {"--self-lookup",
       "self_lookup",
       "METHOD",
       "self: what ngram or suffix finds runs along with the first pass of a guess: fewer passes, the same guesses",
       Kind::Choice,
       {"ngram", "suffix"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.self_lookup = word(v); }},
      {"--page",
       "sparse_attn_page",
       "N",
       "quest: entries of a page (default 16)",
       Kind::Whole,
       {},
       {1, 64},
       [](const SettingValue& v, SpeculationOptions& o) { o.page = whole(v); }},
      {"--ngram-min",
       "prompt_lookup_min",
       "N",
       "ngram: shortest run of tokens looked up (default: as --ngram-max, else 5)",
       Kind::Whole,
       {},
       {1, 1024},
       [](const SettingValue& v, SpeculationOptions& o) { o.ngram_min = whole(v); }},
      {"--ngram-max",
       "prompt_lookup_max",
       "N",
       "ngram: longest run of tokens looked up (default: as --ngram-min, else 5)",
       Kind::Whole,
       {},
       {1, 1024},
       [](const SettingValue& v, SpeculationOptions& o) { o.ngram_max = whole(v); }},
      {"--suffix-depth",
       "suffix_decoding_max_tree_depth",
       "N",
       "suffix: longest match and guess together (default 24)",
       Kind::Whole,
       {},
       {1, 1024},
       [](const SettingValue& v, SpeculationOptions& o) { o.suffix_depth = whole(v); }},
      {"--suffix-requests",
       "suffix_decoding_max_cached_requests",
       "N",
       "suffix: earlier outputs looked up too (default 10000; 0: none)",
       Kind::Whole,
       {},
       {0, 1 << 24},
       [](const SettingValue& v, SpeculationOptions& o) { o.suffix_cached_requests = whole(v); }},
      {"--suffix-factor",
       "suffix_decoding_max_spec_factor",
       "X",
       "suffix: guessed tokens per matched token (default 1)",
       Kind::Number,
       {},
       {0, 1000},
       [](const SettingValue& v, SpeculationOptions& o) { o.suffix_factor = std::get<double>(v); }},
      {"--suffix-probability",
       "suffix_decoding_min_token_prob",
       "X",
       "suffix: a guess ends below this probability (default 0.1)",
       Kind::Number,
       {},
       {0, 1},
       [](const SettingValue& v, SpeculationOptions& o) { o.suffix_min_probability = std::get<double>(v); }},
      {"--cascade-first",
       "cascade_first",
       "METHOD",
       "cascade: who is asked before self: ngram (default) or suffix",
       Kind::Choice,
       {"ngram", "suffix"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.cascade_first = word(v); }},
      {"--tree-top-k",
       "tree_top_k",
       "K",
       "drafters: with --tree, the K likeliest tokens of each node are tried (default 10)",
       Kind::Whole,
       {},
       {1, 16},
       [](const SettingValue& v, SpeculationOptions& o) { o.tree_top_k = whole(v); }},
      {"--token-tree",
       "speculative_token_tree",
       "TREE",
       "drafters: always this tree, a list of ranks for each node: \"[(0,), (1,), (0, 0)]\"",
       Kind::Tree,
       {},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.token_tree = *parse_token_tree("", word(v)); }},
      {"--precision-class",
       "precision_class",
       "CLASS",
       "models with natively trained sparse attention: strict (default); LOSSY: reuse (layers take the choice of the one "
       "before), "
       "approx (rows of a round share one), approx-reuse",
       Kind::Choice,
       precision_classes(),
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.precision_class = word(v); }},
      {"--group-rows",
       "group_rows",
       "C",
       "approx: rows of a round that share one choice (default 4)",
       Kind::Whole,
       {},
       {1, 64},
       [](const SettingValue& v, SpeculationOptions& o) { o.group_rows = whole(v); }},
      {"--traversal",
       "traversal",
       "ORDER",
       "approx: a tree's rows are grouped bfs, level by level (default), or dfs, along its paths",
       Kind::Choice,
       {"bfs", "dfs"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.traversal = word(v); }},
      {"--reuse-set",
       "reuse_layers",
       "LIST",
       "reuse: the layers that take the choice of the one before, counted from 0 (3,5), or none; default: --reuse-schedule",
       Kind::LayerList,
       {},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.reuse_layers = word(v); }},
      {"--draft-vocab",
       "draft_vocab_mode",
       "MODE",
       "draft_model: same (default; the target's tokens) or intersection (another vocabulary: what both spell alike is guessed)",
       Kind::Choice,
       {"same", "intersection"},
       {},
       [](const SettingValue&, SpeculationOptions&) {}},
      {"--mtp-feed-norm",
       "mtp_feed_norm",
       "SIDE",
       "mtp: reads the target's state post (default) or pre its final norm",
       Kind::Choice,
       {"post", "pre"},
       {},
       [](const SettingValue&, SpeculationOptions&) {}},
      {"--mtp-recycle-norm",
       "mtp_recycle_norm",
       "SIDE",
       "mtp: further guesses read its own state post (default) or pre its norm",
       Kind::Choice,
       {"post", "pre"},
       {},
       [](const SettingValue&, SpeculationOptions&) {}},
      {"--verify",
       "verify",
       "HOW",
       "exact (default), or sparse: LOSSY, the check itself leaves out what the --verify-... settings say",
       Kind::Choice,
       {"exact", "sparse"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.on = word(v) == "sparse"; }},
      {"--verify-ratio",
       "verify_attn_ratio",
       "X",
       "sparse check: share of the entries behind --verify-dense that is read (default 0.1; 1: all)",
       Kind::Number,
       {},
       {0, 1, true},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.ratio = std::get<double>(v); }},
      {"--verify-dense",
       "verify_attn_dense_len",
       "N",
       "sparse check: up to N entries all are read (default 4096)",
       Kind::Whole,
       {},
       {0, 1 << 24},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.dense_len = whole(v); }},
      {"--verify-block",
       "verify_attn_block",
       "N",
       "sparse check: entries of a block (default 32)",
       Kind::Whole,
       {},
       {1, 1024},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.block = whole(v); }},
      {"--verify-sinks",
       "verify_attn_sink_blocks",
       "N",
       "sparse check: first blocks that are always read (default 1)",
       Kind::Whole,
       {},
       {0, 1 << 16},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.sink_blocks = whole(v); }},
      {"--verify-recent",
       "verify_attn_recent_blocks",
       "N",
       "sparse check: last blocks that are always read (default: as the rows of a round need, 2 or more)",
       Kind::Whole,
       {},
       {1, 1 << 16},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.recent_blocks = whole(v); }},
      {"--verify-scope",
       "verify_attn_budget_scope",
       "SCOPE",
       "sparse check: a budget per_head (default) or a joint one for all KV heads",
       Kind::Choice,
       {"per_head", "joint"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.scope = word(v); }},
      {"--verify-group",
       "verify_attn_group",
       "HOW",
       "sparse check: query heads score a block by their sum (default) or max",
       Kind::Choice,
       {"sum", "max"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.group = word(v); }},
      {"--verify-reuse",
       "verify_attn_reuse",
       "WHICH",
       "sparse check: every layer chooses (none, default), or calibrated anchors for those behind them",
       Kind::Choice,
       {"none", "calibrated"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.reuse_layers = word(v) == "calibrated"; }},
      {"--verify-channels",
       "verify_ffn_threshold",
       "X",
       "sparse check: channels of the feed-forward block below X in every row are left out (default 0: none)",
       Kind::Number,
       {},
       {0, 1000},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.channel_threshold = std::get<double>(v); }},
      {"--verify-channel-share",
       "verify_ffn_share",
       "X",
       "sparse check: the same with thresholds that a share X of the channels was below when calibrated",
       Kind::Number,
       {},
       {0, 0.95},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.channel_share = std::get<double>(v); }},
      {"--verify-experts",
       "verify_experts",
       "N",
       "sparse check: up to N experts of a row are left out (default 0)",
       Kind::Whole,
       {},
       {0, 64},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.skip_experts = whole(v); }},
      {"--verify-expert-mode",
       "verify_expert_mode",
       "MODE",
       "sparse check: literal (default) or graded, by calibrated thresholds; tail_mass or union_aware, by --verify-expert-mass",
       Kind::Choice,
       {"literal", "graded", "tail_mass", "union_aware"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.expert_mode = word(v); }},
      {"--verify-expert-mass",
       "verify_expert_mass",
       "X",
       "sparse check: share of the weights of a row's experts that may go (default 0.1)",
       Kind::Number,
       {},
       {0, 0.99},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.expert_mass = std::get<double>(v); }},
      {"--verify-expert-renorm",
       "verify_expert_renorm",
       "WHETHER",
       "sparse check: weights of experts that stay are scaled up for those that go (default off)",
       Kind::Choice,
       {"off", "on"},
       {},
       [](const SettingValue& v, SpeculationOptions& o) { o.sparse.expert_renorm = word(v) == "on"; }},
  };
  return settings;
}

Result<SettingValue> parse_setting(const SpeculationSetting& setting, std::string_view spelled_as, std::string_view text) {
  if (setting.kind == Kind::Whole) {
    HUNCH_TRY(const int64_t n, parse_whole(spelled_as, text, setting.range));
    return SettingValue(double(n));
  }
  if (setting.kind == Kind::Number) {
    HUNCH_TRY(const double x, parse_number(spelled_as, text, setting.range));
    return SettingValue(x);
  }
  if (setting.kind == Kind::Layers) {  // how many layers there are is known when the request is planned
    if (auto form = skipped_layers(text, 1 << 20); !form.ok())
      return usage_error(fmt::format("{}: {}", spelled_as, form.error().message));
    return SettingValue(std::string(text));
  }
  if (setting.kind == Kind::LayerList) {  // likewise
    if (const auto form = reuse_layers_of(text, 1 << 20); !form.ok())
      return usage_error(fmt::format("{}: {}", spelled_as, form.error().message));
    return SettingValue(std::string(text));
  }
  if (setting.kind == Kind::Tree) {
    HUNCH_TRY(const auto paths, parse_token_tree(spelled_as, text));
    HUNCH_TRY(const StaticTree tree, StaticTree::make(paths, int(paths.size())));
    return SettingValue(tree.text());  // so that two spellings of one tree agree
  }
  if (setting.key == "method") {
    text = drafter_method_named(text);
    if (text == "sparse_attn") text = "self";                                                 // the Vegas release's word
    for (std::string_view alias : {"ngram_gpu", "ngram-simple", "ngram-map-k", "ngram-mod"})  // the same guess by other means
      if (text == alias) text = "ngram";
    if (is_other_method(text))
      return usage_error(fmt::format("{}: {} is not available yet; there are {} (self also spelled sparse_attn)", spelled_as,
                                     text, comma_list(methods())));
    auto names = methods();
    names.push_back("sparse_attn");
    HUNCH_TRY(std::string name, parse_choice(spelled_as, text, names));
    return SettingValue(std::move(name));
  }
  HUNCH_TRY(std::string name, parse_choice(spelled_as, text, setting.choices));
  return SettingValue(std::move(name));
}

}  // namespace hunch
