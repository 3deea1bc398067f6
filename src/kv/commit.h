// Commit: what a round made final. The accepted path of a chain already lies in place, so only the length moves; pages past it
// are given back, rejected rows stay as dead entries until they are overwritten.
#pragma once

#include <cstdint>
#include <span>

#include "kv/sequence.h"

namespace hunch {

struct Commit {
  int64_t first = 0;  // position of the first row of the verify pass (the token that was pending)
  int num_rows = 0;   // rows that pass had
  int accepted = 0;   // drafts kept: accepted + 1 rows are final
  // Which rows of the pass those are, ascending, rows[0] = 0; empty: rows 0..accepted (a chain). Valid during the call only.
  std::span<const int32_t> rows;
};

// Appends the accepted drafts and the next pending token. Entries [0, commit.first + accepted + 1) are final afterwards.
inline Commit commit_chain(Sequence& sequence, int num_rows, std::span<const int32_t> accepted, int32_t next) {
  const Commit commit{sequence.committed_len, num_rows, int(accepted.size())};
  HUNCH_CHECK(sequence.len() == sequence.committed_len + 1 && commit.accepted < num_rows);
  sequence.tokens.insert(sequence.tokens.end(), accepted.begin(), accepted.end());
  sequence.tokens.push_back(next);
  sequence.committed_len += commit.accepted + 1;
  return commit;
}

}  // namespace hunch
