// The kernels of natively trained sparse attention: a cluster of eight blocks has a group of rows of one KV head, each of its
// teams a chain of tiles. nsa_attend folds branches and mixes them; nsa_route attends to compressed entries and selects blocks.
// Order of arithmetic: nsa_args.h.
#pragma once

#include <cooperative_groups.h>

#include "backend/cuda/nsa_tile.cuh"

namespace hunch {

// A branch's outcome, gated, onto what others gave.
__device__ __forceinline__ float4 nsa_weighed(float gate, float4 x, float4 onto) {
  const float g = 1 / (1 + exp2_fast(-gate * kNsaLog2E));
  return make_float4(fmaf(g, x.x, onto.x), fmaf(g, x.y, onto.y), fmaf(g, x.z, onto.z), fmaf(g, x.w, onto.w));
}

// Selection blocks of kBlock keys.
template <int D, int kBlock, int kTiles>
class NsaGroup {
 public:
  static constexpr int kPacked = kTiles * 16, kThreads = kNsaBlockChains * kTiles * 32;
  using Shared = NsaShared<D, kPacked>;

  __device__ __forceinline__ NsaGroup(const NsaDevice& args, char* memory)
      : a_(args), memory_(memory), kv_head_(int(blockIdx.x) / kNsaBlocks % args.kv_heads), chain_(args, memory, kv_head_) {
    rank_ = int(blockIdx.x) % kNsaBlocks, lane_ = int(threadIdx.x) % 32;
    first_ = int(blockIdx.x) / kNsaBlocks / a_.kv_heads * a_.grouped, rows_ = min(a_.grouped, a_.rows - first_);
  }

  __device__ __forceinline__ bool has_rows() const { return rows_ > 0; }  // a run of few rows has fewer groups

  __device__ __forceinline__ void attend() {
    begin();
    if (a_.branches & kNsaSelected) build_owners();
    cooperative_groups::this_cluster().sync();  // nobody reads a block's memory before it has begun
    if (a_.branches & kNsaCompressed) fold_compressed();
    if (a_.branches & kNsaSelected) fold_selected();
    if (a_.branches & kNsaWindow) fold_window();
    cooperative_groups::this_cluster().sync();
    mix();
    cooperative_groups::this_cluster().sync();  // nobody ends while others read its memory
  }
  __device__ __forceinline__ void route() {
    begin();
    cooperative_groups::this_cluster().sync();
    fold_compressed();
    cooperative_groups::this_cluster().sync();
    each_own_element([&](int row, int head, int place, int d) {
      const float4 x = branch(0, place, d);
      *reinterpret_cast<float4*>(a_.compressed_out + (int64_t(row) * a_.kv_heads * a_.group + head) * D + d) = x;
    });
    if (a_.choose) {
      find_lse();
      pool();
    }
    cooperative_groups::this_cluster().sync();  // weights of all blocks' entries are in memory
    if (a_.choose) choose();
  }

 private:
  __device__ __forceinline__ int row_at(int of_group) const { return a_.order[first_ + of_group]; }
  __device__ __forceinline__ int* known(NsaKnown what) const { return chain_.known(what); }
  __device__ __forceinline__ float* lse() const { return reinterpret_cast<float*>(memory_ + Shared::kLse); }
  __device__ __forceinline__ int representative() const {  // the row with the longest prefix, the first of them
    int best = 0;
    for (int i = 1; i < rows_; ++i)
      if (known(kNsaPosition)[i] > known(kNsaPosition)[best]) best = i;
    return best;
  }

  // What is known of rows, queries rounded.
  __device__ __forceinline__ void begin() {
    for (int i = int(threadIdx.x); i < kNsaMostGrouped; i += kThreads) {
      const int row = row_at(min(i, rows_ - 1));
      known(kNsaPosition)[i] = i < rows_ ? a_.positions[row] : -1;
      known(kNsaPath)[i] = i < rows_ ? a_.path_of_row[row] : -1;
    }
    __syncthreads();
    most_ = -1, least_ = 0x7fffffff;
    for (int i = 0; i < rows_; ++i) most_ = max(most_, known(kNsaPosition)[i]), least_ = min(least_, known(kNsaPosition)[i]);
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
  __device__ __forceinline__ uint32_t* owners() const { return reinterpret_cast<uint32_t*>(memory_ + Shared::kOwners); }
  __device__ __forceinline__ static int slot_of(int block) {
    return block / kNsaChains * kNsaBlockChains + block % kNsaBlockChains;
  }
  __device__ __forceinline__ void own(int block, uint32_t rows) {
    if (block >= 0 && block % kNsaChains / kNsaBlockChains == rank_) atomicOr(owners() + slot_of(block), rows);
  }
  __device__ __forceinline__ void build_owners() {
    const int slots = (most_ / kBlock / kNsaChains + 1) * kNsaBlockChains;
    for (int i = int(threadIdx.x); i < slots; i += kThreads) owners()[i] = 0;
    __syncthreads();
    const int chooser = a_.shared ? representative() : 0;
    for (int i = int(threadIdx.x); i < rows_ * a_.sel_count; i += kThreads) {
      const int of_group = i / a_.sel_count, pick = i % a_.sel_count;
      if (a_.shared && of_group != chooser) continue;
      own(a_.index[(int64_t(row_at(of_group)) * a_.kv_heads + kv_head_) * a_.sel_count + pick],
          a_.shared ? (1u << rows_) - 1 : 1u << of_group);
    }
    if (a_.shared) {  // a row that stands elsewhere than the chooser keeps the blocks that it always reads
      const int forced = a_.init_blocks + a_.local_blocks;
      for (int i = int(threadIdx.x); i < rows_ * forced; i += kThreads) {
        const int of_group = i / forced, which = i % forced, newest = known(kNsaPosition)[of_group] / kBlock;
        const int block = which < a_.init_blocks ? which : newest - (which - a_.init_blocks);
        if (block <= newest) own(block, 1u << of_group);
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ int my_chain() const { return rank_ * kNsaBlockChains + chain_.team(); }
  __device__ __forceinline__ uint32_t all_rows() const { return (1u << rows_) - 1; }

  // This team's tiles of a branch, one after the other; those that hold places behind the cache once for every path.
  // RowsOf(tile): the group's rows that read it, a bit each.
  template <int kKeys, class RowsOf>
  class Tiles {
   public:
    __device__ __forceinline__ Tiles(const NsaGroup& group, NsaBranch branch, int first, int end, int stored_end, RowsOf rows_of)
        : group_(group), rows_of_(rows_of), branch_(branch), end_(end), stored_end_(stored_end) {
      tile_ = first + ((group.my_chain() - first) % kNsaChains + kNsaChains) % kNsaChains;
    }
    __device__ __forceinline__ bool next(NsaTileRef& to) {
      while (true) {
        while (path_ >= 0 && path_ < group_.a_.num_paths) {
          const int path = path_++;
          uint32_t on_path = 0;
          for (int i = 0; i < group_.rows_; ++i) on_path |= uint32_t(group_.known(kNsaPath)[i] == path) << i;
          if (rows_ & on_path) {
            to = {branch_, tile_, path, rows_ & on_path};
            return true;
          }
        }
        if (path_ >= 0) path_ = -1, tile_ += kNsaChains;
        if (tile_ >= end_) return false;
        rows_ = rows_of_(tile_);
        if (rows_ && (group_.a_.num_paths == 0 || (tile_ + 1) * kKeys <= stored_end_)) {
          to = {branch_, tile_, -1, rows_};
          tile_ += kNsaChains;
          return true;
        }
        if (rows_) path_ = 0;
        else tile_ += kNsaChains;
      }
    }

   private:
    const NsaGroup& group_;
    RowsOf rows_of_;
    NsaBranch branch_;
    int tile_, end_, stored_end_, path_ = -1;
    uint32_t rows_ = 0;
  };
  template <int kKeys, class RowsOf>
  __device__ __forceinline__ auto tiles(NsaBranch branch, int first, int end, int stored_end, RowsOf rows_of) const {
    return Tiles<kKeys, RowsOf>(*this, branch, first, end, stored_end, rows_of);
  }
  template <class RowsOf>
  __device__ __forceinline__ auto compressed_tiles(RowsOf rows_of) const {
    return tiles<kNsaTile>(kNsaCompressed, 0, (chain_.visible(most_) + kNsaTile - 1) / kNsaTile, a_.compressed_entries, rows_of);
  }

  template <int kKeys, class Of>
  __device__ __forceinline__ void fold(int slot, Of of) {
    NsaState<D> state;
    state.clear();
    chain_.template fold<kKeys>(of, state);
    gather(slot, state);
  }
  __device__ __forceinline__ void fold_compressed() {
    fold<kNsaTile>(0, compressed_tiles([this](int) { return all_rows(); }));
  }
  __device__ __forceinline__ void fold_selected() {
    fold<kBlock>(1,
        tiles<kBlock>(kNsaSelected, 0, most_ / kBlock + 1, a_.entries, [this](int block) { return owners()[slot_of(block)]; }));
  }
  __device__ __forceinline__ void fold_window() {
    fold<kNsaTile>(2,
        tiles<kNsaTile>(kNsaWindow, max(0, least_ - a_.window + 1) / kNsaTile, a_.window > 0 ? most_ / kNsaTile + 1 : 0,
            a_.entries, [this](int) { return all_rows(); }));
  }

  // The block's four chains, folded, to its result of the branch.
  __device__ __forceinline__ float* result(int slot) const {
    return reinterpret_cast<float*>(memory_ + Shared::kResults) + slot * Shared::kResultFloats;
  }
  __device__ __forceinline__ static void add(NsaMerged& all, const float* part, int place, int d) {
    all.add(
        *reinterpret_cast<const float4*>(part + place * D + d), *reinterpret_cast<const float2*>(part + kPacked * D + place * 2));
  }
  __device__ __forceinline__ void gather(int slot, NsaState<D>& state) {
    const char* parts = memory_ + Shared::kTilesAt;
    chain_.store(state);
    __syncthreads();
    for (int i = int(threadIdx.x); i < kPacked * (D / 4); i += kThreads) {
      const int place = i / (D / 4), d = i % (D / 4) * 4;
      NsaMerged all;
#pragma unroll
      for (int t = 0; t < kNsaBlockChains; ++t)
        add(all, reinterpret_cast<const float*>(parts + t * Shared::kTeamBytes), place, d);
      *reinterpret_cast<float4*>(result(slot) + place * D + d) = all.sums;
      if (d == 0) *reinterpret_cast<float2*>(result(slot) + kPacked * D + place * 2) = make_float2(all.top, all.total);
    }
    __syncthreads();
  }
  // Elements of a branch's outcome, over all blocks.
  __device__ __forceinline__ NsaMerged merged(int slot, int place, int d) const {
    const auto cluster = cooperative_groups::this_cluster();
    NsaMerged all;
#pragma unroll 4
    for (int b = 0; b < kNsaBlocks; ++b) add(all, cluster.map_shared_rank(result(slot), b), place, d);
    return all;
  }
  __device__ __forceinline__ float4 branch(int slot, int place, int d) const {
    const NsaMerged all = merged(slot, place, d);
    const float4 x = all.sums;
    if (all.total == 0) return make_float4(0, 0, 0, 0);  // reads nothing
    return make_float4(x.x / all.total, x.y / all.total, x.z / all.total, x.w / all.total);
  }
  // each(row, head, place in the group's rows, first of four elements), for the elements that this block finishes.
  template <class Each>
  __device__ __forceinline__ void each_own_element(Each each) const {
    constexpr int kPlaces = kPacked / kNsaBlocks;
    for (int i = int(threadIdx.x); i < kPlaces * (D / 4); i += kThreads) {
      const int place = i / (D / 4) * kNsaBlocks + rank_, of_group = place >> a_.group_shift;
      const int head = place & ((1 << a_.group_shift) - 1);
      if (of_group < rows_ && head < a_.group) each(row_at(of_group), kv_head_ * a_.group + head, place, i % (D / 4) * 4);
    }
  }
  __device__ __forceinline__ void mix() const {
    each_own_element([&](int row, int head, int place, int d) {
      const int64_t at = (int64_t(row) * a_.kv_heads * a_.group + head) * D + d;
      if (a_.apart) {
        if (a_.branches & kNsaSelected) *reinterpret_cast<float4*>(a_.selected_out + at) = branch(1, place, d);
        if (a_.branches & kNsaWindow) *reinterpret_cast<float4*>(a_.window_out + at) = branch(2, place, d);
        return;
      }
      const float* gates = a_.gates + row * a_.gates_row + 3 * head;
      const float4 c = a_.from_memory ? *reinterpret_cast<const float4*>(a_.compressed_out + at) : branch(0, place, d);
      float4 x = nsa_weighed(gates[0], c, make_float4(0, 0, 0, 0));
      x = nsa_weighed(gates[1], branch(1, place, d), x);
      x = nsa_weighed(gates[2], branch(2, place, d), x);
      *reinterpret_cast<float4*>(a_.out + row * a_.out_row + head * a_.out_head + d) = x;
    });
  }

  // Base 2, of compressed attention.
  __device__ __forceinline__ void find_lse() {
    for (int place = int(threadIdx.x); place < kPacked; place += kThreads) {
      const NsaMerged all = merged(0, place, 0);
      lse()[place] = all.total == 0 ? INFINITY : all.top + log2f(all.total);
    }
    __syncthreads();
  }
  __device__ __forceinline__ uint32_t choosers() const { return a_.shared ? 1u << representative() : all_rows(); }
  // Weights of compressed entries, summed over the heads of a KV head: what blocks are selected by.
  __device__ __forceinline__ void pool() {
    const uint32_t rows = choosers();
    chain_.pool(compressed_tiles([rows](int) { return rows; }), lse(), first_);
  }

  __device__ __forceinline__ void choose() {
    const uint32_t rows = choosers();
    auto* scores = reinterpret_cast<float*>(memory_ + Shared::kTilesAt + chain_.team() * Shared::kTeamBytes);
    int nth = 0;
    for (int i = 0; i < rows_; ++i) {
      if (!(rows >> i & 1)) continue;
      if (nth++ % kNsaChains == my_chain() && int(threadIdx.x) / 32 % kTiles == 0) choose_blocks(i, scores);
    }
  }
  // One warp. Scores of blocks out of weights of compressed entries: every entry counts by how many strides of it lie in the
  // block (NSA, equation 9); the greatest, of equal ones the first.
  __device__ __forceinline__ void choose_blocks(int of_group, float* scores) {
    const int row = row_at(of_group), position = known(kNsaPosition)[of_group], newest = position / kBlock;
    const float* pooled = a_.pooled + (int64_t(row) * a_.kv_heads + kv_head_) * a_.pooled_stride;
    const int c = a_.cmp_len / a_.cmp_stride, r = kBlock / a_.cmp_stride, entries = chain_.visible(position);
    float best = -2;
    int best_at = 0x7fffffff;
    const auto look = [&](int block, float score) {
      if (score > best) best = score, best_at = block;
    };
    for (int block = lane_; block <= newest; block += 32) {
      float score = 0;
      for (int k = 1 - c; k < r; ++k) {
        const int entry = r * block + k;
        if (entry >= 0 && entry < entries) score += float(min(min(k + c, r - k), min(c, r))) * __ldcg(pooled + entry);
      }
      if (!(score >= 0)) score = 0;  // NaN comes first nowhere
      if (block < a_.init_blocks || newest - block < a_.local_blocks) score = INFINITY;
      scores[block] = score;
      look(block, score);
    }
    int picked = 0x7fffffff;  // lane i: the i-th
    const int picks = min(a_.sel_count, newest + 1);
    for (int i = 0; i < picks; ++i) {
      float top = best;
      int at = best_at;
#pragma unroll
      for (int step = 16; step; step /= 2) {
        const float other = __shfl_xor_sync(~0u, top, step);
        const int other_at = __shfl_xor_sync(~0u, at, step);
        if (other > top || (other == top && other_at < at)) top = other, at = other_at;
      }
      if (lane_ == i) picked = at;
      if (at % 32 != lane_) continue;
      scores[at] = -1;
      best = -2, best_at = 0x7fffffff;
      for (int block = lane_; block <= newest; block += 32) look(block, scores[block]);
    }
    __syncwarp();
    int rank = 0;
    for (int i = 0; i < picks; ++i) rank += __shfl_sync(~0u, picked, i) < picked;
    int32_t* to = a_.index + (int64_t(row) * a_.kv_heads + kv_head_) * a_.sel_count;
    if (lane_ < picks) to[rank] = picked;
    if (lane_ >= picks && lane_ < a_.sel_count) to[lane_] = -1;
  }

  const NsaDevice& a_;
  char* memory_;
  int kv_head_;
  NsaChain<D, kPacked> chain_;
  int rank_, lane_, first_, rows_, most_ = -1, least_ = 0;
};

// kRoutes: compressed entries and the choice of blocks; else those blocks, the window and the mix.
template <int D, int kBlock, int kTiles, bool kRoutes>
__global__ void HUNCH_CLUSTER(kNsaBlocks) __launch_bounds__(kNsaBlockChains* kTiles * 32) nsa_kernel(const NsaLaunch* args) {
#if HUNCH_HOPPER
  extern __shared__ __align__(1024) char nsa_memory[];
  wait_for_previous();
  let_next_start();
  NsaGroup<D, kBlock, kTiles> group(args->runs[blockIdx.y], nsa_memory);
  if (!group.has_rows()) return;
  if constexpr (kRoutes) group.route();
  else group.attend();
#endif
}

}  // namespace hunch
