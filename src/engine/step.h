// Step: the hot loop. Propose, ONE pass over all rows of all requests, accept, commit. Plain decoding is the same with empty
// trees; a prompt chunk has rows that want no answer yet. Everything it uses is made before the first step.
#pragma once

#include <atomic>

#include "backend/ops/logit_patch.h"
#include "engine/running.h"
#include "engine/sampled_rows.h"

namespace hunch {

// What a step was made of and what it took; the planner learns from it.
struct StepReport {
  double draft_ms = 0, pass_ms = 0, select_ms = 0;  // pass: sampling and acceptance included, choosing and copying entries not
  int decodes = 0, verify_rows = 0, learning = 0;   // requests, their rows, how many of them learned a selection
  double masks_ms = 0;                              // of pass_ms, waited for masks of grammars
  int masked = 0, masked_rows = 0;                  // requests with grammars, their rows
  bool drawn = false;                               // some of their guesses are not greedy
  int64_t entries = 0;                              // read by the requests that decoded
  uint64_t experts_read = 0;                        // distinct experts of every layer, of drafts and of the pass
  uint64_t launched = 0;                            // kernels one by one, as in a list that is new
  int chunks = 0;                                   // of prompts in the pass
  bool sparse = false;                              // some check left something out: it tells nothing of other passes
  struct Drafted {
    const Proposer* by = nullptr;
    double ms = 0;
    int steps = 0;           // passes one after the other
    bool in_flight = false;  // so that part of their time is seen only while the pass is waited for
  };
  std::vector<Drafted> drafted;  // by passes that leave nothing out
};

class Step {
 public:
  Step(EngineParts&, const SchedulerLimits&);

  // Room for what this request needs of a step; at admission.
  void prepare(const Running&);
  // Asks drafters that cost no pass (lookups) for all they have, before the planner decides; leaves it in their trees.
  void look_up(std::span<Running* const>, size_t drafter);
  // Runs the plan. A request drafts with the drafter it chose; where that is a lookup, what look_up() left may be used
  // (`looked_up`). Every request in it has its outcome in emitted_first, emitted_drafts and failure.
  void run(const StepPlan&);

  const StepReport& report() const { return report_; }
  // For watchdogs; any thread.
  std::string_view doing() const { return doing_.load(std::memory_order_relaxed); }
  bool device_lost() const { return device_lost_; }

  // Between the drafts and the pass, and after a request's commit (poison tests); null in production.
  std::function<void(Running&)> after_drafts, after_commit;
  // What the host has to do while the device works on a pass.
  std::function<void()> meanwhile;

 private:
  void propose(const StepPlan&);
  void land();
  DraftTask task_of(Running&, size_t drafter, int drafts, int depth, bool branch) const;
  void check_tree(Running&, int granted) const;
  Error nothing_chosen(const Running&, int64_t position);
  void forward(const StepPlan&);
  double waited_for_drafts(double ms);
  bool ends_prompt(const StepPlan::Chunk&) const;
  // The rows of logits of prompts that end lie behind those of all verified rows.
  int64_t first_answer_row(size_t chunk) const { return rows_.max_rows() - 1 - int64_t(chunk); }
  void sample_first(Running& who, int64_t row, View<const float, 2> hidden) {
    parts_.model->logits(*parts_.backend, hidden, rows_.logits(row, 1));
    who.chosen = -1;
    rows_.sample(who.sequence, who.tree(), {}, row, AcceptanceRule::Reads::Choices);
  }
  void settle_chunk(Running&, const StepPlan::Chunk&, int64_t row, View<const float, 2> hidden);
  void fail_all(const StepPlan&, const Error&);
  void settle(Running&, int64_t first_row);
  static bool leaves_masks_out(const Running&);
  // Log-probabilities of ids in rows of logits from `first` on, an id a row, and of the `count` most probable ones of each: known
  // in rows of looked_ from `at` on once somebody waits.
  void look_at(int64_t first, std::span<const int32_t> ids, int count, int64_t at);
  TokenLogprob looked(int64_t at, int count, std::vector<TokenLogprob>& top) const;
  void look_at_verified();
  void look_at_prompt(Running&, const StepPlan::Chunk&, View<const float, 2> hidden);
  void emit_unverified(Running&);
  TargetRows rows_of(const Running&, int64_t first_position, int64_t first_row, int64_t count, View<const float, 2> hidden) const;
  void preview(const StepPlan&, View<const float, 2> hidden);
  void follow(const StepPlan&, View<const float, 2> hidden);
  View<float, 2> taps_of(int64_t rows) const {
    return taps_.view<float>(rows, std::ssize(parts_.taps) * parts_.model->shape().hidden);
  }

  EngineParts& parts_;
  SampledRows rows_;
  Buffer ids_, hidden_, taps_;
  Buffer looked_ids_, looked_values_;  // [rows_.max_rows()][1 + kMaxLogprobs]
  // Tokens of the verified rows whose log-probabilities are asked for.
  struct Look {
    Running* who;
    int64_t row;
    int32_t id;
  };
  std::vector<Look> looks_;
  Tokens looked_for_;
  int64_t most_looked_;  // rows of a prompt at once: those of answers, behind, stay as they are
  std::vector<DraftTask> tasks_;
  std::vector<Running*> verified_;  // the requests whose rows are verified in this step, in order
  std::vector<const Proposer*> asked_;
  std::vector<const Sequence*> reading_;  // prompts of one proposer
  std::vector<TargetRows> followed_;
  std::vector<Segment> segments_;
  StepReport report_;
  LogitPatch patch_;  // of nothing_chosen
  std::atomic<const char*> doing_{"nothing"};
  std::atomic<bool> device_lost_{false};
};

}
