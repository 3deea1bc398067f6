// INTERFACE 4: a proposer guesses and never decides. Its guesses are a function of committed state and the request's noise key
// alone; dropping them at any time costs nothing but speed. It never touches committed K and V.
#pragma once

#include <memory>
#include <span>

#include "base/registry.h"
#include "draft/draft_tree.h"
#include "draft/verdict.h"
#include "kv/sequence.h"
#include "model/model.h"
#include "sparse/policy.h"

namespace hunch {

struct DraftLimits {
  int max_tokens = 0;   // 0: propose nothing
  bool want_q = false;  // the rule needs the distribution each token was drawn from
};

class Proposer {
 public:
  struct Setup {
    Backend* backend = nullptr;
    const Model* target = nullptr;
    const Model* draft_weights = nullptr;  // the same model with cheaper weights; null: the target itself
    Pass* pass = nullptr;                  // over the target's KV store
    SparsePolicy* policy = nullptr;
    int max_draft = 0;
  };
  virtual ~Proposer() = default;

  virtual bool drafts() const { return true; }  // false: this is plain decoding
  virtual void open(const Sequence&) {}
  // Fills one tree per sequence; capacity and buffers of the trees are the caller's. Sequences have pages for their drafts.
  virtual void propose(std::span<const Sequence* const>, std::span<const DraftLimits>, std::span<DraftTree> out) = 0;
  virtual void observe(const Sequence&, const Verdict&) {}
  virtual void close(Slot) {}
};

}  // namespace hunch
