// vegas: the entries that the verified rows attended to most (Vegas, section 4). Scores fall out of the verify pass, one per
// entry and KV head, reduced over rows and query heads before they are stored; forward spread (S'(j) = max_t 0.98^t S(j-t)) then
// favours what follows the places just read, which is what the next tokens read.
//
// Metrics: `weight` normalises by the log-sum-exp that the draft step of the same token and position left behind, so one pass
// over K suffices; rows without a draft step, and the first selection, use true weights by a second look at K. `logit` is eq. 2
// and 3. rows `last` means the row of the last accepted token: known only after acceptance, so its selection waits for
// committed().
#include <algorithm>
#include <vector>

#include "sparse/draft_copy.h"

namespace hunch {
namespace {

class Vegas final : public SparsePolicy {
 public:
  enum class Rows { All, FirstLast, Last };

  Vegas(const Setup& setup, ScoreMetric metric, bool drafts_lse, Rows rows, ScoreCombine combine, bool per_kv_head)
      : backend_(*setup.backend),
        options_(setup.options),
        geometry_(setup.geometry),
        heads_(setup.heads),
        max_rows_(setup.max_draft + 1),
        metric_(metric),
        drafts_lse_(drafts_lse),
        rows_(rows),
        combine_(combine),
        sets_(per_kv_head ? setup.geometry.kv_heads : 1),
        copy_(setup, sets_),
        slots_(size_t(setup.max_sequences)) {
    const size_t row_floats = size_t(geometry_.layers) * size_t(max_rows_) * size_t(heads_);
    for (SlotState& state : slots_) state.draft_lse = backend_.allocate(row_floats * sizeof(float));
    used_ = backend_.allocate(size_t(max_rows_));
    scores_ = backend_.allocate(size_t(sets_) * size_t(setup.context_len) * sizeof(float));
    if (rows_ == Rows::Last) {
      for (SlotState& state : slots_) {
        state.q = backend_.allocate(row_floats * size_t(geometry_.head_dim) * sizeof(float));
        state.true_lse = backend_.allocate(row_floats * sizeof(float));
        state.kv.resize(size_t(geometry_.layers));
      }
    }
  }

  size_t bytes() const override { return copy_.bytes() + scores_.bytes(); }

  ScoreRequest scores(int layer, const PassInfo& info) override {
    if (!copy_.begin(info) || !copy_.selects(layer) || deferred(info)) return {};
    ScoreRequest request{.metric = metric_, .combine = combine_, .row_used = used_rows(info.num_rows), .per_kv_head = sets_ > 1};
    if (metric_ == ScoreMetric::Weight) {
      request.lse = lse_of_drafts(layer, info);
      if (!request.lse.data) return {};  // true weights in learn()
    }
    return request;
  }

  Selection select(int layer, const DraftQueries&, const PassInfo& info) override {
    return copy_.selection(layer, info.sequence->slot);
  }

  void learn(int layer, const PassInfo& info, const Observation& seen) override {
    if (info.draft) return note_draft(layer, info, seen);
    if (!copy_.begin(info) || !copy_.selects(layer)) return;
    if (deferred(info)) return keep_for_later(layer, info, seen);
    View<const float, 2> scores = seen.scores;
    if (!scores.data) scores = look_again(layer, info, seen.q, seen.lse, used_rows(info.num_rows), seen.scale, seen.kv);
    choose(layer, info, scores, seen.kv);
  }

  void committed(const Sequence& sequence, const Commit& commit) override {
    SlotState& state = slots_[size_t(sequence.slot)];
    state.noted = 0;
    if (!state.waiting) return;
    state.waiting = false;
    const PassInfo info{.sequence = &sequence, .first_position = commit.first, .num_rows = commit.num_rows};
    auto used = used_.view<uint8_t>(max_rows_).slice(0, commit.num_rows);
    for (int row = 0; row < commit.num_rows; ++row) used(row) = row == commit.accepted;
    for (int layer = 0; layer < geometry_.layers; ++layer) {
      if (!copy_.selects(layer)) continue;
      const KvRef& kv = state.kv[size_t(layer)];
      const auto lse = metric_ == ScoreMetric::Weight && drafts_lse_ && state.had_drafts
                           ? rows_of(state.draft_lse, layer, commit.num_rows)
                           : rows_of(state.true_lse, layer, commit.num_rows);
      choose(layer, info, look_again(layer, info, queries(state, layer, commit.num_rows), lse, used, state.scale, kv), kv);
    }
  }

  void close(Slot slot) override {
    copy_.forget(slot);
    slots_[size_t(slot)].noted = 0;
    slots_[size_t(slot)].waiting = false;
  }

  KvStore* compact_store() override { return copy_.store(); }
  View<const int32_t, 2> selected(Slot slot, int layer) const override {
    return const_cast<DraftCopy&>(copy_).index(slot, layer);
  }

 private:
  struct SlotState {
    Buffer draft_lse;         // [layer][row][head] of this round's draft steps
    int64_t first_noted = 0;  // position of draft_lse row 0
    int noted = 0;            // draft steps noted
    // rows `last` only: what committed() needs
    bool waiting = false, had_drafts = false;
    float scale = 1;
    Buffer q, true_lse;     // [layer][row][head][head_dim], [layer][row][head]
    std::vector<KvRef> kv;  // [layer]
  };

  View<float, 2> rows_of(const Buffer& buffer, int layer, int rows) {
    return buffer.view<float>(geometry_.layers, max_rows_, heads_)[layer].slice(0, rows);
  }
  View<float, 3> queries(const SlotState& state, int layer, int rows) {
    return state.q.view<float>(geometry_.layers, max_rows_, heads_, geometry_.head_dim)[layer].slice(0, rows);
  }

  bool deferred(const PassInfo& info) const { return rows_ == Rows::Last && !info.prompt; }

  View<const uint8_t, 1> used_rows(int num_rows) {
    auto used = used_.view<uint8_t>(max_rows_).slice(0, num_rows);
    for (int row = 0; row < num_rows; ++row)
      used(row) = rows_ == Rows::All || row == num_rows - 1 || (rows_ == Rows::FirstLast && row == 0);
    return used;
  }

  void note_draft(int layer, const PassInfo& info, const Observation& seen) {
    SlotState& state = slots_[size_t(info.sequence->slot)];
    const int64_t row = info.first_position - info.sequence->committed_len;
    if (row == 0) state.first_noted = info.first_position;
    HUNCH_CHECK(row >= 0 && row < max_rows_);
    auto to = rows_of(state.draft_lse, layer, max_rows_);
    for (int head = 0; head < heads_; ++head) to(row, head) = seen.lse(0, head);
    state.noted = int(row) + 1;
  }

  // The log-sum-exps of the draft steps of these rows' tokens; the row past the last step takes that step's. Empty if none ran.
  View<const float, 2> lse_of_drafts(int layer, const PassInfo& info) {
    SlotState& state = slots_[size_t(info.sequence->slot)];
    if (!drafts_lse_ || info.prompt || state.noted == 0 || state.first_noted != info.first_position) return {};
    auto lse = rows_of(state.draft_lse, layer, info.num_rows);
    for (int row = state.noted; row < info.num_rows; ++row)
      for (int head = 0; head < heads_; ++head) lse(row, head) = lse(state.noted - 1, head);
    return lse;
  }

  void keep_for_later(int layer, const PassInfo& info, const Observation& seen) {
    SlotState& state = slots_[size_t(info.sequence->slot)];
    state.waiting = true;
    state.scale = seen.scale;
    state.kv[size_t(layer)] = seen.kv;
    state.had_drafts = lse_of_drafts(layer, info).data != nullptr;
    auto q = queries(state, layer, info.num_rows);
    auto lse = rows_of(state.true_lse, layer, info.num_rows);
    for (int row = 0; row < info.num_rows; ++row)
      for (int head = 0; head < heads_; ++head) {
        lse(row, head) = seen.lse(row, head);
        std::copy_n(&seen.q(row, head, 0), geometry_.head_dim, &q(row, head, 0));
      }
  }

  View<const float, 2> look_again(int layer, const PassInfo& info, View<const float, 3> q, View<const float, 2> lse,
                                  View<const uint8_t, 1> used, float scale, const KvRef& kv) {
    auto out = scores_.view<float>(sets_, int64_t(scores_.bytes() / sizeof(float)) / sets_);
    backend_.score_keys({.layer = layer,
                         .scale = scale,
                         .q = q,
                         .kv = kv,
                         .scores = {.metric = metric_,
                                    .combine = combine_,
                                    .row_used = used,
                                    .lse = lse,
                                    .prefix_len = info.first_position,
                                    .out = out}});
    return out;
  }

  void choose(int layer, const PassInfo& info, View<const float, 2> scores, const KvRef& kv) {
    const Slot slot = info.sequence->slot;
    backend_.top_k({.scores = scores,
                    .n = copy_.valid(slot),
                    .count = copy_.count(slot),
                    .spread = options_.spread,
                    .sinks = options_.sinks,
                    .recent = options_.recent,
                    .index = copy_.index(slot, layer)});
    copy_.copy(layer, info, kv);
  }

  Backend& backend_;
  PolicyOptions options_;
  KvGeometry geometry_;
  int heads_, max_rows_;
  ScoreMetric metric_;
  bool drafts_lse_;
  Rows rows_;
  ScoreCombine combine_;
  int sets_;
  DraftCopy copy_;
  Buffer used_, scores_;
  std::vector<SlotState> slots_;
};

Result<std::unique_ptr<SparsePolicy>> make_vegas(const SparsePolicy::Setup& setup) {
  const PolicyOptions& o = setup.options;
  const auto unknown = [](const std::string& key, const std::string& value, const std::string& known) {
    return usage_error("vegas: unknown " + key + " '" + value + "'; known: " + known);
  };
  if (o.metric != "weight" && o.metric != "true_weight" && o.metric != "logit")
    return unknown("metric", o.metric, "weight, true_weight, logit");
  if (o.rows != "all" && o.rows != "first_last" && o.rows != "last") return unknown("rows", o.rows, "all, first_last, last");
  if (o.combine != "max" && o.combine != "sum") return unknown("combine", o.combine, "max, sum");
  if (o.share != "kv_head" && o.share != "layer") return unknown("share", o.share, "kv_head, layer");
  if (o.metric == "logit" && o.spread > 0)
    return usage_error("vegas: spread needs a weight metric (logits may be negative); use spread 0 with metric logit");
  const auto rows = o.rows == "all" ? Vegas::Rows::All : o.rows == "last" ? Vegas::Rows::Last : Vegas::Rows::FirstLast;
  return std::unique_ptr<SparsePolicy>(
      new Vegas(setup, o.metric == "logit" ? ScoreMetric::Logit : ScoreMetric::Weight, o.metric == "weight", rows,
                o.combine == "max" ? ScoreCombine::Max : ScoreCombine::Sum, o.share == "kv_head"));
}

const Register<SparsePolicy> vegas{"vegas", "what the verified rows attended to, spread forward", make_vegas};

}  // namespace
}  // namespace hunch
