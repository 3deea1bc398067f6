// The consumer of many packed rows, which stand in the rows of the instruction: S = Q K^T, O += P V for 64 of them and tiles of
// 64 keys. P stays in registers, and warps, each with 16 rows, have nothing to tell each other but scores. Paired, two consumers
// read the same tiles, alternately from both rings, with rows of their own. What it leaves of a row has the bits that
// attention_columns.cuh leaves: the same weights against the same references, added in the same order.
#pragma once

#include "backend/cuda/attention_consumer.cuh"

namespace hunch {

// kScored: some run wants scores.
// kKeeps: sums of earlier splits stay on the chip. Not beside codes; and lone rows without scores, which wait for memory, are
// better served by a third stage of the ring.
template <int D, class T, bool kPaired, bool kScored, bool kKeeps = (kPaired || kScored) && !std::is_same_v<T, Coded>>
class RowConsumer : public AttentionConsumer<RowConsumer<D, T, kPaired, kScored, kKeeps>, D, T, kPaired, false, kKeeps, false> {
  using Base = AttentionConsumer<RowConsumer<D, T, kPaired, kScored, kKeeps>, D, T, kPaired, false, kKeeps, false>;
  friend Base;
  using Base::any_leaves_slack, Base::args_, Base::await, Base::await_values, Base::clean_values, Base::combined, Base::consumer_,
      Base::head_of, Base::is_bad;
  using Base::clean_begin_, Base::clean_end_, Base::is_clean, Base::is_scored, Base::lane_, Base::leave_keys, Base::leave_values,
      Base::leaves_slack, Base::mean_, Base::memory_;
  using Base::next_stage, Base::pack, Base::plain_tiles, Base::queries, Base::reads, Base::row_of, Base::rows_in_tile_,
      Base::scale_, Base::scored_end_;
  using Base::scores_, Base::shift_, Base::sink_, Base::sum_, Base::sync, Base::t_, Base::warp_, Base::weight_, Base::keys_only_;
  static constexpr int kClasses =
      8;  // of keys, by which a thread adds weights: 16 (class / 2) + 8 {0, 1} + 2 (lane % 4) + class % 2

 public:
  static constexpr bool kScores = kScored;
  static constexpr int kProducerRegisters = std::is_same_v<T, Coded> ? 88 : 56;
  using Base::Base;
  using typename Base::Shared;

 private:
  // A thread's rows: two, which are neighbours, heads of one row mostly, so that scores are added before lanes exchange them.
  HUNCH_DEVICE static int row_of_place(int place) { return place / 16 * 16 + place % 8 * 2 + place % 16 / 8; }
  HUNCH_DEVICE int my_row(int half) const { return warp_ * 16 + lane_ / 4 * 2 + half; }

  HUNCH_DEVICE void begin_rows(const AttentionRunDevice& run, const AttentionItemDevice& item) {
    const float* lse[2] = {nullptr, nullptr};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = my_row(half);
      last_[half] = -1, leaf_[half] = -1, plane_[half] = -1, minus_lse_[half] = -INFINITY, used_[half] = row_used_[half] = false;
      if (in_tile >= rows_in_tile_) continue;
      const int row = row_of(run, in_tile);
      row_used_[half] = kScored && sink_ != ScoreSink::None && run.row_used[row];
      if (row_used_[half] && sink_ == ScoreSink::Rows) plane_[half] = run.used_index[row] * run.plane.kv_heads + item.kv_head;
      if (head_of(in_tile) >= args_.group) continue;
      if (!keys_only_) last_[half] = run.last[row];
      if (run.leaf_of_row) leaf_[half] = run.leaf_of_row[row];
      used_[half] = row_used_[half];
      if (used_[half] && weight_)
        lse[half] = run.lse + row * run.lse_row + (item.kv_head * args_.group + head_of(in_tile)) * run.lse_head;
    }
    Base::take_turn();
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (lse[half]) minus_lse_[half] = -kLog2E * *lse[half];
    this->template load_queries<kTileRows>(run, item, row_of_place, [&] {
      if (kScored) best()[t_] = 0;
    });
  }

  // The state of the thread's rows over a stretch of keys. o: [8 columns j][half][2]. total: by classes of keys until a split
  // ends.
  struct State {
    float o[D / 2], top[2], total[2];
  };

  HUNCH_DEVICE void attend(const AttentionRunDevice& run, const AttentionItemDevice& item) {
    float s[32], added[2][kClasses];
    State state;
    Folded folded;
    const int64_t base = kPaired && consumer_ ? item.partial[1] : item.partial[0];
    Tiles tiles(item, run.leaves);
    tiles.next();
    TileInFlight tile = next_stage(tiles);
    for (bool more = true; more;) {
      make_scores(tile, s);
#pragma unroll
      for (int i = 0; i < D / 2; ++i) state.o[i] = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        state.top[half] = kNothingRead;
#pragma unroll
        for (int i = 0; i < kClasses; ++i) added[half][i] = 0;
      }
      const int split = tile.split;
      bool goes_on = true;
      do {
        // Nearly all tiles: every row reads all of it, and the next is of this split.
        for (int alike = plain_tiles(tiles, tile); alike > 1; --alike) {
          float p[32];
          uint32_t rounded[16];
          make_weights(s, p, rounded, state, added);
          const TileInFlight before = tile;
          tiles.next_in_order();
          tile = next_stage(tiles);
          const bool scored = kScored && is_scored(before);
          await(tile);
          await_values(before);
          hold(state.o);
          wgmma_begin();
          start_scores(tile, s);
          start_values(before, rounded, state);
          wgmma_commit();
          if (scored) score_weights(run, before.entry, p, state.top);  // while the tensor cores work
          wgmma_wait<0>();
          hold(s);
          hold(state.o);
          leave_keys(tile);
          leave_values(before);
        }
        more = __any_sync(~0u, tiles.next());
        const bool clean = is_clean(tile), scored = kScored && is_scored(tile), of_weights = clean && weight_;
        await_values(tile);
        const bool bad = !clean && clean_values(tile.keys);
        if (scored && !of_weights) score_logits(run, tile.entry, s);
        if (!clean) mask(run, tile, s);
        float p[32];
        uint32_t rounded[16];
        make_weights(s, p, rounded, state, added);
        if (bad) spoil(run, tile, added);
        const TileInFlight before = tile;
        hold(state.o);
        wgmma_begin();
        start_values(before, rounded, state);
        wgmma_commit();
        if (scored && of_weights) score_weights(run, tile.entry, p, state.top);
        wgmma_wait<0>();
        hold(state.o);
        leave_values(before);
        if (more) tile = next_stage(tiles);
        goes_on = more && tile.split == split;
        if (goes_on) make_scores(tile, s);
      } while (goes_on);
      end_split(state, added);
      if (kScored && in_blocks()) store_best(split);
      const int of_item = split - item.first_split;
      if constexpr (kKeeps) {
        if (item.fold && of_item > 0) fold_onto(folded, state);
        if (item.fold && more) {
          keep(folded, state);
          continue;
        }
      }
      store_partial(
          item, base + (item.fold ? 0 : of_item * partial_floats(rows_in_tile_, D)), !kKeeps && item.fold && of_item > 0, state);
    }
  }
  // Scores without attention.
  HUNCH_DEVICE void look_at_keys(const AttentionRunDevice& run, const AttentionItemDevice& item) {
    Tiles tiles(item, run.leaves);
    int split = item.first_split;
    while (__any_sync(~0u, tiles.next())) {
      float s[32];
      const TileInFlight tile = next_stage(tiles);
      if (in_blocks() && tile.split != split) store_best(split), split = tile.split;
      make_scores(tile, s);
      if (is_scored(tile)) score_logits(run, tile.entry, s);
      leave_values(tile);
    }
    if (in_blocks()) store_best(split);
  }

  // S = Q K^T of a tile.
  HUNCH_DEVICE void start_scores(const TileInFlight& tile, float (&s)[32]) const {
    const uint32_t query_operand = wgmma_operand(queries(), 16), key_operand = wgmma_operand(tile.keys, 16);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {  // addresses count in units of 16 bytes
      const uint32_t at = uint32_t(k / 4 * (8192 / 16) + k % 4 * 2);
      wgmma_tile<T, 64, false>(s, query_operand + at, key_operand + at, k > 0);
    }
  }
  HUNCH_DEVICE void make_scores(const TileInFlight& tile, float (&s)[32]) const {
    await(tile);
    wgmma_begin();
    start_scores(tile, s);
    wgmma_commit();
    wgmma_wait<0>();
    hold(s);
    leave_keys(tile);
  }
  // rounded: k step j / 2: [half] of its low 8 keys, then of its high 8.
  HUNCH_DEVICE void make_weights(
      const float (&s)[32], float (&p)[32], uint32_t (&rounded)[16], State& state, float (&added)[2][kClasses]) const {
    weigh(s, p, rounded, state);
    if (__any_sync(~0u, any_leaves_slack(rounded))) {
      raise(s, state, added);
      weigh(s, p, rounded, state);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kClasses; ++i) {
        const int at = i / 2 * 8 + half * 2 + i % 2;
        added[half][i] += p[at] + p[at + 4];
      }
  }
  HUNCH_DEVICE void weigh(const float (&s)[32], float (&p)[32], uint32_t (&rounded)[16], const State& state) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = exp2_fast(fmaf(s[i], scale_, -state.top[i / 2 % 2]));
#pragma unroll
    for (int i = 0; i < 16; ++i) rounded[i] = pack(p[i * 2], p[i * 2 + 1]);
  }
  // O += P V of a tile.
  HUNCH_DEVICE void start_values(const TileInFlight& tile, const uint32_t (&rounded)[16], State& state) const {
    const uint32_t value_operand = wgmma_operand(tile.keys + Shared::kStageBytes / 2, 8192);
#pragma unroll
    for (int k = 0; k < kPageLen / 16; ++k)
      wgmma_values<T>(state.o, rounded[4 * k], rounded[4 * k + 1], rounded[4 * k + 2], rounded[4 * k + 3],
          value_operand + uint32_t(k * (2048 / 16)));
  }

  // References follow where weights are past the slack.
  HUNCH_DEVICE void raise(const float (&s)[32], State& state, float (&added)[2][kClasses]) const {
    float most[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(s[half * 2], s[half * 2 + 1]);
#pragma unroll
      for (int i = 1; i < 8; ++i) most[half] = fmaxf(most[half], fmaxf(s[i * 4 + half * 2], s[i * 4 + half * 2 + 1]));
      most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 2));
      const float before = state.top[half], weight = exp2_fast(fmaf(most[half], scale_, -before));
      const float after = leaves_slack(weight) ? most[half] * scale_ : before, alpha = exp2_fast(before - after);
      state.top[half] = after;
#pragma unroll
      for (int i = 0; i < kClasses; ++i) added[half][i] *= alpha;
#pragma unroll
      for (int i = 0; i < D / 4; ++i) state.o[i / 2 * 4 + half * 2 + i % 2] *= alpha;
    }
  }
  HUNCH_DEVICE void end_split(State& state, float (&added)[2][kClasses]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float of[kClasses / 2];
#pragma unroll
      for (int w = 0; w < kClasses / 2; ++w) {
        of[w] = added[half][2 * w] + added[half][2 * w + 1];
        of[w] += __shfl_xor_sync(~0u, of[w], 1);
        of[w] += __shfl_xor_sync(~0u, of[w], 2);
      }
      state.total[half] = ((of[0] + of[1]) + of[2]) + of[3];
      if (state.top[half] == kNothingRead) state.top[half] = -INFINITY;
    }
  }

  // kKeeps: the splits of an item so far, sums in shared memory, where each thread has its own places (no registers for both).
  struct Folded {
    float top[2], total[2];
  };
  HUNCH_DEVICE float* kept_sums() const {
    return reinterpret_cast<float*>(memory_ + Shared::kFold + consumer_ * Shared::kFoldBytes) + t_;
  }
  HUNCH_DEVICE void fold_onto(const Folded& folded, State& state) const {
    MergeWeights w[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      w[half] = merge_weights(folded.top[half], state.top[half]);
      state.top[half] = w[half].top, state.total[half] = merge(w[half], folded.total[half], state.total[half]);
    }
#pragma unroll
    for (int i = 0; i < D / 2; ++i) state.o[i] = merge(w[i / 2 % 2], kept_sums()[i * 128], state.o[i]);
  }
  HUNCH_DEVICE void keep(Folded& folded, const State& state) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) folded.top[half] = state.top[half], folded.total[half] = state.total[half];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) kept_sums()[i * 128] = state.o[i];
  }
  // Stores the state of a split, or of all so far, or, `onto` what the thread has stored there before, both as one.
  HUNCH_DEVICE void store_partial(const AttentionItemDevice& item, int64_t offset, bool onto, State& state) const {
    const int rows = rows_in_tile_;
    float* const to = args_.partials + offset;
    float2* const row = reinterpret_cast<float2*>(to + my_row(0) * D + lane_ % 4 * 2);  // the other is the next
    float2* const states = reinterpret_cast<float2*>(to + rows * D) + my_row(0);
    bool mine[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) mine[half] = my_row(half) < rows && Base::stores(item, leaf_[half]);
    if (onto) {  // all loads before a store
      float2 before[2], old[2][D / 8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        before[half] = mine[half] ? states[half] : make_float2(-INFINITY, 0);
#pragma unroll
        for (int j = 0; j < D / 8; ++j) old[half][j] = mine[half] ? row[half * D / 2 + 4 * j] : make_float2(0, 0);
      }
      __syncwarp();  // all lanes of a row have read its state
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const MergeWeights w = merge_weights(before[half].x, state.top[half]);
        state.top[half] = w.top, state.total[half] = merge(w, before[half].y, state.total[half]);
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
          float* const o = state.o + 4 * j + 2 * half;
          o[0] = merge(w, old[half][j].x, o[0]), o[1] = merge(w, old[half][j].y, o[1]);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!mine[half]) continue;
      if (lane_ % 4 == 0) states[half] = make_float2(state.top[half], state.total[half]);
#pragma unroll
      for (int j = 0; j < D / 8; ++j)
        row[half * D / 2 + 4 * j] = make_float2(state.o[4 * j + 2 * half], state.o[4 * j + 2 * half + 1]);
    }
  }

  HUNCH_DEVICE void spoil(const AttentionRunDevice& run, const TileInFlight& tile, float (&added)[2][kClasses]) const {
    for (int e = 0; e < kPageLen; ++e)
      if (is_bad(e))
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (reads(run, last_[half], leaf_[half], tile.entry + e, tile.leaf)) added[half][0] = __int_as_float(0x7fffffff);
  }
  HUNCH_DEVICE void mask(const AttentionRunDevice& run, const TileInFlight& tile, float (&s)[32]) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int half = i / 2 % 2;
      if (!reads(run, last_[half], leaf_[half], tile.entry + i / 4 * 8 + lane_ % 4 * 2 + i % 2, tile.leaf)) s[i] = -INFINITY;
    }
  }

  // Pooled scores of the tile's entries out of what a row and an entry have: the metric of the logits, or of their weights.
  HUNCH_DEVICE void score_logits(const AttentionRunDevice& run, int entry, const float (&s)[32]) {
    float v[2][16];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float logit = s[i / 2 * 4 + half * 2 + i % 2];
        if (weight_) v[half][i] = fminf(1.0f, exp2_fast(fmaf(logit, scale_, minus_lse_[half])));
        else v[half][i] = used_[half] ? logit * (scale_ * kLn2) : 0.0f;
      }
    score(run, entry, v);
  }
  HUNCH_DEVICE void score_weights(const AttentionRunDevice& run, int entry, const float (&p)[32], const float (&top)[2]) {
    float v[2][16];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float to = exp2_fast(top[half] + minus_lse_[half]);
#pragma unroll
      for (int i = 0; i < 16; ++i) v[half][i] = __saturatef(p[i / 2 * 4 + half * 2 + i % 2] * to);
    }
    score(run, entry, v);
  }
  // A lane has two rows of 16 columns; lanes exchange halves of what they have, so that after three exchanges each has 2 columns
  // of all eight rows of its place: heads of a row are added, then rows are combined, at last those of other warps.
  HUNCH_DEVICE void score(const AttentionRunDevice& run, int entry, float (&v)[2][16]) {
    if (sink_ == ScoreSink::Rows) return score_rows(run, entry, v);
    if (in_blocks()) return shift_ == 2 ? score_blocks<2>(entry, v) : score_blocks<3>(entry, v);
    pool(v);
    const int column = ((lane_ >> 2 & 1) * 4 + (lane_ >> 3 & 1) * 2 + (lane_ >> 4 & 1)) * 8 + lane_ % 4 * 2;
    auto* scratch = reinterpret_cast<float*>(memory_ + Shared::kRows) + consumer_ * 4 * kPageLen;
    if (scratch_read_) sync();  // the warps that combined the tile before have long read it
    scratch_read_ = true;
    *reinterpret_cast<float2*>(scratch + warp_ * kPageLen + column) = make_float2(v[0][0], v[0][1]);
    sync();
    if (t_ >= kPageLen) return;
    float pooled = scratch[t_];
#pragma unroll
    for (int w = 1; w < 4; ++w)
      if (w * 16 < rows_in_tile_) pooled = combined(pooled, scratch[w * kPageLen + t_]);
    const bool blocks = sink_ == ScoreSink::Blocks;
    if (blocks) {
#pragma unroll
      for (int step = 1; step < kScoreBlock; step *= 2) pooled = fmaxf(pooled, __shfl_xor_sync(~0u, pooled, step));
    }
    if (entry + t_ >= scored_end_ || (blocks && t_ % kScoreBlock != 0)) return;
    scores_[blocks ? (entry + t_) / kScoreBlock : entry + t_] = pooled;
  }

  // The greatest of every block of entries, which is what is left of nearly all scores: once the heads of a row are added, a lane
  // joins what it has of a block, and lanes that have the same leave theirs at its place together, which takes less than
  // exchanging more. Warps meet when a split ends. Weights are never negative: their bits compare as they do.
  template <int kShift>
  HUNCH_DEVICE void score_blocks(int entry, float (&v)[2][16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[0][i] += v[1][i];
    exchange<16, 4>(v[0], true);
    if constexpr (kShift == 3) exchange<8, 8>(v[0], true);
    constexpr int kBlocks = kShift == 3 ? 2 : 4;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) v[0][i] = row_used_[0] ? fmaxf(v[0][2 * i], v[0][2 * i + 1]) * mean_ : 0.0f;
    if constexpr (kShift == 2) exchange<4, 8>(v[0], false);
    const int block = entry / kScoreBlock % 128 + (lane_ >> 2 & 1) * 4 + (lane_ >> 3 & 1) * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) atomicMax(reinterpret_cast<int*>(best()) + block + i, __float_as_int(v[0][i]));
  }
  HUNCH_DEVICE bool in_blocks() const {
    return !kPaired && sink_ == ScoreSink::Blocks && weight_ && !sum_ && (shift_ == 2 || shift_ == 3);
  }
  static_assert(kSplitEntries / kScoreBlock == 128);  // a thread each
  HUNCH_DEVICE float* best() const {                  // [block of a split], zeros between splits
    return reinterpret_cast<float*>(memory_ + Shared::kRows) + consumer_ * 4 * kPageLen;
  }
  // Of a split whose tiles are done.
  HUNCH_DEVICE void store_best(int split) {
    sync();
    const int block = split * 128 + t_;
    if (block * kScoreBlock < scored_end_) scores_[block] = best()[t_];
    best()[t_] = 0;
    sync();
  }

  // Heads of a row stand in neighbouring rows of the tile: first a lane joins its own two, then lanes theirs; warps come later.
  HUNCH_DEVICE void pool(float (&v)[2][16]) const {
    if (sum_) pool<-1, true>(v);
    else if (shift_ == 2) pool<2, false>(v);
    else if (shift_ == 3) pool<3, false>(v);
    else pool<-1, false>(v);
  }
  // kShift: shift_; -1: any.
  template <int kShift, bool kSum>
  HUNCH_DEVICE void pool(float (&v)[2][16]) const {
    const int shift = kShift < 0 ? shift_ : kShift;
    if (shift == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) end_heads<16>(v[half], row_used_[half]);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) v[0][i] = kSum || shift > 0 ? v[0][i] + v[1][i] : fmaxf(v[0][i], v[1][i]);
    if (shift == 1) end_heads<16>(v[0], row_used_[0]);
    exchange<16, 4>(v[0], kSum || shift > 1);
    if (shift == 2) end_heads<8>(v[0], row_used_[0]);
    exchange<8, 8>(v[0], kSum || shift > 2);
    if (shift == 3) end_heads<4>(v[0], row_used_[0]);
    exchange<4, 16>(v[0], kSum || shift > 3);
    if (shift == 4) end_heads<2>(v[0], row_used_[0]);
  }
  template <int N>
  HUNCH_DEVICE void end_heads(float (&v)[16], bool used) const {
    const float neutral = sum_ ? 0.0f : -INFINITY;
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = used ? v[i] * mean_ : neutral;
  }
  template <int N, int kStep>
  HUNCH_DEVICE void exchange(float (&v)[16], bool add) const {
    const bool high = lane_ & kStep;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float mine = high ? v[i + N / 2] : v[i], given = high ? v[i] : v[i + N / 2];
      const float got = __shfl_xor_sync(~0u, given, kStep);
      v[i] = add ? mine + got : fmaxf(mine, got);
    }
  }

  // One score per row, entry and KV head: sums over the group, rows apart.
  HUNCH_DEVICE void score_rows(const AttentionRunDevice& run, int entry, float (&v)[2][16]) const {
    if (shift_ > 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) v[0][i] += v[1][i];
    }
    if (shift_ > 1) exchange<16, 4>(v[0], true);
    if (shift_ > 2) exchange<8, 8>(v[0], true);
    if (shift_ > 3) exchange<4, 16>(v[0], true);
    const int exchanges = max(0, shift_ - 1);
    const int block = (exchanges > 0 && (lane_ & 4) ? 4 : 0) + (exchanges > 1 && (lane_ & 8) ? 2 : 0) +
        (exchanges > 2 && (lane_ & 16) ? 1 : 0);  // the first of 8 columns that the lane has
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (plane_[half] < 0 || (half > 0 && shift_ > 0)) continue;
      const int column = entry + block * 8 + lane_ % 4 * 2;
      float* to = run.scores + plane_[half] * run.scores_stride + column;
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if (i < 16 >> exchanges && column + i / 2 * 8 + i % 2 < scored_end_) to[i / 2 * 8 + i % 2] = v[half][i];
    }
  }

  // Of the thread's rows.
  int last_[2], leaf_[2], plane_[2];  // plane: of scores by row; -1: none
  float minus_lse_[2];                // base 2
  bool used_[2], row_used_[2];        // by scores; the second of padding heads too
  bool scratch_read_ = false;
};

}
