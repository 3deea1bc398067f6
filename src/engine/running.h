// Running: one request from admission to its end: its sequence, how it drafts, how it decides, what it has said and what that
// cost.
#pragma once

#include <memory>
#include <vector>

#include "accept/rule.h"
#include "draft/proposer.h"
#include "engine/parts.h"
#include "engine/plan.h"
#include "engine/scheduler.h"
#include "hunch/hunch.h"

namespace hunch {

class Running final : public Scheduled {
 public:
  // Takes the parts that the plan names. Errors: settings that a part refuses.
  static Result<std::unique_ptr<Running>> make(EngineParts&, const RequestPlan&, const Request&);
  ~Running() override;
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void seated() override;
  void unseated() override;

  Guarantee guarantee() const;
  // Drafts may not pass the end of the sequence: gamma drafts and a bonus are gamma + 1 new tokens.
  int most_drafts() const;
  bool drafting() const { return proposer != nullptr && proposer->drafts(); }
  bool needs_probs() const { return rule->needs_q(); }

  RequestPlan plan;
  std::unique_ptr<AcceptanceRule> rule;
  KeyedChance chance;
  Proposer* proposer = nullptr;
  SparsePolicy* policy = nullptr;  // null: drafts do not read a selection

  // The round in the works.
  DraftTree tree;
  std::vector<int32_t> row_parents;  // [1 + tree.size] parent rows where the tree branches; else empty
  Verdict verdict;
  std::vector<int32_t> path_rows;  // scratch of the commit
  // What the last step gave: tokens [emitted_first, sequence.len()), of which the first emitted_drafts were guessed.
  int64_t emitted_first = 0;
  int emitted_drafts = 0;
  Status failure;

  Generation stats;
  // Whoever opened it finds itself again by this.
  struct Owner {
    virtual ~Owner() = default;
  };
  Owner* owner = nullptr;

 private:
  Running(EngineParts&, const RequestPlan&, const Request&);

  EngineParts& parts_;
  Buffer tokens_, q_;
};

}  // namespace hunch
