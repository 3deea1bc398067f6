// A team's part in natively trained sparse attention: tiles of keys and values through its own shared memory, an online softmax
// over them for up to 64 packed rows, 16 a warp (mma.sync), and how states of several teams become one. Layouts of operands: PTX
// ISA, mma.m16n8k16 and ldmatrix.
#pragma once

#include <cuda_bf16.h>

#include "backend/cuda/attention_ptx.cuh"
#include "backend/cuda/nsa_args.h"
#include "backend/cuda/ptx.h"
#include "backend/cuda/tile_copies.cuh"

namespace hunch {

constexpr float kNsaLog2E = 1.44269504088896340736f;

enum NsaKnown { kNsaPosition, kNsaVisible, kNsaPath, kNsaOwnedPath, kNsaKnowns };  // of the group's rows, in shared memory

// Where 16 bytes of a row of D lie, so that eight rows' are in different banks.
template <int D>
HUNCH_DEVICE uint32_t nsa_chunk(int row, int chunk) {
  return uint32_t(row * D * 2 + (chunk ^ row % 8) * 16);
}
// Of a warp's 16 packed rows, as the tensor cores leave them: o[8 columns].
template <int D>
struct alignas(16) NsaState {
  float o[D / 8][4], top[2], total[2];
  HUNCH_DEVICE void clear() {
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = 0;
    top[0] = top[1] = -INFINITY, total[0] = total[1] = 0;
  }
  // What lanes have of their rows' totals to one number, of the same bits in each.
  HUNCH_DEVICE void add_lanes() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      total[h] += __shfl_xor_sync(~0u, total[h], 1);
      total[h] += __shfl_xor_sync(~0u, total[h], 2);
    }
  }
  // As NsaMerged does; totals of both are whole.
  HUNCH_DEVICE void add(const NsaState& x) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float after = fmaxf(top[h], x.top[h]), base = after == -INFINITY ? 0.0f : after;
      const float a = exp2_fast(top[h] - base), b = exp2_fast(x.top[h] - base);
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) o[n][i] = fmaf(o[n][i], a, x.o[n][i] * b);
      total[h] = fmaf(total[h], a, x.total[h] * b), top[h] = after;
    }
  }
  // sums: [packed row][stride], states [packed row][2]; place: of the first of the 16.
  HUNCH_DEVICE void store(float* sums, int stride, float* states, int place, int lane) {
    add_lanes();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = place + lane / 4 + 8 * h;
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<float2*>(sums + row * stride + n * 8 + lane % 4 * 2) = make_float2(o[n][2 * h], o[n][2 * h + 1]);
      if (lane % 4 == 0) *reinterpret_cast<float2*>(states + row * 2) = make_float2(top[h], total[h]);
    }
  }
};

// Shared memory of a block for kPacked rows; behind it a word for every selection block of its chains and, where there are trees,
// each team's rows beside a tile: K, V.
// kTeams 1: a block that has all chains (nsa_chunk.cuh); results are what its threads keep of a branch.
template <int D, int kPacked, int kTeams>
struct NsaShared {
  static constexpr int kHalfBytes = kNsaTile * D * 2;  // K or V of a tile
  static constexpr bool kAhead = D == 64;              // the next tile's keys come while this one is looked at: there is room
  // K of this tile, of the next, V of this; alone, of the next, too.
  static constexpr int kTeamBytes = (kTeams == 1 ? 4 : kAhead ? 3 : 2) * kHalfBytes;
  static constexpr int kResultFloats = kPacked * (D + 2);  // sums, then greatest logit and total of every row
  static constexpr int kTilesAt = 0, kQueries = kTeams * kTeamBytes, kResults = kQueries + kPacked * D * 2;
  static constexpr int kResultBytes = kTeams == 1 ? 2 * kPacked * sizeof(NsaState<D>) : 3 * kResultFloats * 4;
  static constexpr int kLse = kResults + kResultBytes, kRows = kLse + kPacked * 4;
  static constexpr int kBusy = kRows + kNsaKnowns * kNsaMostGrouped * 4;
  static constexpr int kOwners = kBusy + kNsaBlockChains * 4;
  // Where 16 bytes of a row stand among queries; alone, in a tile, too: as wgmma takes them.
  HUNCH_DEVICE static uint32_t at(int row, int chunk) {
    if (kTeams > 1) return nsa_chunk<D>(row, chunk);
    return uint32_t(chunk / 8 * (kNsaTile * 128)) + nsa_chunk<64>(row, chunk % 8);
  }
  static constexpr int kBesideBytes = nsa_beside(D) * D * 2;  // K or V
  // A team's partial lies where its tiles were: rows so far apart that a warp's stores meet no bank twice, then their states.
  static constexpr int kPartialRow = D + 8, kPartialStates = kPacked * kPartialRow;
  static_assert(kTeams == 1 || (kPartialStates + 2 * kPacked) * 4 <= kTeamBytes);
};

HUNCH_DEVICE uint32_t nsa_pack(float a, float b) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&both);
}
HUNCH_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct NsaTileRef {
  NsaBranch branch = kNsaSelected;
  int tile = 0, part = -1;  // part: the bundle or owned path on which places behind the cache lie; -1: there are none
  uint32_t rows = 0;        // of the group, a bit each: those that read it
  NsaBundle bundle;         // `part` of entries
};

// A row over some tiles, and what it and others come to, folded left to right.
struct NsaMerged {
  float4 sums = make_float4(0, 0, 0, 0);
  float top = -INFINITY, total = 0;
  HUNCH_DEVICE void add(float4 x, float2 state) {
    const float after = fmaxf(top, state.x), base = after == -INFINITY ? 0.0f : after;
    const float a = exp2_fast(top - base), b = exp2_fast(state.x - base);
    sums.x = fmaf(sums.x, a, x.x * b), sums.y = fmaf(sums.y, a, x.y * b);
    sums.z = fmaf(sums.z, a, x.z * b), sums.w = fmaf(sums.w, a, x.w * b);
    total = fmaf(total, a, state.y * b), top = after;
  }
};

template <int D, int kPacked, bool kTrees, int kTeams>
class NsaChain {
 public:
  using Shared = NsaShared<D, kPacked, kTeams>;
  static constexpr int kTiles = kPacked / 16;

  HUNCH_DEVICE NsaChain(const NsaDevice& args, char* memory, int kv_head)
      : a_(args), memory_(memory), kv_head_(kv_head), lane_(int(threadIdx.x) % 32) {
    team_ = int(threadIdx.x) / 32 / kTiles, m_ = int(threadIdx.x) / 32 % kTiles;
    shared_ = shared_address(memory);
    mine_ = shared_ + Shared::kTilesAt + uint32_t(team_ * Shared::kTeamBytes);
  }
  HUNCH_DEVICE int team() const { return team_; }  // of the block's
  // The team meets; what its warps have copied and await_copies() waited for is there for all.
  HUNCH_DEVICE void meet() const {
    if constexpr (kTiles == 1) __syncwarp();
    else named_barrier(1 + team_, 32 * kTiles);
  }
  HUNCH_DEVICE void store(NsaState<D>& state) const {  // as the team's partial
    meet();
    auto* sums = reinterpret_cast<float*>(memory_ + Shared::kTilesAt + team_ * Shared::kTeamBytes);
    state.store(sums, Shared::kPartialRow, sums + Shared::kPartialStates, m_ * 16, lane_);
  }
  HUNCH_DEVICE int* known(NsaKnown what) const {
    return reinterpret_cast<int*>(memory_ + Shared::kRows) + what * kNsaMostGrouped;
  }
  // Compressed entries that a row at this place reads.
  HUNCH_DEVICE int visible(int position) const {
    return position + 1 < a_.cmp_len ? 0 : (position + 1 - a_.cmp_len) / a_.cmp_stride + 1;
  }

  // Folds tiles into the state, the next one's keys on their way meanwhile. False: there were none.
  template <int kKeys, class Tiles>
  HUNCH_DEVICE bool fold(Tiles tiles, NsaState<D>& state) {
    NsaTileRef tile, next;
    constexpr bool kAhead = Shared::kAhead;
    uint32_t keys = mine_, other = kAhead ? mine_ + Shared::kHalfBytes : mine_;
    const uint32_t values = mine_ + (kAhead ? 2 : 1) * Shared::kHalfBytes;
    bool has = false;
    while (true) {
      const bool more = tiles.next(next);
      Places places;
      if (more) {
        places = locate<kKeys>(next);
        if (kAhead) load<kKeys>(next, places, 0, other);
      }
      end_copies();
      if (has) {
        fold_tile<kKeys>(tile, keys, values, state);
        meet();
      }
      if (!more) return has;
      if (!kAhead) {
        load<kKeys>(next, places, 0, other);
        end_copies();
      }
      load<kKeys>(next, places, 1, values);
      if (kTrees && next.bundle.beside > 0)
        for (int both = 0; both < 2; ++both) load_beside(next, places, both);
      end_copies();
      tile = next, has = true;
      const uint32_t was = keys;
      keys = other, other = was;
    }
  }

  // Weights of compressed entries, given their rows' log-sum-exp (base 2), summed over the heads of a KV head.
  template <class Tiles>
  HUNCH_DEVICE void pool(Tiles tiles, const float* lse, int first_row) {
    NsaTileRef tile, next;
    uint32_t keys = mine_, other = mine_ + Shared::kHalfBytes;
    bool has = false;
    while (true) {
      const bool more = tiles.next(next);
      if (more) load<kNsaTile>(next, locate<kNsaTile>(next), 0, other);  // what stands beside it is there since fold()
      end_copies();
      if (has) {
        await_copies<1>();
        meet();
        if (reads_any(tile)) pool_tile(tile, keys, lse, first_row);
        meet();
      }
      if (!more) return;
      tile = next, has = true;
      const uint32_t was = keys;
      keys = other, other = was;
    }
  }

  HUNCH_DEVICE bool reads_any(const NsaTileRef& t) const {  // of the warp's rows
    const int first = m_ * 16 >> a_.group_shift, last = (m_ * 16 + 15) >> a_.group_shift;
    return (t.rows >> first & ((2u << (last - first)) - 1)) != 0;
  }

  // Scores to weights; the state's references follow.
  template <int kKeys>
  HUNCH_DEVICE void weigh(const NsaTileRef& t, float (&s)[kKeys / 8][4], NsaState<D>& state) const {
    const Reach reads[2] = {reach<kKeys>(t, m_ * 16 + lane_ / 4), reach<kKeys>(t, m_ * 16 + lane_ / 4 + 8)};
    bool none[2], simple = true;  // mostly a row reads all or nothing
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      none[h] = reads[h].last < 0;
      simple = simple && (none[h] || (reads[h].first <= 0 && reads[h].last >= kKeys - 1));
    }
    simple = __all_sync(~0u, simple);
    const float scale = a_.scale_log2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto leave_out = [&](const auto& left_out) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (left_out(n * 8 + lane_ % 4 * 2 + i)) s[n][2 * h + i] = -INFINITY;
      };
      if (simple) leave_out([&](int) { return none[h]; });
      else leave_out([&](int key) { return key < reads[h].first || key > reads[h].last; });
      float most = -INFINITY;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) s[n][2 * h + i] *= scale, most = fmaxf(most, s[n][2 * h + i]);
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float before = state.top[h], after = fmaxf(before, most), base = after == -INFINITY ? 0.0f : after;
      const float alpha = exp2_fast(before - base);
      float added = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = s[n][2 * h + i];
          x = exp2_fast(x - base);
          added += x;
        }
      state.top[h] = after, state.total[h] = fmaf(state.total[h], alpha, added);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) state.o[n][2 * h] *= alpha, state.o[n][2 * h + 1] *= alpha;
    }
  }

  // Weights of a tile's scores, to memory.
  HUNCH_DEVICE void pool_scores(const NsaTileRef& t, float (&s)[kNsaTile / 8][4], const float* lse, int first_row) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = m_ * 16 + lane_ / 4 + 8 * h;
      const Reach reads = reach<kNsaTile>(t, place);
      const float minus = -lse[place];
#pragma unroll
      for (int n = 0; n < kNsaTile / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = n * 8 + lane_ % 4 * 2 + i;
          float& x = s[n][2 * h + i];
          x = key <= reads.last ? exp2_fast(fmaf(x, a_.scale_log2, minus)) : 0.0f;
        }
    }
    add_heads(s);
    store_pooled(t, s, first_row);
  }

 private:
  // Where a tile is stored: its first key, and how many from there on. Of a tree, too: keys lane and lane + 32 of a tile whose
  // rows lie apart, and row `lane` beside it; -1: nowhere; below: -2 - i, the i-th of those that paths own.
  struct Places {
    int first = 0, count = 0, apart[2] = {-1, -1}, beside[1] = {-1};
  };
  HUNCH_DEVICE static bool lies_apart(const NsaTileRef& t) { return kTrees && t.part >= 0 && t.bundle.beside == 0; }
  template <int kKeys>
  HUNCH_DEVICE Places locate(const NsaTileRef& t) const {
    const bool compressed = t.branch == kNsaCompressed;
    const int stored_end = compressed ? a_.compressed_entries : a_.entries;
    const int32_t* pages = compressed ? a_.compressed_pages : a_.raw_pages;
    const auto stored = [&](int entry) { return pages[entry / kPageLen] * kPageLen + entry % kPageLen; };
    Places places;
    places.count = stored_end - t.tile * kKeys;
    if (places.count > 0) places.first = stored(t.tile * kKeys);
    if (lies_apart(t)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int key = h * 32 + lane_, behind = key - places.count;
        if (key >= kKeys) continue;
        if (behind < 0) places.apart[h] = places.first + key;
        else if (compressed && behind < a_.owned_stride)
          places.apart[h] = -2 - a_.path_compressed[t.bundle.first_path * a_.owned_stride + behind];  // of -1: nowhere
        else if (!compressed && behind < a_.path_stride) {
          const int row = a_.path_rows[t.bundle.first_path * a_.path_stride + behind];
          if (row >= 0) places.apart[h] = stored(stored_end + row);
        }
      }
    }
    if (kTrees && lane_ < t.bundle.beside)
      places.beside[0] = compressed ? -2 - lane_ : stored(stored_end + a_.beside_rows[t.bundle.first_beside + lane_]);
    return places;
  }
  // K (part 0) or V of rows, the i-th where lane i % 32 says in `at`; zeros where nothing is stored.
  template <int kRows, int kWords>
  HUNCH_DEVICE void load_rows(const KvPlane& plane, const int (&at)[kWords], int part, uint32_t to) const {
    const std::byte* head = plane.keys + kv_head_ * plane.head_bytes + part * D * 2;
    constexpr int kChunks = D / 8, kAtOnce = 32 / kChunks;  // rows
#pragma unroll 1
    for (int i = 0; i < (kRows + kAtOnce * kTiles - 1) / (kAtOnce * kTiles); ++i) {
      const int first = (i * kTiles + m_) * kAtOnce, key = first + lane_ / kChunks, chunk = lane_ % kChunks;
      if (first >= kRows) break;
      const int row = __shfl_sync(~0u, kWords == 1 || first < 32 ? at[0] : at[kWords - 1], key % 32);
      const std::byte* from = head + int64_t(max(row, 0)) * (D * 4);
      if (row < -1) from = a_.owned + (int64_t(kv_head_) * a_.num_owned - 2 - row) * (D * 4) + part * D * 2;
      copy_16_or_zeros(to + nsa_chunk<D>(key, chunk), from + chunk * 16, row != -1);
    }
  }
  // A tile begins at a multiple of its size, so that all of it lies in one page.
  template <int kKeys>
  HUNCH_DEVICE void load(const NsaTileRef& t, const Places& places, int part, uint32_t to) const {
    static_assert(kPageLen % kKeys == 0);
    const KvPlane& plane = t.branch == kNsaCompressed ? a_.compressed : a_.raw;
    if (lies_apart(t)) return load_rows<kKeys>(plane, places.apart, part, to);
    constexpr int kChunks = D / 8, kAtOnce = 32 / kChunks * kTiles;  // rows
    const int key = m_ * (32 / kChunks) + lane_ / kChunks, chunk = lane_ % kChunks;
    const std::byte* from =
        plane.keys + kv_head_ * plane.head_bytes + int64_t(places.first + key) * (D * 4) + part * D * 2 + chunk * 16;
#pragma unroll
    for (int first = 0; first < kKeys; first += kAtOnce)
      if (kKeys % kAtOnce == 0 || first + key < kKeys)
        copy_16_or_zeros(to + nsa_chunk<D>(first + key, chunk), from + first * (D * 4), first + key < places.count);
  }
  HUNCH_DEVICE uint32_t beside(int part) const {
    return shared_ + Shared::kOwners + uint32_t(a_.owner_words * 4 + (team_ * 2 + part) * Shared::kBesideBytes);
  }
  HUNCH_DEVICE void load_beside(const NsaTileRef& t, const Places& places, int part) const {
    load_rows<nsa_beside(D)>(t.branch == kNsaCompressed ? a_.compressed : a_.raw, places.beside, part, beside(part));
  }

  // Which of a bundle's paths, counted from its first, the rows of lane's scores stand on (-1: none), and any of the warp's.
  struct OnPaths {
    int own[2] = {-1, -1};
    uint32_t any = 0;
  };
  HUNCH_DEVICE OnPaths on_paths(const NsaTileRef& t) const {
    OnPaths on;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int of_group = (m_ * 16 + lane_ / 4 + 8 * h) >> a_.group_shift;
      const NsaKnown which = t.branch == kNsaCompressed ? kNsaOwnedPath : kNsaPath;
      if (t.rows >> of_group & 1) on.own[h] = known(which)[of_group] - t.bundle.first_path;
    }
    on.any = __reduce_or_sync(~0u, (on.own[0] < 0 ? 0 : 1u << on.own[0]) | (on.own[1] < 0 ? 0 : 1u << on.own[1]));
    return on;
  }
  // What lies behind the cache on a path: how far there is anything, and where of a bundle's tile it stands beside it.
  struct Behind {
    int entries, stride;
    const int32_t* beside;
  };
  HUNCH_DEVICE Behind behind_of(const NsaTileRef& t) const {
    if (t.branch == kNsaCompressed) return {a_.compressed_entries, a_.owned_stride, a_.path_compressed};
    return {a_.entries, a_.path_stride, a_.path_beside};
  }
  // Whether 16 places of a bundle's tile have rows that stand beside it.
  template <int kKeys>
  HUNCH_DEVICE bool is_beside(const NsaTileRef& t, int sixteen) const {
    if (!kTrees || t.bundle.beside == 0) return false;
    const Behind of = behind_of(t);
    const int first = t.tile * kKeys + sixteen * 16 - of.entries;
    return first + 16 > 0 && first < of.stride;
  }
  // Where a place of the tile lies for a path: in `tile`, K or V (part), or beside it.
  struct Spot {
    uint32_t base;
    int row;
    HUNCH_DEVICE uint32_t chunk(int chunk) const { return base + nsa_chunk<D>(row, chunk); }
  };
  template <int kKeys>
  HUNCH_DEVICE Spot spot(const NsaTileRef& t, int path, int place, uint32_t tile, int part) const {
    const Behind of = behind_of(t);
    const int behind = t.tile * kKeys + place - of.entries;
    if (behind < 0 || behind >= of.stride) return {tile, place};
    return {beside(part), max(of.beside[(t.bundle.first_path + path) * of.stride + behind], 0)};
  }
  // The same for every path: of one row each, bits are those of a tile that holds its path alone.
  template <int kKeys>
  HUNCH_DEVICE void score_beside(const NsaTileRef& t, const OnPaths& on, uint32_t keys, float (&s)[kKeys / 8][4]) const {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      if (!is_beside<kKeys>(t, n)) continue;
      for (uint32_t left = on.any; left; left &= left - 1) {
        const int path = __ffs(left) - 1;
        const Spot key = spot<kKeys>(t, path, n * 16 + lane_ / 16 * 8 + lane_ % 8, keys, 0);
        float x[2][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
          uint32_t q[4], b[4];
          load_matrices(q, shared_ + Shared::kQueries + nsa_chunk<D>(m_ * 16 + lane_ % 16, 2 * k + lane_ / 16));
          load_matrices(b, key.chunk(2 * k + lane_ / 8 % 2));
          multiply(x[0], q, b[0], b[1]);
          multiply(x[1], q, b[2], b[3]);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (on.own[h] == path) s[2 * n + i / 2][2 * h + i % 2] = x[i / 2][2 * h + i % 2];
      }
    }
  }

  // S of 16 packed rows: s[8 keys][4].
  template <int kKeys>
  HUNCH_DEVICE void make_scores(uint32_t keys, float (&s)[kKeys / 8][4]) const {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t q[4];
      load_matrices(q, shared_ + Shared::kQueries + nsa_chunk<D>(m_ * 16 + lane_ % 16, 2 * k + lane_ / 16));
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        load_matrices(b, keys + nsa_chunk<D>(n * 16 + lane_ / 16 * 8 + lane_ % 8, 2 * k + lane_ / 8 % 2));
        multiply(s[2 * n], q, b[0], b[1]);
        multiply(s[2 * n + 1], q, b[2], b[3]);
      }
    }
  }
  // The first and the last key of the tile that a packed row reads.
  struct Reach {
    int first, last;
  };
  template <int kKeys>
  HUNCH_DEVICE Reach reach(const NsaTileRef& t, int place) const {
    const int of_group = place >> a_.group_shift, head = place & ((1 << a_.group_shift) - 1);
    if (head >= a_.group || !(t.rows >> of_group & 1)) return {0, -1};
    const int position = known(kNsaPosition)[of_group], begin = t.tile * kKeys;
    if (t.branch == kNsaCompressed) return {0, known(kNsaVisible)[of_group] - 1 - begin};
    return {t.branch == kNsaWindow ? position - a_.window + 1 - begin : 0, position - begin};
  }
  template <int kKeys>
  HUNCH_DEVICE void fold_tile(const NsaTileRef& t, uint32_t keys, uint32_t values, NsaState<D>& state) const {
    const bool reads_it = reads_any(t), bundled = kTrees && t.bundle.beside > 0;
    float s[kKeys / 8][4];
    OnPaths on;
    if (bundled) await_copies<1>();  // rows beside the tile come with its values
    else await_copies<2>();          // but its values and the next keys
    meet();
    if (reads_it) {
      make_scores<kKeys>(keys, s);
      if (bundled) {
        on = on_paths(t);
        score_beside<kKeys>(t, on, keys, s);
      }
      weigh<kKeys>(t, s, state);
    }
    await_copies<1>();
    meet();
    if (!reads_it) return;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const uint32_t p[4] = {nsa_pack(s[2 * k][0], s[2 * k][1]), nsa_pack(s[2 * k][2], s[2 * k][3]),
          nsa_pack(s[2 * k + 1][0], s[2 * k + 1][1]), nsa_pack(s[2 * k + 1][2], s[2 * k + 1][3])};
      const int place = k * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;
      if (!is_beside<kKeys>(t, k)) {
        add_values(p, {values, place}, state);
        continue;
      }
      for (uint32_t left = on.any; left; left &= left - 1) {  // rows on other paths have no weights meanwhile
        const int path = __ffs(left) - 1;
        const uint32_t mine[4] = {on.own[0] == path ? p[0] : 0, on.own[1] == path ? p[1] : 0, on.own[0] == path ? p[2] : 0,
            on.own[1] == path ? p[3] : 0};
        add_values(mine, spot<kKeys>(t, path, place, values, 1), state);
      }
    }
  }
  // Weights of 16 keys times their values.
  HUNCH_DEVICE void add_values(const uint32_t (&p)[4], const Spot& value, NsaState<D>& state) const {
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      uint32_t b[4];
      load_transposed(b, value.chunk(2 * n + lane_ / 16));
      multiply(state.o[2 * n], p, b[0], b[1]);
      multiply(state.o[2 * n + 1], p, b[2], b[3]);
    }
  }
  HUNCH_DEVICE void pool_tile(const NsaTileRef& t, uint32_t keys, const float* lse, int first_row) const {
    float s[kNsaTile / 8][4];
    make_scores<kNsaTile>(keys, s);
    if (kTrees && t.bundle.beside > 0) score_beside<kNsaTile>(t, on_paths(t), keys, s);
    pool_scores(t, s, lse, first_row);
  }
  // Heads of a KV head stand in neighbouring rows: in lanes 4, 8 and 16 apart, then in the tile's halves.
  HUNCH_DEVICE void add_heads(float (&s)[kNsaTile / 8][4]) const {
    for (int step = 0; step < min(a_.group_shift, 3); ++step)
#pragma unroll
      for (int n = 0; n < kNsaTile / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] += __shfl_xor_sync(~0u, s[n][i], 4 << step);
    if (a_.group_shift > 3)
#pragma unroll
      for (int n = 0; n < kNsaTile / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) s[n][i] += s[n][i + 2];
  }
  HUNCH_DEVICE void store_pooled(const NsaTileRef& t, const float (&s)[kNsaTile / 8][4], int first_row) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = m_ * 16 + lane_ / 4 + 8 * h, of_group = place >> a_.group_shift;
      if ((place & ((1 << a_.group_shift) - 1)) != 0 || !(t.rows >> of_group & 1)) continue;
      float* to = a_.pooled + (int64_t(first_row + of_group) * a_.kv_heads + kv_head_) * a_.pooled_stride;
#pragma unroll
      for (int n = 0; n < kNsaTile / 8; ++n)
        __stcg(
            reinterpret_cast<float2*>(to + t.tile * kNsaTile + n * 8 + lane_ % 4 * 2), make_float2(s[n][2 * h], s[n][2 * h + 1]));
    }
  }

  const NsaDevice& a_;
  char* memory_;
  uint32_t shared_, mine_;
  int kv_head_, lane_, team_, m_;
};

}
