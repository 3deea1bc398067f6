// Step: the hot loop of one running request: propose, one pass over all rows, accept, commit. Plain decoding is the same code
// with an empty tree. Everything it uses is made before the first step.
#pragma once

#include <memory>
#include <vector>

#include "accept/rule.h"
#include "draft/proposer.h"
#include "engine/parts.h"
#include "engine/plan.h"
#include "hunch/hunch.h"
#include "kv/commit.h"

namespace hunch {

// The target's rows of one verify pass: logits to choices and distributions by the backend's sampler.
class SampledRows final : public TargetProbs {
 public:
  SampledRows(Backend&, int64_t vocab, int max_rows, bool want_probs);
  View<float, 2> logits(int rows) { return logits_.view<float>(rows, vocab_); }
  // Samples `rows` rows; `first` is the position of the token after row 0.
  void sample(const Sequence&, int rows, int64_t first);
  int32_t choice(int row) override { return tokens_.view<int32_t>(max_rows_)(row); }
  View<const float, 1> row(int row) override { return View<const float, 2>(probs_.view<float>(max_rows_, vocab_))[row]; }

 private:
  Backend& backend_;
  int64_t vocab_;
  int max_rows_;
  Buffer logits_, probs_, tokens_, positions_;
};

class Step {
 public:
  // Makes the parts that the plan names.
  static Result<std::unique_ptr<Step>> make(EngineParts&, const RequestPlan&, const Request&);
  ~Step();

  // Runs the prompt; false if interrupted. The sequence has its first pending token afterwards (the last of tokens()).
  Result<bool> prefill(const std::atomic<bool>* interrupted);
  // One round. Returns the tokens it emitted as the range [first, sequence().tokens.size()) and how many of them were drafts.
  struct Emitted {
    int64_t first = 0;
    int drafts = 0;
  };
  Result<Emitted> round();

  // Takes over what the previous request kept, as far as the prompts agree; keeps this one's verified entries for the next.
  void adopt_kept();
  void keep();

  Sequence& sequence() { return sequence_; }
  SparsePolicy* policy() { return policy_.get(); }
  Guarantee guarantee() const;

  // Between the drafts and the verify pass, and after the commit (poison tests); null in production.
  std::function<void(Step&)> after_drafts, after_commit;
  Generation stats;

 private:
  Step(EngineParts&, const RequestPlan&, const Request&);
  int draft_limit() const;
  void propose(int limit);
  void verify();
  Result<Emitted> settle();
  Result<Emitted> emit_unverified();

  EngineParts& parts_;
  RequestPlan plan_;
  Sequence sequence_;
  std::unique_ptr<SparsePolicy> policy_;
  std::unique_ptr<Proposer> proposer_;
  std::unique_ptr<AcceptanceRule> rule_;
  KeyedChance chance_;
  std::unique_ptr<SampledRows> rows_;
  Buffer ids_, hidden_, q_;  // ids_: row 0 the pending token, then the tree's tokens
  DraftTree tree_;
  Verdict verdict_;
};

}  // namespace hunch
