// oracle: at every draft step and layer the entries that the draft row itself attends to most, by its true weights: the ceiling
// for any set of that size. Reads all of K and V twice to know. A tree's rows are weighed as if they followed each other.

#include "sparse/draft_copy.h"
#include "sparse/entry_scores.h"

namespace hunch {
namespace {

class Oracle final : public CopyingPolicy {
 public:
  explicit Oracle(const Setup& setup)
      : CopyingPolicy(setup, sets_of(setup)),
        backend_(*setup.backend),
        geometry_(setup.geometry),
        heads_(setup.heads),
        max_rows_(setup.max_draft + 1),
        scores_(backend_, sets_of(setup)) {
    const size_t row_heads = size_t(max_rows_) * heads_;
    out_ = backend_.allocate(row_heads * size_t(geometry_.head_dim) * sizeof(float));
    lse_ = backend_.allocate(row_heads * sizeof(float));
    last_.resize(max_rows_);
    used_.assign(max_rows_, 1);
  }

  size_t bytes() const override { return copy_.bytes() + scores_.bytes(); }
  void open(const Sequence& sequence) override {
    copy_.open(sequence);
    scores_.reserve(sequence.max_len);
  }

  Selection select(int layer, const DraftQueries& drafts, const PassInfo& info) override {
    const Slot slot = info.sequence->slot;
    if (!drafts.q.data) return copy_.selection(layer, slot);
    const int64_t first = info.sequence->committed_len, own_entry = first + info.round_row;
    if (!copy_.begin(slot, first) || !copy_.selects(layer)) return {};
    auto scores = scores_.view();
    backend_.score_keys({
        .layer = layer,
        .scale = drafts.scale,
        .q = drafts.q,
        .kv = drafts.kv,
        .scores = {.metric = ScoreMetric::Weight,
            .combine = ScoreCombine::Sum,
            .row_used = View<const uint8_t, 1>(used_.data(), info.num_rows),
            .lse = true_lse(layer, drafts, info.num_rows, own_entry),
            .prefix_len = first,
            .out = scores},
    });
    copy_.choose(layer, slot, scores, 0);
    copy_.copy(layer, slot, own_entry, drafts.kv);
    return copy_.selection(layer, slot);
  }

 private:
  View<const float, 2> true_lse(int layer, const DraftQueries& drafts, int rows, int64_t own_entry) {
    for (int row = 0; row < rows; ++row) last_[row] = int32_t(own_entry + row);
    auto lse = lse_.view<float>(rows, heads_);
    const AttentionRun run{.num_rows = rows, .kv = drafts.kv, .last = View<const int32_t, 1>(last_.data(), rows)};
    backend_.attention({
        .layer = layer,
        .scale = drafts.scale,
        .q = drafts.q,
        .out = out_.view<float>(rows, heads_, geometry_.head_dim),
        .lse = lse,
        .sinks = drafts.sinks,
        .runs = std::span(&run, 1),
    });
    return lse;
  }

  Backend& backend_;
  KvGeometry geometry_;
  int heads_, max_rows_;
  EntryScores scores_;
  Buffer out_, lse_;
  std::vector<int32_t> last_;
  std::vector<uint8_t> used_;  // all of them
};

const Register<SparsePolicy> oracle{
    "oracle", "analysis only: each draft row's own best entries, found by reading everything", make_policy<Oracle>};

}
}
