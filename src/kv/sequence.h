// Sequence: the state of one request. Between steps tokens.size() == committed_len + 1: the last token is pending, without stored
// K and V. Entries from committed_len on are the tail: drafts write there, nobody trusts them, roll-back moves a length.
#pragma once

#include <string>

#include "backend/ops/sample.h"
#include "kv/page_table.h"

namespace hunch {

using Slot = int32_t;  // a sequence's seat in the batch; per-sequence state of parts is indexed by it

struct Sequence {
  Slot slot = 0;
  std::vector<int32_t> tokens;  // prompt, then output
  std::string cache_salt;       // of the prefix cache
  int64_t prompt_len = 0;
  int64_t committed_len = 0;  // entries whose K and V are final
  int64_t max_len = 0;        // tokens it may reach: context or prompt + max_tokens
  // Sparse attention: how many of its first tokens have their compressed rows made, in its slot. Kept by Pass; 0 makes all of
  // them again, which costs time only: they follow from K and V as stored.
  mutable int64_t compressed_len = 0;
  PageTable pages;
  NoiseKey noise;
  SamplingParams sampling;
  std::unique_ptr<LogitState> logit_state;  // null: no rules

  // Its rules ask which drafts stand before a row: the host must know them.
  bool needs_drafts_here() const { return logit_state && logit_state->reads_drafts(); }
  int32_t pending() const { return tokens.back(); }
  int64_t len() const { return std::ssize(tokens); }
};

}
