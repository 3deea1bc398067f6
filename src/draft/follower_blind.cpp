// Chains and trees of a Follower on a device: nobody waits for a choice.

#include "draft/follower.h"

namespace hunch {

// On a device chains run blind: the choice of a level is the input of the next without the host in between. They are as long as
// was asked for: whether going on pays would have to be read first. The first level has as many rows as were kept; those behind
// it are one unit where all chains are of one length, so that units come again.
void Follower::run_blind() {
  std::ranges::stable_sort(open_, [](const Draft* a, const Draft* b) { return a->deepest > b->deepest; });
  const int deepest = open_.front()->deepest;
  size_t open = open_.size();
  backend_.replay([&] { blind_level(0, open); });
  if (deepest == open_.back()->deepest) {
    if (deepest > 1)
      backend_.replay([&] {
        for (int level = 1; level < deepest; ++level) blind_level(level, open);
      });
  } else {
    for (int level = 1; level < deepest; ++level) {
      while (open_[open - 1]->deepest <= level) --open;
      backend_.replay([&] { blind_level(level, open); });
    }
  }
  auto levels = levels_.view<int32_t>(max_draft_, level_rows_);
  for (size_t i = 0; i < open_.size(); ++i) {
    DraftTree& tree = *open_[i]->task->tree;
    tree.make_chain(open_[i]->deepest);
    tree.passes = tree.size;
    open_[i]->stored = tree.size - 1;
    View<const int32_t, 1> column(&levels(0, int64_t(i)), tree.size);
    column.stride[0] = level_rows_;
    backend_.copy_tokens({.from = column, .to = tree.tokens.slice(0, tree.size)});
    tree.in_flight = true;
  }
}

// A row of each of the first `open` chains.
void Follower::blind_level(int level, size_t open) {
  auto levels = levels_.view<int32_t>(max_draft_, level_rows_);  // [level][draft] tokens that come out
  const int64_t rows = int64_t(open);
  if (level == 0) {
    first_rows();
  } else {
    segments_.clear();
    for (size_t i = 0; i < open; ++i) {
      const Sequence& sequence = *open_[i]->task->sequence;
      segments_.push_back({
          .phase = Segment::Phase::Verify,
          .sequence = &sequence,
          .first_position = sequence.committed_len + level,
          .num_rows = 1,
          .first = seats_[sequence.slot].first,
      });
    }
    pass_->begin(levels[level - 1].slice(0, rows), segments_);
    run_level(came_, rows);
  }
  const View<const float, 2> logits = logits_of(rows);
  for (int64_t i = 0; i < rows; ++i) {
    open_[i]->depth = level;
    View<const int32_t, 1> before(&levels(0, i), level);
    before.stride[0] = level_rows_;
    sample(*open_[i], logits.slice(i, 1), i, levels[level].slice(i, 1), true, before);
  }
}

TreeSlots Follower::slots_of(Slot slot) {
  const int64_t seats = std::ssize(seats_);
  return {.tokens = slot_tokens_.view<int32_t>(seats, most_slots())[slot],
      .parents = slot_parents_.view<int32_t>(seats, most_slots())[slot],
      .chances = slot_chances_.view<double>(seats, most_slots())[slot],
      .frontier = frontiers_.view<int32_t>(seats, kMostTried)[slot]};
}

// Trees that keep the likeliest nodes (dynamic_tree.h) grow blind by the ops of backend/ops/tree.h: how many rows a level has is
// known, which nodes they are is not. What attention reads must be known too, so branches are columns: row i of a level continues
// row i of those before, and once a level's rows are chosen the K and V of their ancestors move into their columns. A row has the
// bits that it has under the tree's mask: the same keys at the same places. The host waits once, for the finished tree.
void Follower::run_blind_trees() {
  grown_.assign(open_.begin(), open_.end());
  backend_.replay([&] { blind_tree_level(true); });
  if (!open_.empty())
    backend_.replay([&] {
      while (!open_.empty()) blind_tree_level(false);
    });
  ids_queued_ = false;
  if (!backend_.synchronize().ok()) return;  // the pass that verifies fails with the reason
  const auto parents = chosen_parents_.view<int32_t>(std::ssize(seats_), max_draft_);
  const auto count = num_chosen_.view<int32_t>(std::ssize(seats_));
  for (Draft* draft : grown_) {
    DraftTree& out = *draft->task->tree;
    const Slot slot = draft->task->sequence->slot;
    out.size = count(slot);
    for (int node = 0; node < out.size; ++node) out.parents[node] = parents(slot, node);
  }
}

void Follower::blind_tree_level(bool first) {
  const int64_t rows = first ? first_rows() : next_tree_rows();
  const View<const float, 2> logits = logits_of(rows);
  int64_t row = 0;
  for (Draft* draft : open_) {
    sample(*draft, logits.slice(row, draft->level), row, tokens_.view<int32_t>(level_rows_).slice(row, draft->level), true);
    row += draft->level;
  }
  const auto came = came_.view<float>(level_rows_, width_);
  row = 0;
  int64_t next = 0;
  for (Draft* draft : open_) {
    const int level = draft->level, slot = draft->task->sequence->slot;
    DraftTree& out = *draft->task->tree;
    const int64_t first_slot = draft->slots;
    plan_next(*draft);
    const int width = draft->done ? 0 : draft->level;
    GrowTreeArgs grow{
        .tree = slots_of(slot),
        .first_slot = first_slot,
        .ranked = ranked_.view<const int32_t>(level_rows_, kMostTried).slice(row, level),
        .shares = shares_.view<const float>(level_rows_, kMostTried).slice(row, level),
        .ids = next_ids_.view<int32_t>(level_rows_).slice(next, width),
        .rows = next_rows_.view<int32_t>(level_rows_).slice(next, width),
    };
    grow.ranked.extent[1] = grow.shares.extent[1] = draft->top_k;
    if (own_ids_there_) grow.own_ids = own_ids_there_.view<const int32_t>(std::ssize(own_ids_));
    backend_.grow_tree(grow);
    ++out.passes;
    if (draft->done) {
      const int most = std::min(draft->task->limits.max_tokens, max_draft_);
      const auto parents = chosen_parents_.view<int32_t>(std::ssize(seats_), max_draft_)[slot];
      backend_.choose_nodes({
          .tree = grow.tree,
          .slots = draft->slots,
          .tokens = out.tokens.slice(0, most),
          .parents = parents.slice(0, most),
          .count = num_chosen_.view<int32_t>(std::ssize(seats_)).slice(slot, 1),
      });
    }
    row += level, next += width;
  }
  // All that grew before anything is copied: copies go together.
  row = next = 0;
  for (Draft* draft : open_) {
    const int level = draft->lengths.size() > 1 ? draft->lengths[draft->lengths.size() - 2] : 1;
    if (!draft->done && featured())
      backend_.copy_rows({
          .from = came.slice(row, level),
          .to = next_.view<float>(level_rows_, width_).slice(next, draft->level),
          .index = next_rows_.view<const int32_t>(level_rows_).slice(next, draft->level),
      });
    row += draft->done ? draft->level : level, next += draft->done ? 0 : draft->level;
  }
  std::erase_if(open_, [](const Draft* draft) { return draft->done; });
}

// The level that just got its children is over: how many rows the next one has. No more than this one, so that columns last.
void Follower::plan_next(Draft& draft) {
  draft.slots += int64_t(draft.level) * draft.top_k;
  ++draft.depth;
  int width = draft.depth < draft.deepest ? std::min(room_of_level(draft), draft.level * draft.top_k) : 0;
  if (draft.depth > 1) width = std::min(width, draft.level);
  if (width <= 0) return void(draft.done = true);
  for (int i = 0; i < width; ++i) draft.parents.push_back(draft.depth == 1 ? 0 : draft.rows - draft.level + i);
  draft.lengths.push_back(width);
  draft.rows += width, draft.level = width;
}

// Runs the rows of a level of every open tree: the columns of their ancestors first.
int64_t Follower::next_tree_rows() {
  segments_.clear();
  int64_t rows = 0;
  for (const Draft* draft : open_) {
    const Sequence& sequence = *draft->task->sequence;
    if (draft->lengths.size() > 1)
      backend_.shuffle_kv({
          .kv = {kv_.get(), sequence.pages.view()},
          .first_entry = sequence.committed_len + 1,
          .lengths = std::span(draft->lengths).first(draft->lengths.size() - 1),
          .from = next_rows_.view<const int32_t>(level_rows_).slice(rows, draft->level),
      });
    segments_.push_back({.phase = Segment::Phase::Verify,
        .sequence = &sequence,
        .first_position = sequence.committed_len,
        .num_rows = draft->level,
        .first = seats_[sequence.slot].first,
        .round_row = draft->rows - draft->level,
        .parents = draft->parents});
    rows += draft->level;
  }
  pass_->begin(next_ids_.view<const int32_t>(level_rows_).slice(0, rows), segments_);
  run_level(next_, rows);
  return rows;
}

}
