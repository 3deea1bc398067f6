// quest: at every draft step and layer the pages whose keys could score highest under the draft row's own query (Quest, Tang et
// al., 2024). A page's bound is sum_d max(q_d min_d, q_d max_d) over the elementwise minimum and maximum of its keys, which is
// the product of [max(q, 0), min(q, 0)] with the row [max, min]: bounds stand in a KV store of twice the width as keys, one a
// page, and are scored like keys. A KV head's pages take the greatest bound of its query heads; pages shared by a layer the mean.
//
// Bounds are made of committed entries only: a draft's entries are overwritten by verify, and a bound of them would stay behind.
#include <numeric>

#include "sparse/draft_copy.h"
#include "sparse/entry_scores.h"

namespace hunch {
namespace {

class Quest final : public CopyingPolicy {
 public:
  explicit Quest(const Setup& setup)
      : CopyingPolicy(setup, sets_of(setup), setup.options.page),
        backend_(*setup.backend),
        geometry_(setup.geometry),
        heads_(setup.heads),
        page_(setup.options.page),
        max_rows_(setup.max_draft + 1),
        shared_(setup.options.share == "layer") {
    const int64_t query_rows = int64_t(max_rows_) * heads_;
    queries_ = backend_.allocate(size_t(query_rows * 2 * geometry_.head_dim) * sizeof(float));
    used_.assign(query_rows, 1);
    slots_.reserve(setup.max_sequences);
    for (int slot = 0; slot < setup.max_sequences; ++slot)
      slots_.emplace_back(backend_, sets_of(setup)).bounded.assign(geometry_.layers, 0);
  }

  size_t bytes() const override {
    size_t bytes = copy_.bytes();
    for (const SlotState& state : slots_) bytes += state.scores.bytes() + (state.bounds ? state.bounds->bytes : 0);
    return bytes;
  }

  void open(const Sequence& sequence) override {
    close(sequence.slot);
    copy_.open(sequence);
    SlotState& state = slots_[sequence.slot];
    const int64_t pages = sequence.max_len / page_ + 1, chunks = (pages + kPageLen - 1) / kPageLen;
    state.bounding = true;
    if (chunks > std::ssize(state.chunks)) {
      KvGeometry geometry = geometry_;
      geometry.head_dim *= 2;
      geometry.dtype = bounds_dtype(geometry.dtype);
      // Half of what is left at most: it is other requests' memory too.
      state.bounding = backend_.kv_page_bytes(geometry) <= backend_.memory_bytes() / 2 / size_t(chunks);
      if (!state.bounding) return;
      state.bounds.reset();
      state.bounds = backend_.make_kv_store(geometry, chunks);
      HUNCH_CHECK(state.bounds != nullptr);
      state.chunks.resize(chunks);
      std::iota(state.chunks.begin(), state.chunks.end(), 0);
    }
    state.scores.reserve(pages);
  }
  void close(Slot slot) override {
    copy_.close(slot);
    auto& bounded = slots_[slot].bounded;
    std::ranges::fill(bounded, 0);
  }

  // Bounds are brought up to date where keys were just written, so that a prompt pays for its own.
  void learn(int layer, const PassInfo& info, const Observation& seen) override {
    const Slot slot = info.sequence->slot;
    if (info.draft || !copy_.selects(layer) || !slots_[slot].bounding) return;
    bound(layer, slot, info.first_position + (info.prompt ? info.num_rows : 0), seen.kv);
  }

  Selection select(int layer, const DraftQueries& drafts, const PassInfo& info) override {
    const Slot slot = info.sequence->slot;
    if (!slots_[slot].bounding) return {};
    if (!drafts.q.data) return copy_.selection(layer, slot);
    const int64_t committed = info.sequence->committed_len;
    if (!copy_.begin(slot, committed) || !copy_.selects(layer)) return {};
    bound(layer, slot, committed, drafts.kv);
    SlotState& state = slots_[slot];
    auto scores = state.scores.view();
    const auto q = shared_ ? layer_queries(drafts.q, info.num_rows) : head_queries(drafts.q, info.num_rows);
    backend_.score_keys({
        .layer = layer,
        .scale = drafts.scale,
        .q = q,
        .kv = state.ref(),
        .scores = {.metric = ScoreMetric::Logit,
            .combine = ScoreCombine::Max,
            .row_used = View<const uint8_t, 1>(used_.data(), q.extent[0]),
            .prefix_len = copy_.valid(slot) / page_,
            .out = scores},
    });
    copy_.choose(layer, slot, scores, 0);
    copy_.copy(layer, slot, committed + info.round_row, drafts.kv);
    return copy_.selection(layer, slot);
  }

 private:
  struct SlotState {
    SlotState(Backend& backend, int sets) : scores(backend, sets) {}
    EntryScores scores;               // by page; a device chooses for all sequences at once
    std::unique_ptr<KvStore> bounds;  // entry: a page; key [max, min]
    std::vector<int32_t> chunks;      // pages of that store
    std::vector<int64_t> bounded;     // [layer] pages whose bounds stand
    bool bounding = true;             // false: no memory for them, and drafts read all
    KvRef ref() const { return {bounds.get(), View<const int32_t, 1>(chunks.data(), chunks.size())}; }
  };

  // Bounds of every page of the entries [0, committed).
  void bound(int layer, Slot slot, int64_t committed, const KvRef& from) {
    SlotState& state = slots_[slot];
    int64_t& done = state.bounded[layer];
    const int64_t pages = committed / page_;
    if (pages <= done) return;
    backend_.page_bounds(
        {.layer = layer, .from = from, .to = state.ref(), .page_len = page_, .first_page = done, .last_page = pages});
    done = pages;
  }

  // A row per query head of the groups: the greatest of them counts. [rows group][kv_head][2 head_dim]
  View<const float, 3> head_queries(View<const float, 3> q, int rows) {
    const int64_t group = heads_ / geometry_.kv_heads;
    auto out = queries_.view<float>(rows * group, geometry_.kv_heads, 2 * geometry_.head_dim);
    backend_.split_signs({.q = q, .by_group = true, .out = out});
    return out;
  }
  // All query heads count by their mean. [rows][head][2 head_dim]
  View<const float, 3> layer_queries(View<const float, 3> q, int rows) {
    auto out = queries_.view<float>(rows, heads_, 2 * geometry_.head_dim);
    backend_.split_signs({.q = q, .out = out});
    return out;
  }

  Backend& backend_;
  KvGeometry geometry_;
  int heads_, page_, max_rows_;
  bool shared_;
  Buffer queries_;
  std::vector<uint8_t> used_;  // all of them
  std::vector<SlotState> slots_;
};

Result<std::unique_ptr<SparsePolicy>> make_quest(const SparsePolicy::Setup& setup) {
  const PolicyOptions& o = setup.options;
  HUNCH_OK(check_known("quest", "share", o.share, {"kv_head", "layer"}));
  if (o.page < 1 || o.page > 1024) return usage_error("quest: pages must have 1 to 1024 entries");
  if (setup.backend->asynchronous() && setup.geometry.head_dim > 256)
    return usage_error("quest: this device does not read bounds of heads above 256; use another policy");
  return make_policy<Quest>(setup);
}

const Register<SparsePolicy> quest{"quest", "pages chosen anew at every draft step by bounds of their keys (Quest)", make_quest};

}
}
