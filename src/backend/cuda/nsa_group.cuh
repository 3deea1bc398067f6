// A group of rows of one KV head in natively trained sparse attention: its queries, and the choice of its blocks.
#pragma once

#include "backend/cuda/nsa_tile.cuh"

namespace hunch {

// A branch's outcome, gated, onto what others gave.
HUNCH_DEVICE float nsa_gate(float gate) { return 1 / (1 + exp2_fast(-gate * kNsaLog2E)); }
HUNCH_DEVICE float4 nsa_weighed(float gate, float4 x, float4 onto) {
  const float g = nsa_gate(gate);
  return make_float4(fmaf(g, x.x, onto.x), fmaf(g, x.y, onto.y), fmaf(g, x.z, onto.z), fmaf(g, x.w, onto.w));
}

// Selection blocks of kBlock keys; kTeams: of the block, which has kThreads.
template <int D, int kBlock, int kTiles, bool kTrees, int kTeams>
class NsaRowGroup {
 public:
  static constexpr int kPacked = kTiles * 16, kThreads = kTeams * kTiles * 32;
  using Shared = NsaShared<D, kPacked, kTeams>;

  HUNCH_DEVICE NsaRowGroup(const NsaDevice& args, char* memory, int kv_head, int group)
      : a_(args), memory_(memory), kv_head_(kv_head), chain_(args, memory, kv_head) {
    lane_ = int(threadIdx.x) % 32, first_ = group * a_.grouped, rows_ = min(a_.grouped, a_.rows - first_);
  }
  HUNCH_DEVICE bool has_rows() const { return rows_ > 0; }  // a run of few rows has fewer groups

 protected:
  HUNCH_DEVICE int row_at(int of_group) const { return first_ + of_group; }
  HUNCH_DEVICE int* known(NsaKnown what) const { return chain_.known(what); }
  HUNCH_DEVICE float* lse() const { return reinterpret_cast<float*>(memory_ + Shared::kLse); }
  HUNCH_DEVICE int representative() const {  // the row with the longest prefix, the first of them
    int best = 0;
    for (int i = 1; i < rows_; ++i)
      if (known(kNsaPosition)[i] > known(kNsaPosition)[best]) best = i;
    return best;
  }
  HUNCH_DEVICE uint32_t all_rows() const { return (1u << rows_) - 1; }
  // Which rows of the group read a selection block: a bit each, for the blocks of this thread block's chains.
  HUNCH_DEVICE uint32_t* owners() const { return reinterpret_cast<uint32_t*>(memory_ + Shared::kOwners); }

  // What is known of rows, queries rounded.
  HUNCH_DEVICE void begin() {
    for (int i = int(threadIdx.x); i < kNsaMostGrouped; i += kThreads) {
      const int row = row_at(min(i, rows_ - 1));
      known(kNsaPosition)[i] = i < rows_ ? a_.positions[row] : -1;
      known(kNsaVisible)[i] = chain_.visible(known(kNsaPosition)[i]);
      known(kNsaPath)[i] = i < rows_ ? a_.path_of_row[row] : -1;
      known(kNsaOwnedPath)[i] = i < rows_ ? a_.owned_path_of_row[row] : -1;
    }
    __syncthreads();
    wait_for_previous();
    let_next_start();
    most_ = -1, least_ = 0x7fffffff;
    for (int i = 0; i < rows_; ++i) most_ = max(most_, known(kNsaPosition)[i]), least_ = min(least_, known(kNsaPosition)[i]);
    const int words = (most_ / kBlock / kNsaChains + 1) * (kTeams == 1 ? kNsaChains : kTeams);
    for (int i = int(threadIdx.x); i < words; i += kThreads) owners()[i] = 0;
    constexpr int kChunks = D / 8;
    for (int i = int(threadIdx.x); i < kPacked * kChunks; i += kThreads) {
      const int place = i / kChunks, chunk = i % kChunks, of_group = place >> a_.group_shift;
      const int head = place & ((1 << a_.group_shift) - 1);
      float4 x[2] = {};
      if (of_group < rows_ && head < a_.group) {
        const float* from = a_.q + row_at(of_group) * a_.q_row + (kv_head_ * a_.group + head) * a_.q_head + chunk * 8;
        x[0] = reinterpret_cast<const float4*>(from)[0], x[1] = reinterpret_cast<const float4*>(from)[1];
      }
      *reinterpret_cast<uint4*>(memory_ + Shared::kQueries + Shared::at(place, chunk)) =
          make_uint4(nsa_pack(x[0].x, x[0].y), nsa_pack(x[0].z, x[0].w), nsa_pack(x[1].x, x[1].y), nsa_pack(x[1].z, x[1].w));
    }
    __syncthreads();
  }

  // Scores of blocks out of weights of compressed entries: every entry counts by how many strides of it lie in the block (NSA,
  // equation 9). None is negative, so that their bits are in their order. Thread `thread` of `threads`.
  HUNCH_DEVICE void score_blocks(int of_group, uint32_t* keys, int thread, int threads) const {
    constexpr int kAtOnce = 4;
    const int position = known(kNsaPosition)[of_group], newest = position / kBlock;
    const float* pooled = a_.pooled + (int64_t(row_at(of_group)) * a_.kv_heads + kv_head_) * a_.pooled_stride;
    const int c = a_.cmp_len / a_.cmp_stride, r = kBlock / a_.cmp_stride, entries = chain_.visible(position);
    for (int first = thread; first <= newest; first += threads * kAtOnce) {
      float scores[kAtOnce] = {};
      for (int k = 1 - c; k < r; ++k) {
        const auto strides = float(min(min(k + c, r - k), min(c, r)));
        float weights[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int entry = r * (first + i * threads) + k;
          weights[i] = entry >= 0 && entry < entries ? __ldcg(pooled + entry) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) scores[i] += strides * weights[i];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int block = first + i * threads;
        if (block > newest) break;
        if (!(scores[i] >= 0)) scores[i] = 0;  // NaN comes first nowhere
        const bool forced = block < a_.init_blocks || newest - block < a_.local_blocks;
        keys[block] = __float_as_uint(forced ? INFINITY : scores[i]);
      }
    }
  }
  // One warp: the greatest scores, of equal ones the first blocks, in order. own(block): that it is read.
  template <class Own>
  HUNCH_DEVICE void choose_blocks(int of_group, const uint32_t* keys, const Own& own) const {
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
    const uint32_t before = (1u << lane_) - 1;
    for (int first = 0; first < blocks; first += 32) {
      const int block = first + lane_;
      const uint32_t key = block < blocks ? keys[block] : 0;
      const bool same = block < blocks && key == least;
      const uint32_t all_same = __ballot_sync(~0u, same);
      const bool picked = same ? __popc(all_same & before) < equal : block < blocks && key > least;
      const uint32_t all_picked = __ballot_sync(~0u, picked);
      if (picked) {
        to[place + __popc(all_picked & before)] = block;
        own(block);
      }
      place += __popc(all_picked), equal -= min(equal, __popc(all_same));
    }
    for (int i = picks + lane_; i < a_.sel_count; i += 32) to[i] = -1;
  }

  const NsaDevice& a_;
  char* memory_;
  int kv_head_;
  NsaChain<D, kPacked, kTrees, kTeams> chain_;
  int lane_, first_, rows_, most_ = -1, least_ = 0;  // most_, least_: positions
};

}
