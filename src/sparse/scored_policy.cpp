#include "sparse/scored_policy.h"

namespace hunch {

Result<std::unique_ptr<SparsePolicy>> make_scored(std::string_view name, const SparsePolicy::Setup& setup, ScoredOptions how) {
  HUNCH_OK(check_known(name, "share", setup.options.share, {"kv_head", "layer"}));
  how.per_kv_head = setup.options.share == "kv_head";
  return std::unique_ptr<SparsePolicy>(new ScoredPolicy(setup, how));
}

ScoredPolicy::ScoredPolicy(const Setup& setup, const ScoredOptions& how)
    : CopyingPolicy(setup, how.per_kv_head ? setup.geometry.kv_heads : 1, how.block, setup.options.layer_step),
      backend_(*setup.backend),
      options_(setup.options),
      how_(how),
      geometry_(setup.geometry),
      heads_(setup.heads),
      max_rows_(std::max(setup.max_draft + 1, how.prompt_rows)),
      sets_(how.per_kv_head ? setup.geometry.kv_heads : 1),
      score_block_(how.pool == 1 && how.block % kScoreBlock == 0 ? kScoreBlock : 1),
      score_layers_(backend_.asynchronous() ? setup.geometry.layers : 1),
      reduced_(backend_, sets_),
      slots_(setup.max_sequences) {
  HUNCH_CHECK(how.block >= 1 && how.pool % 2 == 1 && (how.pool == 1 || how.block == 1));
  used_.resize(max_rows_);
}

size_t ScoredPolicy::bytes() const {
  size_t bytes = copy_.bytes() + scores_.bytes() + reduced_.bytes();
  for (const SlotState& state : slots_) bytes += state.draft_lse.bytes() + state.q.bytes() + state.true_lse.bytes();
  return bytes;
}

void ScoredPolicy::open(const Sequence& sequence) {
  close(sequence.slot);
  // A kept selection's tail grows with the request; otherwise a tail is a round's.
  copy_.open(sequence, how_.keeps ? sequence.max_len - sequence.prompt_len + how_.prompt_rows : 0);
  reserve_scores(sequence.slot, sequence.max_len);
  if (how_.pool > 1 || how_.block > score_block_) reduced_.reserve(sequence.max_len);
  SlotState& state = slots_[sequence.slot];
  if (!state.noted.empty()) return;  // the rest does not depend on the sequence
  state.noted.assign(max_rows_, 0);
  const size_t row_bytes = size_t(geometry_.layers) * max_rows_ * heads_ * sizeof(float);
  state.draft_lse = backend_.allocate(row_bytes);
  state.last_lse = backend_.allocate(size_t(geometry_.layers) * heads_ * sizeof(float));
  if (how_.rows != Rows::Last && how_.rows != Rows::Accepted) return;
  state.q = backend_.allocate(row_bytes * size_t(geometry_.head_dim), Memory::Spare);
  state.true_lse = backend_.allocate(row_bytes);
}

void ScoredPolicy::close(Slot slot) {
  copy_.close(slot);
  slots_[slot].noted_at = -1;
  slots_[slot].waiting = false;
  slots_[slot].has_last = false;
}

ScoreRequest ScoredPolicy::scores(int layer, const PassInfo& info) {
  if (idle(info) || !copy_.begin(info.sequence->slot, info.first_position) || !copy_.chooses(layer) || deferred(info)) return {};
  ScoreRequest request{.metric = how_.metric,
      .combine = how_.combine,
      .row_used = used_rows(info.num_rows),
      .block = score_block_,
      .out = scores_of(layer, info.sequence->slot)};
  if (how_.metric == ScoreMetric::Weight) {
    request.lse = lse_of_drafts(layer, info);
    if (!request.lse.data) request.lse = lse_of_last(layer, info);
    if (!request.lse.data) return {};  // true weights in learn()
  }
  return request;
}

void ScoredPolicy::learn(int layer, const PassInfo& info, const Observation& seen) {
  if (info.draft) return note_draft(layer, info, seen);
  const Slot slot = info.sequence->slot;
  const int64_t tail_last = info.first_position + info.num_rows;
  if (!copy_.selects(layer)) return;
  if (idle(info)) {
    // A kept list: the drafts' tentative rows in the compact tail give way to the verified ones.
    if (how_.keeps && !copy_.dense(slot)) copy_.copy(layer, slot, tail_last, seen.kv);
    return;
  }
  if (!copy_.begin(slot, info.first_position)) return;
  if (how_.drafts_lse) note_last(layer, slot, seen);
  if (deferred(info)) {
    if (copy_.chooses(layer)) keep_for_later(layer, info, seen);
    return;
  }
  if (!copy_.chooses(layer)) return copy_.copy(layer, slot, tail_last, seen.kv);
  View<const float, 2> scores = seen.scores;
  if (!scores.data)
    scores = look_again(layer, slot, info.first_position, seen.q, seen.lse, used_rows(info.num_rows), seen.scale, seen.kv);
  choose(layer, slot, tail_last, scores, seen.kv);
}

void ScoredPolicy::committed(const Sequence& sequence, const Commit& commit) {
  SlotState& state = slots_[sequence.slot];
  state.noted_at = -1;
  if (!state.waiting) return copy_.close_up(sequence.slot, commit.first, commit.rows);
  state.waiting = false;
  std::fill_n(used_.begin(), commit.num_rows, uint8_t(0));
  for (int i = how_.rows == Rows::Last ? commit.accepted : 0; i <= commit.accepted; ++i)
    used_[commit.rows.empty() ? i : commit.rows[i]] = 1;
  const View<const uint8_t, 1> used(used_.data(), commit.num_rows);
  for (int layer = 0; layer < geometry_.layers; ++layer) {
    if (!copy_.selects(layer)) continue;
    if (!copy_.chooses(layer)) {
      copy_.copy(layer, sequence.slot, commit.first + commit.accepted + 1, state.kv);
      continue;
    }
    const auto q = state.q.view<float>(geometry_.layers, max_rows_, heads_, geometry_.head_dim)[layer].slice(0, commit.num_rows);
    const auto lse = rows_of(state.had_drafts ? state.draft_lse : state.true_lse, layer, commit.num_rows);
    choose(layer, sequence.slot, commit.first + commit.accepted + 1,
        look_again(layer, sequence.slot, commit.first, q, lse, used, state.scale, state.kv), state.kv);
  }
}

View<float, 2> ScoredPolicy::rows_of(const Buffer& buffer, int layer, int rows) const {
  return buffer.view<float>(geometry_.layers, max_rows_, heads_)[layer].slice(0, rows);
}

// Of a pass whose rows are scored as it runs. Of a prompt, rows `last` and `accepted` are its last row and all of them.
View<const uint8_t, 1> ScoredPolicy::used_rows(int num_rows) {
  const bool all = how_.rows == Rows::All || how_.rows == Rows::Accepted;
  for (int row = 0; row < num_rows; ++row) used_[row] = all || row == num_rows - 1 || (how_.rows == Rows::FirstLast && row == 0);
  return View<const uint8_t, 1>(used_.data(), num_rows);
}

void ScoredPolicy::note_last(int layer, Slot slot, const Observation& seen) {
  SlotState& state = slots_[slot];
  backend_.copy_rows({.from = seen.lse.slice(seen.lse.extent[0] - 1, 1),
      .to = state.last_lse.view<float>(geometry_.layers, heads_).slice(layer, 1)});
  state.has_last = true;
}

void ScoredPolicy::note_draft(int layer, const PassInfo& info, const Observation& seen) {
  if (!how_.drafts_lse || !copy_.chooses(layer)) return;
  SlotState& state = slots_[info.sequence->slot];
  if (state.noted_at != info.sequence->committed_len) {
    state.noted_at = info.sequence->committed_len;
    std::ranges::fill(state.noted, uint8_t(0));
  }
  HUNCH_CHECK(info.round_row >= 0 && info.round_row + info.num_rows <= max_rows_);
  auto to = rows_of(state.draft_lse, layer, max_rows_);
  backend_.copy_rows({.from = seen.lse, .to = to.slice(info.round_row, info.num_rows)});
  std::fill_n(state.noted.begin() + info.round_row, info.num_rows, uint8_t(1));
}

void ScoredPolicy::forget_drafts(const Sequence& sequence, int first_row) {
  auto& noted = slots_[sequence.slot].noted;
  std::fill(noted.begin() + std::min<ptrdiff_t>(first_row, std::ssize(noted)), noted.end(), uint8_t(0));
}

// The log-sum-exps of the draft steps of these rows; empty if none ran in this round.
View<const float, 2> ScoredPolicy::lse_of_drafts(int layer, const PassInfo& info) {
  SlotState& state = slots_[info.sequence->slot];
  if (!how_.drafts_lse || info.prompt || state.noted_at != info.first_position) return {};
  auto lse = rows_of(state.draft_lse, layer, info.num_rows);
  int nearest = int(std::ranges::find(state.noted, uint8_t(1)) - state.noted.begin());
  if (nearest >= info.num_rows) return {};
  for (int row = 0; row < info.num_rows; ++row) {
    if (state.noted[row]) nearest = row;
    else backend_.copy_rows({.from = lse.slice(nearest, 1), .to = lse.slice(row, 1)});
  }
  return lse;
}

// For rounds without draft steps: the log-sum-exp of the last row that read everything; empty before the first pass. It scales a
// head's weights alike for all entries, and a second look at K would cost as much as half of the pass.
View<const float, 2> ScoredPolicy::lse_of_last(int layer, const PassInfo& info) {
  SlotState& state = slots_[info.sequence->slot];
  if (!how_.drafts_lse || info.prompt || !state.has_last) return {};
  auto lse = rows_of(state.draft_lse, layer, info.num_rows);
  backend_.copy_rows({.from = state.last_lse.view<float>(geometry_.layers, heads_).slice(layer, 1), .to = lse});
  return lse;
}

void ScoredPolicy::keep_for_later(int layer, const PassInfo& info, const Observation& seen) {
  SlotState& state = slots_[info.sequence->slot];
  state.waiting = true;
  state.scale = seen.scale;
  state.kv = seen.kv;
  state.had_drafts = how_.metric == ScoreMetric::Weight && lse_of_drafts(layer, info).data != nullptr;
  const int64_t width = int64_t(heads_) * geometry_.head_dim;
  auto q = state.q.view<float>(geometry_.layers, max_rows_, width)[layer].slice(0, info.num_rows);
  backend_.copy_rows({.from = View<const float, 2>(seen.q.data, info.num_rows, width), .to = q});
  backend_.copy_rows({.from = seen.lse, .to = rows_of(state.true_lse, layer, info.num_rows)});
}

void ScoredPolicy::reserve_scores(Slot slot, int64_t max_len) {
  const int64_t wanted = (max_len / score_block_ + 16) / 16 * 16;  // whole lines of 64 bytes
  SlotState& state = slots_[slot];
  if (wanted <= state.num_scores) return;
  if (scores_.data()) (void)backend_.synchronize();  // choices that still wait for theirs; a failure shows at the next step
  state.num_scores = wanted, layer_scores_ = 0;
  for (SlotState& each : slots_) each.first_score = layer_scores_, layer_scores_ += sets_ * each.num_scores;
  scores_ = {};  // first, so that both never exist at once
  scores_ = backend_.allocate(size_t(score_layers_ * layer_scores_) * sizeof(float), Memory::Spare);
}

View<float, 2> ScoredPolicy::scores_of(int layer, Slot slot) const {
  const SlotState& state = slots_[slot];
  float* first = static_cast<float*>(scores_.data()) + (score_layers_ > 1 ? layer * layer_scores_ : 0) + state.first_score;
  return View<float, 2>(first, sets_, state.num_scores);
}

View<const float, 2> ScoredPolicy::look_again(int layer, Slot slot, int64_t prefix_len, View<const float, 3> q,
    View<const float, 2> lse, View<const uint8_t, 1> used, float scale, const KvRef& kv) {
  auto out = scores_of(layer, slot);
  backend_.score_keys({.layer = layer,
      .scale = scale,
      .q = q,
      .kv = kv,
      .scores = {.metric = how_.metric,
          .combine = how_.combine,
          .row_used = used,
          .lse = lse,
          .prefix_len = prefix_len / score_block_ * score_block_,
          .block = score_block_,
          .out = out}});
  return out;
}

// Means over neighbours, or the greatest of each block.
View<const float, 2> ScoredPolicy::reduced(Slot slot, View<const float, 2> scores) {
  const int block = how_.block / score_block_;
  if (how_.pool == 1 && block == 1) return scores;
  auto out = reduced_.view();
  backend_.reduce_scores(
      {.scores = scores, .n = copy_.valid(slot) / score_block_, .pool = how_.pool, .block = block, .out = out});
  return out;
}

void ScoredPolicy::choose(int layer, Slot slot, int64_t tail_last, View<const float, 2> scores, const KvRef& kv) {
  copy_.choose(layer, slot, reduced(slot, scores), how_.spread);
  copy_.copy(layer, slot, tail_last, kv);
}

}
