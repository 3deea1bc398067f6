// The kernel of natively trained sparse attention: a cluster of eight blocks has a group of rows of one KV head, each of its
// teams a chain of tiles. It folds branches, selecting blocks on the way, and mixes them. Order of arithmetic: nsa_args.h.
#pragma once

#include <cooperative_groups.h>

#include "backend/cuda/nsa_tile.cuh"

namespace hunch {

// A branch's outcome, gated, onto what others gave.
HUNCH_DEVICE float4 nsa_weighed(float gate, float4 x, float4 onto) {
  const float g = 1 / (1 + exp2_fast(-gate * kNsaLog2E));
  return make_float4(fmaf(g, x.x, onto.x), fmaf(g, x.y, onto.y), fmaf(g, x.z, onto.z), fmaf(g, x.w, onto.w));
}

// Selection blocks of kBlock keys.
template <int D, int kBlock, int kTiles, bool kTrees>
class NsaGroup {
 public:
  static constexpr int kPacked = kTiles * 16, kThreads = kNsaBlockChains * kTiles * 32;
  using Shared = NsaShared<D, kPacked>;

  HUNCH_DEVICE NsaGroup(const NsaDevice& args, char* memory)
      : a_(args), memory_(memory), kv_head_(int(blockIdx.x) / kNsaBlocks % args.kv_heads), chain_(args, memory, kv_head_) {
    rank_ = int(blockIdx.x) % kNsaBlocks, lane_ = int(threadIdx.x) % 32;
    first_ = int(blockIdx.x) / kNsaBlocks / a_.kv_heads * a_.grouped, rows_ = min(a_.grouped, a_.rows - first_);
  }

  HUNCH_DEVICE bool has_rows() const { return rows_ > 0; }  // a run of few rows has fewer groups

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
  HUNCH_DEVICE int row_at(int of_group) const { return first_ + of_group; }
  HUNCH_DEVICE int* known(NsaKnown what) const { return chain_.known(what); }
  HUNCH_DEVICE float* lse() const { return reinterpret_cast<float*>(memory_ + Shared::kLse); }
  HUNCH_DEVICE int representative() const {  // the row with the longest prefix, the first of them
    int best = 0;
    for (int i = 1; i < rows_; ++i)
      if (known(kNsaPosition)[i] > known(kNsaPosition)[best]) best = i;
    return best;
  }

  // What is known of rows, queries rounded.
  HUNCH_DEVICE void begin() {
    for (int i = int(threadIdx.x); i < kNsaMostGrouped; i += kThreads) {
      const int row = row_at(min(i, rows_ - 1));
      known(kNsaPosition)[i] = i < rows_ ? a_.positions[row] : -1;
      known(kNsaPath)[i] = i < rows_ ? a_.path_of_row[row] : -1;
      known(kNsaOwnedPath)[i] = i < rows_ ? a_.owned_path_of_row[row] : -1;
    }
    __syncthreads();
    wait_for_previous();
    let_next_start();
    most_ = -1, least_ = 0x7fffffff;
    for (int i = 0; i < rows_; ++i) most_ = max(most_, known(kNsaPosition)[i]), least_ = min(least_, known(kNsaPosition)[i]);
    for (int i = int(threadIdx.x); i < (most_ / kBlock / kNsaChains + 1) * kNsaBlockChains; i += kThreads) owners()[i] = 0;
    constexpr int kChunks = D / 8;
    for (int i = int(threadIdx.x); i < kPacked * kChunks; i += kThreads) {
      const int place = i / kChunks, chunk = i % kChunks, of_group = place >> a_.group_shift;
      const int head = place & ((1 << a_.group_shift) - 1);
      float4 x[2] = {};
      if (of_group < rows_ && head < a_.group) {
        const float* from = a_.q + row_at(of_group) * a_.q_row + (kv_head_ * a_.group + head) * a_.q_head + chunk * 8;
        x[0] = reinterpret_cast<const float4*>(from)[0], x[1] = reinterpret_cast<const float4*>(from)[1];
      }
      *reinterpret_cast<uint4*>(memory_ + Shared::kQueries + nsa_chunk<D>(place, chunk)) =
          make_uint4(nsa_pack(x[0].x, x[0].y), nsa_pack(x[0].z, x[0].w), nsa_pack(x[1].x, x[1].y), nsa_pack(x[1].z, x[1].w));
    }
    __syncthreads();
  }

  // Which rows of the group read a selection block: a bit each, for the blocks of this thread block's chains.
  HUNCH_DEVICE uint32_t* owners() const { return reinterpret_cast<uint32_t*>(memory_ + Shared::kOwners); }
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
  HUNCH_DEVICE uint32_t all_rows() const { return (1u << rows_) - 1; }

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
  HUNCH_DEVICE uint32_t choosers() const { return a_.shared ? 1u << representative() : all_rows(); }
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
    for (int i = 0; i < count; ++i) score_blocks(mine[i], keys + i * kNsaMostBlocks);
    __syncthreads();
    const int warp = int(threadIdx.x) / 32;
    if (warp < count) choose_blocks(mine[warp], keys + warp * kNsaMostBlocks);
    if (count > 0) __syncthreads();  // keys lie where tiles come next
  }
  // Scores of blocks out of weights of compressed entries: every entry counts by how many strides of it lie in the block (NSA,
  // equation 9). None is negative, so that their bits are in their order.
  HUNCH_DEVICE void score_blocks(int of_group, uint32_t* keys) const {
    constexpr int kAtOnce = 4;
    const int position = known(kNsaPosition)[of_group], newest = position / kBlock;
    const float* pooled = a_.pooled + (int64_t(row_at(of_group)) * a_.kv_heads + kv_head_) * a_.pooled_stride;
    const int c = a_.cmp_len / a_.cmp_stride, r = kBlock / a_.cmp_stride, entries = chain_.visible(position);
    for (int first = int(threadIdx.x); first <= newest; first += kThreads * kAtOnce) {
      float scores[kAtOnce] = {};
      for (int k = 1 - c; k < r; ++k) {
        const auto strides = float(min(min(k + c, r - k), min(c, r)));
        float weights[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int entry = r * (first + i * kThreads) + k;
          weights[i] = entry >= 0 && entry < entries ? __ldcg(pooled + entry) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) scores[i] += strides * weights[i];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int block = first + i * kThreads;
        if (block > newest) break;
        if (!(scores[i] >= 0)) scores[i] = 0;  // NaN comes first nowhere
        const bool forced = block < a_.init_blocks || newest - block < a_.local_blocks;
        keys[block] = __float_as_uint(forced ? INFINITY : scores[i]);
      }
    }
  }
  // One warp: the greatest scores, of equal ones the first blocks, in order.
  HUNCH_DEVICE void choose_blocks(int of_group, const uint32_t* keys) const {
    const int blocks = known(kNsaPosition)[of_group] / kBlock + 1, picks = min(a_.sel_count, blocks);
    constexpr int kKept = 16;  // keys of a lane in registers
    uint32_t kept[kKept];
#pragma unroll
    for (int i = 0; i < kKept; ++i) kept[i] = i * 32 + lane_ < blocks ? keys[i * 32 + lane_] : 0;
    const auto reach = [&](uint32_t least) {  // how many are no less than that, which is not 0
      unsigned counts[4] = {};
#pragma unroll
      for (int i = 0; i < kKept; ++i) counts[i % 4] += kept[i] >= least;
      for (int block = kKept * 32 + lane_; block < blocks; block += 32) counts[0] += keys[block] >= least;
      return int(__reduce_add_sync(~0u, counts[0] + counts[1] + (counts[2] + counts[3])));
    };
    // The greatest number that as many keys reach, bit by bit, until no more than those do.
    uint32_t least = 0;
    int reached = blocks;
    for (int bit = 30; bit >= 0 && reached > picks; --bit) {
      const uint32_t trial = least | 1u << bit;
      if (const int count = reach(trial); count >= picks) least = trial, reached = count;
    }
    int equal = picks - reach(least + 1), place = 0;  // how many of those that are equal to it; picks so far
    int32_t* to = a_.index + (int64_t(row_at(of_group)) * a_.kv_heads + kv_head_) * a_.sel_count;
    const uint32_t before = (1u << lane_) - 1, readers = readers_of(of_group);
    for (int first = 0; first < blocks; first += 32) {
      const int block = first + lane_;
      const uint32_t key = block < blocks ? keys[block] : 0;
      const bool same = block < blocks && key == least;
      const uint32_t all_same = __ballot_sync(~0u, same);
      const bool picked = same ? __popc(all_same & before) < equal : block < blocks && key > least;
      const uint32_t all_picked = __ballot_sync(~0u, picked);
      if (picked) {
        to[place + __popc(all_picked & before)] = block;
        own_at(rank_of(block), slot_of(block), readers);
      }
      place += __popc(all_picked), equal -= min(equal, __popc(all_same));
    }
    for (int i = picks + lane_; i < a_.sel_count; i += 32) to[i] = -1;
  }
  HUNCH_DEVICE static void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
  HUNCH_DEVICE static void await_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

  const NsaDevice& a_;
  char* memory_;
  int kv_head_;
  NsaChain<D, kPacked, kTrees> chain_;
  int rank_, lane_, first_, rows_, most_ = -1, least_ = 0;
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
