// DraftCopy: the compact store of a selecting policy. Per sequence and layer it holds the selected entries, ascending, then the
// tail: every position from the first row of the selecting pass on. Draft rows are appended to that tail; a rejection needs no
// work, since the next draft overwrites entries by position. Used by policies; sized once for the longest context.
#pragma once

#include <memory>
#include <vector>

#include "sparse/policy.h"

namespace hunch {

class DraftCopy {
 public:
  explicit DraftCopy(const SparsePolicy::Setup&, int sets);

  // Starts a selection from a pass whose first counting row stands at `first_position`; true if layers must select at all
  // (false: the budget holds the whole prefix and drafts read the sequence's own entries).
  bool begin(const PassInfo&);
  // Entries to select of [0, valid): the same for every layer.
  int64_t count(Slot slot) const { return state_[size_t(slot)].count; }
  int64_t valid(Slot slot) const { return state_[size_t(slot)].tail_first; }
  // Where layer `layer` writes its list before copy(); [sets][count].
  View<int32_t, 2> index(Slot slot, int layer);
  // Copies the listed entries and the pass's rows of this layer.
  void copy(int layer, const PassInfo&, const KvRef& from);
  // What draft rows read; Grain::All where nothing was selected.
  Selection selection(int layer, Slot slot) const;
  void forget(Slot slot) { state_[size_t(slot)] = {}; }

  int num_layers() const { return int(window_.size()); }
  bool selects(int layer) const { return window_[size_t(layer)] == 0; }
  KvStore* store() { return store_.get(); }
  size_t bytes() const { return store_->bytes + index_.bytes(); }

 private:
  struct State {
    bool dense = true;
    int64_t count = 0, tail_first = 0;
  };
  KvRef ref(Slot slot) const;

  Backend& backend_;
  PolicyOptions options_;
  std::vector<int> window_;
  int sets_;
  int64_t max_count_, pages_per_slot_;
  std::unique_ptr<KvStore> store_;
  std::vector<int32_t> pages_;  // [slot][pages_per_slot]
  Buffer index_;                // [slot][layer][sets][max_count]
  std::vector<State> state_;
};

}  // namespace hunch
