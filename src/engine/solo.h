// Solo: one request step by step, without a service: tests look at the sequence between rounds, benches at its parts.
#pragma once

#include <atomic>

#include "engine/step.h"

namespace hunch {

class Solo {
 public:
  static Result<std::unique_ptr<Solo>> make(EngineParts& parts, const RequestPlan& plan, const Request& request) {
    HUNCH_TRY(auto running, Running::make(parts, plan, request));
    return std::unique_ptr<Solo>(new Solo(parts, std::move(running)));
  }
  ~Solo() { scheduler_.remove(*running_); }

  // Runs the prompt; false if interrupted. The first pending token is the last of the sequence's tokens afterwards.
  Result<bool> prefill(const std::atomic<bool>* interrupted) {
    while (running_->sequence.len() == running_->sequence.prompt_len) {
      if (interrupted && *interrupted) return false;
      HUNCH_TRY(const Emitted emitted, step());
      (void)emitted;
    }
    return true;
  }
  // One round: the tokens that it emitted are [first, sequence().len()), the first `drafts` of them guessed.
  struct Emitted {
    int64_t first = 0;
    int drafts = 0;
  };
  // `stop_below`: where a planner would have its drafts end.
  Result<Emitted> round(float stop_below = 0) {
    running_->decide_as_asked();
    running_->stop_below = stop_below;
    return step();
  }

  Running& running() { return *running_; }
  Sequence& sequence() { return running_->sequence; }
  SparsePolicy* policy() { return running_->policy; }
  Generation& stats() { return running_->stats; }
  Scheduler& scheduler() { return scheduler_; }
  Step& hot_loop() { return step_; }

 private:
  Solo(EngineParts& parts, std::unique_ptr<Running> running)
      : running_(std::move(running)), scheduler_(parts.limits, *parts.pool, nullptr), step_(parts, parts.limits) {
    step_.prepare(*running_);
    scheduler_.add(*running_);
  }
  Result<Emitted> step() {
    const StepPlan& plan = scheduler_.next();
    if (plan.empty()) return Error{"no KV pages left; raise --kv-memory"};
    step_.run(plan);
    if (!running_->failure.ok()) return running_->failure.error();
    return Emitted{running_->emitted_first, running_->emitted_drafts};
  }

  std::unique_ptr<Running> running_;
  Scheduler scheduler_;
  Step step_;
};

}
