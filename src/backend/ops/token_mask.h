// TokenMask: which tokens may stand next, by the tokens before. A rule of backend/ops/logit_rules.h whose automaton somebody else
// owns: the engine's is a grammar (engine/grammar_mask.h).
#pragma once

#include <cstdint>
#include <span>

namespace hunch {

class TokenMask {
 public:
  virtual ~TokenMask() = default;

  struct Row {
    const uint32_t* words = nullptr;  // [(vocab + 31) / 32] bit id % 32 of word id / 32: allowed; null: everything
    bool only_ends = false;           // nothing but end ids is: there is no going on
    bool allows(int32_t id) const { return words[size_t(id) / 32] >> (id % 32) & 1; }
  };
  // What may follow the committed tokens and `path` (drafts, oldest first); nothing, where the path itself is not allowed. May
  // be called by several threads at once; the words are good until append() or reset().
  virtual Row after(std::span<const int32_t> path) = 0;

  // At the beginning of the output; and one committed token further. No other call may run meanwhile.
  virtual void reset() = 0;
  virtual void append(int32_t token) = 0;
};

}
