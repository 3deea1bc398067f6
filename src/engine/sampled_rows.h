// SampledRows: the target's rows of one pass, a range per request. Logits to choices by the backend's sampler, and to what
// acceptance rules read of their distributions.
#pragma once

#include "accept/rule.h"
#include "backend/backend.h"
#include "kv/sequence.h"

namespace hunch {

class SampledRows {
 public:
  SampledRows(Backend&, int64_t vocab, int64_t max_rows);
  View<float, 2> logits(int64_t first, int64_t rows) { return logits_.view<float>(max_rows_, vocab_).slice(first, rows); }
  int64_t max_rows() const { return max_rows_; }
  // Rows [first, first + tree.size + 1) follow the pending token and the nodes of the tree; `parents` as in Running::row_parents;
  // `reads`: what the rule will ask for.
  using Reads = AcceptanceRule::Reads;
  void sample(const Sequence&, const DraftTree&, std::span<const int32_t> parents, int64_t first, Reads reads);
  View<int32_t, 1> choices(int64_t first, int64_t rows) { return tokens_.view<int32_t>(max_rows_).slice(first, rows); }
  // Behind sample() for all who take part: what devices work out of chains that were drawn.
  void weigh() {
    if (!chains_.empty()) backend_.weigh_drafts(chains_);
    chains_.clear();
  }
  // Memory for it; taken when the first request that needs it is admitted.
  void prepare(Reads reads);

  class Of final : public TargetProbs {  // one request's rows
   public:
    Of(SampledRows& rows, int64_t first, Reads reads = Reads::Choices)
        : rows_(rows), first_(first), weighed_(reads == Reads::Weights && rows.weighs_) {}
    int32_t choice(int row) override { return rows_.tokens_.view<int32_t>(rows_.max_rows_)(first_ + row); }
    View<const float, 1> row(int row) override {
      HUNCH_CHECK(!weighed_);
      return View<const float, 2>(rows_.probs_.view<float>(rows_.max_rows_, rows_.vocab_))[first_ + row];
    }
    double p(int row, int32_t x) override { return weighed_ ? weight(row, 0) : TargetProbs::p(row, x); }
    double q(const DraftTree& tree, int row, int32_t x) override {
      return weighed_ ? weight(row, 1) : TargetProbs::q(tree, row, x);
    }
    int32_t residual(const DraftTree& tree, int row, int64_t position, Chance& chance) override {
      if (weighed_) return rows_.residuals_.view<int32_t>(rows_.max_rows_)(first_ + row);
      return TargetProbs::residual(tree, row, position, chance);
    }

   private:
    double weight(int row, int which) const { return rows_.weights_.view<float>(rows_.max_rows_, 2)(first_ + row, which); }
    SampledRows& rows_;
    int64_t first_;
    bool weighed_;
  };

 private:
  Backend& backend_;
  int64_t vocab_, max_rows_;
  bool weighs_;  // distributions stay on the device
  Buffer logits_, tokens_;
  Buffer probs_, device_probs_;  // for rules that read rows; for those that read weights, where the device works them out:
  Buffer weights_, residuals_;   // [rows][2], [rows]
  std::vector<int32_t> positions_;
  std::vector<WeighDraftsArgs> chains_;
};

}
