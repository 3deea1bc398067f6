// The kernel of natively trained sparse attention: a cluster of eight blocks has a group of rows of one KV head, each of its
// teams a chain of tiles. It folds branches, selecting blocks on the way, and mixes them. Order of arithmetic: nsa_args.h.
#pragma once

#include <cooperative_groups.h>

#include "backend/cuda/nsa_group.cuh"

namespace hunch {

// Selection blocks of kBlock keys.
template <int D, int kBlock, int kTiles, bool kTrees>
class NsaGroup : public NsaRowGroup<D, kBlock, kTiles, kTrees, kNsaBlockChains> {
  using Base = NsaRowGroup<D, kBlock, kTiles, kTrees, kNsaBlockChains>;
  using Base::a_, Base::memory_, Base::kv_head_, Base::chain_, Base::first_, Base::rows_, Base::most_, Base::least_;
  using Base::all_rows, Base::begin, Base::choose_blocks, Base::known, Base::lse, Base::owners, Base::representative,
      Base::row_at, Base::score_blocks;

 public:
  using Base::kPacked, Base::kThreads;
  using typename Base::Shared;

  HUNCH_DEVICE NsaGroup(const NsaDevice& args, char* memory)
      : Base(args, memory, int(blockIdx.x) / kNsaBlocks % args.kv_heads, int(blockIdx.x) / kNsaBlocks / args.kv_heads),
        rank_(int(blockIdx.x) % kNsaBlocks) {}

  HUNCH_DEVICE void attend() {
    begin();
    cooperative_groups::this_cluster().sync();  // nobody reads a block's memory before it has begun
#pragma unroll 1                                // the same instructions for all: fetching them takes as long as a tile
    for (const NsaBranch branch : {kNsaCompressed, kNsaWindow, kNsaSelected}) {
      if (branch == kNsaSelected) {
        if (a_.choose) await_cluster();
        own_given();
      }
      if (a_.branches & branch) {
        if (kBlock == kNsaTile || branch != kNsaSelected) fold<kNsaTile>(branch);
        else fold<kBlock>(branch);
      }
      if (branch == kNsaCompressed && a_.choose) {
        choose();
        arrive_at_cluster();  // who does not choose reads the window meanwhile
      }
    }
    cooperative_groups::this_cluster().sync();
    if (a_.out) mix();
    cooperative_groups::this_cluster().sync();  // nobody ends while others read its memory
  }

 private:
  HUNCH_DEVICE static int slot_of(int block) { return block / kNsaChains * kNsaBlockChains + block % kNsaBlockChains; }
  HUNCH_DEVICE static int rank_of(int block) { return block % kNsaChains / kNsaBlockChains; }
  HUNCH_DEVICE void own(int block, uint32_t rows) {
    if (block >= 0 && rank_of(block) == rank_) atomicOr(owners() + slot_of(block), rows);
  }
  // In the memory of any block of the cluster; seen behind its barrier.
  HUNCH_DEVICE void own_at(int rank, int slot, uint32_t rows) const {
    const uint32_t word = shared_address(memory_) + uint32_t(Shared::kOwners + slot * 4);
    asm volatile(
        "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; red.relaxed.cluster.shared::cluster.or.b32 [there], %2;}" ::
            "r"(word),
        "r"(rank), "r"(rows)
        : "memory");
  }
  HUNCH_DEVICE uint32_t choosers() const { return a_.shared ? 1u << representative() : all_rows(); }
  HUNCH_DEVICE uint32_t readers_of(int chooser) const { return a_.shared ? all_rows() : 1u << chooser; }
  // What choose() has not told the blocks: lists that are given, and the blocks that a row always reads, which it keeps where it
  // stands elsewhere than the row that chose for it.
  HUNCH_DEVICE void own_given() {
    const int chooser = a_.shared ? representative() : 0;
    for (int i = int(threadIdx.x); i < rows_ * a_.sel_count && !a_.choose; i += kThreads) {
      const int of_group = i / a_.sel_count, pick = i % a_.sel_count;
      if (a_.shared && of_group != chooser) continue;
      own(a_.index[(int64_t(row_at(of_group)) * a_.kv_heads + kv_head_) * a_.sel_count + pick], readers_of(of_group));
    }
    const int forced = a_.shared ? a_.init_blocks + a_.local_blocks : 0;
    for (int i = int(threadIdx.x); i < rows_ * forced; i += kThreads) {
      const int of_group = i / forced, which = i % forced, newest = known(kNsaPosition)[of_group] / kBlock;
      const int block = which < a_.init_blocks ? which : newest - (which - a_.init_blocks);
      if (block <= newest) own(block, 1u << of_group);
    }
    __syncthreads();
  }

  HUNCH_DEVICE int my_chain() const { return rank_ * kNsaBlockChains + chain_.team(); }

  // This team's tiles of a branch, one after the other; those that hold places behind the cache once for every bundle of paths.
  template <int kKeys>
  class Tiles {
   public:
    // all: the group's rows that read tiles, a bit each; of selected blocks those that own them.
    HUNCH_DEVICE Tiles(const NsaGroup& group, NsaBranch branch, int first, int end, uint32_t all)
        : group_(group), branch_(branch), end_(end), all_(all) {
      stored_end_ = branch == kNsaCompressed ? group.a_.compressed_entries : group.a_.entries;
      tile_ = first + ((group.my_chain() - first) % kNsaChains + kNsaChains) % kNsaChains;
      if constexpr (kTrees) parts_ = branch == kNsaCompressed ? group.a_.num_owned_bundles : group.a_.num_bundles;
    }
    HUNCH_DEVICE bool next(NsaTileRef& to) {
      while (true) {
        while (kTrees && part_ >= 0 && part_ < parts_) {
          to = part(part_++);
          if (to.rows) return true;
        }
        if (part_ >= 0) part_ = -1, tile_ += kNsaChains;
        if (tile_ >= end_) return false;
        rows_ = branch_ == kNsaSelected ? group_.owners()[slot_of(tile_)] : all_;
        if (rows_ && (parts_ == 0 || (tile_ + 1) * kKeys <= stored_end_)) {
          to = {branch_, tile_, -1, rows_, {}};
          tile_ += kNsaChains;
          return true;
        }
        if (rows_) part_ = 0;
        else tile_ += kNsaChains;
      }
    }

   private:
    HUNCH_DEVICE NsaTileRef part(int number) const {
      NsaTileRef to{branch_, tile_, number, 0, {}};
      const bool owned = branch_ == kNsaCompressed;
      to.bundle = (owned ? group_.a_.owned_bundles : group_.a_.bundles)[number];
      const int first = to.bundle.first_path, paths = to.bundle.end_path - first;
      const int* on = group_.known(owned ? kNsaOwnedPath : kNsaPath);
      for (int i = 0; i < group_.rows_; ++i) to.rows |= uint32_t(unsigned(on[i] - first) < unsigned(paths)) << i;
      to.rows &= rows_;
      return to;
    }
    const NsaGroup& group_;
    NsaBranch branch_;
    int tile_, end_, stored_end_, parts_ = 0, part_ = -1;
    uint32_t all_, rows_ = 0;
  };
  // rows: that read compressed entries.
  HUNCH_DEVICE auto compressed_tiles(uint32_t rows) const {
    return Tiles<kNsaTile>(*this, kNsaCompressed, 0, (chain_.visible(most_) + kNsaTile - 1) / kNsaTile, rows);
  }
  template <int kKeys>
  HUNCH_DEVICE auto tiles(NsaBranch branch) const {
    if (branch == kNsaCompressed) return Tiles<kKeys>(*this, branch, 0, (chain_.visible(most_) + kKeys - 1) / kKeys, all_rows());
    const int first = branch == kNsaWindow ? max(0, least_ - a_.window + 1) / kKeys : 0;
    return Tiles<kKeys>(*this, branch, first, branch == kNsaWindow && a_.window <= 0 ? 0 : most_ / kKeys + 1, all_rows());
  }
  template <int kKeys>
  HUNCH_DEVICE void fold(NsaBranch branch) {
    NsaState<D> state;
    state.clear();
    const bool busy = chain_.template fold<kKeys>(tiles<kKeys>(branch), state);
    gather(slot_of(branch), busy, state);
  }

  // The block's four chains, folded, to its result of the branch.
  HUNCH_DEVICE static int slot_of(NsaBranch branch) { return branch == kNsaCompressed ? 0 : branch == kNsaSelected ? 1 : 2; }
  HUNCH_DEVICE float* result(int slot) const {
    return reinterpret_cast<float*>(memory_ + Shared::kResults) + slot * Shared::kResultFloats;
  }
  HUNCH_DEVICE static void add(NsaMerged& all, const float* sums, const float* state) {
    all.add(*reinterpret_cast<const float4*>(sums), *reinterpret_cast<const float2*>(state));
  }
  // busy: the team had tiles; what others would add changes nothing.
  HUNCH_DEVICE void gather(int slot, bool busy, NsaState<D>& state) {
    const char* parts = memory_ + Shared::kTilesAt;
    int* const all_busy = reinterpret_cast<int*>(memory_ + Shared::kBusy);
    if (busy) chain_.store(state);
    if (int(threadIdx.x) % (32 * kTiles) == 0) all_busy[chain_.team()] = busy;
    __syncthreads();
    for (int i = int(threadIdx.x); i < kPacked * (D / 4); i += kThreads) {
      const int place = i / (D / 4), d = i % (D / 4) * 4;
      NsaMerged all;
#pragma unroll
      for (int t = 0; t < kNsaBlockChains; ++t) {
        const auto* part = reinterpret_cast<const float*>(parts + t * Shared::kTeamBytes);
        if (all_busy[t]) add(all, part + place * Shared::kPartialRow + d, part + Shared::kPartialStates + place * 2);
      }
      *reinterpret_cast<float4*>(result(slot) + place * D + d) = all.sums;
      if (d == 0) *reinterpret_cast<float2*>(result(slot) + kPacked * D + place * 2) = make_float2(all.top, all.total);
    }
    __syncthreads();
  }
  // Elements of a branch's outcome, over all blocks.
  HUNCH_DEVICE NsaMerged merged(int slot, int place, int d) const {
    const auto cluster = cooperative_groups::this_cluster();
    NsaMerged all;
#pragma unroll
    for (int b = 0; b < kNsaBlocks; ++b) {
      const float* part = cluster.map_shared_rank(result(slot), b);
      add(all, part + place * D + d, part + kPacked * D + place * 2);
    }
    return all;
  }
  HUNCH_DEVICE float4 branch(int slot, int place, int d) const {
    const NsaMerged all = merged(slot, place, d);
    const float4 x = all.sums;
    if (all.total == 0) return make_float4(0, 0, 0, 0);  // reads nothing
    return make_float4(x.x / all.total, x.y / all.total, x.z / all.total, x.w / all.total);
  }
  // each(row, head, number, first of four elements), for the elements that this block finishes: of every eighth place.
  template <class Each>
  HUNCH_DEVICE void each_own_element(Each each) const {
    constexpr int kPlaces = kPacked / kNsaBlocks;
    for (int i = int(threadIdx.x); i < kPlaces * (D / 4); i += kThreads) {
      const int place = i / (D / 4) * kNsaBlocks + rank_, of_group = place >> a_.group_shift;
      const int head = place & ((1 << a_.group_shift) - 1);
      if (of_group < rows_ && head < a_.group) each(row_at(of_group), kv_head_ * a_.group + head, i, i % (D / 4) * 4);
    }
  }
  HUNCH_DEVICE void mix() const {
    // A thread for an element of a branch, then one for an element: blocks are asked for all at once.
    constexpr int kElements = kPacked / kNsaBlocks * (D / 4);
    constexpr NsaBranch kSlots[3] = {kNsaCompressed, kNsaSelected, kNsaWindow};
    auto* outcomes = reinterpret_cast<float4*>(memory_ + Shared::kTilesAt);  // [branch][element]
    for (int i = int(threadIdx.x); i < 3 * kElements; i += kThreads) {
      const int slot = i / kElements, element = i % kElements;
      if (a_.branches & kSlots[slot]) outcomes[i] = branch(slot, element / (D / 4) * kNsaBlocks + rank_, element % (D / 4) * 4);
    }
    __syncthreads();
    each_own_element([&](int row, int head, int element, int d) {
      const int64_t at = (int64_t(row) * a_.kv_heads * a_.group + head) * D + d;
      if (a_.apart) {
        float* const to[3] = {a_.compressed_out, a_.selected_out, a_.window_out};
        for (int slot = 0; slot < 3; ++slot)
          if (a_.branches & kSlots[slot]) *reinterpret_cast<float4*>(to[slot] + at) = outcomes[slot * kElements + element];
        return;
      }
      const float* gates = a_.gates + row * a_.gates_row + 3 * head;
      float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int slot = 0; slot < 3; ++slot) x = nsa_weighed(gates[slot], outcomes[slot * kElements + element], x);
      *reinterpret_cast<float4*>(a_.out + row * a_.out_row + head * a_.out_head + d) = x;
    });
  }

  // Base 2, of compressed attention.
  HUNCH_DEVICE void find_lse() {
    for (int place = int(threadIdx.x); place < kPacked; place += kThreads) {
      const NsaMerged all = merged(0, place, 0);
      lse()[place] = all.total == 0 ? INFINITY : all.top + log2f(all.total);
    }
    __syncthreads();
  }
  // Weights of compressed entries, summed over the heads of a KV head: what blocks are selected by.
  HUNCH_DEVICE void pool() { chain_.pool(compressed_tiles(choosers()), lse(), first_); }

  // Once compressed entries are folded. A block selects for every eighth row that chooses.
  HUNCH_DEVICE void choose() {
    constexpr int kMost = kNsaMostGrouped / kNsaBlocks;
    cooperative_groups::this_cluster().sync();
    find_lse();
    pool();
    cooperative_groups::this_cluster().sync();  // weights of all blocks' entries are in memory
    const uint32_t rows = choosers();
    int mine[kMost], count = 0, nth = 0;
    for (int i = 0; i < rows_; ++i)
      if ((rows >> i & 1) && nth++ % kNsaBlocks == rank_) mine[count++] = i;
    auto* keys = reinterpret_cast<uint32_t*>(memory_ + Shared::kTilesAt);
    for (int i = 0; i < count; ++i) score_blocks(mine[i], keys + i * kNsaMostBlocks, int(threadIdx.x), kThreads);
    __syncthreads();
    const int warp = int(threadIdx.x) / 32;
    if (warp < count)
      choose_blocks(mine[warp], keys + warp * kNsaMostBlocks,
          [&](int block) { own_at(rank_of(block), slot_of(block), readers_of(mine[warp])); });
    if (count > 0) __syncthreads();  // keys lie where tiles come next
  }
  HUNCH_DEVICE static void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
  HUNCH_DEVICE static void await_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

  const int rank_;
  static_assert(kNsaMostGrouped / kNsaBlocks * kNsaMostBlocks * 4 <= kNsaBlockChains * Shared::kTeamBytes);
};

template <int D, int kBlock, int kTiles, bool kTrees>
__global__ void HUNCH_CLUSTER(kNsaBlocks) __launch_bounds__(kNsaBlockChains* kTiles * 32) nsa_kernel(const NsaLaunch* args) {
#if HUNCH_HOPPER
  extern __shared__ __align__(1024) char nsa_memory[];
  NsaGroup<D, kBlock, kTiles, kTrees> group(args->runs[blockIdx.y], nsa_memory);
  if (!group.has_rows()) return;
  group.attend();
#endif
}

}
