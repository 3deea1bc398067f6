// Attention on the tensor cores: a persistent grid of one producer warpgroup (attention_stream.cuh) and two consumers a block. A
// consumer holds a tile of up to 64 packed rows (row x query head of one KV head) and folds tile after tile of 64 keys: S^T = K
// Q^T, online softmax, O^T += V^T P^T. Keys and dimensions stand in the 64 rows of the instruction and packed rows in its
// columns, so few rows cost little. Unpaired, each consumer has its own ring and its own work. Paired, both read the same tiles,
// alternately from both rings, with rows of their own. Included by attention.cu; the order of arithmetic stands in
// attention_args.h.
#pragma once

#include "backend/cuda/attention_stream.cuh"
#include "backend/cuda/attention_wgmma.cuh"

namespace hunch {

// A row's weights stand relative to a reference (base 2), which follows the greatest logit only when that leaves it by more than
// this. By a row's own logits alone: its bits do not depend on who else is there.
constexpr float kSlack = 8, kSlackWeight = 256, kNothingRead = -1e30f;

// A tile of keys on its way through a consumer.
struct TileInFlight {
  int split, entry, leaf;
  uint32_t full, phase, keys;  // its stage: barrier and memory
};

// N: columns for packed rows, at least as many as a tile has; a row's bits are the same with any.
template <int D, class T, int N, bool kPaired>
class Consumer {
  using Shared = AttentionShared<D, kPaired>;
  static constexpr int kStages = Shared::kStages, kParts = D / 64, kBlocks = N / 8, kColumns = N / 4;  // columns: a thread's
  static constexpr bool kKeepsFold = N <= 32;  // of an item's splits, in registers; else in memory

 public:
  __device__ __forceinline__ Consumer(const AttentionDevice& args, uint32_t shared, char* memory)
      : args_(args), shared_(shared), memory_(memory) {
    consumer_ = uniform(int(threadIdx.x) / 128 - 1), t_ = int(threadIdx.x) % 128, lane_ = t_ % 32, warp_ = uniform(t_ / 32);
    keys_only_ = uniform(args.keys_only) != 0, shift_ = uniform(args.group_shift), scale_ = args.scale_log2;
  }

  __device__ __forceinline__ void run() {
    ring_ = kPaired ? 0 : consumer_;
    int last_run = -1, last_head = -1, last_group = -1;
    ItemQueue queue = ItemQueue::of<Shared>(args_, shared_, memory_, consumer_, false);
    for (; queue.item() < args_.num_items; queue.advance()) {
      const AttentionItemDevice& item = args_.items[uniform(queue.item())];
      const AttentionRunDevice& run = args_.runs[item.run];
      rows_in_tile_ = uniform(kPaired && consumer_ ? item.rows[1] : item.rows[0]);
      tile_ = rows_in_tile_ == 0 ? 0 : kPaired ? item.mgroup * 2 + consumer_ : item.mgroup;
      clean_begin_ = item.clean_begin, clean_end_ = item.clean_end;
      sink_ = rows_in_tile_ == 0 ? ScoreSink::None : ScoreSink(uniform(int(run.sink)));
      scored_end_ = sink_ == ScoreSink::None ? 0 : run.prefix_len, scored_leaf_ = item.leaf_begin;
      gathered_ = run.index != nullptr;
      weight_ = uniform(run.weight) != 0, sum_ = uniform(run.sum) != 0, mean_ = run.mean;
      if (sink_ != ScoreSink::Rows)
        scores_ = run.scores +
                  (sink_ == ScoreSink::Groups ? tile_ * run.plane.kv_heads + item.kv_head : item.kv_head) * run.scores_stride;
      if (item.run != last_run || item.kv_head != last_head || item.mgroup != last_group) {
        load_queries(run, item);
        last_run = item.run, last_head = item.kv_head, last_group = item.mgroup;
      }
      if (keys_only_) look_at_keys(run, item);
      else attend(run, item);
    }
  }

 private:
  __device__ __forceinline__ void sync() const { named_barrier(1 + consumer_, 128); }
  // Whether any thread of the consumer says so; a meeting of its warps.
  __device__ __forceinline__ bool any_of_consumer(bool mine) const {
    uint32_t any;
    asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, 128, p;\nselp.u32 %0, 1, 0, q;}\n"
                 : "=r"(any)
                 : "r"(uint32_t(mine)), "r"(1 + consumer_)
                 : "memory");
    return __any_sync(~0u, any != 0);
  }
  __device__ __forceinline__ int column(int c) const { return c / 2 * 8 + lane_ % 4 * 2 + c % 2; }  // of the thread's column c
  __device__ __forceinline__ int key(int h) const { return warp_ * 16 + lane_ / 4 + 8 * h; }        // of the thread's two
  // What is known of the rows of the tile, in shared memory.
  __device__ __forceinline__ int* last() const {
    return reinterpret_cast<int*>(memory_ + Shared::kRows) + consumer_ * 4 * kTileRows;
  }
  __device__ __forceinline__ int* leaf() const { return last() + kTileRows; }
  __device__ __forceinline__ float* minus_lse() const { return reinterpret_cast<float*>(last() + 2 * kTileRows); }  // base 2
  __device__ __forceinline__ int* plane() const { return last() + 3 * kTileRows; }  // of scores by row; -1: none

  // Queries of the tile, rounded, in the swizzle; zeros where there is no row. All earlier products are done.
  __device__ __forceinline__ void load_queries(const AttentionRunDevice& run, const AttentionItemDevice& item) {
    constexpr int kChunks = D / 8, kEach = (N * kChunks + 127) / 128;  // 16 bytes of the tile each
    const int heads = 1 << shift_, first = tile_ * kTileRows, end = max(rows_in_tile_, 1);
    const auto head_of = [&](int in_tile) { return (first + in_tile) & (heads - 1); };
    float4 x[kEach][2];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {  // all loads first, whatever they are of: one wait for memory
      const int chunk = (i * 128 + t_) % kChunks, in_tile = (i * 128 + t_) / kChunks, head = head_of(in_tile);
      const int row = run.first_row + row_of(run, min(in_tile, end - 1)), of_run = item.kv_head * args_.group;
      const auto* from = reinterpret_cast<const float4*>(args_.q + row * args_.q_row +
                                                         (of_run + min(head, args_.group - 1)) * args_.q_head + chunk * 8);
      const bool stands = in_tile < rows_in_tile_ && head < args_.group;
      x[i][0] = from[0], x[i][1] = from[1];
      if (!stands) x[i][0] = x[i][1] = make_float4(0, 0, 0, 0);
    }
    int my_last = -1, my_leaf = -1, my_plane = -1;
    float my_lse = -INFINITY;
    if (t_ < rows_in_tile_ && head_of(t_) < args_.group) {
      const int row = row_of(run, t_);
      if (!keys_only_) my_last = run.last[row];
      if (run.leaf_of_row) my_leaf = run.leaf_of_row[row];
      const bool used = sink_ != ScoreSink::None && run.row_used[row];
      if (used && sink_ == ScoreSink::Rows) my_plane = run.used_index[row] * run.plane.kv_heads + item.kv_head;
      if (used && weight_)
        my_lse = -kLog2E * run.lse[row * run.lse_row + (item.kv_head * args_.group + head_of(t_)) * run.lse_head];
    }
    used_ = row_used_ = 0;
    if (sink_ != ScoreSink::None) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const bool used = run.row_used[row_of(run, min(column(c), end - 1))] && column(c) < rows_in_tile_;
        row_used_ |= uint32_t(used) << c, used_ |= uint32_t(used && head_of(column(c)) < args_.group) << c;
      }
    }
    sync();
    char* to = memory_ + Shared::kQueries + consumer_ * Shared::kQueryBytes;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int place = (i * 128 + t_) / kChunks, chunk = (i * 128 + t_) % kChunks;
      const float4 a = x[i][0], b = x[i][1];
      if (place < N)
        *reinterpret_cast<uint4*>(to + chunk / 8 * 8192 + place * 128 + ((chunk % 8) ^ (place % 8)) * 16) =
            make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
    }
    if (t_ < kTileRows) last()[t_] = my_last, leaf()[t_] = my_leaf, minus_lse()[t_] = my_lse, plane()[t_] = my_plane;
    show_to_tensor_cores();
    sync();
  }
  __device__ __forceinline__ int row_of(const AttentionRunDevice& run, int in_tile) const {  // the run's
    const int listed = (tile_ * kTileRows + in_tile) >> shift_;
    return run.rows ? run.rows[listed] : listed;
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

  // The state of a thread's columns over a stretch of keys. o: sums as the tensor cores leave them (attention_wgmma.cuh), rows
  // are dimensions. total: over the thread's own keys until a split ends.
  struct State {
    float o[kParts][N / 2], top[kColumns], total[kColumns];
  };

  __device__ __forceinline__ void attend(const AttentionRunDevice& run, const AttentionItemDevice& item) {
    float s[N / 2];  // as the tensor cores leave them, rows are keys
    State state, folded;
    const int64_t base = kPaired && consumer_ ? item.partial[1] : item.partial[0];
    Tiles tiles(item, run.leaves);
    bool more = tiles.next(), begins = true;
    while (more) {
      if (begins) {
#pragma unroll
        for (int part = 0; part < kParts; ++part)
#pragma unroll
          for (int i = 0; i < N / 2; ++i) state.o[part][i] = 0;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) state.top[c] = kNothingRead, state.total[c] = 0;
      }
      const TileInFlight tile = next_stage(tiles);
      make_scores(tile, s);
      more = __any_sync(~0u, tiles.next());
      begins = !more || tiles.split != tile.split;
      // Few tiles are not clean: scores want the logits as they are, the softmax without what is not read.
      const bool clean = __all_sync(~0u, tile.leaf < 0 && tile.entry >= clean_begin_ && tile.entry + kPageLen <= clean_end_);
      const bool scored = is_scored(tile), of_weights = clean && weight_;
      const bool bad = !clean && clean_values(tile.keys + Shared::kStageBytes / 2);
      if (scored && !of_weights) score_logits(run, tile.entry, s);
      if (!clean) mask(run, s, tile.entry, tile.leaf);
      const uint32_t weights = kPaired ? shared_ + Shared::kWeights + uint32_t(consumer_ * Shared::kWeightBytes) : tile.keys;
      float p[N / 2];
      start_values(tile, weights, s, p, state);
      if (scored && of_weights) score_weights(run, tile.entry, p, state.top);  // while the tensor cores work
      wgmma_wait<0>();
#pragma unroll
      for (int part = 0; part < kParts; ++part) hold(state.o[part]);
      if (bad) spoil(run, tile.entry, tile.leaf, state.total);
      if (begins) end_split(weights, state);
      leave(tile);
      if (begins) store_split(item, base, tile.split - item.first_split, !more, state, folded);
    }
  }
  // Scores without attention.
  __device__ __forceinline__ void look_at_keys(const AttentionRunDevice& run, const AttentionItemDevice& item) {
    Tiles tiles(item, run.leaves);
    while (__any_sync(~0u, tiles.next())) {
      float s[N / 2];
      const TileInFlight tile = next_stage(tiles);
      make_scores(tile, s);
      if (is_scored(tile)) score_logits(run, tile.entry, s);
      leave(tile);
    }
  }

  __device__ __forceinline__ bool is_scored(const TileInFlight& tile) const {
    return __any_sync(~0u, tile.entry < scored_end_ && (tile.leaf < 0 || tile.leaf == scored_leaf_));
  }
  __device__ __forceinline__ void leave(const TileInFlight& tile) const {  // the stage to the producers
    __syncwarp();
    if (lane_ == 0) barrier_arrive(tile.full + kStages * 8);
  }

  __device__ __forceinline__ void store_split(const AttentionItemDevice& item, int64_t base, int of_item, bool last, State& state,
                                              State& folded) const {
    if (!item.fold) {
      store_partial(base + of_item * partial_floats(rows_in_tile_, D), false, state);
    } else if constexpr (kKeepsFold) {
      if (of_item == 0) folded = state;
      else fold(folded, state);
      if (last) store_partial(base, false, folded);
    } else {
      store_partial(base, of_item > 0, state);
    }
  }
  __device__ __forceinline__ static void fold(State& folded, const State& state) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const MergeWeights w = merge_weights(folded.top[c], state.top[c]);
      folded.top[c] = w.top, folded.total[c] = merge(w, folded.total[c], state.total[c]);
#pragma unroll
      for (int n = 0; n < kParts * 2; ++n) {
        float& o = folded.o[n / 2][c / 2 * 4 + n % 2 * 2 + c % 2];
        o = merge(w, o, state.o[n / 2][c / 2 * 4 + n % 2 * 2 + c % 2]);
      }
    }
  }

  // The tile's stage; the ring goes on.
  __device__ __forceinline__ TileInFlight next_stage(const Tiles& tiles) {
    TileInFlight tile;
    tile.split = tiles.split, tile.entry = tiles.block * kPageLen, tile.leaf = tiles.leaf;
    tile.full = shared_ + Shared::kBarriers + uint32_t((ring_ * 2 * kStages + stage_) * 8);
    tile.keys = shared_ + Shared::kRings + uint32_t((ring_ * kStages + stage_) * Shared::kStageBytes);
    tile.phase = phase_;
    if (kPaired) ring_ ^= 1;
    if (!kPaired || ring_ == 0)
      if (++stage_ == kStages) stage_ = 0, phase_ ^= 1;
    return tile;
  }
  // S^T = K Q^T of a tile, once it has arrived.
  __device__ __forceinline__ void make_scores(const TileInFlight& tile, float (&s)[N / 2]) const {
    barrier_poll(tile.full, tile.phase);
    if (gathered_ || tile.leaf >= 0) show_to_tensor_cores();
    const uint32_t queries = shared_ + Shared::kQueries + uint32_t(consumer_ * Shared::kQueryBytes);
    const uint32_t query_operand = wgmma_operand(queries, 16), key_operand = wgmma_operand(tile.keys, 16);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {  // addresses count in units of 16 bytes
      const uint32_t at = uint32_t(k / 4 * (8192 / 16) + k % 4 * 2);
      wgmma_tile<T, N, false>(s, key_operand + at, query_operand + at, k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(s);
  }

  // O^T += V^T P^T of a tile, p being the weights that its scores make; ends with wgmma_wait. `weights` is where P goes, [row][64
  // keys] in the swizzle, and what warps have to tell each other before: memory that nothing reads once all of them have their
  // scores.
  __device__ __forceinline__ void start_values(const TileInFlight& tile, uint32_t weights, const float (&s)[N / 2],
                                               float (&p)[N / 2], State& state) {
    uint32_t rounded[kBlocks][2];
    weigh(s, state.top, p, rounded);
    if (any_of_consumer(leaves_slack(rounded))) {
      raise(weights, s, state);
      weigh(s, state.top, p, rounded);
    }
    const uint32_t to = weights + uint32_t((lane_ / 16 * 8 + lane_ % 8) * 128 + ((warp_ * 2 + lane_ / 8 % 2) ^ lane_ % 8) * 16);
#pragma unroll
    for (int j = 0; j + 1 < kBlocks; j += 2)
      store_transposed(to + uint32_t(j * 1024), rounded[j][0], rounded[j][1], rounded[j + 1][0], rounded[j + 1][1]);
    if constexpr (kBlocks == 1) store_transposed(to, rounded[0][0], rounded[0][1]);
    show_to_tensor_cores();
    sync();
#pragma unroll
    for (int part = 0; part < kParts; ++part) hold(state.o[part]);
    wgmma_begin();
    const uint32_t weight_operand = wgmma_operand(weights, 16);
    const uint32_t value_operand = wgmma_operand(tile.keys + Shared::kStageBytes / 2, 8192);
#pragma unroll
    for (int k = 0; k < kPageLen / 16; ++k)
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        wgmma_tile<T, N, true>(state.o[part], value_operand + uint32_t(part * (8192 / 16) + k * (2048 / 16)),
                               weight_operand + uint32_t(k * 2), true);
    wgmma_commit();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) state.total[c] += p[c / 2 * 4 + c % 2] + p[c / 2 * 4 + 2 + c % 2];
  }
  __device__ __forceinline__ void weigh(const float (&s)[N / 2], const float (&top)[kColumns], float (&p)[N / 2],
                                        uint32_t (&rounded)[kBlocks][2]) const {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) p[i] = exp2_fast(fmaf(s[i], scale_, -top[i / 4 * 2 + i % 2]));
#pragma unroll
    for (int i = 0; i < kBlocks * 2; ++i) rounded[i / 2][i % 2] = pack(p[i * 2], p[i * 2 + 1]);
  }
  __device__ __forceinline__ static bool leaves_slack(const uint32_t (&rounded)[kBlocks][2]) {
    using Pair = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, __nv_bfloat162, __half2>;
    Pair most = *reinterpret_cast<const Pair*>(&rounded[0][0]);
#pragma unroll
    for (int i = 1; i < kBlocks * 2; ++i) most = __hmax2(most, *reinterpret_cast<const Pair*>(&rounded[i / 2][i % 2]));
    return fmaxf(__low2float(most), __high2float(most)) > kSlackWeight;
  }

  // References follow where logits have left them. The warps, each with 16 of the keys, exchange their greatest.
  __device__ __forceinline__ void raise(uint32_t scratch, const float (&s)[N / 2], State& state) const {
    float most[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) most[c] = fmaxf(s[c / 2 * 4 + c % 2], s[c / 2 * 4 + 2 + c % 2]);
    gather<false>(scratch, most);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float before = state.top[c], next = most[c] * scale_, after = next > before + kSlack ? next : before;
      const float alpha = exp2_fast(before - after);
      state.top[c] = after, state.total[c] *= alpha;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int h = 0; h < 2; ++h) state.o[part][c / 2 * 4 + h * 2 + c % 2] *= alpha;
    }
    sync();  // everybody has read the scratch
  }
  // A value of each of a thread's columns, added up (or the greatest) over the 8 lanes of every warp that have the column, then
  // over the warps, in order.
  template <bool kAdd>
  __device__ __forceinline__ void gather(uint32_t scratch, float (&x)[kColumns]) const {
    const auto join = [](float a, float b) { return kAdd ? a + b : fmaxf(a, b); };
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int step = 4; step < 32; step *= 2) x[c] = join(x[c], __shfl_xor_sync(~0u, x[c], step));
    auto* told = reinterpret_cast<float2*>(memory_ + (scratch - shared_));  // [warp][column / 2]
    if (lane_ < 4)
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) told[warp_ * (N / 2) + j * 4 + lane_] = make_float2(x[j * 2], x[j * 2 + 1]);
    sync();
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      float2 y[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) y[w] = told[w * (N / 2) + j * 4 + lane_ % 4];
      x[j * 2] = join(join(join(y[0].x, y[1].x), y[2].x), y[3].x);
      x[j * 2 + 1] = join(join(join(y[0].y, y[1].y), y[2].y), y[3].y);
    }
  }
  __device__ __forceinline__ void end_split(uint32_t scratch, State& state) const {
    sync();  // all products with what stands there are done
    gather<true>(scratch, state.total);
    show_to_tensor_cores();  // before the copy engine writes there
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (state.top[c] == kNothingRead) state.top[c] = -INFINITY;
  }

  // Stores the state of a split, or, `onto` what the consumer has stored there before, of the splits so far: there are no
  // registers for both.
  __device__ __forceinline__ void store_partial(int64_t offset, bool onto, State& state) const {
    auto& [o, top, total] = state;
    const int rows = rows_in_tile_;
    float* to = args_.partials + offset;
    // The kernel that combines them reads them soon; keys that are read again need the L2 more.
    const uint64_t policy = args_.reread ? policy_normal() : policy_keep();
    float2 before[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      before[c] =
          onto && column(c) < rows ? *reinterpret_cast<const float2*>(to + rows * D + column(c) * 2) : make_float2(-INFINITY, 0);
    constexpr int kAtOnce = kColumns < 4 ? kColumns : 4,
                  kEach = kParts * 2;  // columns, and values of each: all loads before a store
#pragma unroll
    for (int first = 0; first < kColumns; first += kAtOnce) {
      float old[kAtOnce][kEach];
      float* row[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int c = first + i;
        row[i] = to + column(c) * D + key(0);  // the thread's dimensions stand where its keys do
#pragma unroll
        for (int n = 0; n < kEach; ++n) old[i][n] = onto && column(c) < rows ? row[i][n / 2 * 64 + n % 2 * 8] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int c = first + i;
        const MergeWeights w = onto ? merge_weights(before[c].x, top[c]) : MergeWeights{0, 1, top[c]};
        if (onto) top[c] = w.top, total[c] = merge(w, before[c].y, total[c]);
        if (column(c) < rows)
#pragma unroll
          for (int n = 0; n < kEach; ++n) {
            const float x = o[n / 2][c / 2 * 4 + n % 2 * 2 + c % 2];
            store_to_keep(row[i] + (n / 2 * 64 + n % 2 * 8), onto ? merge(w, old[i][n], x) : x, policy);
          }
      }
    }
    if (onto) sync();  // all have read the state
    if (t_ < 4)
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        if (column(c) < rows) *reinterpret_cast<float2*>(to + rows * D + column(c) * 2) = make_float2(top[c], total[c]);
  }

  // V of entries that some row does not read may hold anything, and nothing times NaN is NaN: rows of V that are not finite are
  // zeroed, and remembered for the rows that do read them.
  __device__ __forceinline__ bool clean_values(uint32_t values) {
    char* at = memory_ + (values - shared_) + t_ / 2 * 128;
    constexpr uint32_t kExponent = std::is_same_v<T, __nv_bfloat16> ? 0x7f80u : 0x7c00u;
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
    if (kPaired) named_barrier(3, 256);  // both consumers have looked
    if (!finite)
      for (int i = 0; i < kParts * 4; ++i)
        *reinterpret_cast<uint4*>(at + i / 4 * 8192 + (t_ % 2 * 4 + i % 4) * 16) = make_uint4(0, 0, 0, 0);
    show_to_tensor_cores();
    if (kPaired) named_barrier(3, 256);
    else sync();
    found_ = found;
    return found[0] | found[1] | found[2] | found[3];
  }

  __device__ __forceinline__ bool reads(const AttentionRunDevice& run, int column, int entry, int leaf_of_tile) const {
    const int newest = last()[column], oldest = max(run.first, run.window ? newest + 1 - run.window : 0);
    return entry >= oldest && entry <= newest && (leaf_of_tile < 0 || leaf_of_tile == leaf()[column]);
  }
  __device__ __forceinline__ void spoil(const AttentionRunDevice& run, int entry, int leaf_of_tile,
                                        float (&total)[kColumns]) const {
    for (int e = 0; e < kPageLen; ++e)
      if (found_[e / 16] >> (e % 16 * 2) & 1)
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          if (reads(run, column(c), entry + e, leaf_of_tile)) total[c] = __int_as_float(0x7fffffff);
  }
  __device__ __forceinline__ void mask(const AttentionRunDevice& run, float (&s)[N / 2], int entry, int leaf_of_tile) const {
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      if (!reads(run, column(i / 4 * 2 + i % 2), entry + key(i / 2 % 2), leaf_of_tile)) s[i] = -INFINITY;
  }

  // Pooled scores of the tile's entries out of what a row and an entry have: the metric of the logits, or of their weights.
  __device__ __forceinline__ void score_logits(const AttentionRunDevice& run, int entry, const float (&s)[N / 2]) const {
    float x[N / 2];
    if (weight_) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) x[i] = fminf(1.0f, exp2_fast(fmaf(s[i], scale_, minus_lse()[column(i / 4 * 2 + i % 2)])));
    } else {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) x[i] = used_ >> (i / 4 * 2 + i % 2) & 1 ? s[i] * (scale_ * kLn2) : 0.0f;
    }
    score(run, entry, x);
  }
  __device__ __forceinline__ void score_weights(const AttentionRunDevice& run, int entry, const float (&p)[N / 2],
                                                const float (&top)[kColumns]) const {
    float x[N / 2];
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const float2 lse = *reinterpret_cast<const float2*>(minus_lse() + column(2 * j));
      const float to[2] = {exp2_fast(top[2 * j] + lse.x), exp2_fast(top[2 * j + 1] + lse.y)};
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j * 4 + i] = __saturatef(p[j * 4 + i] * to[i % 2]);
    }
    score(run, entry, x);
  }
  // Columns of a row's heads are added, in pairs, then over lanes, then over blocks of columns; then rows are combined. Of a
  // thread's two keys one goes to the odd lane beside it, the other to the even one.
  __device__ __forceinline__ void score(const AttentionRunDevice& run, int entry, const float (&x)[N / 2]) const {
    float v[kBlocks][2];  // [block][key]: the pair of columns
    const bool rows = sink_ == ScoreSink::Rows;
    if (shift_ == 0) {
      if (rows) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) put_row(run, i / 4 * 2 + i % 2, entry + key(i / 2 % 2), x[i]);
        return;
      }
#pragma unroll
      for (int i = 0; i < kBlocks * 2; ++i)
        v[i / 2][i % 2] = combined(ended(x[i * 2], i / 2 * 2), ended(x[i * 2 + 1], i / 2 * 2 + 1));
    } else {
#pragma unroll
      for (int i = 0; i < kBlocks * 2; ++i) v[i / 2][i % 2] = x[i * 2] + x[i * 2 + 1];
    }
    if (shift_ == 1) {
#pragma unroll
      for (int i = 0; i < kBlocks * 2; ++i) {
        if (rows) put_row(run, i / 2 * 2, entry + key(i % 2), v[i / 2][i % 2]);
        v[i / 2][i % 2] = ended(v[i / 2][i % 2], i / 2 * 2);
      }
      if (rows) return;
    }
    float w[kBlocks];
    const bool odd = lane_ & 1, add = shift_ > 1 || sum_;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const float got = __shfl_xor_sync(~0u, odd ? v[j][0] : v[j][1], 1), kept = odd ? v[j][1] : v[j][0];
      w[j] = add ? kept + got : fmaxf(kept, got);
    }
    if (shift_ > 2) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) w[j] += __shfl_xor_sync(~0u, w[j], 2);
    }
    const bool both = shift_ > 3;  // blocks are a row's
    if constexpr (kBlocks > 1) {
      if (both) {
#pragma unroll
        for (int j = 0; j < kBlocks; j += 2) w[j] += w[j + 1], w[j + 1] = sum_ ? 0.0f : -INFINITY;
      }
    }
    const int at = entry + key(odd);
    if (rows) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j)
        if (!(shift_ > 2 && lane_ & 2) && !(both && j % 2)) put_row(run, 2 * j, at, w[j]);
      return;
    }
    if (shift_ > 1) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j)
        if (!(both && j % 2)) w[j] = ended(w[j], 2 * j);
    }
    float pooled = w[0];
    if (sum_) {
#pragma unroll
      for (int j = 1; j < kBlocks; ++j) pooled += w[j];
    } else {
#pragma unroll
      for (int j = 1; j < kBlocks; ++j) pooled = fmaxf(pooled, w[j]);
    }
    const float other = __shfl_xor_sync(~0u, pooled, 2);
    if (shift_ < 3) pooled = combined(pooled, other);
    if (!(lane_ & 2) && at < scored_end_) scores_[at] = pooled;
  }
  // The score of a row whose heads have been added; of a row that does not count, what changes nothing.
  __device__ __forceinline__ float ended(float x, int c) const {
    return row_used_ >> c & 1 ? x * mean_ : sum_ ? 0.0f : -INFINITY;
  }
  __device__ __forceinline__ float combined(float a, float b) const {
    const float added = a + b, greatest = fmaxf(a, b);
    return sum_ ? added : greatest;
  }

  // One score per row, entry and KV head: the sum over the group, rows apart.
  __device__ __forceinline__ void put_row(const AttentionRunDevice& run, int c, int entry, float x) const {
    const int to = plane()[column(c)];
    if (to >= 0 && entry < scored_end_) run.scores[to * run.scores_stride + entry] = x;
  }

  const AttentionDevice& args_;
  const uint32_t shared_;
  char* memory_;
  int consumer_, t_, lane_, warp_;
  int ring_ = 0, stage_ = 0, odd_ = 0, shift_;
  bool keys_only_;
  float scale_;
  ScoreSink sink_ = ScoreSink::None;
  int tile_ = 0, rows_in_tile_ = 0, clean_begin_ = 0, clean_end_ = 0, scored_end_ = 0, scored_leaf_ = 0;  // of the item
  bool gathered_ = false, weight_ = false, sum_ = false;
  float mean_ = 0;
  float* scores_ = nullptr;           // of the set or plane
  uint32_t used_ = 0, row_used_ = 0;  // by scores, a bit each of the thread's columns; the second of padding heads too
  const uint32_t* found_ = nullptr;   // entries of V that are not finite, two bits each
  uint32_t phase_ = 0;
};

template <int D, class T, int N, bool kPaired>
__global__ void __launch_bounds__(kAttentionThreads, 1) attention_kernel(const AttentionDevice* args) {
#if HUNCH_HOPPER
  using Shared = AttentionShared<D, kPaired>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const AttentionDevice& a = *args;
  if (threadIdx.x == 0) {
    for (int ring = 0; ring < 2; ++ring)
      for (int stage = 0; stage < Shared::kStages; ++stage) {
        const uint32_t full = shared + Shared::kBarriers + uint32_t((ring * 2 * Shared::kStages + stage) * 8);
        barrier_init(full, 32);
        barrier_init(full + Shared::kStages * 8, kPaired ? 8 : 4);  // a lane of every warp that reads the stage
      }
    for (int queue = 0; queue < 2; ++queue)
      for (int slot = 0; slot < kQueueSlots; ++slot) {
        const uint32_t full = shared + Shared::kQueues + uint32_t((queue * 2 * kQueueSlots + slot) * 8);
        barrier_init(full, 1);
        barrier_init(full + kQueueSlots * 8, kPaired ? 12 : 6);  // every warp of the worker
      }
    barrier_init_done();
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();
  if (threadIdx.x < 128) {
    give_registers<56>();
    produce<Shared>(a, shared, memory);
  } else {
    take_registers<224>();
    Consumer<D, T, N, kPaired>(a, shared, memory).run();
  }
#endif
}

}  // namespace hunch
