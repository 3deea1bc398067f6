// The sets that the PyTorch oracle selected on recorded queries and keys of wren-34m (models/tiny/README.md), made again by the
// attention, score and top-k ops: equal on `reference`, except at ties; on `cpu`, whose queries may be rounded to bf16, equal but
// for positions at the cut.
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/test_results.h"
#include "checkpoint/quantise.h"
#include "engine/test_engines.h"
#include "tensor/test_view.h"

namespace hunch {
namespace {

using namespace test;

using Json = nlohmann::json;
using Floats = std::vector<float>;

class Recording {
 public:
  Recording() {
    const auto base = tree_path() + "/models/golden/selection/rounds";
    std::ifstream text(base + ".json"), binary(base + ".bin", std::ios::binary);
    HUNCH_CHECK(text.good() && binary.good());
    json = Json::parse(text);
    bytes_.assign(std::istreambuf_iterator<char>(binary), {});
  }
  Floats array(const Json& where) const {
    size_t count = 1;
    for (const Json& extent : where["shape"]) count *= extent.get<size_t>();
    const char* from = bytes_.data() + where["offset"].get<size_t>();
    Floats out(count);
    const DType dtype = where["dtype"] == "f32" ? DType::F32 : DType::BF16;
    dequantise_row(dtype, reinterpret_cast<const std::byte*>(from), out.data(), int64_t(count));
    return out;
  }
  Json json;

 private:
  std::vector<char> bytes_;
};

struct Tally {
  int sets = 0, positions = 0, differing_sets = 0, differing_positions = 0;
};

// One recorded pass of one layer on a backend.
class Replay {
 public:
  Replay(Backend& backend, const Recording& recording, const Json& keys, const Json& pass, const Json& layer)
      : backend_(backend),
        heads_(recording.json["heads"]),
        kv_heads_(recording.json["kv_heads"]),
        head_dim_(recording.json["head_dim"]),
        prefix_(pass["p"]),
        accepted_row_(pass["accepted_row"].is_null() ? 0 : pass["accepted_row"].get<int>()),
        q_data_(recording.array(layer["queries"])),
        rows_(layer["queries"]["shape"][0]) {
    store_ = backend.make_kv_store({.dtype = DType::BF16, .layers = 1, .kv_heads = kv_heads_, .head_dim = head_dim_}, 8);
    for (int32_t page = 0; page < 8; ++page) pages_.push_back(7 - page);
    kv_ = {store_.get(), view(pages_)};
    auto k = recording.array(keys);
    k.resize(prefix_ * kv_heads_ * head_dim_);
    const auto own = recording.array(layer["row_keys"]);
    k.insert(k.end(), own.begin(), own.end());
    const View<const float, 3> view(k.data(), prefix_ + rows_, kv_heads_, head_dim_);
    backend.store_kv({.layer = 0, .k = view, .v = view, .kv = kv_, .first_entry = 0});
    if (!layer["draft_lse"].is_null()) {
      const int gamma = recording.json["gamma"];
      draft_lse_ = recording.array(layer["draft_lse"]);
      for (int row = gamma; row < rows_; ++row)
        for (int head = 0; head < heads_; ++head) draft_lse_.push_back(draft_lse_[(gamma - 1) * heads_ + head]);
    }
    attend({}, true_lse_);
  }

  std::vector<Ints> select(const Json& wanted) {
    const bool per_kv = wanted["per_kv"];
    const int sets = per_kv ? kv_heads_ : 1;
    const int64_t count = wanted["k"];
    std::vector<uint8_t> used(rows_);
    for (int row = 0; row < rows_; ++row)
      used[row] = wanted["rows"] == "all" || (wanted["rows"] == "last" ? row == accepted_row_ : row == 0 || row == rows_ - 1);
    Floats scores(sets * prefix_);
    ScoreArgs args{
        .metric = wanted["metric"] == "logit" ? ScoreMetric::Logit : ScoreMetric::Weight,
        .combine = wanted["combine"] == "max" ? ScoreCombine::Max : ScoreCombine::Sum,
        .row_used = view(used, rows_),
        .prefix_len = prefix_,
        .out = view(scores, sets, prefix_),
    };
    const bool by_draft = wanted["metric"] == "dweight" && !draft_lse_.empty();
    const auto& lse = by_draft ? draft_lse_ : true_lse_;
    args.lse = view(lse, rows_, heads_);
    if (args.metric == ScoreMetric::Logit || by_draft) {  // inside attention's own pass over K
      Floats again;
      attend(args, again);
    } else {
      backend_.score_keys({.layer = 0, .scale = scale(), .q = queries(), .kv = kv_, .scores = args});
    }
    Ints index(sets * count);
    backend_.top_k({
        .scores = args.out,
        .n = prefix_,
        .count = count,
        .spread = wanted["spread"],
        .index = view(index, sets, count),
    });
    std::vector<Ints> out;
    for (int set = 0; set < sets; ++set) out.emplace_back(index.begin() + set * count, index.begin() + (set + 1) * count);
    return out;
  }

  // The same set, chosen by the vegas policy from what the passes of a round would show it.
  std::vector<Ints> select_by_policy(const Json& wanted, bool prompt) {
    const bool true_weight = wanted["metric"] == "weight";
    SparsePolicy::Setup setup{
        .backend = &backend_,
        .geometry = {.dtype = DType::BF16, .layers = 1, .kv_heads = kv_heads_, .head_dim = head_dim_},
        .heads = heads_,
        .window = {0},
        .max_draft = std::max(1, rows_ - 1),
    };
    setup.options = {
        .ratio = wanted["ratio"],
        .min_tokens = wanted["min_tokens"],
        .metric = wanted["metric"] == "logit" ? "logit"
            : true_weight                     ? "true_weight"
                                              : "weight",
        .rows = wanted["rows"],
        .combine = wanted["combine"],
        .share = wanted["per_kv"] ? "kv_head" : "layer",
        .spread = wanted["spread"],
        .block = 1,
    };
    const auto policy = good(Register<SparsePolicy>::find("vegas")->make(setup));
    Sequence sequence;
    sequence.committed_len = prefix_;
    sequence.max_len = 512;
    policy->open(sequence);
    for (int step = 0; step + 1 < rows_ && !draft_lse_.empty(); ++step)
      policy->learn(0, {.sequence = &sequence, .draft = true, .first_position = prefix_ + step, .num_rows = 1, .round_row = step},
          {.lse = View<const float, 2>(draft_lse_.data() + step * heads_, 1, heads_)});
    const PassInfo info{.sequence = &sequence, .prompt = prompt, .first_position = prefix_, .num_rows = rows_};
    const ScoreRequest request = policy->scores(0, info);
    Floats scores(kv_heads_ * prefix_), lse;
    ScoreArgs args{.metric = request.metric, .combine = request.combine, .row_used = request.row_used, .lse = request.lse};
    args.prefix_len = prefix_;
    if (request.metric != ScoreMetric::None) args.out = view(scores, request.out.extent[0], prefix_);
    attend(args, lse);
    policy->learn(0, info, {.q = queries(), .lse = view(lse, rows_, heads_), .scores = args.out, .scale = scale(), .kv = kv_});
    policy->committed(sequence, {.first = prefix_, .num_rows = rows_, .accepted = accepted_row_});
    const auto selected = policy->selected(0, 0);
    std::vector<Ints> out;
    for (int64_t set = 0; set < selected.extent[0]; ++set)
      out.emplace_back(&selected(set, 0), &selected(set, 0) + selected.extent[1]);
    return out;
  }

 private:
  float scale() const { return 1 / std::sqrt(float(head_dim_)); }
  View<const float, 3> queries() const { return view(q_data_, rows_, heads_, head_dim_); }
  void attend(const ScoreArgs& scores, Floats& lse) {
    Floats out(q_data_.size());
    Ints last;
    for (int row = 0; row < rows_; ++row) last.push_back(int32_t(prefix_ + row));
    lse.resize(rows_ * heads_);
    const AttentionRun run{.num_rows = rows_, .kv = kv_, .last = view(last), .scores = scores};
    backend_.attention({
        .scale = scale(),
        .q = queries(),
        .out = view(out, rows_, heads_, head_dim_),
        .lse = view(lse, rows_, heads_),
        .runs = std::span(&run, 1),
    });
  }

  Backend& backend_;
  int heads_, kv_heads_, head_dim_;
  int64_t prefix_;
  int accepted_row_;
  Floats q_data_, draft_lse_, true_lse_;
  int rows_;
  std::unique_ptr<KvStore> store_;
  Ints pages_;
  KvRef kv_;
};

enum class By { Ops, Policy };

Tally replay_all(Backend& backend, By by) {
  const Recording recording;
  Tally tally;
  for (const Json& pass : recording.json["passes"])
    for (const Json& layer : pass["layers"]) {
      const auto& all = recording.json["keys"];
      const auto keys = std::ranges::find_if(all, [&](const Json& k) { return k["layer"] == layer["layer"]; });
      HUNCH_CHECK(keys != all.end());
      Replay replay(backend, recording, *keys, pass, layer);
      for (const Json& wanted : layer["selections"]) {
        if (by == By::Policy && wanted["rows"] == "last" && pass["kind"] == "prompt")
          continue;  // nothing is accepted in a prompt
        const auto got = by == By::Ops ? replay.select(wanted) : replay.select_by_policy(wanted, pass["kind"] == "prompt");
        EXPECT_EQ(got.size(), wanted["sets"].size());
        for (size_t set = 0; set < got.size(); ++set) {
          const Json& oracle = wanted["sets"][set];
          const auto kept = oracle["kept"].get<std::set<int32_t>>();
          int missing = 0;
          for (const int32_t position : got[set]) missing += !kept.contains(position);
          EXPECT_TRUE(std::ranges::is_sorted(got[set]));
          if (missing > 0 && oracle["last_kept"] == oracle["first_dropped"]) missing -= 1;  // the recorded tie
          ++tally.sets, tally.positions += int(kept.size());
          tally.differing_sets += missing > 0, tally.differing_positions += missing;
        }
      }
    }
  return tally;
}

TEST(Selection, OfTheReferenceBackendAndOfTheVegasPolicyEqualsTheOracles) {
  const auto backend = good(Register<Backend>::find("reference")->make({}));
  for (const By by : {By::Ops, By::Policy}) {
    const Tally tally = replay_all(*backend, by);
    EXPECT_GT(tally.sets, 100);
    EXPECT_EQ(tally.differing_sets, 0) << tally.differing_positions << " of " << tally.positions << " positions, by policy "
                                       << (by == By::Policy);
  }
}

TEST(Selection, GivesTiesToTheLowerIndex) {
  for (const char* device : {"reference", "cpu"}) {
    const auto backend = good(Register<Backend>::find(device)->make({.threads = 1}));
    Floats scores(300, 0.5f);
    Ints index(20);
    backend->top_k({
        .scores = view(scores, 1, 300),
        .n = 300,
        .count = 20,
        .index = view(index, 1, 20),
    });
    for (int32_t i = 0; i < 20; ++i) EXPECT_EQ(index[i], i) << device;
  }
}

TEST(Selection, OfTheCpuBackendEqualsTheOraclesButForPositionsAtTheCut) {
  for (const std::string& isa : available_isas()) {
    const auto backend = good(Register<Backend>::find("cpu")->make({.threads = 1, .isa = isa}));
    const Tally tally = replay_all(*backend, By::Ops);
    EXPECT_LE(tally.differing_positions, tally.positions / 100)
        << isa << ": " << tally.differing_sets << " of " << tally.sets << " sets differ";
    if (std::getenv("HUNCH_PRINT_ERRORS"))
      fmt::print("{}: {} of {} sets differ, {} of {} positions\n", isa, tally.differing_sets, tally.sets,
          tally.differing_positions, tally.positions);
  }
}

}
}
