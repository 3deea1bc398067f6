// Commit: what a round made final. The accepted path of a chain lies in place: only the length moves; that of a tree is closed up
// first. Rejected rows stay as dead entries until they are overwritten.
#pragma once

#include "backend/backend.h"
#include "kv/sequence.h"

namespace hunch {

struct Commit {
  int64_t first = 0;  // position of the first row of the verify pass (the token that was pending)
  int num_rows = 0;   // rows that pass had
  int accepted = 0;   // drafts kept: accepted + 1 rows are final
  // Which rows of the pass those are, ascending, rows[0] = 0; empty: rows 0..accepted (a chain). Valid during the call only.
  std::span<const int32_t> rows;
};

// Moves row rows[i], which stands at entry first + rows[i], to entry first + i.
inline void close_up(Backend& backend, const KvRef& kv, int64_t first, std::span<const int32_t> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t from = first + rows[i], to = first + int64_t(i);
    if (from != to) backend.move_kv({.kv = kv, .from = std::span(&from, 1), .to = std::span(&to, 1)});
  }
}

// Appends the accepted drafts and the next pending token. Entries [0, commit.first + accepted + 1) are final afterwards.
inline Commit commit_path(
    Sequence& sequence, int num_rows, std::span<const int32_t> accepted, int32_t next, std::span<const int32_t> rows = {}) {
  const Commit commit{sequence.committed_len, num_rows, int(accepted.size()), rows};
  HUNCH_CHECK(sequence.len() == sequence.committed_len + 1 && commit.accepted < num_rows);
  sequence.tokens.insert(sequence.tokens.end(), accepted.begin(), accepted.end());
  sequence.tokens.push_back(next);
  sequence.committed_len += commit.accepted + 1;
  return commit;
}

}
