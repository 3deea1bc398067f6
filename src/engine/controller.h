// Controller: the planner at work. For requests with method `auto` it asks the lookups what they have and lets the planner
// decide, as it does the number of guesses of paced ones (plan.h); it feeds table and planner with what the step took and gave.
// Owned and called by Service; keeps the cost table between runs.
#pragma once

#include "engine/mask_costs.h"
#include "engine/planner.h"
#include "engine/step.h"

namespace hunch {

class Controller {
 public:
  explicit Controller(EngineParts&);
  ~Controller();  // saves what was learned

  double ratio() const { return ratio_; }
  int tree_nodes() const;  // of the greatest tree that the planner may ask for; 0: it asks for none

  // Before a request begins: makes what its drafts may need, if its prompt is long enough. Else that is made when they do.
  void get_ready(const Running& who) {
    if (who.plan.planned && who.plan.draft_weights && may_draft_itself(who))
      copy_failed_ = !parts_.draft_weights(*who.plan.draft_weights).ok();
  }
  // Decides the next round of requests that decode (planned and paced ones only): chosen, want_drafts, learns, stop_below.
  void decide(std::span<Running* const>, Step&);
  // What a plain step of the same requests would have taken, milliseconds; 0: not known, or a prompt's rows were in the step.
  double plain_ms(const StepReport& report) const {
    if (report.chunks > 0 || report.decodes == 0) return 0;
    const PassShape plain{.rows = double(report.decodes), .sequences = report.decodes, .entries = double(report.entries)};
    return table_.verify.known(plain) ? table_.verify.ms(plain) : 0;
  }
  // After the step. `decoded`: all requests of it that decoded, whatever their method.
  void record(const StepReport&, std::span<Running* const> decoded);

 private:
  std::string seen_path(int arm) const;
  RequestView view_of(const Running&) const;
  int drafter_of(int arm) const;  // among auto's; -1: plain
  int width_of(int arm) const { return arm < 0 ? 1 : planner_.options().arms[arm].width; }
  int levels_of(const Running&) const;
  bool may_draft_itself(const Running&) const;

  EngineParts& parts_;
  CostTable table_;
  CostKey key_;
  std::string path_;  // empty: nowhere to keep it
  Planner planner_;
  int num_chains_;  // arms before those of trees
  double ratio_;    // that self drafts keep unless the request says otherwise
  std::array<int, kMaxArms> new_lists_{};
  MaskCosts masks_;
  bool copy_failed_ = false;  // of the weights that self drafts with
  std::vector<Running*> lookups_;
  std::vector<RequestView> views_;
  std::vector<Decision> decisions_;
};

// The drafters of method `auto` that need nothing loaded, in the order of its planner's arms; loaded ones come behind them.
const std::vector<std::string>& auto_drafters();

}
