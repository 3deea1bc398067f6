#include "sparse/draft_copy.h"

#include <numeric>

namespace hunch {

DraftCopy::DraftCopy(const SparsePolicy::Setup& setup, int sets)
    : backend_(*setup.backend), options_(setup.options), window_(setup.window), sets_(sets), state_(size_t(setup.max_sequences)) {
  max_count_ = kept_entries(options_, setup.context_len);
  // The tail holds the selecting pass's rows and, from the accepted one on, the next round's drafts.
  const int64_t entries = max_count_ + 2 * (setup.max_draft + 1);
  pages_per_slot_ = (entries + kPageLen - 1) / kPageLen;
  store_ = backend_.make_kv_store(setup.geometry, pages_per_slot_ * setup.max_sequences);
  HUNCH_CHECK(store_ != nullptr);
  pages_.resize(size_t(pages_per_slot_ * setup.max_sequences));
  std::iota(pages_.begin(), pages_.end(), 0);
  index_ =
      backend_.allocate(size_t(setup.max_sequences) * size_t(setup.geometry.layers * sets * max_count_) * sizeof(int32_t) + 64);
}

bool DraftCopy::begin(const PassInfo& info) {
  State& state = state_[size_t(info.sequence->slot)];
  state.tail_first = info.first_position;
  state.count = kept_entries(options_, info.first_position);
  state.dense = state.count >= info.first_position;
  return !state.dense;
}

View<int32_t, 2> DraftCopy::index(Slot slot, int layer) {
  const int64_t layers = int64_t(window_.size());
  auto* data = static_cast<int32_t*>(index_.data()) + (int64_t(slot) * layers + layer) * sets_ * max_count_;
  View<int32_t, 2> view(data, sets_, count(slot));
  view.stride[0] = max_count_;
  return view;
}

KvRef DraftCopy::ref(Slot slot) const {
  return {store_.get(), View<const int32_t, 1>(pages_.data() + int64_t(slot) * pages_per_slot_, pages_per_slot_)};
}

void DraftCopy::copy(int layer, const PassInfo& info, const KvRef& from) {
  const Slot slot = info.sequence->slot;
  backend_.gather_kv({.layer = layer,
                      .from = from,
                      .to = ref(slot),
                      .index = index(slot, layer),
                      .tail_first = info.first_position,
                      .tail_last = info.first_position + info.num_rows});
}

Selection DraftCopy::selection(int layer, Slot slot) const {
  const State& state = state_[size_t(slot)];
  if (state.dense || !selects(layer)) return {};
  return {.grain = Selection::Grain::Token, .kv = ref(slot), .prefix = state.count, .tail_first = state.tail_first};
}

}  // namespace hunch
