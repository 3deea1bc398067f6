#include "sparse/draft_copy.h"

#include <fmt/ranges.h>

#include <numeric>

#include "base/failure.h"

namespace hunch {

DraftCopy::DraftCopy(const SparsePolicy::Setup& setup, int sets, int block, int layer_step)
    : backend_(*setup.backend),
      in_place_(backend_.selects_in_place()),
      options_(setup.options),
      geometry_(setup.geometry),
      window_(setup.window),
      sets_(sets),
      block_(block),
      max_rows_(setup.max_draft + 1),
      slots_(setup.max_sequences) {
  HUNCH_CHECK(layer_step >= 1);
  move_from_.reserve(max_rows_), move_to_.reserve(max_rows_);
  lists_of_.resize(window_.size());
  for (int layer = 0, chose = 0, seen = 0; layer < num_layers(); ++layer) {
    if (selects(layer) && seen++ % layer_step == 0) chose = layer;
    lists_of_[layer] = chose;
  }
}

void DraftCopy::open(const Sequence& sequence, int64_t tail) {
  SlotState& state = slots_[sequence.slot];
  state.dense = true;
  const int64_t max_count = (kept_entries(options_, sequence.max_len) + block_ - 1) / block_ * block_;
  // The tail holds what is left of a block, the selecting pass's rows and, from the accepted one on, the next round's drafts.
  const int64_t pages = (max_count + block_ - 1 + 2 * max_rows_ + tail + kPageLen - 1) / kPageLen;
  if (max_count > state.max_count) {
    if (state.index)
      (void)backend_.synchronize();  // choices of who had the slot may still wait; a failure shows at the next step
    state.index = {};
    state.index = backend_.allocate(size_t(geometry_.layers * sets_ * max_count) * sizeof(int32_t) + 64, Memory::Spare);
    state.max_count = max_count;
  }
  if (!in_place_ && pages > std::ssize(state.pages)) {
    state.store.reset();  // before the larger one is taken
    state.store = backend_.make_kv_store(geometry_, pages);
    HUNCH_CHECK(state.store != nullptr);
    state.pages.resize(pages);
    std::iota(state.pages.begin(), state.pages.end(), 0);
    // What nobody wrote must not be read: a NaN shows it.
    state.store->poison(ref(state).pages, 0, pages * kPageLen);
  }
}

bool DraftCopy::begin(Slot slot, int64_t first_position) {
  SlotState& state = slots_[slot];
  state.tail_first = first_position / block_ * block_;
  state.count = (kept_entries(options_, state.tail_first) + block_ - 1) / block_ * block_;
  state.dense = state.count >= state.tail_first;
  HUNCH_CHECK(state.dense || state.count <= state.max_count);
  return !state.dense;
}

View<int32_t, 2> DraftCopy::index(Slot slot, int layer) const {
  const SlotState& state = slots_[slot];
  auto* data = static_cast<int32_t*>(state.index.data()) + int64_t(lists_of_[layer]) * sets_ * state.max_count;
  View<int32_t, 2> view(data, sets_, state.count);
  view.stride[0] = state.max_count;
  return view;
}

void DraftCopy::choose(int layer, Slot slot, View<const float, 2> scores, int spread) {
  const auto blocks_of = [this](int64_t entries) { return (entries + block_ - 1) / block_; };
  backend_.top_k({
      .scores = scores,
      .n = valid(slot) / block_,
      .count = count(slot) / block_,
      .spread = spread,
      .sinks = int(blocks_of(options_.sinks)),
      .recent = int(blocks_of(options_.recent)),
      .block = block_,
      .index = index(slot, layer),
  });
}

void DraftCopy::choose_ends(int layer, Slot slot, int sinks) {
  const int64_t kept = count(slot);
  sinks = int(std::min<int64_t>(sinks, kept));
  backend_.top_k({.n = valid(slot), .count = kept, .sinks = sinks, .recent = int(kept - sinks), .index = index(slot, layer)});
}

void DraftCopy::copy(int layer, Slot slot, int64_t tail_last, const KvRef& from) {
  if (in_place_) return;
  const SlotState& state = slots_[slot];
  backend_.gather_kv({
      .layer = layer,
      .from = from,
      .to = ref(state),
      .index = index(slot, layer),
      .tail_first = state.tail_first,
      .tail_last = tail_last,
  });
}

void DraftCopy::close_up(Slot slot, int64_t first_position, std::span<const int32_t> rows) {
  const SlotState& state = slots_[slot];
  if (state.dense || in_place_) return;
  const int64_t first_entry = state.count + first_position - state.tail_first;
  move_from_.clear(), move_to_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == int32_t(i)) continue;
    move_from_.push_back(first_entry + rows[i]);
    move_to_.push_back(first_entry + int64_t(i));
  }
  if (!move_from_.empty()) backend_.move_kv({.kv = ref(state), .from = move_from_, .to = move_to_});
}

Selection DraftCopy::selection(int layer, Slot slot) const {
  const SlotState& state = slots_[slot];
  if (state.dense || !selects(layer)) return {};
  Selection selection{.grain = Selection::Grain::Token, .prefix = state.count, .tail_first = state.tail_first, .block = block_};
  if (in_place_) selection.index = index(slot, layer);
  else selection.kv = ref(state);
  return selection;
}

size_t DraftCopy::bytes() const {
  size_t bytes = 0;
  for (const SlotState& state : slots_) bytes += (state.store ? state.store->bytes : 0) + state.index.bytes();
  return bytes;
}

Status check_known(
    std::string_view policy, std::string_view option, std::string_view value, std::initializer_list<std::string_view> known) {
  if (std::ranges::find(known, value) != known.end()) return {};
  return usage_error("{}: unknown {} '{}'; known: {}", policy, option, value, fmt::join(known, ", "));
}

}
