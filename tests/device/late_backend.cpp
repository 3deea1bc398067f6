// Backend `late`: the reference loops under a device's contract, to test what the engine does on devices where there is none. Ops
// run at synchronize(); host inputs are taken at the call (and gone after it); selections are read in place. It fails on demand.
#include "late_backend.h"

#include <atomic>

#include "backend/reference/reference_backend.h"

namespace hunch {
namespace {

template <class T>
std::vector<T> taken(View<const T, 1> view) {
  std::vector<T> values;
  for (int64_t i = 0; i < view.extent[0]; ++i) values.push_back(view(i));
  return values;
}
template <class T>
View<const T, 1> seen(const std::vector<T>& values) {
  return View<const T, 1>(values.data(), std::ssize(values));
}
template <class T>
std::vector<T> taken(std::span<const T> values) {
  return {values.begin(), values.end()};
}

class LateBackend final : public ReferenceBackend {
 public:
  // What is queued reads memory of others, which go before a backend does: they wait first.
  ~LateBackend() override { HUNCH_CHECK(lost_ || waiting_.empty()); }
  std::string description() const override { return "late"; }
  bool keeps_kv(DType type) const override { return type != DType::I16; }
  bool asynchronous() const override { return true; }
  bool selects_in_place() const override { return true; }
  int64_t longest_context(const ModelShape& shape) const override { return shape.nsa.used() ? 4096 : 1 << 20; }
  Status synchronize() override {
    // An op may call others; none of them is late then.
    std::vector<std::function<void()>> all;
    ++counters_.waits;
    take_pages(), all.swap(waiting_), fresh_.clear();
    if (waits_left >= 0 && waits_left-- == 0) lost_ = true;
    if (lost_) return Error{"late: the device was lost"};
    since_mark_ms_ = std::exchange(marked_, false) ? kPassMs : 0;
    for (const auto& op : all) op();
    return {};
  }

  // What was asked for before the mark is said to have taken all the time but this.
  static constexpr double kPassMs = 1e-6;
  void mark() override { marked_ = true; }
  double since_mark_ms() const override { return since_mark_ms_; }

  std::atomic<int64_t> waits_left = -1;  // until the one that fails; -1: none does

  // Ops whose arguments may be kept as they are, and of which kind they are, if of any.
#define HUNCH_LATE(op, Args, ...) \
  void op(const Args& a) override { \
    later([this, a] { ReferenceBackend::op(a); } __VA_OPT__(, ) __VA_ARGS__); \
  }
  // Host inputs are copied, and given to the op when it runs.
#define HUNCH_LATE_GIVEN(op, Args, give, ...) \
  void op(const Args& a) override { \
    later([this, a = a, __VA_ARGS__]() mutable { \
      give; \
      ReferenceBackend::op(a); \
    }); \
  }
  HUNCH_LATE_GIVEN(matmul, MatmulArgs, a.products = products, products = taken(a.products))
  HUNCH_LATE(route, RouteArgs)
  HUNCH_LATE(experts, ExpertsArgs)
  HUNCH_LATE(thin_channels, ThinChannelsArgs)
  HUNCH_LATE(thin_experts, ThinExpertsArgs)
  HUNCH_LATE(embed, EmbedArgs)
  HUNCH_LATE(norm, NormArgs)
  HUNCH_LATE(gate, GateArgs)
  HUNCH_LATE_GIVEN(rope_angles, RopeAnglesArgs, a.positions = seen(positions), positions = taken(a.positions))
  HUNCH_LATE(rope, RopeArgs)
  void store_kv(const StoreKvArgs& a) override {
    fresh_.push_back(a);
    pages_.emplace_back(a.kv.pages, taken(a.kv.pages));
    const auto store = [this, a = a, pages = taken(a.kv.pages)]() mutable {
      a.kv.pages = seen(pages);
      ReferenceBackend::store_kv(a);
    };
    later(store, Kind::Store);
  }
  void replay(const std::function<void()>& body) override {
    body();
    take_pages();
  }
  void gather_kv(const GatherKvArgs&) override { HUNCH_CHECK(false); }  // selections are not copied here
  HUNCH_LATE_GIVEN(move_kv, MoveKvArgs, (a.kv.pages = seen(pages), a.from = from, a.to = to), pages = taken(a.kv.pages),
      from = taken(a.from), to = taken(a.to))
  HUNCH_LATE_GIVEN(shuffle_kv, ShuffleKvArgs, (a.kv.pages = seen(pages), a.lengths = lengths), pages = taken(a.kv.pages),
      lengths = taken(a.lengths))
  HUNCH_LATE_GIVEN(page_bounds, PageBoundsArgs, (a.from.pages = seen(from), a.to.pages = seen(to)), from = taken(a.from.pages),
      to = taken(a.to.pages))
  void attention(const AttentionArgs& a) override {
    // A device reads what is settled before the stores that were asked for just now are done.
    for (const AttentionRun& run : a.runs)
      for (const StoreKvArgs& store : fresh_)
        if (store.layer == a.layer && store.kv.store == run.kv.store && store.kv.pages.data == run.kv.pages.data)
          HUNCH_CHECK((run.index.data ? run.tail_first - run.index.extent[1] : 0) + run.settled <= store.first_entry);
    fresh_.clear();
    struct Run {
      AttentionRun run;
      std::vector<int32_t> pages, last, parents;
      std::vector<uint8_t> used;
    };
    std::vector<Run> runs;
    for (const AttentionRun& run : a.runs)
      runs.push_back({run, taken(run.kv.pages), taken(run.last), taken(run.tree.parents),
          taken(View<const uint8_t, 1>(run.scores.row_used))});
    later([this, a = a, runs]() mutable {
      std::vector<AttentionRun> now;
      for (Run& r : runs) {
        r.run.kv.pages = seen(r.pages), r.run.last = seen(r.last), r.run.tree.parents = r.parents;
        r.run.scores.row_used = seen(r.used);
        now.push_back(r.run);
      }
      a.runs = now;
      ReferenceBackend::attention(a);
    });
  }
  HUNCH_LATE_GIVEN(score_keys, ScoreKeysArgs, (a.kv.pages = seen(pages), a.scores.row_used = seen(used)),
      pages = taken(a.kv.pages), used = taken(a.scores.row_used))
  HUNCH_LATE(top_k, TopKArgs, Kind::Choice)
  HUNCH_LATE(reduce_scores, ReduceScoresArgs)
  HUNCH_LATE(split_signs, SplitSignsArgs)
  HUNCH_LATE(copy_rows, CopyRowsArgs, Kind::Copy)
  HUNCH_LATE_GIVEN(copy_tokens, CopyTokensArgs, a.index = index, index = taken(a.index))
  HUNCH_LATE(scatter_columns, ScatterColumnsArgs)
  void sample(const SampleArgs& a) override {
    // Masks and bad words read drafts at the call.
    const int64_t known = a.state && a.state->reads_drafts() && !a.blind ? a.first_row + a.logits.extent[0] - 1 : 0;
    const auto read = a.drafts.slice(0, known);
    const auto op = [this, a = a, positions = taken(a.positions), parents = taken(a.parents), read,
                        drafts = taken(read)]() mutable {
      HUNCH_CHECK(taken(read) == drafts);
      a.positions = seen(positions), a.parents = parents;
      ReferenceBackend::sample(a);
    };
    later(op, Kind::Sample);
  }
  void weigh_drafts(std::span<const WeighDraftsArgs> chains) override {
    later([this, chains = taken(chains)] { ReferenceBackend::weigh_drafts(chains); });
  }
  HUNCH_LATE(log_probs, LogProbsArgs)
  HUNCH_LATE(grow_tree, GrowTreeArgs)
  HUNCH_LATE(choose_nodes, ChooseNodesArgs)

 private:
  // As a device that starts what sequences ask for together: of stores, copies and samples the first in a row; choices later.
  enum class Kind : uint8_t { Other, Store, Copy, Sample, Choice };
  void later(std::function<void()> op, Kind kind = Kind::Other) {
    if (kind != Kind::Choice) {
      if (kind == Kind::Other || kind != last_) ++counters_.kernels;
      if (kind == Kind::Other) take_pages();
      last_ = kind;
    }
    waiting_.push_back(std::move(op));
  }
  Kind last_ = Kind::Other;
  std::vector<std::function<void()>> waiting_;
  std::vector<StoreKvArgs> fresh_;  // behind the last attention
  // Of stores: they must stay as long as KvRef says.
  std::vector<std::pair<View<const int32_t, 1>, std::vector<int32_t>>> pages_;
  void take_pages() {
    for (const auto& [there, at_call] : std::exchange(pages_, {})) HUNCH_CHECK(taken(there) == at_call);
  }
  bool lost_ = false;
  bool marked_ = false;
  double since_mark_ms_ = 0;
};

Result<std::unique_ptr<Backend>> make_late(const Backend::Setup&) {
  return std::unique_ptr<Backend>(std::make_unique<LateBackend>());
}

const Register<Backend> late{"late", "tests: the reference under a device's contract", make_late};

}

namespace test {
void lose_late_device(Backend& late, int64_t after_waits) { static_cast<LateBackend&>(late).waits_left = after_waits; }
}
}
