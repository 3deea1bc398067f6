// LogitPatch: a copy of one row of logits with its request's rules applied (backend/ops/logit_rules.h). The rules touch few ids,
// so the copy is changed only there. The same values, bit for bit, as backend/reference/sample.cpp..
#pragma once

#include "backend/ops/sample.h"

namespace hunch {

class LogitPatch {
 public:
  // Grows with the first call, then stays.
  void reserve(int64_t vocab, int64_t drafts);
  // Row r of args.logits after args.state's rules; valid until the next call.
  const float* apply(const SampleArgs& args, int64_t r);

 private:
  std::span<const int32_t> find_path(const SampleArgs& args, int row);
  void ban(int32_t id);
  void keep_allowed(const TokenMask::Row& mask, int64_t vocab);
  void penalise(const LogitState& state, std::span<const int32_t> path);

  std::vector<float> row_;         // [vocab]
  std::vector<uint32_t> on_path_;  // [vocab] occurrences on the path of the row at work; 0 between rows
  std::vector<int32_t> path_;      // [drafts], filled from the end
};

}
