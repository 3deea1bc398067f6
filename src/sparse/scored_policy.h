// ScoredPolicy: selections by what verified rows attended to. Scores fall out of the verify pass, one per block and set, reduced
// over rows and query heads; a top-k chooses.
//
// Weights are normalised by the log-sum-exp that the draft step of the same row of the round left behind, so one pass over K
// suffices (drafts_lse), or by the true one in a second look at K; so are first selections. A row whose draft step never ran (the
// last of a chain) takes that of the nearest row before it that has one; in a round without draft steps, all take that of the
// last row of the pass before.
#pragma once

#include "sparse/draft_copy.h"
#include "sparse/entry_scores.h"

namespace hunch {

struct ScoredOptions {
  // Last and Accepted (the last accepted row; all accepted rows) are known only after acceptance: their selection waits for
  // committed() and looks at K again with the rows' kept queries.
  enum class Rows : uint8_t { All, FirstLast, Last, Accepted } rows = Rows::All;
  ScoreMetric metric = ScoreMetric::Weight;
  bool drafts_lse = false;
  ScoreCombine combine = ScoreCombine::Max;
  bool per_kv_head = true;
  int spread = 0, block = 1;   // spread: of blocks
  int pool = 1;                // odd: scores become means over so many entries around theirs, cut at the ends
  int prompt_rows = 2;         // of the first selection
  bool selects_prompt = true;  // false: drafts read everything until the first verify pass
  bool keeps = false;          // the prompt's selection serves the whole request; what follows is read whole
};

// The policy of this name, with the `share` of its options.
Result<std::unique_ptr<SparsePolicy>> make_scored(std::string_view name, const SparsePolicy::Setup&, ScoredOptions);

class ScoredPolicy : public CopyingPolicy {
 public:
  ScoredPolicy(const Setup&, const ScoredOptions&);

  size_t bytes() const override;
  int prompt_rows() const override { return how_.prompt_rows; }
  void open(const Sequence&) override;
  ScoreRequest scores(int layer, const PassInfo&) override;
  void learn(int layer, const PassInfo&, const Observation&) override;
  void forget_drafts(const Sequence&, int first_row) override;
  void committed(const Sequence&, const Commit&) override;
  void close(Slot) override;

 private:
  using Rows = ScoredOptions::Rows;
  struct SlotState {
    int64_t num_scores = 0, first_score = 0;  // of a set; where those of a layer begin
    Buffer draft_lse;                         // [layer][row][head] of this round's draft steps
    std::vector<uint8_t> noted;               // [row] its draft step ran
    int64_t noted_at = -1;                    // position of row 0 of the noted round
    Buffer last_lse;                          // [layer][head] of the last row that read everything
    bool has_last = false;
    // Rows that are known after acceptance: what committed() needs.
    bool waiting = false, had_drafts = false;
    float scale = 1;
    Buffer q, true_lse;  // [layer][row][head][head_dim], [layer][row][head]
    KvRef kv;
  };

  bool deferred(const PassInfo& info) const { return (how_.rows == Rows::Last || how_.rows == Rows::Accepted) && !info.prompt; }
  bool idle(const PassInfo& info) const { return info.prompt ? !how_.selects_prompt : how_.keeps; }
  View<float, 2> rows_of(const Buffer&, int layer, int rows) const;
  View<const uint8_t, 1> used_rows(int num_rows);
  void note_last(int layer, Slot slot, const Observation& seen);
  void note_draft(int layer, const PassInfo&, const Observation&);
  View<const float, 2> lse_of_drafts(int layer, const PassInfo&);
  View<const float, 2> lse_of_last(int layer, const PassInfo&);
  void keep_for_later(int layer, const PassInfo&, const Observation&);
  View<const float, 2> look_again(int layer, Slot, int64_t prefix_len, View<const float, 3> q, View<const float, 2> lse,
      View<const uint8_t, 1> used, float scale, const KvRef&);
  void reserve_scores(Slot, int64_t max_len);
  View<float, 2> scores_of(int layer, Slot) const;
  View<const float, 2> reduced(Slot, View<const float, 2> scores);
  void choose(int layer, Slot, int64_t tail_last, View<const float, 2> scores, const KvRef&);

  Backend& backend_;
  PolicyOptions options_;
  ScoredOptions how_;
  KvGeometry geometry_;
  int heads_, max_rows_, sets_;
  int score_block_;  // entries that a collected score stands for
  // [layer][slot][set][block], as long as each slot's longest sequence. Of all layers where a backend is asynchronous: it chooses
  // for them at once, when the pass is over. So far apart are those of two layers in `layer_scores_` floats.
  Buffer scores_;
  int score_layers_;
  int64_t layer_scores_ = 0;
  EntryScores reduced_;
  std::vector<uint8_t> used_;  // [max_rows]
  std::vector<SlotState> slots_;
};

}
