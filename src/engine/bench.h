// DepthBench: times single passes at a context depth, for `hunch bench`. The cache is filled with noise: what a pass costs does
// not depend on what entries say. Bytes come from the backend's counters.
#pragma once

#include "draft/static_tree.h"
#include "engine/parts.h"
#include "engine/step.h"

namespace hunch {

struct PassCost {
  double ms = 0;          // median
  double select_ms = 0;   // of that, choosing and copying entries (scores are part of attention)
  BackendCounters bytes;  // of one pass
};

class DepthBench {
 public:
  // Errors: depth beyond the context, unknown policy. `gamma` bounds the rows of a verify pass.
  static Result<std::unique_ptr<DepthBench>> make(EngineParts&, int64_t depth, const RequestPlan&);
  ~DepthBench();

  // A plain step: one row, logits and a sampled token.
  PassCost plain(int repeats) { return time(repeats, Segment::Phase::Verify, 1, nullptr, *parts_.model); }
  // A verify pass of `rows` rows with the policy's scores and selection, or without (`policy` false).
  PassCost verify(int rows, int repeats, bool policy);
  // The same of a tree, without scores.
  PassCost verify(const StaticTree&, int repeats);
  // One draft step over the selection made by verify(); of `rows` rows where a guess runs along.
  PassCost draft(int repeats, int rows = 1) {
    time(1, Segment::Phase::Verify, 1, policy_.get(), *parts_.model);  // a selection to read
    return time(repeats, Segment::Phase::Draft, rows, policy_.get(), draft_weights_ ? *draft_weights_ : *parts_.model);
  }

 private:
  DepthBench(EngineParts&, const RequestPlan&);
  void fill(int64_t depth);
  PassCost time(int repeats, Segment::Phase, int rows, SparsePolicy*, const Model&, std::span<const int32_t> parents = {});

  EngineParts& parts_;
  RequestPlan plan_;
  Sequence sequence_;
  std::unique_ptr<SparsePolicy> policy_;
  const Model* draft_weights_ = nullptr;
  SampledRows rows_;
  DraftTree tree_;  // of as many nodes as a pass has rows behind its first; a chain unless time() is given parents
  Buffer ids_, hidden_;
};

// Streaming reads of a buffer far larger than the caches, all threads at once: bytes per second, the median of `repeats`.
double streaming_read_ceiling(int threads, size_t bytes, int repeats);

}
