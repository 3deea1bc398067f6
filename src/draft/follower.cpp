#include "draft/follower.h"

namespace hunch {
namespace {

constexpr int64_t kLevelRows = 64;  // rows of a level, all sequences together
constexpr int64_t kLateRows = 64;   // that wait where ops run late: a pass of few costs as much as one of many
constexpr int64_t kRoundRows = 17;  // of a round, as a rule: room behind them

}

Follower::Follower(const Setup& setup, std::unique_ptr<DraftNet> net)
    : backend_(*setup.backend),
      target_(*setup.target),
      net_(std::move(net)),
      own_ids_(net_->own_ids()),
      max_draft_(setup.max_draft),
      width_(net_->shape().hidden),
      draft_vocab_(net_->shape().vocab_size),
      vocab_(target_.shape().vocab_size),
      keep_(std::max<int64_t>(setup.max_draft + 2, backend_.asynchronous() ? kLateRows + kRoundRows : 0)),
      level_rows_(std::max<int64_t>(kLevelRows, setup.max_sequences)),
      seats_(setup.max_sequences),
      drafts_(setup.max_sequences) {
  all_.reserve(seats_.size()), open_.reserve(seats_.size()), grown_.reserve(seats_.size()), segments_.reserve(seats_.size());
  positions_.resize(level_rows_);
  for (Draft& draft : drafts_) {
    draft.classes.reserve(max_draft_);
    draft.parents.reserve(size_t(max_draft_) * kMostTried + 1);
    draft.tree.reserve(kMostTried, max_draft_);
    draft.drawn.reserve(max_draft_, max_draft_), draft.laws.reserve(max_draft_ + 1);
    draft.lengths.reserve(max_draft_);
  }
  first_kept_.reserve(level_rows_);
}

Needs Follower::needs() const {
  const ModelShape& shape = net_->shape();
  return {.rows = true,
      .taps = net_->taps(),
      .kv = KvGeometry{.layers = shape.layers, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim},
      .page_floats = featured() ? width_ : 0};
}

void Follower::move_in(Quarters quarters) {
  kv_ = std::move(quarters.kv), pool_ = quarters.pool;
  rows_ = std::max(quarters.max_rows + keep_, level_rows_);
  pass_.emplace(backend_, net_->shape(), *kv_,
      PassLimits{.max_rows = int(rows_), .max_segments = int(seats_.size()), .floats_per_row = net_->scratch_floats() + width_});
  stamps_.assign(pool_->num_pages(), 0);
  const auto floats = [&](int64_t count, Memory memory = Memory::Device) {
    return backend_.allocate(count * sizeof(float), memory);
  };
  const int64_t seats = std::ssize(seats_);
  if (featured()) {
    waiting_ = floats(seats * keep_ * width_), page_features_ = floats(pool_->num_pages() * width_);
    fused_ = floats(rows_ * width_), input_ = floats(rows_ * width_), next_ = floats(level_rows_ * width_);
    taps_ = net_->taps();
    path_rows_ = floats(keep_ * std::max<int64_t>(1, std::ssize(taps_)) * target_.shape().hidden);
  }
  recycled_ = floats(rows_ * width_), hidden_ = floats(rows_ * width_);
  came_ = floats(level_rows_ * width_), heads_ = floats(level_rows_ * width_);
  logits_ = floats(level_rows_ * draft_vocab_);
  if (net_->vocabulary().data)  // what it never guesses stays as it is
    widened_ = backend_.constant(std::vector<float>(level_rows_ * vocab_, -INFINITY));
  ids_ = floats(rows_, Memory::Shared), tokens_ = floats(level_rows_, Memory::Shared),
  leads_ = floats(level_rows_, Memory::Shared);
  ranked_ = floats(level_rows_ * kMostTried, Memory::Shared), shares_ = floats(level_rows_ * kMostTried, Memory::Shared);
  row_tokens_ = floats(seats * int64_t(max_draft_) * kMostTried, Memory::Shared);
  if (!backend_.asynchronous()) return;
  levels_ = floats(int64_t(max_draft_) * level_rows_, Memory::Shared);
  const int64_t slots = seats * most_slots();
  slot_tokens_ = floats(slots), slot_parents_ = floats(slots), slot_chances_ = floats(2 * slots);
  frontiers_ = floats(seats * kMostTried), next_ids_ = floats(level_rows_), next_rows_ = floats(level_rows_);
  chosen_parents_ = floats(seats * max_draft_, Memory::Shared), num_chosen_ = floats(seats, Memory::Shared);
  if (!own_ids_.empty()) own_ids_there_ = backend_.constant_ids(own_ids_);
}

// Where the sequence begins with pages of the prefix cache, the drafter begins with what it knows of them: a run of stamped pages
// up to the last one (without features, rows can be made up for: there it is a run from the first page).
void Follower::open(const Sequence& sequence) {
  Seat& seat = seats_[sequence.slot];
  Draft& draft = drafts_[sequence.slot];
  draft.task = nullptr, draft.classes.clear(), draft.stored = 0;  // of whoever sat there
  const int64_t found = sequence.committed_len / kPageLen;
  const auto known = [&](int64_t page) {
    const int32_t id = sequence.pages.page_of(page * kPageLen);
    return stamps_[id] == pool_->generation(id);
  };
  int64_t run = featured() ? found : 0;
  seat = {.sequence = &sequence};
  if (!featured()) {
    while (run < found && known(run)) ++run;
    seat.fed = run * kPageLen, seat.page = run;
    return;
  }
  while (run > 0 && known(run - 1)) --run;
  if (run < found) {
    const int32_t last = sequence.pages.page_of(found * kPageLen - 1);
    backend_.copy_rows({.from = page_features_.view<float>(pool_->num_pages(), width_).slice(last, 1),
        .to = waiting(sequence.slot).slice(0, 1)});
    seat.first = std::max<int64_t>(1, run * kPageLen), seat.fed = found * kPageLen, seat.page = found, seat.waiting = 1;
  } else {
    seat.first = seat.fed = found * kPageLen + 1;  // the feature that row `found * kPageLen` needs is gone
    seat.page = found + (found > 0);
  }
}

// Rows that wait go through while their pages are here, if that makes one whole: a conversation's next turn begins behind it.
void Follower::close(Slot slot) {
  Seat& seat = seats_[slot];
  const int64_t rows = seat.waiting - 1;
  if (seat.sequence && rows > 0 && (seat.page + 1) * kPageLen <= seat.fed + rows) {
    segments_.clear();
    backend_.copy_rows({.from = waiting(slot).slice(0, rows), .to = input_.view<float>(rows_, width_).slice(0, rows)});
    seat.waiting = 1;
    append_input(*seat.sequence, rows, 0);
    const auto fed = [&] { feed(); };
    backend_.replay(fed);  // begun before the pages go
  }
  seat = {};
}

// Pages whose every row is here, with the feature of the last entry, are whole for whoever shares them.
void Follower::stamp(const Sequence& sequence) {
  Seat& seat = seats_[sequence.slot];
  const int64_t whole = std::min(seat.fed, featured() ? seat.fed + seat.waiting - 1 : seat.fed);
  for (; (seat.page + 1) * kPageLen <= whole; ++seat.page) {
    const int32_t id = sequence.pages.page_of(seat.page * kPageLen);
    stamps_[id] = pool_->generation(id);
  }
}

// Before the host writes ids that ops may not have read yet. A failure shows at the pass that verifies.
void Follower::wait_for_ids() {
  if (ids_queued_) (void)backend_.synchronize();
  ids_queued_ = false;
}

// The next `rows` rows of a sequence, whose features lie in front of the waiting ones: ids and features from row `at` of the
// input on.
void Follower::append_input(const Sequence& sequence, int64_t rows, int64_t at) {
  Seat& seat = seats_[sequence.slot];
  wait_for_ids();
  auto ids = ids_.view<int32_t>(rows_);
  for (int64_t i = 0; i < rows; ++i) ids(at + i) = own(sequence.tokens[seat.fed + i]);
  segments_.push_back({
      .phase = Segment::Phase::Verify,
      .sequence = &sequence,
      .first_position = seat.fed,
      .num_rows = int(rows),
      .first = seat.first,
  });
}

// `drafts`: what stands behind the rows is wanted.
void Follower::feed(bool drafts) {
  if (segments_.empty()) return;
  int64_t rows = 0;
  for (const Segment& segment : segments_) rows += segment.num_rows;
  pass_->begin(ids_.view<const int32_t>(rows), segments_);
  const auto features = featured() ? input_.view<float>(rows, width_) : View<float, 2>{};
  const auto recycled = recycled_.view<float>(rows, width_), hidden = hidden_.view<float>(rows, width_);
  if (drafts) net_->forward(*pass_, features, recycled, hidden);
  else net_->remember(*pass_, features, recycled, hidden);
  ids_queued_ = true;
  for (const Segment& segment : segments_) {
    seats_[segment.sequence->slot].fed += segment.num_rows;
    stamp(*segment.sequence);
  }
  segments_.clear();
}

// The rows of a path lie apart in the pass; what the network takes of them, taps or hidden state, is copied together for one
// product.
TargetRows Follower::side_by_side(const TargetRows& rows) {
  const int64_t hidden = rows.hidden.extent[1];
  const auto to = path_rows_.view<float>(keep_, std::max<int64_t>(1, std::ssize(taps_)) * hidden);
  const auto copy = [&](View<const float, 2> from, View<float, 2> to) {
    for (int64_t i = 0; i < rows.count; ++i) backend_.copy_rows({.from = from.slice(rows.row(i), 1), .to = to.slice(i, 1)});
  };
  if (const auto together = taps_.empty() ? rows.hidden : rows.side_by_side(taps_); together.data) {
    copy(together, to);
  } else {
    for (size_t tap = 0; tap < taps_.size(); ++tap) {
      View<float, 2> part(to.data + int64_t(tap) * hidden, keep_, hidden);
      part.stride[0] = to.stride[0];
      copy(rows.layer(taps_[tap]), part);
    }
  }
  TargetRows out{.sequence = rows.sequence, .first_position = rows.first_position, .count = rows.count, .tapped = taps_};
  out.hidden = View<const float, 2>(taps_.empty() ? to.data : nullptr, keep_, hidden);
  out.taps = to;
  return out;
}

void Follower::preview(std::span<const TargetRows> all) {
  for (const TargetRows& rows : all) {
    Seat& seat = seats_[rows.sequence->slot];
    const bool can = featured() && seat.fed + seat.waiting == rows.first_position + 1 && seat.waiting + rows.count <= keep_;
    seat.previewed = can ? rows.first_position : -1;
    if (!can) continue;
    pass_->arena().reset();
    net_->fuse(
        backend_, pass_->arena(), rows, rows.first_row, rows.count, waiting(rows.sequence->slot).slice(seat.waiting, rows.count));
  }
}

// A unit of its own: the pass that comes next has the same ops whether rows go through now or wait.
void Follower::follow(std::span<const TargetRows> all) {
  ids_queued_ = false;  // the pass before this call was waited for
  backend_.replay([&] { take(all); });
}

// Few rows wait for the next draft; a prompt chunk's go through at once, but for the last, whose token may have no page yet.
void Follower::take(std::span<const TargetRows> all) {
  segments_.clear();
  int64_t at = 0;
  const auto make_room = [&](int64_t rows) {
    if (at + rows > rows_) feed(), at = 0;
  };
  for (const TargetRows& rows : all) {
    const Sequence& sequence = *rows.sequence;
    Seat& seat = seats_[sequence.slot];
    if (!featured()) {
      const int64_t end = std::min(sequence.committed_len, net_->longest());  // nothing is drafted behind it
      for (int64_t backlog = end - seat.fed; backlog > keep_;) {
        if (at == rows_) feed(), at = 0;
        const int64_t count = std::min(backlog, rows_ - at);
        append_input(sequence, count, at);
        at += count, backlog -= count;
        if (backlog > keep_) feed(), at = 0;  // its next rows stand behind these
      }
      continue;
    }
    if (seat.fed + seat.waiting != rows.first_position + 1) {  // rows went by unseen: a shorter memory from here on
      seat.first = seat.fed = rows.first_position + 1, seat.waiting = 0;
      seat.page = (seat.fed + kPageLen - 1) / kPageLen;
    }
    const int64_t count = rows.count;
    const auto kept = waiting(sequence.slot);
    const bool fits = seat.waiting + count <= keep_;
    const bool made = rows.path.empty() && std::exchange(seat.previewed, -1) == rows.first_position;
    const auto fused = fits ? kept.slice(seat.waiting, count) : fused_.view<float>(rows_, width_).slice(0, count);
    pass_->arena().reset();
    if (made) HUNCH_CHECK(fits);
    else if (rows.path.empty()) net_->fuse(backend_, pass_->arena(), rows, rows.first_row, count, fused);
    else net_->fuse(backend_, pass_->arena(), side_by_side(rows), 0, count, fused);
    for (int64_t i = kPageLen - 1 - rows.first_position % kPageLen; i < count; i += kPageLen) {
      const int32_t page = sequence.pages.page_of(rows.first_position + i);
      backend_.copy_rows(
          {.from = fused.slice(i, 1), .to = page_features_.view<float>(pool_->num_pages(), width_).slice(page, 1)});
    }
    const int64_t going = seat.waiting + count - 1, from_kept = fits ? going : seat.waiting;
    if (fits && (going < kLateRows || !backend_.asynchronous())) {
      seat.waiting += int(count);
    } else {
      make_room(going);
      const auto input = input_.view<float>(rows_, width_);
      if (from_kept > 0) backend_.copy_rows({.from = kept.slice(0, from_kept), .to = input.slice(at, from_kept)});
      if (!fits) backend_.copy_rows({.from = fused.slice(0, count - 1), .to = input.slice(at + from_kept, count - 1)});
      backend_.copy_rows({.from = fused.slice(count - 1, 1), .to = kept.slice(0, 1)});
      append_input(sequence, going, at);
      seat.waiting = 1;
      at += going;
    }
    stamp(sequence);
  }
  feed();
}

bool Follower::begin(const DraftTask& task) {
  DraftTree& tree = *task.tree;
  tree.size = tree.passes = 0;
  tree.in_flight = false;
  tree.law = task.limits.want_q ? DraftLaw::Given : DraftLaw::Noise;
  const Sequence& sequence = *task.sequence;
  const Seat& seat = seats_[sequence.slot];
  Draft& draft = drafts_[sequence.slot];
  draft.classes.clear(), draft.task = nullptr, draft.stored = 0;
  const int64_t count = sequence.committed_len + 1 - seat.fed;
  // Level d writes entry committed_len + d; a network may be made for shorter texts than the target.
  const int64_t room = std::min(sequence.pages.capacity(), net_->longest()) - sequence.committed_len;
  if (task.limits.max_tokens <= 0 || count < 1 || (featured() && seat.waiting < count) || room < 1) return false;
  draft.task = &task, draft.count = int(count);
  draft.depth = 0, draft.deepest = int(std::min<int64_t>(task.limits.longest(), room));
  const StaticTree* shape = task.limits.shape;
  draft.top_k = shape ? shape->ranks() : std::clamp(task.limits.tree_top_k, 1, kMostTried);
  draft.widest = shape ? shape->size() : draft.top_k;
  draft.branch = shape || (task.limits.may_branch && draft.top_k > 1);
  draft.parents.assign(1, -1), draft.rows = draft.level = 1, draft.reach = 1, draft.done = false;
  draft.lengths.clear(), draft.slots = 0;
  draft.given = tree.law == DraftLaw::Given;
  draft.laws.clear(), tree.laws.clear();
  if (!draft.branch) return true;
  if (draft.given) draft.drawn.begin(task.limits.max_tokens, draft.deepest, draft.top_k, by_law_.usual(), shape);
  else draft.tree.begin(shape);
  return true;
}

void Follower::propose(std::span<const DraftTask> tasks) {
  HUNCH_CHECK(tasks.size() <= drafts_.size());
  all_.clear();
  for (const DraftTask& task : tasks)
    if (begin(task) && std::ssize(all_) < level_rows_) all_.push_back(&drafts_[task.sequence->slot]);
  // Those that nobody decided about yet; nobody's levels wait for the kind of another's.
  const auto some = [&](const auto& property) {
    open_.clear();
    std::ranges::copy_if(all_, std::back_inserter(open_), property);
    std::erase_if(all_, property);
    if (!open_.empty()) make_first_rows_fit();
    return !open_.empty();
  };
  if (backend_.asynchronous()) {
    if (some([&](const Draft* draft) { return !draft->branch && !net_->renumbers(); })) run_blind();
    if (some([](const Draft* draft) {  // penalties would count what stands on a path
          const LogitState* state = draft->task->sequence->logit_state.get();
          return draft->branch && !draft->given && !draft->task->limits.shape && !(state && state->rules().penalise());
        }))
      run_blind_trees();
  }
  if (some([](const Draft*) { return true; })) finish_level(first_rows());
  while (!open_.empty()) next_level();
}

// More rows than fit into a pass go through before, but for one of each. Waits, so that first_rows() need not.
void Follower::make_first_rows_fit() {
  segments_.clear();
  int64_t total = 0;
  for (const Draft* draft : open_) total += draft->count;
  const auto input = [&] { return input_.view<float>(rows_, width_); };
  for (size_t i = 0; total > rows_ && i < open_.size(); ++i) {
    Draft& draft = *open_[i];
    const Sequence& sequence = *draft.task->sequence;
    Seat& seat = seats_[sequence.slot];
    while (draft.count > 1) {
      const int64_t some = std::min<int64_t>(draft.count - 1, rows_);
      if (featured()) backend_.copy_rows({.from = waiting(sequence.slot).slice(0, some), .to = input().slice(0, some)});
      append_input(sequence, some, 0);
      feed();
      if (featured()) {
        seat.waiting -= int(some);
        for (int row = 0; row < seat.waiting; ++row)  // one by one: the two overlap
          backend_.copy_rows({.from = waiting(sequence.slot).slice(row + some, 1), .to = waiting(sequence.slot).slice(row, 1)});
      }
      draft.count -= int(some), total -= some;
    }
  }
  wait_for_ids();
}

// Runs the rows that wait, the pending token's last: what stands behind that one goes to came_ and heads_. Returns how many
// drafts there are.
int64_t Follower::first_rows() {
  segments_.clear();
  int64_t at = 0;
  const auto add = [&](const Draft& draft, int64_t first, int64_t rows) {
    const Sequence& sequence = *draft.task->sequence;
    if (featured())
      backend_.copy_rows(
          {.from = waiting(sequence.slot).slice(first, rows), .to = input_.view<float>(rows_, width_).slice(at, rows)});
    append_input(sequence, rows, at);
    at += rows;
  };
  // On a CPU, where every row takes its time, only the last of each says something.
  const bool apart = featured() && !backend_.asynchronous();
  for (const Draft* draft : open_)
    if (apart && draft->count > 1) add(*draft, 0, draft->count - 1);
  feed();
  at = 0;
  for (Draft* draft : open_) {
    const int first = apart ? draft->count - 1 : 0;
    draft->count -= first;
    add(*draft, first, draft->count);
    seats_[draft->task->sequence->slot].waiting = 0;
  }
  feed(true);
  // What stands behind the last row of each goes on.
  const auto heads = heads_.view<float>(level_rows_, width_), came = came_.view<float>(level_rows_, width_);
  int64_t row = -1, nth = 0;
  for (Draft* draft : open_) {
    row += draft->count;
    if (featured()) backend_.copy_rows({.from = recycled_.view<float>(rows_, width_).slice(row, 1), .to = came.slice(nth, 1)});
    backend_.copy_rows({.from = hidden_.view<float>(rows_, width_).slice(row, 1), .to = heads.slice(nth++, 1)});
  }
  return nth;
}

// The rows of a level: one of every chain, the frontier of every tree. Their features lie in next_.
void Follower::next_level() {
  segments_.clear();
  auto ids = ids_.view<int32_t>(rows_);
  int64_t rows = 0;
  for (const Draft* draft : open_) {
    const Sequence& sequence = *draft->task->sequence;
    const int first = draft->rows - draft->level;
    for (int i = 0; i < draft->level; ++i)
      ids(rows++) = own(draft->branch ? row_tokens(sequence.slot)(first + i - 1) : draft->task->tree->tokens(draft->depth - 1));
    segments_.push_back({.phase = Segment::Phase::Verify,
        .sequence = &sequence,
        .first_position = sequence.committed_len + (draft->branch ? 0 : draft->depth),
        .num_rows = draft->level,
        .first = seats_[sequence.slot].first,
        .round_row = draft->branch ? first : 0,
        .parents = draft->branch ? std::span<const int32_t>(draft->parents) : std::span<const int32_t>{}});
  }
  pass_->begin(View<const int32_t, 1>(ids).slice(0, rows), segments_);
  run_level(next_, rows);
  finish_level(rows);
}

// Logits of a level's rows, in the target's numbering.
View<float, 2> Follower::logits_of(int64_t rows) {
  const auto logits = logits_.view<float>(level_rows_, draft_vocab_).slice(0, rows);
  net_->logits(backend_, heads_.view<float>(level_rows_, width_).slice(0, rows), logits);
  const auto map = net_->vocabulary();
  if (!map.data) return logits;
  const auto wide = widened_.view<float>(level_rows_, vocab_).slice(0, rows);
  backend_.scatter_columns({.from = logits, .map = map, .to = wide});
  return wide;
}

// Logits of the level's rows to tokens; then which rows run next, and with what features.
void Follower::finish_level(int64_t rows) {
  const View<const float, 2> logits = logits_of(rows);
  int64_t row = 0;
  for (Draft* draft : open_) {
    ++draft->task->tree->passes;
    sample(*draft, logits.slice(row, draft->level), row, tokens_.view<int32_t>(level_rows_).slice(row, draft->level));
    row += draft->level;
  }
  ids_queued_ = false;
  if (!backend_.synchronize().ok()) return open_.clear();  // the pass that verifies fails with the reason
  row = 0;
  int64_t next = 0;
  const auto came = came_.view<float>(level_rows_, width_), features = next_ ? next_.view<float>(level_rows_, width_) : came;
  for (Draft* draft : open_) {
    const int count = draft->level, first = draft->rows - count;
    if (!draft->branch) take_chain(*draft, row);
    else if (draft->given) take_drawn(*draft, row);
    else take_tree(*draft, row);
    for (int i = 0; featured() && !draft->done && i < draft->level; ++i) {
      const int parent = draft->branch ? draft->parents[draft->rows - draft->level + i] - first : 0;
      backend_.copy_rows({.from = came.slice(row + parent, 1), .to = features.slice(next++, 1)});
    }
    row += count;
  }
  std::erase_if(open_, [](const Draft* draft) { return draft->done; });
}

// The children of a level's rows, with the noise that Self::sample takes (proposers/self.cpp says why).
void Follower::sample(
    Draft& draft, View<const float, 2> logits, int64_t row, View<int32_t, 1> to, bool blind, View<const int32_t, 1> drafts) {
  const Sequence& sequence = *draft.task->sequence;
  const DraftTree& tree = *draft.task->tree;
  const View<int32_t, 1> positions(positions_.data() + row, draft.level);
  for (int i = 0; i < draft.level; ++i) positions(i) = int32_t(sequence.committed_len + draft.depth + 1);
  const bool given = tree.law == DraftLaw::Given;
  const int first = draft.branch ? draft.rows - draft.level : draft.depth;
  const View<const int32_t, 1> own = draft.branch ? row_tokens(sequence.slot) : tree.tokens;
  SampleArgs args{.logits = logits,
      .params = sequence.sampling,
      .key = sequence.noise,
      .stream = given ? draft_stream(draft.depth) : NoiseStream::Target,
      .positions = positions,
      .tokens = to,
      .probs = given ? tree.q.slice(first, draft.level) : View<float, 2>{},
      .state = sequence.logit_state.get(),
      .first_row = first,
      .drafts = drafts.data ? drafts : own,
      .parents = draft.branch ? std::span<const int32_t>(draft.parents) : std::span<const int32_t>{},
      .blind = blind};
  if (draft.branch) {
    args.ranked = ranked_.view<int32_t>(level_rows_, kMostTried).slice(row, draft.level);
    if (!given) args.shares = shares_.view<float>(level_rows_, kMostTried).slice(row, draft.level);
    args.ranked.extent[1] = args.shares.extent[1] = draft.top_k;
  } else {
    args.leads = leads_.view<float>(level_rows_).slice(row, 1);
  }
  backend_.sample(args);
}

void Follower::take_chain(Draft& draft, int64_t row) {
  DraftTree& tree = *draft.task->tree;
  const int32_t token = tokens_.view<int32_t>(level_rows_)(row);
  if (token < 0) return void(draft.done = true);  // no valid number: what there is must do
  const int sure = Confidence::class_of(leads_.view<float>(level_rows_)(row));
  draft.stored = draft.depth;
  tree.tokens(draft.depth++) = token;
  tree.make_chain(draft.depth);
  draft.classes.push_back(uint8_t(sure));
  draft.reach *= (tree.law == DraftLaw::Given ? by_draw_ : by_noise_).kept(sure);
  ++draft.rows;
  // The token that makes the rest unlikely stays: dropping it for what it is would bend the distribution.
  draft.done = draft.depth >= draft.deepest || draft.reach < draft.task->limits.stop_below;
}

void Follower::observe(const Sequence& sequence, const Verdict& verdict) {
  Draft& draft = drafts_[sequence.slot];
  if (!featured() && draft.stored > 0) {  // entries of drafts that were kept are final as they stand
    seats_[sequence.slot].fed += std::min<int64_t>(draft.stored, std::ssize(verdict.path));
    draft.stored = 0;
    stamp(sequence);
  }
  if (!std::exchange(draft.task, nullptr)) return;  // somebody else drafted
  if (draft.branch) {
    if (draft.given && draft.done)
      draft.drawn.outcome(verdict.path, [&](int row, bool kept) { by_law_.record(draft.laws[row], kept); });
    return;
  }
  Confidence& confidence = draft.given ? by_draw_ : by_noise_;
  for (size_t i = 0; i < draft.classes.size() && i <= verdict.path.size(); ++i)
    confidence.record(draft.classes[i], i < verdict.path.size());
  draft.classes.clear();
}

}
