// DraftCopy: what the draft rows of a selecting policy read. Per sequence and layer a compact store holds the selected entries,
// ascending, then the tail: every position from the first one that the selection could not choose from. Where the backend reads
// selections in place there is no store: the lists alone say what is read, and the tail is the sequence's own.
// Draft rows go behind that tail, and the next draft overwrites them. A slot's memory is taken at open() for the longest state of
// its sequence and kept for later ones that need no more.
#pragma once

#include "sparse/policy.h"

namespace hunch {

class DraftCopy {
 public:
  // Selections of `sets` lists a layer, of aligned blocks of `block` entries. Every `layer_step`-th of the selecting layers has
  // lists of its own (chooses()); those behind it have the same, each with its own copies of the entries.
  DraftCopy(const SparsePolicy::Setup&, int sets, int block = 1, int layer_step = 1);

  // Memory for selections from up to max_len entries and a tail of `tail` positions besides two rounds of rows.
  void open(const Sequence&, int64_t tail = 0);
  void close(Slot slot) { slots_[slot].dense = true; }

  // Starts a selection of whole blocks of [0, first_position); true if layers must select at all (false: the budget holds the
  // whole prefix and drafts read the sequence's own entries). The same answer for every layer of a pass.
  bool begin(Slot, int64_t first_position);
  bool dense(Slot slot) const { return slots_[slot].dense; }
  // Entries to select of [0, valid): the same for every layer; multiples of the block.
  int64_t count(Slot slot) const { return slots_[slot].count; }
  int64_t valid(Slot slot) const { return slots_[slot].tail_first; }
  // The lists of layer `layer`; [sets][count].
  View<int32_t, 2> index(Slot, int layer) const;

  // Makes the lists of a layer that chooses from scores of blocks, [sets][>= valid / block].
  void choose(int layer, Slot, View<const float, 2> scores, int spread);
  // Makes them of the first `sinks` entries and the last ones.
  void choose_ends(int layer, Slot, int sinks);
  // Copies the listed entries and the positions [valid, tail_last) of this layer.
  void copy(int layer, Slot, int64_t tail_last, const KvRef& from);
  // A tree's accepted rows of a verify pass at first_position, ascending, to consecutive entries of the tail, in every layer.
  void close_up(Slot, int64_t first_position, std::span<const int32_t> rows);
  // What draft rows read; Grain::All where nothing was selected.
  Selection selection(int layer, Slot) const;

  int num_layers() const { return int(window_.size()); }
  bool selects(int layer) const { return window_[layer] == 0; }
  bool chooses(int layer) const { return selects(layer) && lists_of_[layer] == layer; }
  KvStore* store(Slot slot) const { return slots_[slot].store.get(); }
  size_t bytes() const;

 private:
  struct SlotState {
    bool dense = true;
    int64_t count = 0, tail_first = 0;
    int64_t max_count = 0;
    std::unique_ptr<KvStore> store;
    std::vector<int32_t> pages;
    Buffer index;  // [layer][sets][max_count]
  };
  static KvRef ref(const SlotState& state) {
    return {state.store.get(), View<const int32_t, 1>(state.pages.data(), state.pages.size())};
  }

  Backend& backend_;
  bool in_place_;  // no copies
  PolicyOptions options_;
  KvGeometry geometry_;
  std::vector<int> window_, lists_of_;  // [layers]; the layer that chose a layer's lists
  int sets_, block_;
  int64_t max_rows_;
  std::vector<SlotState> slots_;
  std::vector<int64_t> move_from_, move_to_;  // [max_rows] of close_up
};

// A policy whose draft rows read such copies.
class CopyingPolicy : public SparsePolicy {
 public:
  size_t bytes() const override { return copy_.bytes(); }
  void open(const Sequence& sequence) override { copy_.open(sequence); }
  Selection select(int layer, const DraftQueries&, const PassInfo& info) override {
    return copy_.selection(layer, info.sequence->slot);
  }
  void close(Slot slot) override { copy_.close(slot); }

  KvStore* compact_store(Slot slot = 0) override { return copy_.store(slot); }
  View<const int32_t, 2> selected(Slot slot, int layer) const override { return copy_.index(slot, layer); }

 protected:
  CopyingPolicy(const Setup& setup, int sets, int block = 1, int layer_step = 1) : copy_(setup, sets, block, layer_step) {}
  static int sets_of(const Setup& setup) { return setup.options.share == "layer" ? 1 : setup.geometry.kv_heads; }

  DraftCopy copy_;
};

// For policies of which nothing can be wrong.
template <class Policy>
Result<std::unique_ptr<SparsePolicy>> make_policy(const SparsePolicy::Setup& setup) {
  return std::unique_ptr<SparsePolicy>(new Policy(setup));
}

// An error unless the value of an option is a known one.
Status check_known(
    std::string_view policy, std::string_view option, std::string_view value, std::initializer_list<std::string_view> known);

}
