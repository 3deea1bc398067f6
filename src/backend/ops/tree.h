// Draft trees that grow where their contents are: EAGLE-2's expansion and its last choice (Li et al., 2024) without the host in
// between. draft/dynamic_tree.h is the same tree on the host, and a test holds the two together.
//
// A tree has slots for nodes, level by level; a level has k of them behind each of its rows, the likeliest first. A slot without
// a token (fewer than k were possible, or the row itself is empty) stays empty: token -1, chance 0. Best is the greatest chance,
// ties to the smaller slot.
#pragma once

#include "tensor/view.h"

namespace hunch {

inline constexpr int64_t kMostLevelSlots = 256;  // of a level
inline constexpr int64_t kMostTreeNodes = 1024;  // chosen in the end
inline constexpr float kLeastShare = 1e-30f;     // what is less counts as this

// In memory of the backend.
struct TreeSlots {
  View<int32_t, 1> tokens, parents;  // [slots] parents: slot, -1: the root
  View<double, 1> chances;           // [slots] the product of the shares on the path
  View<int32_t, 1> frontier;         // [most rows of a level] slots that go on, ascending; -1 behind the last
};

// One level: the children of its rows, and which of them go on.
struct GrowTreeArgs {
  TreeSlots tree;
  int64_t first_slot = 0;         // of the level; 0: its one row is the root, else row i is frontier(i)
  View<const int32_t, 2> ranked;  // [rows][k] SampleArgs::ranked
  View<const float, 2> shares;    // [rows][k]
  // Out: the next level's rows, the best slots of this one, ascending. Extent 0: nothing goes on, and the frontier stays.
  View<int32_t, 1> ids;   // [rows of the next level] their tokens; -1: an empty row
  View<int32_t, 1> rows;  // [same] the row of this level that is the parent of each; of an empty row that of the one before it
  View<const int32_t, 1> own_ids;  // [ids of the target] what `ids` says in place of each; data null: the same
};

// The best nodes of all levels, ascending by slot: parents first.
struct ChooseNodesArgs {
  TreeSlots tree;
  int64_t slots = 0;                 // in use
  View<int32_t, 1> tokens, parents;  // [most] out; parents: node, -1: the root. Behind the last node -1
  View<int32_t, 1> count;            // [1] out: nodes
};

}
