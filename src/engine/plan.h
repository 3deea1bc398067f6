// RequestPlan: a request after its options were read: every default filled in, every value checked, every part named.
#pragma once

#include "backend/ops/sample.h"
#include "checkpoint/checkpoint.h"
#include "draft/proposer.h"
#include "draft/static_tree.h"
#include "hunch/hunch.h"
#include "model/index_sharing.h"
#include "sparse/policy.h"

namespace hunch {

class CompiledGrammar;  // text/grammar.h

class EngineParts;

struct RequestPlan {
  SamplingParams sampling;
  bool greedy() const { return sampling.temperature < 1e-5f; }
  NoiseKey noise;
  std::string proposer, policy_name, rule;
  std::vector<std::string> drafters;  // the proposers it uses: none, one, or those that `auto` chooses from
  bool planned = false;               // method auto: the planner chooses among the drafters...
  bool paced = false;                 // ...or only how many guesses its drafter, self, makes (pace())
  bool profiled = false;              // method profile: by ranked strategies; who drafts, they say
  PolicyOptions policy;
  ProposerOptions proposing;
  int gamma = 0;          // deepest draft
  int nodes = 0;          // most drafted tokens of a round: gamma, and more where drafts branch
  int planned_nodes = 0;  // method auto: of the trees that the planner may ask for; 0: it asks for none
  StaticTree token_tree;  // empty: none; else gamma is its depth, nodes its size
  int logprobs = -1, prompt_logprobs = -1;
  bool verify = true;
  SparseVerification sparse;           // its values were checked, not whether engine and model have it (verify_check.h)
  IndexSharing sharing;                // of rows that decode; what approximation says of it
  Approximation approximation;         // any(): whatever it decodes is lossy
  std::optional<DType> draft_weights;  // none: the target's own
  std::shared_ptr<const CompiledGrammar> grammar;  // null: none, or compiled when the request is opened
};

// For who names no seed: 53 bits, which every reader of JSON keeps.
uint64_t drawn_seed();

// Errors are usage errors that name the option, the value and what is allowed.
// Of the target: `layers`, for those that drafts skip; `bits_per_weight` decides what draft weights `auto` means, 0 (not known):
// the target's own.
Result<RequestPlan> plan_request(
    const Request&, const SamplingDefaults&, int max_draft, int layers = 0, double bits_per_weight = 0);

// Method self, asked for no number of guesses: the planner says how many, one at least. Only where drafts and checks read what is
// usual, which is what the planner knows of self and keeps from run to run.
void pace(const Request&, int max_draft, RequestPlan&);

// A plan for this engine: an error as well where what was loaded cannot.
Result<RequestPlan> plan_on(const EngineParts&, const Request&);

// Whether `method` can run beside what is loaded: an error where it is a drafter's and none of that method was loaded.
Status check_drafter(const std::string& method, const std::vector<DrafterOptions>& loaded);

}
