// What rows that decode may do less exactly than a model with natively trained sparse attention says (SSV, sections 4.3 and 5.2):
// share one choice of blocks in groups, and reuse the choice of an earlier layer. Lossy; who asks for it labels its output.
#pragma once

#include <span>

#include "checkpoint/shape.h"
#include "tensor/view.h"

namespace hunch {

struct IndexSharing {
  std::vector<uint8_t> reused;  // [layers] takes the choice of the nearest layer before that makes one; empty: none does
  int group_rows = 1;           // rows that share a choice, at most
  bool depth_first = false;     // the order in which a tree's rows are grouped

  bool shares() const { return group_rows > 1; }
  bool any() const;
  bool reuses(int layer) const { return !reused.empty() && reused[layer]; }
  int layers_reused() const;
};

// Into `order`: rows 0 .. `rows` of a round as they are grouped: a tree's level by level, or every node before its children and
// those before its next sibling; a chain (`parents` empty) as it is.
void traverse(std::span<const int32_t> parents, int rows, bool depth_first, std::vector<int>& order);

// The row that chooses for rows[0 .. n): that at the greatest position, of several the first.
int chooser_of(std::span<const int> rows, View<const int32_t, 1> positions);

// Blocks of a list with room for the forced ones of a row other than the one that chose.
int shared_list_len(const NsaShape&);
// What a query at `position` reads when another row chose: its own forced blocks, then `chosen` as far as they are not behind it,
// ascending, -1 behind the last. `out` [shared_list_len()], `chosen` [sel_count].
void take_shared(const NsaShape&, int64_t position, const int32_t* chosen, int32_t* out);

}
