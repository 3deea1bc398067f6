// The automaton walks a tree of paths by taking and giving back tokens; what it said about a place is kept for the round, so that
// a guess drafted under its mask costs nothing more in the pass that verifies it.
#include "engine/grammar_mask.h"

#include "base/check.h"

namespace hunch {
GrammarMask::GrammarMask(
    const GrammarCompiler& compiler, std::shared_ptr<const CompiledGrammar> grammar, bool keep_going, MaskWorkers* workers)
    : state_(std::move(grammar), compiler),
      end_ids_(compiler.end_ids()),
      num_words_(GrammarState::mask_words(compiler.vocab())),
      keep_going_(keep_going),
      workers_(workers) {
  reset();
}

GrammarMask::~GrammarMask() {
  if (workers_) workers_->forget(*this);
}

void GrammarMask::fill_soon(int places) {
  soon_ = places;
  if (workers_) workers_->soon(*this);
}

bool GrammarMask::fill_one() {
  const Bounded bounded(*this);
  int left = soon_;
  const auto next =
      std::ranges::find_if(places_, [&](const Place& p) { return p.allowed && !broken_ && (!p.filled || --left == 0); });
  if (next == places_.end() || next->filled) return false;
  fill(int(next - places_.begin()));
  return true;
}

void GrammarMask::reset() {
  const std::lock_guard lock(mutex_);
  state_.reset();
  broken_ = false;
  places_.assign(1, {});
  at_ = kCommitted;
}

void GrammarMask::append(int32_t token) {
  const Bounded bounded(*this);
  go_to(kCommitted);
  if (!state_.accept(token)) broken_ = true;
  places_.assign(1, {});
}

TokenMask::Row GrammarMask::after(std::span<const int32_t> path) {
  const auto start = Clock::now();
  const Bounded bounded(*this);
  int place = kCommitted;
  for (const int32_t token : path) place = find(place, token);
  const Place& here = places_[place];
  if (leaves_out_ && place != kCommitted && here.allowed && !here.filled && !broken_) {
    go_to(place);
    if (state_.free_text()) return {};
  }
  if (!here.filled) fill(place);
  waited_ms_ += ms_since(start);
  return {masks_[place].get(), places_[place].only_ends};
}

bool GrammarMask::may_say(int place, int32_t token) {
  return step(place, token) >= 0 && !(keep_going_ && std::ranges::find(end_ids_, token) != end_ids_.end());
}

// The place behind `token`, allowed or not; behind a refused one everything is.
int GrammarMask::find(int place, int32_t token) {
  for (size_t next = place + 1; next < places_.size(); ++next)
    if (places_[next].parent == place && places_[next].token == token) return int(next);
  Place next{.parent = place, .depth = places_[place].depth + 1, .token = token};
  next.allowed = places_[place].allowed && !broken_;
  if (next.allowed) {
    go_to(place);
    next.allowed = state_.accept(token);
    if (next.allowed) at_ = int(places_.size());
  }
  places_.push_back(next);
  return int(places_.size()) - 1;
}

// Back to where both ways part, then down the other one.
void GrammarMask::go_to(int place) {
  way_.clear();
  int from = at_, to = place;
  int64_t back = 0;
  while (from != to) {
    if (places_[from].depth >= places_[to].depth) {
      from = places_[from].parent, ++back;
    } else {
      way_.push_back(to);
      to = places_[to].parent;
    }
  }
  state_.rollback(back);
  for (auto next = way_.rbegin(); next != way_.rend(); ++next) HUNCH_CHECK(state_.accept(places_[*next].token));
  at_ = place;
}

void GrammarMask::fill(int place) {
  while (masks_.size() < places_.size()) masks_.push_back(std::make_unique<uint32_t[]>(num_words_));
  Place& here = places_[place];
  const std::span<uint32_t> words(masks_[place].get(), num_words_);
  here.filled = true, here.only_ends = false;
  if (broken_ || !here.allowed) {
    std::ranges::fill(words, 0u);
    return;
  }
  go_to(place);
  state_.fill_mask(words);
  bool may_end = false;
  for (const int32_t id : end_ids_) {
    uint32_t& word = words[size_t(id) / 32];
    may_end |= word >> (id % 32) & 1;
    word &= ~(1u << (id % 32));
  }
  here.only_ends = may_end && std::ranges::all_of(words, [](uint32_t word) { return word == 0; });
  if (may_end && (here.only_ends || !keep_going_))
    for (const int32_t id : end_ids_) words[size_t(id) / 32] |= 1u << (id % 32);
}

}
