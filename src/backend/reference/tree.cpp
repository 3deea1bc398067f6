// Growth of draft trees as plain loops: contract in backend/ops/tree.h.
#include "backend/ops/tree.h"

#include "backend/reference/reference_backend.h"

namespace hunch {
namespace {

// The `most` best of the slots [first, end) that are not empty, ascending.
std::vector<int32_t> best_slots(const TreeSlots& tree, int64_t first, int64_t end, int64_t most) {
  std::vector<int32_t> slots;
  for (int64_t slot = first; slot < end; ++slot)
    if (tree.tokens(slot) >= 0) slots.push_back(int32_t(slot));
  std::ranges::stable_sort(slots, [&](int32_t a, int32_t b) { return tree.chances(a) > tree.chances(b); });
  slots.resize(std::min(slots.size(), size_t(most)));
  std::ranges::sort(slots);
  return slots;
}

}

void ReferenceBackend::grow_tree(const GrowTreeArgs& args) {
  const TreeSlots& tree = args.tree;
  const int64_t rows = args.ranked.extent[0], k = args.ranked.extent[1], first = args.first_slot;
  HUNCH_CHECK(rows * k <= kMostLevelSlots && args.ids.extent[0] <= tree.frontier.extent[0] && (first > 0 || rows == 1));
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t parent = first > 0 ? tree.frontier(row) : -1;
    const bool empty = first > 0 && parent < 0;
    const double before = parent < 0 ? 1 : tree.chances(parent);
    for (int64_t rank = 0; rank < k; ++rank) {
      const int64_t slot = first + row * k + rank;
      const bool none = empty || args.ranked(row, rank) < 0;
      tree.tokens(slot) = none ? -1 : args.ranked(row, rank);
      tree.parents(slot) = parent;
      tree.chances(slot) = none ? 0 : before * double(std::clamp(args.shares(row, rank), kLeastShare, 1.0f));
    }
  }
  const std::vector<int32_t> best = best_slots(tree, first, first + rows * k, args.ids.extent[0]);
  for (int64_t i = 0; i < args.ids.extent[0]; ++i) {
    const bool some = i < std::ssize(best);
    const int32_t slot = some ? best[i] : -1, token = some ? tree.tokens(slot) : -1;
    tree.frontier(i) = slot;
    args.ids(i) = some && args.own_ids.data ? args.own_ids(token) : token;
    args.rows(i) = best.empty() ? 0 : int32_t((best[size_t(std::min<int64_t>(i, std::ssize(best) - 1))] - first) / k);
  }
}

void ReferenceBackend::choose_nodes(const ChooseNodesArgs& args) {
  const std::vector<int32_t> best = best_slots(args.tree, 0, args.slots, args.tokens.extent[0]);
  HUNCH_CHECK(args.tokens.extent[0] <= kMostTreeNodes && args.parents.extent[0] == args.tokens.extent[0]);
  args.count(0) = int32_t(best.size());
  for (int64_t node = 0; node < args.tokens.extent[0]; ++node) {
    const bool some = node < std::ssize(best);
    const int32_t parent = some ? args.tree.parents(best[node]) : -1;
    args.tokens(node) = some ? args.tree.tokens(best[node]) : -1;
    args.parents(node) = parent < 0 ? -1 : int32_t(std::ranges::lower_bound(best, parent) - best.begin());
  }
}

}
