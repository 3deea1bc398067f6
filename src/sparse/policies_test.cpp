// Every policy's selections against its definition, written out plainly: random keys and queries, two sequences in one pass,
// whole rounds in a model's order, on `reference` and `cpu`. The compact copies are read back after every commit.
#include <fmt/format.h>

#include <numeric>
#include <random>

#include "base/half.h"
#include "base/test_results.h"
#include "sparse/policy.h"
#include "tensor/test_view.h"

namespace hunch {
namespace {

using test::view;

constexpr int kLayers = 3, kKvHeads = 2, kGroup = 2, kHeads = kKvHeads * kGroup, kDim = 24, kMaxDraft = 4;
constexpr float kScale = 0.2f;
const KvGeometry kGeometry{.dtype = DType::F32, .layers = kLayers, .kv_heads = kKvHeads, .head_dim = kDim};

using Grain = Selection::Grain;
using Scores = std::vector<double>;

struct Live {  // one sequence and what its last pass showed the policy
  Sequence sequence;
  Ints pages;
  PassInfo info;
  std::vector<float> q[kLayers], true_lse[kLayers], draft_lse[kLayers];  // [row][head][dim]; [row][head]
  std::vector<float> lse_before[kLayers];                                // true_lse of the pass before
  std::vector<uint8_t> drafted;                                          // [row] a draft step ran
};

class Rig {
 public:
  Rig(const char* device, const char* policy, const PolicyOptions& options) : options(options) {
    backend = test::good(Register<Backend>::find(device)->make({.threads = 2}));
    store = backend->make_kv_store(kGeometry, 30);
    this->policy = test::good(Register<SparsePolicy>::find(policy)->make({
        .backend = backend.get(),
        .geometry = kGeometry,
        .heads = kHeads,
        .window = {0, 16, 0},
        .max_sequences = 3,
        .max_draft = kMaxDraft,
        .options = options,
    }));
  }

  Live start(Slot slot, int64_t prompt) {
    Live run;
    run.sequence.slot = slot, run.sequence.prompt_len = prompt, run.sequence.max_len = prompt + 60;
    for (int32_t page = 0; page < 10; ++page) run.pages.push_back(slot * 10 + (page * 7 + 3) % 10);
    policy->open(run.sequence);
    write(run, 0, prompt, 1);
    return run;
  }
  void prompt_pass(const std::vector<Live*>& runs) {
    const int rows = policy->prompt_rows();
    for (Live* run : runs)
      run->info = {
          .sequence = &run->sequence, .prompt = true, .first_position = run->sequence.prompt_len - rows, .num_rows = rows};
    read_all(runs);
    for (Live* run : runs) run->sequence.committed_len = run->sequence.prompt_len;
  }
  // Draft steps of some rows of the round; `seen` looks at each selection. What they store is far from what is stored later.
  void draft(Live& run, const std::vector<int>& round_rows, const std::function<void(int layer, const float* q)>& seen = {}) {
    run.drafted.assign(kMaxDraft + 1, 0);
    for (auto& lse : run.draft_lse) lse.assign((kMaxDraft + 1) * kHeads, 0);
    for (const int row : round_rows) {
      const int64_t entry = run.sequence.committed_len + row;
      write(run, entry, 1, 30);
      const PassInfo info{.sequence = &run.sequence, .draft = true, .first_position = entry, .num_rows = 1, .round_row = row};
      for (int layer = 0; layer < kLayers; ++layer) {
        const auto q = random(kHeads * kDim, 1);
        const Selection selection = policy->select(layer, {.q = view(q, 1, kHeads, kDim), .scale = kScale, .kv = own(run)}, info);
        EXPECT_TRUE(selection.grain == Grain::All || layer != 1);
        if (selection.grain == Grain::Token && seen) seen(layer, q.data());
        for (int head = 0; head < kHeads; ++head) run.draft_lse[layer][row * kHeads + head] = float(4 + 2 * row + head);
        policy->learn(layer, info, {.lse = View<const float, 2>(&run.draft_lse[layer][row * kHeads], 1, kHeads)});
      }
      run.drafted[row] = 1;
    }
  }
  void verify_pass(const std::vector<Live*>& runs, int rows) {
    for (Live* run : runs) {
      write(*run, run->sequence.committed_len, rows, 1);
      run->info = {.sequence = &run->sequence, .first_position = run->sequence.committed_len, .num_rows = rows};
    }
    read_all(runs);
  }
  void commit(Live& run, const Ints& rows, bool tree) {
    if (tree) {
      std::vector<int64_t> from, to;
      for (size_t i = 0; i < rows.size(); ++i)
        from.push_back(run.info.first_position + rows[i]), to.push_back(run.info.first_position + int64_t(i));
      backend->move_kv({.kv = own(run), .from = from, .to = to});
    }
    run.sequence.committed_len += std::ssize(rows);
    Commit commit{run.info.first_position, run.info.num_rows, int(rows.size()) - 1};
    if (tree) commit.rows = rows;
    policy->committed(run.sequence, commit);
  }

  KvRef own(const Live& run) const { return {store.get(), view(run.pages)}; }
  Selection selection(const Live& run, int layer) {
    return policy->select(
        layer, {}, {.sequence = &run.sequence, .draft = true, .first_position = run.sequence.committed_len, .num_rows = 1});
  }
  Ints listed(Slot slot, int layer, int set) const {
    const auto list = policy->selected(slot, layer);
    return {&list(set, 0), &list(set, 0) + list.extent[1]};
  }
  std::vector<float> entry(const KvRef& kv, int layer, int head, int64_t e) const {
    std::vector<float> out(2 * kDim);
    kv.store->read(layer, head, kv.pages, e, out.data(), out.data() + kDim);
    return out;
  }
  double logit(const Live& run, int layer, const float* q, int head, int64_t e) const {
    const auto k = entry(own(run), layer, head / kGroup, e);
    double sum = 0;
    for (int d = 0; d < kDim; ++d) sum += double(q[head * kDim + d]) * double(k[d]);
    return sum * kScale;
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<KvStore> store;
  std::unique_ptr<SparsePolicy> policy;
  PolicyOptions options;

 private:
  std::vector<float> random(size_t n, float scale) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> out(n);
    for (float& x : out) x = bf16_to_f32(f32_to_bf16(normal(dice_)));
    return out;
  }
  void write(const Live& run, int64_t first, int64_t rows, float scale) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto k = random(size_t(rows * kKvHeads * kDim), scale), v = random(k.size(), scale);
      const auto keys = view(k, rows, kKvHeads, kDim), values = view(v, rows, kKvHeads, kDim);
      backend->store_kv({.layer = layer, .k = keys, .v = values, .kv = own(run), .first_entry = first});
    }
  }
  // As Pass does it: what is asked for is copied, all sequences attend, then all learn.
  void read_all(const std::vector<Live*>& runs) {
    for (int layer = 0; layer < kLayers; ++layer) {
      struct Asked {
        std::vector<float> lse;
        std::vector<uint8_t> used;
        ScoreArgs args;
      };
      std::vector<Asked> asked(runs.size());
      for (size_t i = 0; i < runs.size(); ++i) {
        auto& [lse, used, args] = asked[i];
        Live& run = *runs[i];
        const int rows = run.info.num_rows;
        run.q[layer] = random(size_t(rows * kHeads * kDim), 2);
        run.lse_before[layer] = std::exchange(run.true_lse[layer], {});
        for (int row = 0; row < rows; ++row)
          for (int head = 0; head < kHeads; ++head) {
            double sum = 0;
            for (int64_t e = 0; e <= run.info.first_position + row; ++e)
              sum += std::exp(logit(run, layer, &run.q[layer][row * kHeads * kDim], head, e));
            run.true_lse[layer].push_back(float(std::log(sum)));
          }
        const ScoreRequest request = policy->scores(layer, run.info);
        args.metric = request.metric;
        if (request.metric == ScoreMetric::None) continue;
        EXPECT_NE(layer, 1) << "a layer with a window is never selected from";
        for (int row = 0; row < rows; ++row) {
          used.push_back(request.row_used(row));
          for (int head = 0; request.lse.data && head < kHeads; ++head) lse.push_back(request.lse(row, head));
        }
        args.combine = request.combine, args.block = request.block, args.out = request.out;
        args.row_used = view(used, rows), args.lse = view(lse, rows, kHeads);
        args.prefix_len = run.info.first_position / request.block * request.block;
      }
      for (size_t i = 0; i < runs.size(); ++i)
        if (asked[i].args.metric != ScoreMetric::None)
          backend->score_keys(
              {.layer = layer, .scale = kScale, .q = queries(*runs[i], layer), .kv = own(*runs[i]), .scores = asked[i].args});
      for (size_t i = 0; i < runs.size(); ++i)
        policy->learn(layer, runs[i]->info,
            {.q = queries(*runs[i], layer),
                .lse = view(runs[i]->true_lse[layer], runs[i]->info.num_rows, kHeads),
                .scores = asked[i].args.out,
                .scale = kScale,
                .kv = own(*runs[i])});
    }
  }
  static View<const float, 3> queries(const Live& run, int layer) { return view(run.q[layer], run.info.num_rows, kHeads, kDim); }

  std::mt19937 dice_{5};
};

// Mean over the heads of a set, then sum or max over the rows used, of min(1, exp(logit - lse)) or of logits.
Scores scores_of(const Rig& rig, const Live& run, int layer, int set, const std::vector<float>& lse, const std::vector<int>& rows,
    bool logits, bool maximum) {
  const int first = rig.options.share == "layer" ? 0 : set * kGroup, end = rig.options.share == "layer" ? kHeads : first + kGroup;
  Scores out;
  for (int64_t e = 0; e < run.info.first_position; ++e) {
    double score = maximum ? -1e300 : 0;
    for (const int row : rows) {
      double mean = 0;
      for (int head = first; head < end; ++head) {
        const double s = rig.logit(run, layer, &run.q[layer][row * kHeads * kDim], head, e);
        mean += (logits ? s : std::min(1.0, std::exp(s - double(lse[row * kHeads + head])))) / (end - first);
      }
      score = maximum ? std::max(score, mean) : score + mean;
    }
    out.push_back(score);
  }
  return out;
}

// The log-sum-exps that a row is weighed by: its own draft step's, else those of the nearest row before it. In a round without
// draft steps, those of the last row of the pass before; where the rows are scored after their pass, their own.
std::vector<float> noted_lse(const Live& run, int layer, bool after_pass) {
  const bool any = std::ranges::find(run.drafted, uint8_t(1)) != run.drafted.end();
  if (!any && after_pass) return run.true_lse[layer];
  std::vector<float> out;
  for (int row = 0, nearest = 0; row < run.info.num_rows; ++row) {
    if (run.drafted[row]) nearest = row;
    const auto from = any ? run.draft_lse[layer].begin() + nearest * kHeads : run.lse_before[layer].end() - kHeads;
    out.insert(out.end(), from, from + kHeads);
  }
  return out;
}

Scores spread(const Scores& scores, int reach) {
  Scores out = scores;
  for (size_t j = 0; j < scores.size(); ++j)
    for (int t = 1; t <= reach && size_t(t) <= j; ++t) out[j] = std::max(out[j], std::pow(0.98, t) * scores[j - size_t(t)]);
  return out;
}
Scores pooled(const Scores& scores) {
  Scores out(scores.size(), 0);
  for (int64_t j = 0; j < std::ssize(scores); ++j)
    for (int64_t i = std::max<int64_t>(0, j - 2); i <= std::min<int64_t>(j + 2, std::ssize(scores) - 1); ++i)
      out[j] += scores[i] / 5;
  return out;
}
Scores greatest_of_blocks(const Scores& scores, int block) {
  Scores out;
  for (size_t b = 0; b + size_t(block) <= scores.size(); b += size_t(block))
    out.push_back(*std::max_element(scores.begin() + int64_t(b), scores.begin() + int64_t(b) + block));
  return out;
}

// `list` is ascending, of the budget, made of whole blocks, and no block left out scores more than one taken.
void expect_best(const Rig& rig, const Live& run, int layer, int set, const Scores& scores, int block, const std::string& what) {
  const auto list = rig.policy->selected(run.sequence.slot, layer);
  const int64_t valid = std::ssize(scores) * block;
  ASSERT_EQ(list.extent[1], (kept_entries(rig.options, valid) + block - 1) / block * block) << what;
  std::vector<uint8_t> taken(scores.size(), 0);
  for (int64_t i = 0; i < list.extent[1]; ++i) {
    ASSERT_TRUE(list(set, i) >= 0 && list(set, i) < valid) << what;
    ASSERT_TRUE(i == 0 || list(set, i) > list(set, i - 1)) << what;
    ASSERT_TRUE(i % block == 0 || list(set, i) == list(set, i - 1) + 1) << what;
    taken[list(set, i) / block] = 1;
  }
  double worst = 1e300, best = -1e300;
  for (size_t b = 0; b < scores.size(); ++b)
    (taken[b] ? worst : best) = taken[b] ? std::min(worst, scores[b]) : std::max(best, scores[b]);
  ASSERT_GE(worst, best - 1e-4 * std::max(std::abs(best), std::abs(worst))) << what << " layer " << layer << " set " << set;
}

// The compact copy of a layer holds the listed entries, then all that are behind them, up to `end`.
void expect_copied(Rig& rig, const Live& run, int layer, const Selection& selection, int64_t end, const std::string& what) {
  const auto list = rig.policy->selected(run.sequence.slot, layer);
  ASSERT_EQ(selection.prefix, list.extent[1]) << what;
  for (int head = 0; head < kKvHeads; ++head) {
    const auto expect_equal = [&](int64_t copied, int64_t own) {
      EXPECT_EQ(rig.entry(selection.kv, layer, head, copied), rig.entry(rig.own(run), layer, head, own))
          << what << " layer " << layer << " head " << head << " entry " << copied << " of " << own;
    };
    for (int64_t i = 0; i < selection.prefix; ++i) expect_equal(i, list(list.extent[0] > 1 ? head : 0, i));
    for (int64_t p = selection.tail_first; p < end; ++p) expect_equal(selection.entry_of(p), p);
  }
}
// After a commit.
void expect_copied(Rig& rig, const Live& run, const std::string& what) {
  for (const int layer : {0, 2})
    if (const Selection selection = rig.selection(run, layer); selection.grain == Grain::Token)
      expect_copied(rig, run, layer, selection, run.sequence.committed_len, what);
}

// Rows of the last pass that count, given those that were accepted.
std::vector<int> counting(const std::string& rows, const Live& run, const Ints& accepted) {
  std::vector<int> all(run.info.num_rows);
  std::iota(all.begin(), all.end(), 0);
  if (rows == "all" || (rows == "accepted" && accepted.empty())) return all;
  if (rows == "first_last") return {0, all.back()};
  if (rows == "last") return {accepted.empty() ? all.back() : int(accepted.back())};
  return {accepted.begin(), accepted.end()};
}

struct Config {
  const char* policy;
  PolicyOptions options;
};

std::vector<Config> scored_configs() {
  std::vector<Config> out;
  for (const char* rows : {"all", "first_last", "last", "accepted"})
    for (const char* metric : {"weight", "true_weight", "logit"})
      for (const bool wide : {false, true})
        out.push_back({
            "vegas",
            {.metric = metric,
                .rows = rows,
                .combine = wide ? "max" : "sum",
                .share = wide ? "layer" : "kv_head",
                .spread = wide && std::string(metric) != "logit" ? 5 : 0,
                .block = 1},
        });
  out.push_back({"vegas", {.max_tokens = 33}});
  for (const int block : {4, 8, 16}) out.push_back({"vegas", {.block = block}});
  out.push_back({"vegas", {.metric = "true_weight", .combine = "sum", .share = "layer", .spread = 7, .block = 16}});
  out.push_back({"vegas", {.sinks = 9, .recent = 5, .block = 4}});
  for (const char* rows : {"all", "last"}) out.push_back({"vegas", {.rows = rows, .layer_step = 2}});
  for (const char* policy : {"last_accepted", "sparsespec", "snapkv"}) {
    out.push_back({policy, {.layer_step = 2}});
    for (const char* share : {"kv_head", "layer"}) out.push_back({policy, {.share = share}});
  }
  for (Config& config : out) config.options.ratio = 0.1, config.options.min_tokens = 5;
  return out;
}

// What the definition of a scored policy says of the last pass.
void expect_scored(Rig& rig, const Config& config, const Live& run, const Ints& accepted, const std::string& what) {
  const std::string name = config.policy;
  const bool vegas = name == "vegas";
  const PolicyOptions& o = config.options;
  const std::string rows = vegas ? o.rows : name == "last_accepted" ? "last" : "all";
  for (const int layer : {0, 2})
    for (int set = 0; set < (o.share == "layer" ? 1 : kKvHeads); ++set) {
      const bool by_drafts = vegas && o.metric == "weight" && !run.info.prompt;
      const int chooser = o.layer_step > 1 ? 0 : layer;  // whose scores count; layer 1 has a window
      Scores scores = scores_of(rig, run, chooser, set,
          by_drafts ? noted_lse(run, chooser, rows == "last" || rows == "accepted") : run.true_lse[chooser],
          counting(rows, run, accepted), vegas && o.metric == "logit", vegas && o.combine == "max");
      if (name == "snapkv") scores = pooled(scores);
      if (vegas) scores = spread(greatest_of_blocks(scores, o.block), (o.spread + o.block - 1) / o.block);
      std::fill_n(scores.begin(), (o.sinks + o.block - 1) / o.block, 1e300);
      std::fill_n(scores.rbegin(), (o.recent + o.block - 1) / o.block, 1e300);
      expect_best(rig, run, layer, set, scores, vegas ? o.block : 1, what);
    }
}

void expect_rounds(const char* device, const Config& config) {
  const PolicyOptions& o = config.options;
  const std::string name = config.policy;
  const std::string what =
      fmt::format("{} {} {} {} {} block {} step {}", device, name, o.metric, o.rows, o.share, o.block, o.layer_step);
  Rig rig(device, config.policy, config.options);
  Live gone = rig.start(2, 100);  // had the slot
  rig.prompt_pass({&gone});
  Live a = rig.start(2, 230), b = rig.start(0, 161);
  const std::vector<Live*> both{&a, &b};
  rig.prompt_pass(both);
  for (Live* run : both) {
    if (name == "sparsespec") EXPECT_EQ(rig.selection(*run, 0).grain, Grain::All);
    else expect_scored(rig, config, *run, {}, what + " prompt");
  }
  // A chain, a tree with rows whose draft steps never ran, a chain, rows that no draft step made.
  const Ints paths[] = {{0, 1, 2}, {0, 2, 4}, {0}, {0, 1}};
  const std::vector<int> drafted[] = {{0, 1, 2, 3}, {0, 2, 3}, {0, 1, 2, 3}, {}};
  for (int round = 0; round < 4; ++round) {
    for (Live* run : both) rig.draft(*run, drafted[round]);
    if (round == 2)  // some of them turn out not to be of the round
      for (Live* run : both) {
        rig.policy->forget_drafts(run->sequence, 2);
        run->drafted[2] = run->drafted[3] = 0;
      }
    rig.verify_pass(both, kMaxDraft + 1);
    for (Live* run : both) {
      rig.commit(*run, paths[round], round == 1);
      const auto of_round = fmt::format("{} round {}", what, round);
      if (name != "snapkv") expect_scored(rig, config, *run, paths[round], of_round);
      expect_copied(rig, *run, of_round);
    }
  }
}

TEST(Policies, OfVerifiedRowsSelectWhatTheirDefinitionsSay) {
  for (const char* device : {"reference", "cpu"})
    for (const Config& config : scored_configs()) expect_rounds(device, config);
}

TEST(Policies, SnapkvKeepsThePromptsSelection) {
  Rig rig("cpu", "snapkv", {.ratio = 0.1});
  Live run = rig.start(0, 230);
  rig.prompt_pass({&run});
  const auto before = rig.listed(0, 2, 0);
  for (int round = 0; round < 8; ++round) {
    rig.draft(run, {0, 1, 2, 3});
    rig.verify_pass({&run}, 5);
    rig.commit(run, {0, 1, 2, 3, 4}, false);
    EXPECT_EQ(rig.listed(0, 2, 0), before);
    EXPECT_EQ(rig.selection(run, 2).tail_first, 230 - 32);
    expect_copied(rig, run, "snapkv");
  }
}

TEST(Policies, StreamingllmReadsBothEnds) {
  Rig rig("cpu", "streamingllm", {.ratio = 0.05, .min_tokens = 5, .sinks = 3});
  Live run = rig.start(0, 90);
  rig.prompt_pass({&run});
  rig.verify_pass({&run}, 5);
  EXPECT_EQ(rig.listed(0, 2, 0), (Ints{0, 1, 2, 88, 89}));
  rig.commit(run, {0, 2, 4}, true);
  expect_copied(rig, run, "tree");
  ASSERT_TRUE(rig.policy->refresh(run.sequence, rig.own(run)));
  EXPECT_EQ(rig.listed(0, 2, 0), (Ints{0, 1, 2, 90, 91}));
  expect_copied(rig, run, "refreshed");
}

// Quest and oracle choose at every draft step, from what is committed then.
void expect_drafts(const char* device, const Config& config) {
  const bool quest = std::string(config.policy) == "quest";
  const int page = quest ? config.options.page : 1;
  const auto what = fmt::format("{} {} {} page {}", device, config.policy, config.options.share, page);
  Rig rig(device, config.policy, config.options);
  Live gone = rig.start(1, 200);  // had the slot
  rig.prompt_pass({&gone});
  Live a = rig.start(1, 230), b = rig.start(0, 161);
  rig.prompt_pass({&a, &b});
  const bool shared = config.options.share == "layer";
  int looks = 0;
  for (int round = 0; round < 6; ++round) {
    for (Live* run : {&a, &b})
      rig.draft(*run, {0, 1, 2, 3, 4}, [&](int layer, const float* q) {
        ++looks;
        const int64_t pages = run->sequence.committed_len / page;
        const int64_t drafted = std::ranges::count(run->drafted, uint8_t(1));
        for (int set = 0; set < (shared ? 1 : kKvHeads); ++set) {
          Scores scores(pages, quest && !shared ? -1e300 : 0);
          for (int head = shared ? 0 : set * kGroup; head < (shared ? kHeads : (set + 1) * kGroup); ++head) {
            double lse = 0;
            if (!quest) {  // over everything up to the draft row itself, which is the newest entry written
              const int64_t newest = run->sequence.committed_len + drafted;
              for (int64_t e = 0; e <= newest; ++e) lse += std::exp(rig.logit(*run, layer, q, head, e));
              lse = std::log(lse);
            }
            for (int64_t p = 0; p < pages; ++p) {
              double& score = scores[p];
              if (!quest) {
                score += std::exp(rig.logit(*run, layer, q, head, p) - lse);
                continue;
              }
              std::vector<double> greatest(kDim, -1e300);  // of a query's part times each key's
              for (int64_t e = p * page; e < (p + 1) * page; ++e) {
                const auto k = rig.entry(rig.own(*run), layer, head / kGroup, e);
                for (size_t d = 0; d < size_t(kDim); ++d)
                  greatest[d] = std::max(greatest[d], double(q[size_t(head * kDim) + d]) * double(k[d]));
              }
              const double bound = std::accumulate(greatest.begin(), greatest.end(), 0.0);
              score = shared ? score + bound : std::max(score, bound);
            }
          }
          expect_best(rig, *run, layer, set, scores, page, fmt::format("{} round {}", what, round));
        }
        // The copy is what is about to be read: the list, then everything behind it up to the draft row.
        const Selection selection = rig.selection(*run, layer);
        EXPECT_EQ(selection.tail_first, pages * page);
        expect_copied(rig, *run, layer, selection, run->sequence.committed_len + drafted, what);
      });
    rig.verify_pass({&a, &b}, 5);
    rig.commit(a, {0, 1, 2}, false);
    rig.commit(b, {0, 1}, false);
  }
  EXPECT_EQ(looks, 6 * 2 * 5 * 2) << what;  // rounds, sequences, steps, layers without a window
}

TEST(Policies, OfDraftStepsSelectWhatTheirDefinitionsSay) {
  for (const char* device : {"reference", "cpu"})
    for (const char* share : {"kv_head", "layer"}) {
      for (const int page : {4, 16}) expect_drafts(device, {"quest", {.ratio = 0.2, .share = share, .page = page}});
      expect_drafts(device, {"oracle", {.ratio = 0.2, .share = share}});
    }
}

TEST(Policies, QuestReadsAllWhereItsBoundsHaveNoRoom) {
  for (const char* device : {"reference", "cpu"}) {
    Rig rig(device, "quest", {.ratio = 0.2, .max_tokens = 64, .page = 4});
    for (const bool room : {true, false, true}) {
      Live run = rig.start(0, 200);
      if (!room) run.sequence.max_len = int64_t(1) << 40, rig.policy->open(run.sequence);
      rig.prompt_pass({&run});
      int selected = 0;
      rig.draft(run, {0}, [&](int, const float*) { ++selected; });
      EXPECT_EQ(selected > 0, room);
    }
  }
}

TEST(Policies, RandomDrawsAnewEveryRoundAndAlikeEveryTime) {
  std::vector<Ints> lists[2];
  for (auto& seen : lists) {
    Rig rig("reference", "random", {.ratio = 0.1});
    Live run = rig.start(0, 230);
    rig.prompt_pass({&run});
    for (int round = 0; round < 3; ++round) {
      for (const int layer : {0, 2})
        for (int set = 0; set < kKvHeads; ++set) {
          seen.push_back(rig.listed(0, layer, set));
          EXPECT_TRUE(std::ranges::is_sorted(seen.back()));
          EXPECT_EQ(int64_t(seen.back().size()), kept_entries({.ratio = 0.1}, run.info.first_position));
        }
      rig.verify_pass({&run}, 5);
      rig.commit(run, {0, 1}, false);
      expect_copied(rig, run, "random");
    }
  }
  EXPECT_EQ(lists[0], lists[1]);
  for (size_t i = 0; i < lists[0].size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(lists[0][i], lists[0][j]);
}

TEST(Policies, TakeMemoryForTheSequencesThatAreOpen) {
  for (const auto& part : Register<SparsePolicy>::all()) {
    SCOPED_TRACE(part.name);
    const Rig rig("cpu", std::string(part.name).c_str(), {.ratio = 0.1});
    SparsePolicy& policy = *rig.policy;
    EXPECT_LT(policy.bytes(), 4096u);
    if (part.name == "full") continue;
    EXPECT_EQ(policy.compact_store(1), nullptr);
    Sequence sequence;
    sequence.slot = 1, sequence.prompt_len = 4320, sequence.max_len = 4420;
    policy.open(sequence);
    const size_t one = policy.bytes();
    const KvStore* store = policy.compact_store(1);
    ASSERT_NE(store, nullptr);
    EXPECT_GT(one, store->bytes);
    EXPECT_LT(store->num_pages, 12);  // 442 entries, what snapkv's request may add, two rounds
    EXPECT_GE(store->num_pages, 8);
    std::vector<float> k(kDim), v(kDim);
    const int32_t page = int32_t(store->num_pages - 1);
    store->read(2, 1, View<const int32_t, 1>(&page, 1), 63, k.data(), v.data());
    EXPECT_TRUE(std::isnan(k[0]) && std::isnan(v[kDim - 1]));
    policy.close(1);
    sequence.max_len = 2000, sequence.prompt_len = 1950;
    policy.open(sequence);
    EXPECT_EQ(policy.bytes(), one);
    EXPECT_EQ(policy.compact_store(1), store);
    sequence.slot = 0;
    policy.open(sequence);
    EXPECT_GT(policy.bytes(), one);
    EXPECT_LT(policy.bytes(), 2 * one);
  }
}

TEST(Policies, ThatAreForAnalysisOnlySaySo) {
  std::vector<std::string_view> names;
  for (const auto& part : Register<SparsePolicy>::all())
    if (analysis_only(part)) names.push_back(part.name);
  EXPECT_EQ(names, (std::vector<std::string_view>{"oracle", "random"}));
}

}
}
