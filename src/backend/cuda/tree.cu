// See tree.h. The rank of a slot is the number of better ones, counted: what is few enough for that needs no sort, and ranks are
// distinct, so that every place of a list is written once. Chances are products in fp64, the same bits as on the host.
#include "backend/cuda/tree.h"

#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

constexpr unsigned kGrowThreads = unsigned(kMostLevelSlots), kChooseThreads = 1024;

HUNCH_DEVICE bool better(double chance, int slot, double than, int than_slot) {
  return chance > than || (chance == than && slot < than_slot);
}

struct GrowDevice {
  int32_t *tokens, *parents, *frontier;
  double* chances;
  const int32_t *ranked, *own_ids;
  const float* shares;
  int32_t *ids, *rows;
  int64_t ranked_stride, shares_stride;
  int32_t first_slot, num_rows, k, width;
};
__global__ void __launch_bounds__(kGrowThreads) grow_kernel(const GrowDevice* args) {
  __shared__ double chances[kMostLevelSlots];
  __shared__ int32_t best[kMostLevelSlots];  // by rank, then ascending
  __shared__ int32_t ascending[kMostLevelSlots];
  const GrowDevice a = *args;
  wait_for_previous();
  let_next_start();
  const int at = int(threadIdx.x), count = a.num_rows * a.k;
  int32_t token = -1;
  if (at < count) {
    const int row = at / a.k, rank = at % a.k;
    const int32_t parent = a.first_slot > 0 ? a.frontier[row] : -1;
    double chance = 0;
    if (a.first_slot == 0 || parent >= 0) token = a.ranked[row * a.ranked_stride + rank];
    if (token >= 0) {
      const float share = fminf(fmaxf(a.shares[row * a.shares_stride + rank], kLeastShare), 1.0f);
      chance = (parent < 0 ? 1.0 : a.chances[parent]) * double(share);
    }
    a.tokens[a.first_slot + at] = token, a.parents[a.first_slot + at] = parent, a.chances[a.first_slot + at] = chance;
    chances[at] = token >= 0 ? chance : -1;  // an empty slot is worse than any other
  }
  const int present = __syncthreads_count(token >= 0), going = min(present, a.width);
  if (token >= 0) {
    int rank = 0;
    for (int other = 0; other < count; ++other) rank += better(chances[other], other, chances[at], at);
    if (rank < going) best[rank] = at;
  }
  __syncthreads();
  if (at < going) {
    int place = 0;
    for (int other = 0; other < going; ++other) place += best[other] < best[at];
    ascending[place] = best[at];
  }
  __syncthreads();
  if (at >= a.width) return;
  const bool some = at < going;
  const int32_t slot = going == 0 ? 0 : ascending[min(at, going - 1)];
  a.frontier[at] = some ? a.first_slot + slot : -1;
  a.rows[at] = slot / a.k;
  const int32_t chosen = some ? a.tokens[a.first_slot + slot] : -1;
  a.ids[at] = some && a.own_ids ? a.own_ids[chosen] : chosen;
}

struct ChooseDevice {
  const int32_t *slot_tokens, *slot_parents;
  const double* chances;
  int32_t *tokens, *parents, *count;
  int32_t slots, most;
};
__global__ void __launch_bounds__(kChooseThreads) choose_kernel(const ChooseDevice* args) {
  __shared__ double tile[kChooseThreads];
  __shared__ int32_t best[kMostTreeNodes], ascending[kMostTreeNodes];
  const ChooseDevice a = *args;
  wait_for_previous();
  let_next_start();
  const int t = int(threadIdx.x);
  int present = 0;
  for (int first = 0; first < a.slots; first += int(kChooseThreads)) {
    const int slot = first + t;
    const bool some = slot < a.slots && a.slot_tokens[slot] >= 0;
    present += __syncthreads_count(some);
    const double own = some ? a.chances[slot] : -1;
    int rank = 0;
    for (int other = 0; other < a.slots; other += int(kChooseThreads)) {
      __syncthreads();
      if (other + t < a.slots) tile[t] = a.slot_tokens[other + t] >= 0 ? a.chances[other + t] : -1;
      __syncthreads();
      const int here = min(int(kChooseThreads), a.slots - other);
      if (some)
        for (int i = 0; i < here; ++i) rank += better(tile[i], other + i, own, slot);
    }
    if (some && rank < a.most) best[rank] = slot;
  }
  __syncthreads();
  const int nodes = min(present, a.most);
  if (t < nodes) {
    int place = 0;
    for (int other = 0; other < nodes; ++other) place += best[other] < best[t];
    ascending[place] = best[t];
  }
  __syncthreads();
  if (t == 0) *a.count = nodes;
  if (t >= a.most) return;
  int32_t token = -1, parent = -1;
  if (t < nodes) {
    token = a.slot_tokens[ascending[t]];
    const int32_t slot = a.slot_parents[ascending[t]];
    if (slot >= 0) {
      parent = 0;
      while (parent < nodes && ascending[parent] != slot) ++parent;  // chosen before: it is no worse and comes first
    }
  }
  a.tokens[t] = token, a.parents[t] = parent;
}

}

void enqueue_grow_tree(Commands& commands, const GrowTreeArgs& args) {
  const int64_t rows = args.ranked.extent[0], k = args.ranked.extent[1], width = args.ids.extent[0];
  HUNCH_CHECK(rows > 0 && k > 0 && rows * k <= kMostLevelSlots && width <= kMostLevelSlots);
  HUNCH_CHECK(width <= args.tree.frontier.extent[0] && width == args.rows.extent[0] && (args.first_slot > 0 || rows == 1));
  HUNCH_CHECK(args.first_slot + rows * k <= args.tree.tokens.extent[0]);
  HUNCH_CHECK(args.shares.extent == args.ranked.extent && args.ranked.stride[1] == 1 && args.shares.stride[1] == 1);
  commands.launch(grow_kernel, {.threads = kGrowThreads},
      GrowDevice{args.tree.tokens.data, args.tree.parents.data, args.tree.frontier.data, args.tree.chances.data, args.ranked.data,
          args.own_ids.data, args.shares.data, args.ids.data, args.rows.data, args.ranked.stride[0], args.shares.stride[0],
          int32_t(args.first_slot), int32_t(rows), int32_t(k), int32_t(width)});
}

void enqueue_choose_nodes(Commands& commands, const ChooseNodesArgs& args) {
  const int64_t most = args.tokens.extent[0];
  HUNCH_CHECK(most <= kMostTreeNodes && args.parents.extent[0] == most && args.slots <= args.tree.tokens.extent[0]);
  commands.launch(choose_kernel, {.threads = kChooseThreads},
      ChooseDevice{args.tree.tokens.data, args.tree.parents.data, args.tree.chances.data, args.tokens.data, args.parents.data,
          args.count.data, int32_t(args.slots), int32_t(most)});
}

}
