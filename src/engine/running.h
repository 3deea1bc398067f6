// Running: one request from admission to its end: its sequence, how it drafts and decides, what it said and what that cost.
#pragma once

#include <algorithm>

#include "accept/rule.h"
#include "draft/proposer.h"
#include "engine/grammar_mask.h"
#include "engine/parts.h"
#include "engine/plan.h"
#include "engine/scheduler.h"
#include "engine/strategy_profile.h"
#include "hunch/hunch.h"

namespace hunch {

// The ids that end a request: its own, and the model's unless ignored. Structured output ends where nothing else is possible,
// ignored or not.
Tokens end_ids_of(const Request&, const EngineParts&);

class Running final : public Scheduled {
 public:
  // Takes the parts that the plan names. Errors: settings that a part refuses.
  static Result<std::unique_ptr<Running>> make(EngineParts&, const RequestPlan&, const Request&);
  ~Running() override;
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void seated() override;
  void unseated() override {
    if (policy) policy->close(sequence.slot);
    for (const Drafter& drafter : drafters) drafter.proposer->close(sequence.slot);
  }

  // What its settings promise, and whether what ran so far was exact, as it may be under lossy settings.
  Guarantee guarantee() const;
  bool lossless() const;
  void label();  // both into stats, with what was left out
  // Guesses on a path of the next round: they may not pass the end of the sequence, and d of them with a bonus are d + 1 tokens.
  int most_depth() const;
  // Guesses of the next round. A tree may have more than there are tokens to come, as one a level is kept; the context's entries,
  // one a node, bound it.
  int most_drafts() const;
  bool may_branch() const { return plan.nodes > plan.gamma && plan.verify && rule->takes_branches(); }
  // Decides the round as the request says, with its only drafter: all the drafts that there is room for.
  void decide_as_asked();
  // Method profile: as the strategy says that this request has come to; and what came of a round, which took `ms`.
  void decide_as_profiled();
  void record_profiled(double ms) {
    if (guard_.row() && failure.ok()) guard_.record(emitted_drafts, ms);
    stats.strategy_changes = guard_.changes();
  }
  bool drafting() const { return !drafters.empty(); }
  bool uses(const Proposer& proposer) const {
    return std::ranges::any_of(drafters, [&](const Drafter& drafter) { return drafter.proposer == &proposer; });
  }
  // Drafts read the blocks of `thinned` in place of a policy's selection: nobody has to learn one.
  bool chooses_blocks() const { return plan.sparse.drafts && plan.sparse.ratio < 1; }
  bool needs_probs() const { return rule->needs_q(); }
  // By a drafter that was loaded, or another.
  bool may_make_trees(bool learned) const;
  // Its rule reads whole distributions on the host, of some tree that it may come to.
  bool reads_rows() const;
  // Null: the output may be anything.
  GrammarMask* grammar() const {
    return sequence.logit_state ? static_cast<GrammarMask*>(sequence.logit_state->mask()) : nullptr;
  }
  const DraftTree& tree() const { return chosen < 0 ? no_tree_ : drafters[chosen].tree; }

  // A way to guess, with the tree it fills. Plain decoding has none, `auto` several.
  struct Drafter {
    std::string name;
    Proposer* proposer = nullptr;
    DraftTree tree;
    Buffer tokens, q;
    int64_t rounds = 0, kept = 0;  // with guesses of its own; tokens of those
  };
  // For what its guesses are drawn from: before it drafts, as under `auto` many requests never draw any.
  void make_room_for_laws(Drafter& drafter) {
    if (drafter.q || !needs_probs() || !drafter.proposer->draws()) return;
    const int64_t nodes = drafter.tree.tokens.extent[0], vocab = parts_.model->shape().vocab_size;
    const bool trees = may_make_trees(parts_.learned_named(drafter.name) != nullptr);
    drafter.q = parts_.backend->allocate(size_t(nodes * vocab) * sizeof(float), trees ? Memory::Shared : Memory::Spare);
    drafter.tree.q = drafter.q.view<float>(nodes, vocab);
    drafter.tree.laws.reserve(nodes + 1);
  }

  RequestPlan plan;
  std::unique_ptr<AcceptanceRule> rule;
  KeyedChance chance;
  std::vector<Drafter> drafters;
  SparsePolicy* policy = nullptr;         // null: no drafter reads a selection
  const IndexSharing* sharing = nullptr;  // of the next round; null: rows choose for themselves
  std::unique_ptr<SparseCheck> check;     // null: its passes are exact
  std::unique_ptr<SparseCheck> thinned;   // what its drafts' passes leave out; null: nothing

  // The round in the works, as decided before it.
  int chosen = -1;                   // of drafters; -1: no guesses
  int arm = -1;                      // the planner's name for that, where it chose
  int want_depth = 0;                // guesses on a path, at most
  bool branch = false;               // more than one path
  int top_k = 1;                     // DraftLimits::tree_top_k
  bool looked_up = false;            // its tree is filled already
  int unused = 0;                    // rounds since then
  float stop_below = 0;              // DraftLimits
  bool learns = false;               // its pass learns a selection for the next round
  bool prepared = false;             // the last pass of this sequence did
  bool planned = false;              // the planner knows of it in this slot
  AcceptanceRule::Reads reads{};     // what the rule asks of it
  std::vector<int32_t> row_parents;  // [1 + tree.size] parent rows where the tree branches; else empty
  Verdict verdict;
  std::vector<int32_t> path_rows;  // scratch of the commit
  // Of the last step: tokens [emitted_first, sequence.len()), the first emitted_drafts of them guessed.
  int64_t emitted_first = 0;
  int emitted_drafts = 0;
  // Log-probabilities of those tokens, and of the most probable ones at their places; where asked for.
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top;
  Status failure;
  int64_t final_first = 0;  // position of the first row of the last pass that is final now; committed_len - it: how many
  int64_t first_row = 0;    // where its rows stand in that pass

  Generation stats;
  // Whoever opened it finds itself again by this.
  struct Owner {
    virtual ~Owner() = default;
  };
  Owner* owner = nullptr;

 private:
  Running(EngineParts&, const RequestPlan&, const Request&);

  Status add_drafter(const std::string& name);

  EngineParts& parts_;
  DraftTree no_tree_;
  StrategyGuard guard_;
  IndexSharing profiled_;  // of the strategy at hand
};

// Whose a part of a step's plan is.
Running& running(const auto& part) { return static_cast<Running&>(*part.who); }

}
