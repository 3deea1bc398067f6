// Natively trained sparse attention for many groups of rows, as of a prompt's chunk: a block has one and folds all chains of a
// branch, one after the other, where a cluster (nsa_kernel.cuh) would spend its time waiting for itself. The bits are the same.
#pragma once

#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/hopper.h"
#include "backend/cuda/nsa_group.cuh"

namespace hunch {

inline constexpr int kNsaChunkTiles = 4;  // packed rows / 16 of a group

template <int D, int kBlock>
class NsaChunk : public NsaRowGroup<D, kBlock, kNsaChunkTiles, false, 1> {
  using Base = NsaRowGroup<D, kBlock, kNsaChunkTiles, false, 1>;
  using Base::a_, Base::memory_, Base::kv_head_, Base::chain_, Base::lane_, Base::first_, Base::rows_, Base::most_, Base::least_;
  using Base::all_rows, Base::begin, Base::choose_blocks, Base::lse, Base::owners, Base::row_at, Base::score_blocks;

 public:
  using Base::Base, Base::kThreads;
  using typename Base::Shared;

  HUNCH_DEVICE void attend() {
    begin();
    fold<kNsaTile>(kNsaCompressed, 0);
    choose();
    fold<kBlock>(kNsaSelected, 1);
    fold<kNsaTile>(kNsaWindow, 2);
  }

 private:
  static constexpr int kPanel = kNsaTile * 128;  // 64 dimensions of a tile
  // The tiles of a branch, chain by chain.
  template <int kKeys>
  class Tiles {
   public:
    HUNCH_DEVICE Tiles(const NsaChunk& group, NsaBranch branch)
        : owners_(group.owners()), all_(group.all_rows()), branch_(branch) {
      const NsaDevice& a = group.a_;
      end_ = (branch == kNsaCompressed ? group.chain_.visible(group.most_) - 1 + kKeys : group.most_ + kKeys) / kKeys;
      if (branch == kNsaWindow) first_ = a.window > 0 ? max(0, group.least_ - a.window + 1) / kKeys : end_;
      tile_ = end_;
    }
    HUNCH_DEVICE bool next(NsaTileRef& to) {
      while (true) {
        while (tile_ >= end_) {
          if (++chain_ == kNsaChains) return false;
          tile_ = first_ + int(unsigned(chain_ - first_) % kNsaChains);
        }
        const uint32_t rows = branch_ == kNsaSelected ? owners_[tile_] : all_;
        to = {branch_, tile_, -1, rows, {}};
        tile_ += kNsaChains;
        if (rows) return true;
      }
    }

   private:
    const uint32_t* owners_;
    uint32_t all_;
    NsaBranch branch_;
    int tile_, first_ = 0, end_, chain_ = -1;
  };

  template <int kKeys>
  HUNCH_DEVICE void fold(NsaBranch branch, int slot) {
    NsaState<D> state, four;  // of a chain, of four
    NsaState<D>& all = reinterpret_cast<NsaState<D>*>(memory_ + Shared::kResults)[threadIdx.x];
    state.clear(), four.clear(), all = four;
    int at = 0;
    const auto add_four = [&] {
      NsaState<D> sum = all;
      sum.add(four);
      all = sum, four.clear();
    };
    each_tile<kKeys, 2>(branch, [&](const NsaTileRef& tile, uint32_t keys, bool ends) {
      fold_tile<kKeys>(tile, keys, state);
      if (!ends) return;
      const int chain = tile.tile % kNsaChains;
      if (chain / kNsaBlockChains != at) add_four(), at = chain / kNsaBlockChains;
      state.add_lanes();
      four.add(state);
      state.clear();
    });
    add_four();
    mix(slot, all);
  }
  // each(tile, where its keys are and, kParts 2, behind them its values, whether it is the last of its chain).
  template <int kKeys, int kParts, class Each>
  HUNCH_DEVICE void each_tile(NsaBranch branch, const Each& each) {
    Tiles<kKeys> tiles(*this, branch);
    NsaTileRef tile, next;
    uint32_t to = shared_address(memory_) + Shared::kTilesAt, other = to + 2 * Shared::kHalfBytes;
    const bool compressed = branch == kNsaCompressed;
    const KvPlane& plane = compressed ? a_.compressed : a_.raw;
    const int32_t* const pages = compressed ? a_.compressed_pages : a_.raw_pages;
    const int stored = compressed ? a_.compressed_entries : a_.entries;
    constexpr int kChunks = D / 8, kAtOnce = kThreads / kChunks;  // 16 bytes each of K or V of a row
    const int key = int(threadIdx.x) / kChunks;
    const std::byte* const from = plane.keys + kv_head_ * plane.head_bytes + key * (D * 4) + int(threadIdx.x) % kChunks * 16;
    const uint32_t place = Shared::at(key, int(threadIdx.x) % kChunks);
    const auto load = [&] {
      const int entry = next.tile * kKeys;
      const std::byte* const tile_from = from + (int64_t(pages[entry / kPageLen]) * kPageLen + entry % kPageLen) * (D * 4);
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int first = 0; first < kKeys; first += kAtOnce)  // rows eight apart stand alike
          copy_16_or_zeros(to + part * Shared::kHalfBytes + place + first * 128, tile_from + part * D * 2 + first * (D * 4),
              entry + first + key < stored);
    };
    __syncthreads();
    bool more = tiles.next(next);
    if (more) load();
    while (more) {
      end_copies();
      await_copies<0>();
      show_to_tensor_cores();
      __syncthreads();
      tile = next;
      const uint32_t keys = to;
      to = other, other = keys;
      more = tiles.next(next);
      if (more) load();
      each(tile, keys, !more || (next.tile ^ tile.tile) % kNsaChains != 0);
    }
  }
  template <int kKeys>
  HUNCH_DEVICE void make_scores(uint32_t keys, float (&s)[kKeys / 8][4]) const {
    auto& flat = reinterpret_cast<float(&)[kKeys / 2]>(s);
    const uint32_t a = wgmma_operand(shared_address(memory_) + Shared::kQueries, 16), b = wgmma_operand(keys, 16);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const uint32_t at = uint32_t(k / 4 * (kPanel / 16) + k % 4 * 2);
      wgmma_tile<__nv_bfloat16, kKeys, false>(flat, a + at, b + at, k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(flat);
  }
  template <int kKeys>
  HUNCH_DEVICE void fold_tile(const NsaTileRef& tile, uint32_t keys, NsaState<D>& state) const {
    float s[kKeys / 8][4];
    make_scores<kKeys>(keys, s);
    uint32_t p[kKeys / 4] = {};
    if (chain_.reads_any(tile)) {
      chain_.template weigh<kKeys>(tile, s, state);
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) p[i] = nsa_pack(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
    }
    auto& o = reinterpret_cast<float(&)[D / 2]>(state.o);
    const uint32_t values = wgmma_operand(keys + Shared::kHalfBytes, kPanel);
    hold(o);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
      wgmma_values<__nv_bfloat16>(o, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3], values + uint32_t(k * (2048 / 16)));
    wgmma_commit();
    wgmma_wait<0>();
    hold(o);
  }
  // The outcome of a branch onto those before it.
  HUNCH_DEVICE void mix(int slot, const NsaState<D>& all) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = int(threadIdx.x) / 32 * 16 + lane_ / 4 + 8 * h, of_group = place >> a_.group_shift;
      const float total = all.total[h];
      if (slot == 0 && lane_ % 4 == 0) lse()[place] = total == 0 ? INFINITY : all.top[h] + log2f(total);
      const int in_group = place & ((1 << a_.group_shift) - 1), row = row_at(of_group), head = kv_head_ * a_.group + in_group;
      if (of_group >= rows_ || in_group >= a_.group) continue;
      const float gate = nsa_gate(a_.gates[row * a_.gates_row + 3 * head + slot]);
      auto* const to = reinterpret_cast<float2*>(a_.out + row * a_.out_row + head * a_.out_head) + lane_ % 4;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float2 onto = slot == 0 ? make_float2(0, 0) : to[n * 4];
        const auto part = [&](int i) { return total == 0 ? 0.0f : all.o[n][2 * h + i] / total; };
        to[n * 4] = make_float2(fmaf(gate, part(0), onto.x), fmaf(gate, part(1), onto.y));
      }
    }
  }
  HUNCH_DEVICE void choose() {
    each_tile<kNsaTile, 1>(kNsaCompressed, [&](const NsaTileRef& tile, uint32_t keys, bool) {
      float s[kNsaTile / 8][4];
      make_scores<kNsaTile>(keys, s);
      chain_.pool_scores(tile, s, lse(), first_);
    });
    __syncthreads();  // weights of entries are in memory, and tiles have been read
    const int warp = int(threadIdx.x) / 32, at_once = min(kNsaChunkTiles, Shared::kTeamBytes / 4 / a_.owner_words);
    auto* keys = reinterpret_cast<uint32_t*>(memory_ + Shared::kTilesAt) + warp * a_.owner_words;
    for (int i = warp < at_once ? warp : rows_; i < rows_; i += at_once) {
      score_blocks(i, keys, lane_, 32);
      __syncwarp();
      choose_blocks(i, keys, [&](int block) { atomicOr(owners() + block, 1u << i); });
      __syncwarp();
    }
    __syncthreads();
  }
};

// Blocks [group, the last first][KV head], run.
template <int D, int kBlock>
__global__ void __launch_bounds__(kNsaChunkTiles * 32, D == 64 ? 3 : 2) nsa_chunk_kernel(const NsaLaunch* args) {
#if HUNCH_HOPPER
  extern __shared__ __align__(1024) char nsa_memory[];
  const NsaDevice& a = args->runs[blockIdx.y];
  const int group = (a.rows - 1) / a.grouped - int(blockIdx.x) / a.kv_heads;
  if (group >= 0) NsaChunk<D, kBlock>(a, nsa_memory, int(blockIdx.x) % a.kv_heads, group).attend();
#endif
}

}
