// Verdict: what a rule kept of a draft tree, and the token after it.
#pragma once

#include <cstdint>
#include <vector>

namespace hunch {

struct Verdict {
  std::vector<int> path;        // accepted nodes from the root down
  std::vector<int32_t> tokens;  // their tokens
  int32_t next = -1;            // correction, or bonus after a fully accepted path; -1: the target row had no valid number
  void clear() { path.clear(), tokens.clear(), next = -1; }
};

}
