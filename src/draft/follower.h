// Follower: the proposer around a DraftNet. It keeps the network's cache in step with the target (every committed token goes
// through once, with the target's feature), drafts chains and trees from there, and forgets them: the next round's rows overwrite
// them.
//
// The network's cache has the pages of the target's. A later request shares a page where this drafter filled it (stamps), and
// begins behind those that it did not, with a shorter memory: that costs acceptance, never the output.
#pragma once

#include "draft/confidence.h"
#include "draft/draft_net.h"
#include "draft/drawn_tree.h"
#include "draft/dynamic_tree.h"
#include "draft/proposer.h"

namespace hunch {

class Follower final : public Proposer {
 public:
  Follower(const Setup&, std::unique_ptr<DraftNet>);

  bool passes() const override { return true; }
  bool draws() const override { return true; }
  size_t weight_bytes() const override { return net_->weight_bytes(); }
  Needs needs() const override;
  void move_in(Quarters) override;
  void open(const Sequence&) override;
  void propose(std::span<const DraftTask>) override;
  void observe(const Sequence&, const Verdict&) override;
  void follow(std::span<const TargetRows>) override;
  void preview(std::span<const TargetRows>) override;
  void close(Slot slot) override;

 private:
  static constexpr int kMostTried = 16;  // children of a node, nodes of a level
  int64_t most_slots() const { return kMostTried + int64_t(max_draft_) * kMostTried * kMostTried; }

  // A sequence's cache: entries [first, fed) hold rows of committed tokens; the features of the `waiting` rows behind them are
  // kept. Pages below `page` are stamped or never will be.
  struct Seat {
    const Sequence* sequence = nullptr;
    int64_t first = 0, fed = 0, page = 0;
    int waiting = 0;
    int64_t previewed = -1;  // the position whose row's feature, and what comes behind it, lies behind the waiting ones already
  };
  // One sequence's guesses in the works. Row 0 of the round is the pending token.
  struct Draft {
    const DraftTask* task = nullptr;
    int count = 0;                 // rows of committed tokens that go first, the pending one the last of them
    int depth = 0, deepest = 0;    // levels done; most
    int stored = 0;                // drafts of a chain that it read, behind the pending token
    float reach = 1;               // chance that all of a chain is kept
    std::vector<uint8_t> classes;  // [nodes] of how clear a chain's choices were
    std::vector<int32_t> parents;  // [rows] of a tree
    DynamicTree tree;
    DrawnTree drawn;            // in its place where nodes are drawn
    std::vector<uint8_t> laws;  // [rows] of a drawn tree: how sure q was
    int top_k = 1, widest = 1;  // candidates of a node, nodes of a level that go on
    // On a device: rows of each level behind the first, and slots of the tree so far.
    std::vector<int32_t> lengths;
    int64_t slots = 0;
    int rows = 1, level = 1;  // rows of the round so far; of the level that runs next
    bool branch = false, given = false, done = false;
  };

  bool featured() const { return net_->takes_features(); }
  int32_t own(int32_t token) const { return own_ids_.empty() ? token : own_ids_[token]; }
  View<int32_t, 1> row_tokens(Slot slot) {  // of a tree's rows 1, 2, ...
    return row_tokens_.view<int32_t>(std::ssize(seats_), int64_t(max_draft_) * kMostTried)[slot];
  }
  View<float, 2> waiting(Slot slot) { return waiting_.view<float>(std::ssize(seats_), keep_, width_)[slot]; }
  TreeSlots slots_of(Slot slot);
  void take(std::span<const TargetRows>);
  void wait_for_ids();
  TargetRows side_by_side(const TargetRows&);
  void append_input(const Sequence&, int64_t rows, int64_t at);
  void feed(bool drafts = false);
  void stamp(const Sequence&);
  bool begin(const DraftTask&);
  void make_first_rows_fit();
  void run_blind();
  void blind_level(int level, size_t open);
  void run_blind_trees();
  void blind_tree_level(bool first);
  int64_t next_tree_rows();
  void plan_next(Draft&);
  int64_t first_rows();
  void next_level();
  View<float, 2> logits_of(int64_t rows);
  void run_level(const Buffer& features, int64_t rows) {
    const auto of = [&](const Buffer& buffer) {
      return buffer ? buffer.view<float>(level_rows_, width_).slice(0, rows) : View<float, 2>{};
    };
    net_->forward(*pass_, of(features), of(came_), of(heads_));
  }
  void finish_level(int64_t rows);
  // `blind`: the host does not know the drafts, which are `drafts`, of a chain.
  void sample(Draft&, View<const float, 2> logits, int64_t row, View<int32_t, 1> to, bool blind = false,
      View<const int32_t, 1> drafts = {});
  void take_chain(Draft&, int64_t row);
  void take_tree(Draft&, int64_t row);
  void take_drawn(Draft&, int64_t row);
  int room_of_level(const Draft&) const;
  template <class Tree>
  void go_on(Draft&, const Tree&, std::span<const int> frontier);

  Backend& backend_;
  const Model& target_;
  std::unique_ptr<DraftNet> net_;
  std::span<const int32_t> own_ids_;
  int max_draft_;
  int64_t width_, draft_vocab_, vocab_, keep_, level_rows_, rows_ = 0;
  std::unique_ptr<KvStore> kv_;
  const PagePool* pool_ = nullptr;
  std::optional<Pass> pass_;
  std::vector<Seat> seats_;
  std::vector<Draft> drafts_;
  std::vector<Draft*> all_, open_, grown_;
  std::vector<Segment> segments_;
  std::vector<int32_t> positions_;
  std::vector<uint32_t> stamps_;  // [page] generation in which it was filled; 0: never
  bool ids_queued_ = false;       // ops that read ids_ may not have run yet
  Confidence by_noise_, by_draw_;
  Confidence by_law_;                 // the first of drawn children, by the likeliest token of their law
  std::vector<float> first_kept_;     // [level_rows] scratch
  Buffer waiting_, page_features_;    // [slot][keep][width], [page][width]
  Buffer input_, recycled_, hidden_;  // [rows][width]
  Buffer ids_, fused_;                // [rows], [rows][width]
  // Of a level: features that go in and come out, what the head takes, logits, logits in the target's numbering.
  Buffer next_, came_, heads_, logits_, widened_;
  Buffer tokens_, leads_, ranked_, shares_;  // [level_rows], [level_rows], [level_rows][kMostTried] twice
  Buffer row_tokens_;                        // [slot][rows of a tree]
  std::vector<int> taps_;                    // the network's
  Buffer path_rows_;                         // [keep][taps * hidden] or [keep][hidden] of the target: rows of a path side by side
  // On a device. Tokens of blind chains [max_draft][level_rows]; trees: of a slot, ids and parents' rows of the level that runs
  // next [level_rows], what is chosen in the end; own_ids_.
  Buffer levels_, slot_tokens_, slot_parents_, slot_chances_, frontiers_, next_ids_, next_rows_, chosen_parents_, num_chosen_;
  Buffer own_ids_there_;
};

}
