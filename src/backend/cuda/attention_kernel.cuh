// Attention on the tensor cores: a persistent grid of one producer warpgroup (attention_stream.cuh) and two consumers a block. A
// consumer holds one M tile of 64 packed rows (row x query head of one KV head) and folds tile after tile of keys: S = Q K^T,
// online softmax, O += P V. Unpaired, each consumer has its own ring and its own work. Paired, both read the same tiles,
// alternately from both rings, with an M tile each. Included by attention.cu; the order of arithmetic stands in attention_args.h.
#pragma once

#include "backend/cuda/attention_stream.cuh"
#include "backend/cuda/attention_wgmma.cuh"

namespace hunch {

// One consumer's view of its M tile: of the thread's rows, two or, where the tile is narrow, one.
template <int kHalves>
struct TileRows {
  int first[kHalves], last[kHalves], leaf[kHalves];
  bool used[kHalves];        // by scores
  bool row_used[kHalves];    // the same, of padding beside it too
  float minus_lse[kHalves];  // base 2
  int row[kHalves];          // of the run
};

// A tile of keys on its way through a consumer.
struct TileInFlight {
  int split, entry, leaf;
  uint32_t full, phase, keys;  // its stage: barrier and memory
};

// kNarrow: M tiles of at most 32 rows, which then stand in the first eight of every sixteen: all four warps have rows, and a
// thread one instead of two. The arithmetic of a row is the same.
template <int D, class T, bool kNarrow>
class Consumer {
  using Shared = AttentionShared<D>;
  static constexpr int kStages = Shared::kStages, kHalves = kNarrow ? 1 : 2, kWarpRows = 8 * kHalves;

 public:
  __device__ __forceinline__ Consumer(const AttentionDevice& args, uint32_t shared, char* memory)
      : args_(args), shared_(shared), memory_(memory) {
    consumer_ = uniform(int(threadIdx.x) / 128 - 1), t_ = int(threadIdx.x) % 128, lane_ = t_ % 32, warp_ = uniform(t_ / 32);
    paired_ = uniform(args.paired) != 0, keys_only_ = uniform(args.keys_only) != 0, shift_ = uniform(args.group_shift);
    scale_ = args.scale_log2;
  }

  __device__ __forceinline__ void run() {
    ring_ = paired_ ? 0 : consumer_;
    int last_run = -1, last_head = -1, last_group = -1;
    ItemQueue queue = ItemQueue::of<Shared>(args_, shared_, memory_, consumer_, false);
    for (; queue.item() < args_.num_items; queue.advance()) {
      const AttentionItemDevice& item = args_.items[uniform(queue.item())];
      const AttentionRunDevice& run = args_.runs[item.run];
      const int tile = item.mgroup * (paired_ ? 2 : 1) + (paired_ ? consumer_ : 0);
      rows_in_tile_ = uniform(paired_ && consumer_ ? item.rows[1] : item.rows[0]);
      clean_begin_ = item.clean_begin, clean_end_ = item.clean_end;
      sink_ = ScoreSink(uniform(int(run.sink)));
      scored_end_ = sink_ == ScoreSink::None ? 0 : run.prefix_len, scored_leaf_ = item.leaf_begin;
      gathered_ = run.index != nullptr;
      weight_ = uniform(run.weight) != 0, sum_ = uniform(run.sum) != 0, mean_ = run.mean;
      if (sink_ != ScoreSink::Rows)
        scores_ = run.scores + (sink_ == ScoreSink::Groups ? item.mgroup * run.plane.kv_heads + item.kv_head : item.kv_head) *
                                   run.scores_stride;
      if (item.run != last_run || item.kv_head != last_head || item.mgroup != last_group) {
        load_queries(run, item, tile);
        last_run = item.run, last_head = item.kv_head, last_group = item.mgroup;
      }
      attend(run, item);
    }
  }

 private:
  __device__ __forceinline__ void sync() const { named_barrier(1 + consumer_, 128); }
  // The row of the M tile that stands at a place of the operand; past all rows where none does. A thread's two are neighbours:
  // heads of one row, mostly, so that scores are added before lanes exchange them.
  __device__ __forceinline__ static int row_of_place(int place) {
    if constexpr (!kNarrow) return place / 16 * 16 + place % 8 * 2 + place % 16 / 8;
    return place % 16 < 8 ? place / 16 * 8 + place % 8 : kTileRows;
  }
  __device__ __forceinline__ int my_row(int half) const { return warp_ * kWarpRows + lane_ / 4 * kHalves + half; }

  // Queries of the tile, rounded, in the swizzle; zeros where there is no row. All earlier products are done.
  __device__ __forceinline__ void load_queries(const AttentionRunDevice& run, const AttentionItemDevice& item, int tile) {
    const int padded = 1 << args_.group_shift;
    constexpr int kChunks = D / 8, kEach = kTileRows * kChunks / 128;  // 16 bytes of the tile each
    float4 x[kEach][2];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {  // all loads first: one wait for memory
      const int chunk = (i * 128 + t_) % kChunks, in_tile = row_of_place((i * 128 + t_) / kChunks);
      const int packed = tile * kTileRows + in_tile;
      const int listed = packed >> args_.group_shift, head = packed & (padded - 1);
      x[i][0] = x[i][1] = make_float4(0, 0, 0, 0);
      if (in_tile < rows_in_tile_ && head < args_.group) {
        const int row = run.first_row + (run.rows ? run.rows[listed] : listed);
        const auto* from = reinterpret_cast<const float4*>(args_.q + row * args_.q_row +
                                                           (item.kv_head * args_.group + head) * args_.q_head + chunk * 8);
        x[i][0] = from[0], x[i][1] = from[1];
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int in_tile = my_row(half), packed = tile * kTileRows + in_tile;
      const int listed = packed >> args_.group_shift, head = packed & (padded - 1);
      const bool stands = in_tile < rows_in_tile_, valid = stands && head < args_.group;
      const int row = !stands ? 0 : run.rows ? run.rows[listed] : listed;
      rows_.used[half] = false, rows_.row[half] = row;
      rows_.first[half] = 0, rows_.last[half] = -1, rows_.leaf[half] = -1, rows_.minus_lse[half] = -INFINITY;
      if (!valid) continue;
      rows_.last[half] = args_.keys_only ? kFarFuture : run.last[row];
      rows_.first[half] = max(run.first, run.window ? rows_.last[half] + 1 - run.window : 0);
      if (run.leaf_of_row) rows_.leaf[half] = run.leaf_of_row[row];
      if (run.sink != ScoreSink::None && run.row_used[row]) {
        rows_.used[half] = true;
        rows_.minus_lse[half] = 0;
        if (run.weight)
          rows_.minus_lse[half] = -kLog2E * run.lse[row * run.lse_row + (item.kv_head * args_.group + head) * run.lse_head];
      }
    }
    sync();
    char* to = memory_ + Shared::kQueries + consumer_ * Shared::kQueryBytes;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int place = (i * 128 + t_) / kChunks, chunk = (i * 128 + t_) % kChunks;
      const float4 a = x[i][0], b = x[i][1];
      *reinterpret_cast<uint4*>(to + chunk / 8 * 8192 + place * 128 + ((chunk % 8) ^ (place % 8)) * 16) =
          make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
    }
    note_used_rows();
    active_ = warp_ * kWarpRows < rows_in_tile_;
    show_to_tensor_cores();
    sync();
  }

  __device__ __forceinline__ void note_used_rows() {  // padding heads of a used row are not used themselves
#pragma unroll
    for (int half = 0; half < kHalves; ++half) rows_.row_used[half] = rows_.used[half];
    if (!kNarrow && shift_ > 0) rows_.row_used[0] = rows_.row_used[kHalves - 1] = rows_.used[0] || rows_.used[kHalves - 1];
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      for (int step = 0; step < 3; ++step) {
        const bool other = __shfl_xor_sync(~0u, int(rows_.row_used[half]), 4 << step);
        if (shift_ > step + kHalves - 1) rows_.row_used[half] = rows_.row_used[half] || other;
      }
  }
  __device__ __forceinline__ static uint32_t pack(float a, float b) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
      return *reinterpret_cast<const uint32_t*>(&both);
    } else {
      const __half2 both = __floats2half2_rn(a, b);
      return *reinterpret_cast<const uint32_t*>(&both);
    }
  }

  __device__ __forceinline__ void attend(const AttentionRunDevice& run, const AttentionItemDevice& item) {
    float s[32], sums[D / 2], top[kHalves], total[kHalves];
    const int64_t base = paired_ && consumer_ ? item.partial[1] : item.partial[0];
    Tiles tiles(item, run.leaves);
    bool more = tiles.next(), begins = true;
    while (more) {
      const TileInFlight tile = next_stage(tiles);
      if (begins) {
#pragma unroll
        for (int i = 0; i < D / 2; ++i) sums[i] = 0;
#pragma unroll
        for (int half = 0; half < kHalves; ++half) top[half] = -INFINITY, total[half] = 0;
      }
      start_scores(tile, s);
      wgmma_wait<0>();
      hold(s);
      more = __any_sync(~0u, tiles.next());
      // Few tiles are not clean: scores want the logits as they are, the softmax without what is not read.
      const bool clean = __all_sync(~0u, tile.leaf < 0 && tile.entry >= clean_begin_ && tile.entry + kPageLen <= clean_end_);
      const bool bad = !clean && !keys_only_ && clean_values(tile.keys + Shared::kStageBytes / 2);
      if (__any_sync(~0u, tile.entry < scored_end_ && (tile.leaf < 0 || tile.leaf == scored_leaf_)))
        score(run, item, tile.entry, s);
      if (!clean && !keys_only_) mask(s, tile.entry, tile.leaf);
      if (!keys_only_) start_values(tile, s, sums, top, total);
      wgmma_wait<0>();
      hold(sums);
      if (lane_ == 0) barrier_arrive(tile.full + kStages * 8);
      if (bad) spoil(tile.entry, tile.leaf, total);
      begins = !more || tiles.split != tile.split;
      if (!begins || keys_only_) continue;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {  // a thread has summed its own columns so far
        total[half] += __shfl_xor_sync(~0u, total[half], 1);
        total[half] += __shfl_xor_sync(~0u, total[half], 2);
      }
      const int of_item = tile.split - item.first_split;
      store_partial(base + (item.fold ? 0 : of_item * partial_floats(rows_in_tile_, D)), item.fold && of_item > 0, sums, top,
                    total);
    }
  }

  // The tile's stage; the ring goes on.
  __device__ __forceinline__ TileInFlight next_stage(const Tiles& tiles) {
    TileInFlight tile;
    tile.split = tiles.split, tile.entry = tiles.block * kPageLen, tile.leaf = tiles.leaf;
    tile.full = shared_ + Shared::kBarriers + uint32_t((ring_ * 2 * kStages + stage_) * 8);
    tile.keys = shared_ + Shared::kRings + uint32_t((ring_ * kStages + stage_) * Shared::kStageBytes);
    tile.phase = phase_;
    if (paired_) ring_ ^= 1;
    if (!paired_ || ring_ == 0)
      if (++stage_ == kStages) stage_ = 0, phase_ ^= 1;
    return tile;
  }
  // S = Q K^T of a tile, once it has arrived; ends with wgmma_wait.
  __device__ __forceinline__ void start_scores(const TileInFlight& tile, float (&s)[32]) {
    barrier_poll(tile.full, tile.phase);
    if (gathered_ || tile.leaf >= 0) show_to_tensor_cores();
    const uint32_t queries = shared_ + Shared::kQueries + uint32_t(consumer_ * Shared::kQueryBytes);
    const uint64_t query_operand = wgmma_operand(queries, 16, 1024), key_operand = wgmma_operand(tile.keys, 16, 1024);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {  // addresses count in units of 16 bytes
      constexpr int kHalf = 8192 / 16;
      wgmma_scores<T>(s, query_operand + uint32_t(k / 4 * kHalf + k % 4 * 2), key_operand + uint32_t(k / 4 * kHalf + k % 4 * 2),
                      k > 0);
    }
    wgmma_commit();
  }

  // Stores the state of a split, or, `onto` what the thread has stored there before, of the splits so far: there are no registers
  // for both.
  __device__ __forceinline__ void store_partial(int64_t offset, bool onto, const float (&sums)[D / 2],
                                                const float (&top)[kHalves], const float (&total)[kHalves]) const {
    const int rows = rows_in_tile_;
    float* to = args_.partials + offset;
    const auto state = [&](int half) { return reinterpret_cast<float2*>(to + rows * D + my_row(half) * 2); };
    float2 before[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      before[half] = onto && my_row(half) < rows ? *state(half) : make_float2(-INFINITY, 0);
    __syncwarp();  // all lanes of a row have read its state
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (my_row(half) >= rows) continue;
      auto* row = reinterpret_cast<float2*>(to + my_row(half) * D + lane_ % 4 * 2);
      const MergeWeights w = onto ? merge_weights(before[half].x, top[half]) : MergeWeights{0, 1, top[half]};
      if (lane_ % 4 == 0) *state(half) = make_float2(w.top, onto ? merge(w, before[half].y, total[half]) : total[half]);
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        float2 x = make_float2(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
        if (onto) x = make_float2(merge(w, row[4 * j].x, x.x), merge(w, row[4 * j].y, x.y));
        row[4 * j] = x;
      }
    }
  }

  // O += P V of a tile with its scores; ends with wgmma_wait. sums: [8 columns j][row, row + 8][2] of the accumulator of O.
  __device__ __forceinline__ void start_values(const TileInFlight& tile, const float (&s)[32], float (&sums)[D / 2],
                                               float (&top)[kHalves], float (&total)[kHalves]) const {
    uint32_t p[16];
    softmax(s, p, sums, top, total);
    hold(sums);
    wgmma_begin();
    const uint64_t value_operand = wgmma_operand(tile.keys + Shared::kStageBytes / 2, 8192, 1024);
#pragma unroll
    for (int k = 0; k < kPageLen / 16; ++k)
      wgmma_values<T>(sums, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3], value_operand + uint32_t(k * (2048 / 16)));
    wgmma_commit();
  }

  // V of entries that some row does not read may hold anything, and nothing times NaN is NaN: rows of V that are not finite are
  // zeroed, and remembered for the rows that do read them.
  __device__ __forceinline__ bool clean_values(uint32_t values) {
    char* at = memory_ + (values - shared_) + t_ / 2 * 128;
    constexpr uint32_t kExponent = std::is_same_v<T, __nv_bfloat16> ? 0x7f80u : 0x7c00u;
    constexpr int kParts = D / 64;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kParts * 4; ++i) {
      const uint4 x = *reinterpret_cast<const uint4*>(at + i / 4 * 8192 + (t_ % 2 * 4 + i % 4) * 16);
      for (uint32_t word : {x.x, x.y, x.z, x.w})
        finite = finite && (word & kExponent) != kExponent && (word >> 16 & kExponent) != kExponent;
    }
    finite = __shfl_xor_sync(~0u, int(finite), 1) && finite;
    const uint32_t entries = __ballot_sync(~0u, !finite);  // two lanes an entry
    auto* found = reinterpret_cast<uint32_t*>(memory_ + Shared::kBad) + (odd_ * 2 + consumer_) * 4;
    odd_ ^= 1;
    if (lane_ == 0) found[warp_] = entries;
    if (paired_) named_barrier(3, 256);  // both consumers have looked
    if (!finite)
      for (int i = 0; i < kParts * 4; ++i)
        *reinterpret_cast<uint4*>(at + i / 4 * 8192 + (t_ % 2 * 4 + i % 4) * 16) = make_uint4(0, 0, 0, 0);
    show_to_tensor_cores();
    if (paired_) named_barrier(3, 256);
    else sync();
    found_ = found;
    return found[0] | found[1] | found[2] | found[3];
  }

  __device__ __forceinline__ bool reads(int half, int entry, int leaf) const {
    return entry >= rows_.first[half] && entry <= rows_.last[half] && (leaf < 0 || leaf == rows_.leaf[half]);
  }

  __device__ __forceinline__ void spoil(int entry, int leaf, float (&total)[kHalves]) const {
    for (int e = 0; e < kPageLen; ++e)
      if (found_[e / 16] >> (e % 16 * 2) & 1)
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
          if (reads(half, entry + e, leaf)) total[half] = __int_as_float(0x7fffffff);
  }

  __device__ __forceinline__ void mask(float (&s)[32], int entry, int leaf) const {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if (i / 2 % 2 < kHalves && !reads(i / 2 % 2 % kHalves, entry + i / 4 * 8 + lane_ % 4 * 2 + i % 2, leaf)) s[i] = -INFINITY;
  }

  // s stays as it is; p: its weights rounded, as the A operand of the second product.
  __device__ __forceinline__ void softmax(const float (&s)[32], uint32_t (&p)[16], float (&sums)[D / 2], float (&top)[kHalves],
                                          float (&total)[kHalves]) const {
    if (!active_) {
#pragma unroll
      for (int i = 0; i < 16; ++i) p[i] = 0;
      return;
    }
    const float c = scale_;
    float alpha[kHalves], base[kHalves];
    // Chains of dependent operations are cut in four: a warp has little else to do meanwhile.
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float most[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) most[i] = fmaxf(s[i * 4 + half * 2], s[i * 4 + half * 2 + 1]);
#pragma unroll
      for (int i = 4; i < 8; ++i) most[i - 4] = fmaxf(most[i - 4], fmaxf(s[i * 4 + half * 2], s[i * 4 + half * 2 + 1]));
      base[half] = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) base[half] = fmaxf(base[half], __shfl_xor_sync(~0u, base[half], 1));
#pragma unroll
    for (int half = 0; half < kHalves; ++half) base[half] = fmaxf(base[half], __shfl_xor_sync(~0u, base[half], 2));
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const float next = fmaxf(top[half], base[half] * c);
      base[half] = next == -INFINITY ? 0.0f : next;
      alpha[half] = exp2_fast(top[half] - base[half]);
      top[half] = next;
    }
    float sum[kHalves][4];
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float a = exp2_fast(fmaf(s[j * 4 + half * 2], c, -base[half]));
        const float b = exp2_fast(fmaf(s[j * 4 + half * 2 + 1], c, -base[half]));
        sum[half][j % 4] = j < 4 ? a + b : sum[half][j % 4] + (a + b);
        p[j * 2 + half] = pack(a, b);  // k step j / 2: [row, row + 8] of its low 8 keys, then of its high 8
        if constexpr (kNarrow) p[j * 2 + 1] = 0;
      }
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      total[half] = fmaf(total[half], alpha[half], (sum[half][0] + sum[half][1]) + (sum[half][2] + sum[half][3]));
    if (__any_sync(~0u, alpha[0] != 1.0f || alpha[kHalves - 1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < D / 2; ++i)
        if (i / 2 % 2 < kHalves) sums[i] *= alpha[i / 2 % 2 % kHalves];
    }
  }

  // Pooled scores of the tile's entries. A lane has two rows of 16 columns; lanes exchange halves of what they have, so that
  // after three exchanges each has 2 columns of all eight rows of its place: heads of a row are added, then rows are combined.
  __device__ __forceinline__ void score(const AttentionRunDevice& run, const AttentionItemDevice& item, int entry,
                                        const float (&s)[32]) {
    const float c = scale_;
    float v[kHalves][16];
    if (active_) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float scale = rows_.used[half] ? c * kLn2 : 0.0f, minus_lse = rows_.minus_lse[half];
        const auto logit = [&](int i) { return s[i / 2 * 4 + half * 2 + i % 2]; };
        if (weight_) {
#pragma unroll
          for (int i = 0; i < 16; ++i) v[half][i] = fminf(1.0f, exp2_fast(fmaf(logit(i), c, minus_lse)));
        } else {
#pragma unroll
          for (int i = 0; i < 16; ++i) v[half][i] = logit(i) * scale;
        }
      }
      if (sink_ == ScoreSink::Rows) {
        score_rows(run, item, entry, v);
        return;
      }
      pool(v);
    } else if (sink_ == ScoreSink::Rows) {
      return;
    }
    const int column = ((lane_ >> 2 & 1) * 4 + (lane_ >> 3 & 1) * 2 + (lane_ >> 4 & 1)) * 8 + lane_ % 4 * 2;
    if (!paired_ && rows_in_tile_ <= kWarpRows) {
      if (!active_) return;
      if (entry + column < scored_end_) scores_[entry + column] = v[0][0];
      if (entry + column + 1 < scored_end_) scores_[entry + column + 1] = v[0][1];
      return;
    }
    auto* scratch = reinterpret_cast<float*>(memory_ + Shared::kScratch) + consumer_ * 4 * kPageLen;
    const bool both = paired_ != 0;
    const auto meet = [&] {
      if (both) named_barrier(3, 256);
      else sync();
    };
    if (scratch_read_) meet();  // the warps that combined the tile before have long read it
    scratch_read_ = true;
    if (active_) *reinterpret_cast<float2*>(scratch + warp_ * kPageLen + column) = make_float2(v[0][0], v[0][1]);
    meet();
    if (t_ < kPageLen && (!both || consumer_ == 0) && entry + t_ < scored_end_) {
      const float neutral = sum_ ? 0.0f : -INFINITY;
      const int rows[2] = {rows_in_tile_, both ? item.rows[1] : 0};
      float x[8];
#pragma unroll
      for (int w = 0; w < 8; ++w) x[w] = w % 4 * kWarpRows < rows[w / 4] ? scratch[w * kPageLen + t_] : neutral;
      float pooled = x[0];
#pragma unroll
      for (int w = 1; w < 8; ++w) pooled = sum_ ? pooled + x[w] : fmaxf(pooled, x[w]);
      scores_[entry + t_] = pooled;
    }
  }

  // Heads of a row stand in neighbouring rows of the tile: first a lane joins its own two, then lanes theirs; warps come later.
  __device__ __forceinline__ void pool(float (&v)[kHalves][16]) const {
    if (shift_ == 0) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) end_heads<16>(v[half], rows_.row_used[half]);
    }
    if constexpr (!kNarrow) {
#pragma unroll
      for (int i = 0; i < 16; ++i) v[0][i] = shift_ > 0 || sum_ ? v[0][i] + v[1][i] : fmaxf(v[0][i], v[1][i]);
      if (shift_ == 1) end_heads<16>(v[0], rows_.row_used[0]);
    }
    constexpr int kStep = kHalves - 1;
    exchange<16, 4>(v[0], shift_ > kStep || sum_);
    if (shift_ == kStep + 1) end_heads<8>(v[0], rows_.row_used[0]);
    exchange<8, 8>(v[0], shift_ > kStep + 1 || sum_);
    if (shift_ == kStep + 2) end_heads<4>(v[0], rows_.row_used[0]);
    exchange<4, 16>(v[0], shift_ > kStep + 2 || sum_);
    if (shift_ == kStep + 3) end_heads<2>(v[0], rows_.row_used[0]);
  }
  template <int N>
  __device__ __forceinline__ void end_heads(float (&v)[16], bool used) const {
    const float neutral = sum_ ? 0.0f : -INFINITY;
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = used ? v[i] * mean_ : neutral;
  }
  template <int N, int kStep>
  __device__ __forceinline__ void exchange(float (&v)[16], bool add) const {
    const bool high = lane_ & kStep;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float mine = high ? v[i + N / 2] : v[i], given = high ? v[i] : v[i + N / 2];
      const float got = __shfl_xor_sync(~0u, given, kStep);
      v[i] = add ? mine + got : fmaxf(mine, got);
    }
  }

  // One score per row, entry and KV head: sums over the group, rows apart.
  __device__ __forceinline__ void score_rows(const AttentionRunDevice& run, const AttentionItemDevice& item, int entry,
                                             float (&v)[kHalves][16]) const {
    constexpr int kStep = kHalves - 1;
    if (!kNarrow && shift_ > 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) v[0][i] += v[kHalves - 1][i];
    }
    if (shift_ > kStep) exchange<16, 4>(v[0], true);
    if (shift_ > kStep + 1) exchange<8, 8>(v[0], true);
    if (shift_ > kStep + 2) exchange<4, 16>(v[0], true);
    const int exchanges = max(0, shift_ - kStep);
    const int block = (exchanges > 0 && (lane_ & 4) ? 4 : 0) + (exchanges > 1 && (lane_ & 8) ? 2 : 0) +
                      (exchanges > 2 && (lane_ & 16) ? 1 : 0);  // the first of 8 columns that the lane has
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (!rows_.row_used[half] || (half > 0 && shift_ > 0)) continue;
      const int plane = run.used_index[rows_.row[half]] * run.plane.kv_heads + item.kv_head;
      const int column = entry + block * 8 + lane_ % 4 * 2;
      float* to = run.scores + plane * run.scores_stride + column;
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if (i < 16 >> exchanges && column + i / 2 * 8 + i % 2 < scored_end_) to[i / 2 * 8 + i % 2] = v[half][i];
    }
  }

  const AttentionDevice& args_;
  const uint32_t shared_;
  char* memory_;
  int consumer_, t_, lane_, warp_;
  int ring_ = 0, stage_ = 0, odd_ = 0, shift_;
  bool paired_, keys_only_;
  float scale_;
  ScoreSink sink_ = ScoreSink::None;
  int rows_in_tile_ = 0, clean_begin_ = 0, clean_end_ = 0, scored_end_ = 0, scored_leaf_ = 0;  // of the item
  bool gathered_ = false;
  bool weight_ = false, sum_ = false;
  bool scratch_read_ = false;
  float mean_ = 0;
  float* scores_ = nullptr;          // of the set or plane
  const uint32_t* found_ = nullptr;  // entries of V that are not finite, two bits each
  uint32_t phase_ = 0;
  bool active_ = false;
  TileRows<kHalves> rows_;
};

template <int D, class T, bool kNarrow>
__global__ void __launch_bounds__(kAttentionThreads, 1) attention_kernel(const AttentionDevice* args) {
#if HUNCH_HOPPER
  using Shared = AttentionShared<D>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const AttentionDevice& a = *args;
  if (threadIdx.x == 0) {
    for (int ring = 0; ring < 2; ++ring)
      for (int stage = 0; stage < Shared::kStages; ++stage) {
        const uint32_t full = shared + Shared::kBarriers + uint32_t((ring * 2 * Shared::kStages + stage) * 8);
        barrier_init(full, 32);
        barrier_init(full + Shared::kStages * 8, a.paired ? 8 : 4);  // a lane of every warp that reads the stage
      }
    for (int queue = 0; queue < 2; ++queue)
      for (int slot = 0; slot < kQueueSlots; ++slot) {
        const uint32_t full = shared + Shared::kQueues + uint32_t((queue * 2 * kQueueSlots + slot) * 8);
        barrier_init(full, 1);
        barrier_init(full + kQueueSlots * 8, a.paired ? 12 : 6);  // every warp of the worker
      }
    barrier_init_done();
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();
  if (threadIdx.x < 128) {
    give_registers<40>();
    produce<D>(a, shared, memory);
  } else {
    take_registers<232>();
    Consumer<D, T, kNarrow>(a, shared, memory).run();
  }
#endif
}

}  // namespace hunch
