// The consumer of few packed rows, which stand in the columns of the instruction: S^T = K Q^T, O^T += V^T P^T for tiles of 64
// keys (why: docs/kernels/attention-gpu.md). Registers of a sum: attention_wgmma.cuh; of S^T rows are keys, of O^T dimensions.
#pragma once

#include "backend/cuda/attention_consumer.cuh"

namespace hunch {

// N: columns, at least as many as the tile has packed rows; a row's bits are the same with any.
// kLines: keys and values stand line by line, and warps multiply each for themselves; the same bits again.
template <int D, class T, int N, bool kLines = false>
class ColumnConsumer : public AttentionConsumer<ColumnConsumer<D, T, N, kLines>, D, T, false, kLines, false, true> {
  using Base = AttentionConsumer<ColumnConsumer<D, T, N, kLines>, D, T, false, kLines, false, true>;
  friend Base;
  using Base::any_leaves_slack, Base::args_, Base::await, Base::clean_values, Base::combined, Base::consumer_, Base::head_of,
      Base::is_bad;
  using Base::is_clean, Base::is_scored, Base::keys_only_, Base::lane_, Base::leave, Base::leaves_slack, Base::mean_;
  using Base::memory_, Base::next_stage, Base::pack, Base::plain_tiles, Base::queries, Base::reads, Base::row_of,
      Base::rows_in_tile_, Base::scale_;
  using Base::scored_end_, Base::scores_, Base::shared_, Base::shift_, Base::sink_, Base::sum_, Base::sync, Base::t_, Base::tile_;
  using Base::warp_, Base::weight_;
  static constexpr int kParts = D / 64, kBlocks = N / 8, kColumns = N / 4;  // columns: a thread's
  // Codes have a stage less: one that is held while the next is awaited holds up who widens them.
  static constexpr bool kTogether = !kLines && !std::is_same_v<T, Coded>;

 public:
  static constexpr bool kScores = true;
  static constexpr int kProducerRegisters = !std::is_same_v<T, Coded> ? 56 : N <= 16 ? 120 : 88;  // widening codes takes some
  using Base::Base;
  using typename Base::Shared;

 private:
  // Whether any thread of the consumer says so; a meeting of its warps.
  HUNCH_DEVICE bool any_of_consumer(bool mine) const {
    uint32_t any;
    asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, 128, p;\nselp.u32 %0, 1, 0, q;}\n"
                 : "=r"(any)
                 : "r"(uint32_t(mine)), "r"(1 + consumer_)
                 : "memory");
    return __any_sync(~0u, any != 0);
  }
  HUNCH_DEVICE int column(int c) const { return c / 2 * 8 + lane_ % 4 * 2 + c % 2; }  // of the thread's column c
  HUNCH_DEVICE int key(int h) const { return warp_ * 16 + lane_ / 4 + 8 * h; }        // of the thread's two
  // What is known of the rows of the tile, in shared memory.
  HUNCH_DEVICE int* last() const { return reinterpret_cast<int*>(memory_ + Shared::kRows) + consumer_ * 4 * kTileRows; }
  HUNCH_DEVICE int* leaf() const { return last() + kTileRows; }
  HUNCH_DEVICE float* minus_lse() const { return reinterpret_cast<float*>(last() + 2 * kTileRows); }  // base 2
  HUNCH_DEVICE int* plane() const { return last() + 3 * kTileRows; }  // of scores by row; -1: none

  HUNCH_DEVICE void begin_rows(const AttentionRunDevice& run, const AttentionItemDevice& item) {
    int my_last = -1, my_leaf = -1, my_plane = -1;
    float my_lse = -INFINITY;
    const float* lse = nullptr;
    if (t_ < rows_in_tile_ && head_of(t_) < args_.group) {
      const int row = row_of(run, t_);
      if (!keys_only_) my_last = run.last[row];
      if (run.leaf_of_row) my_leaf = run.leaf_of_row[row];
      const bool used = sink_ != ScoreSink::None && run.row_used[row];
      if (used && sink_ == ScoreSink::Rows) my_plane = run.used_index[row] * run.plane.kv_heads + item.kv_head;
      if (used && weight_) lse = run.lse + row * run.lse_row + (item.kv_head * args_.group + head_of(t_)) * run.lse_head;
    }
    used_ = row_used_ = 0;
    if (sink_ != ScoreSink::None) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const bool used = run.row_used[row_of(run, min(column(c), max(rows_in_tile_, 1) - 1))] && column(c) < rows_in_tile_;
        row_used_ |= uint32_t(used) << c, used_ |= uint32_t(used && head_of(column(c)) < args_.group) << c;
      }
    }
    Base::take_turn();
    if (lse) my_lse = -kLog2E * *lse;
    const auto identity = [](int place) { return place; };
    this->template load_queries<N>(run, item, identity, [&] {
      if (t_ < kTileRows) last()[t_] = my_last, leaf()[t_] = my_leaf, minus_lse()[t_] = my_lse, plane()[t_] = my_plane;
    });
  }

  // The state of a thread's columns over a stretch of keys. o: sums as the tensor cores leave them (attention_wgmma.cuh), rows
  // are dimensions. total: over the thread's own keys until a split ends.
  struct State {
    float o[kParts][N / 2], top[kColumns], total[kColumns];
  };

  HUNCH_DEVICE void attend(const AttentionRunDevice& run, const AttentionItemDevice& item) {
    float s[N / 2];  // as the tensor cores leave them, rows are keys
    State state, folded;
    Tiles tiles(item, run.leaves);
    tiles.next();
    TileInFlight tile = next_stage(tiles);
    for (bool more = true; more;) {
      make_scores(tile, s);
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < N / 2; ++i) state.o[part][i] = 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) state.top[c] = kNothingRead, state.total[c] = 0;
      const int split = tile.split;
      bool ends = false;
      while (!ends) {
        // Nearly all tiles: every row reads all of it, and the next is of this split.
        for (int alike = plain_tiles(tiles, tile); alike > 1; --alike) {
          float p[N / 2];
          make_weights(tile, s, p, state);
          const TileInFlight before = tile;
          const bool scored = is_scored(before);
          tiles.next_in_order();
          if constexpr (kTogether) {
            tile = next_stage(tiles);
            await(tile);
            hold_sums(state);
            wgmma_begin();
            start_scores(tile, s);
            start_values(before.keys, state);
            wgmma_commit();
            if (scored) score_weights(run, before.entry, p, state.top);  // while the tensor cores work
            wgmma_wait<0>();
            hold(s);
            hold_sums(state);
            leave(before);
          } else {
            add_values(before.keys, state);
            leave(before);
            if (scored) score_weights(run, before.entry, p, state.top);
            tile = next_stage(tiles);
            make_scores(tile, s);
          }
        }
        more = __any_sync(~0u, tiles.next());
        ends = !more || tiles.split != split;
        const bool clean = is_clean(tile), scored = is_scored(tile), of_weights = clean && weight_;
        const bool bad = !clean && clean_values(tile.keys);
        if (scored && !of_weights) score_logits(run, tile.entry, s);
        if (!clean) mask(run, tile, s);
        float p[N / 2];
        make_weights(tile, s, p, state);
        add_values(tile.keys, state);
        if (scored && of_weights) score_weights(run, tile.entry, p, state.top);
        if (bad) spoil(run, tile, state.total);
        if (ends) end_split(tile.keys, state);
        leave(tile);
        if (more) tile = next_stage(tiles);
        if (!ends) make_scores(tile, s);
      }
      store_split(item, split - item.first_split, !more, state, folded);
    }
  }
  HUNCH_DEVICE static void hold_sums(State& state) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) hold(state.o[part]);
  }
  // Scores without attention.
  HUNCH_DEVICE void look_at_keys(const AttentionRunDevice& run, const AttentionItemDevice& item) {
    Tiles tiles(item, run.leaves);
    while (__any_sync(~0u, tiles.next())) {
      float s[N / 2];
      const TileInFlight tile = next_stage(tiles);
      make_scores(tile, s);
      if (is_scored(tile)) score_logits(run, tile.entry, s);
      leave(tile);
    }
  }

  HUNCH_DEVICE void store_split(
      const AttentionItemDevice& item, int of_item, bool last, const State& state, State& folded) const {
    if (!item.fold) {
      store_partial(item, item.partial[0] + of_item * partial_floats(rows_in_tile_, D), state);
      return;
    }
    if (of_item == 0) folded = state;
    else fold(folded, state);
    if (last) store_partial(item, item.partial[0], folded);
  }
  HUNCH_DEVICE static void fold(State& folded, const State& state) {
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

  // S^T = K Q^T of a tile, once it has arrived.
  HUNCH_DEVICE void make_scores(const TileInFlight& tile, float (&s)[N / 2]) const {
    await(tile);
    if constexpr (kLines) {
      const uint32_t keys = tile.keys + uint32_t((warp_ * 16 + lane_ % 16) * Shared::kPitch + lane_ / 16 * 16);
      const int place = lane_ % 8, piece = lane_ / 8;  // of the queries
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] = 0;
#pragma unroll
      for (int k = 0; k < D / 16; k += 2) {
        uint32_t low[4], high[4];
        load_pieces<false>(low, keys + uint32_t(k * 32));
        load_pieces<false>(high, keys + uint32_t(k * 32 + 32));
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          uint32_t q[4];
          load_pieces<false>(
              q, queries() + uint32_t(k / 4 * Shared::kQueryPart + (j * 8 + place) * 128 + ((k % 4 * 2 + piece) ^ place) * 16));
          mma_tile<T>(s + 4 * j, low, q[0], q[1]);
          mma_tile<T>(s + 4 * j, high, q[2], q[3]);
        }
      }
      return;
    }
    wgmma_begin();
    start_scores(tile, s);
    wgmma_commit();
    wgmma_wait<0>();
    hold(s);
  }
  HUNCH_DEVICE void start_scores(const TileInFlight& tile, float (&s)[N / 2]) const {
    const uint32_t query_operand = wgmma_operand(queries(), 16), key_operand = wgmma_operand(tile.keys, 16);
#pragma unroll
    for (int k = 0; k < D / 16; ++k)  // addresses count in units of 16 bytes
      wgmma_tile<T, N, false>(s, key_operand + uint32_t(k / 4 * (8192 / 16) + k % 4 * 2),
          query_operand + uint32_t(k / 4 * (Shared::kQueryPart / 16) + k % 4 * 2), k > 0);
  }

  // The weights p that a tile's scores make, rounded to where products read them, [row][64 keys] in the swizzle. All warps have
  // met when it returns: their products with the weights that stood there, those of the tile before the last, are done.
  HUNCH_DEVICE void make_weights(const TileInFlight& tile, const float (&s)[N / 2], float (&p)[N / 2], State& state) {
    turn_ ^= 1;
    uint32_t rounded[kBlocks * 2];
    weigh(s, state.top, p, rounded);
    store_weights(rounded);
    if (any_of_consumer(any_leaves_slack(rounded))) {
      raise(tile.keys, s, state);  // nobody reads the keys once all have their scores
      weigh(s, state.top, p, rounded);
      store_weights(rounded);
      sync();
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) state.total[c] += p[c / 2 * 4 + c % 2] + p[c / 2 * 4 + 2 + c % 2];
  }
  HUNCH_DEVICE uint32_t weights() const {
    return shared_ + Shared::kWeights + uint32_t((consumer_ * 2 + turn_) * Shared::kWeightBytes);
  }
  HUNCH_DEVICE void store_weights(const uint32_t (&rounded)[kBlocks * 2]) const {
    const uint32_t to =
        weights() + uint32_t((lane_ / 16 * 8 + lane_ % 8) * 128 + ((warp_ * 2 + lane_ / 8 % 2) ^ (lane_ % 8)) * 16);
#pragma unroll
    for (int j = 0; j + 1 < kBlocks; j += 2)
      store_transposed(to + uint32_t(j * 8 * 128), rounded[j * 2], rounded[j * 2 + 1], rounded[j * 2 + 2], rounded[j * 2 + 3]);
    if constexpr (kBlocks == 1) store_transposed(to, rounded[0], rounded[1]);
    show_to_tensor_cores();
  }
  // O^T += V^T P^T of a tile.
  HUNCH_DEVICE void start_values(uint32_t keys, State& state) const {
    const uint32_t weight_operand = wgmma_operand(weights(), 16);
    const uint32_t value_operand = wgmma_operand(keys + Shared::kStageBytes / 2, 8192);
#pragma unroll
    for (int k = 0; k < kPageLen / 16; ++k)
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        wgmma_tile<T, N, true>(state.o[part], value_operand + uint32_t(part * (8192 / 16) + k * (2048 / 16)),
            weight_operand + uint32_t(k * 2), true);
  }
  HUNCH_DEVICE void add_values(uint32_t keys, State& state) const {
    if constexpr (kLines) return add_lines(keys, state);
    hold_sums(state);
    wgmma_begin();
    start_values(keys, state);
    wgmma_commit();
    wgmma_wait<0>();
    hold_sums(state);
  }
  // A warp has 16 dimensions of each part, and all keys.
  HUNCH_DEVICE void add_lines(uint32_t keys, State& state) const {
    const uint32_t values =
        keys + uint32_t((lane_ / 16 * 8 + lane_ % 8) * Shared::kPitch + D * 2 + warp_ * 32 + lane_ / 8 % 2 * 16);
    const int place = lane_ % 8, piece = lane_ / 8;  // of the weights
#pragma unroll
    for (int k = 0; k < kPageLen / 16; k += 2) {
      uint32_t p[kBlocks][4];
#pragma unroll
      for (int j = 0; j < kBlocks; ++j)
        load_pieces<false>(p[j], weights() + uint32_t((j * 8 + place) * 128 + ((k * 2 + piece) ^ place) * 16));
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          uint32_t v[4];
          load_pieces<true>(v, values + uint32_t((k + h) * 16 * Shared::kPitch + part * 128));
#pragma unroll
          for (int j = 0; j < kBlocks; ++j) mma_tile<T>(state.o[part] + 4 * j, v, p[j][2 * h], p[j][2 * h + 1]);
        }
    }
  }
  HUNCH_DEVICE void weigh(
      const float (&s)[N / 2], const float (&top)[kColumns], float (&p)[N / 2], uint32_t (&rounded)[kBlocks * 2]) const {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) p[i] = exp2_fast(fmaf(s[i], scale_, -top[i / 4 * 2 + i % 2]));
#pragma unroll
    for (int i = 0; i < kBlocks * 2; ++i) rounded[i] = pack(p[i * 2], p[i * 2 + 1]);
  }
  // References follow where weights are past the slack. The warps, each with 16 of the keys, exchange their greatest.
  HUNCH_DEVICE void raise(uint32_t scratch, const float (&s)[N / 2], State& state) const {
    float most[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) most[c] = fmaxf(s[c / 2 * 4 + c % 2], s[c / 2 * 4 + 2 + c % 2]);
    gather<false>(scratch, most);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float before = state.top[c], weight = exp2_fast(fmaf(most[c], scale_, -before));
      const float after = leaves_slack(weight) ? most[c] * scale_ : before;
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
  HUNCH_DEVICE void gather(uint32_t scratch, float (&x)[kColumns]) const {
    const auto join = [](float a, float b) { return kAdd ? a + b : fmaxf(a, b); };
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int step = 4; step < 32; step *= 2) x[c] = join(x[c], __shfl_xor_sync(~0u, x[c], step));
    constexpr int kTold = kLines ? Shared::kPitch / int(sizeof(float2)) : N / 2;  // apart: values of V stay
    auto* told = reinterpret_cast<float2*>(memory_ + (scratch - shared_));        // [warp][column / 2]
    if (lane_ < 4)
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) told[warp_ * kTold + j * 4 + lane_] = make_float2(x[j * 2], x[j * 2 + 1]);
    sync();
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      float2 y[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) y[w] = told[w * kTold + j * 4 + lane_ % 4];
      x[j * 2] = join(join(join(y[0].x, y[1].x), y[2].x), y[3].x);
      x[j * 2 + 1] = join(join(join(y[0].y, y[1].y), y[2].y), y[3].y);
    }
  }
  HUNCH_DEVICE void end_split(uint32_t scratch, State& state) const {
    gather<true>(scratch, state.total);  // all have their scores of the tile
    show_to_tensor_cores();              // before the copy engine writes there
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (state.top[c] == kNothingRead) state.top[c] = -INFINITY;
  }

  HUNCH_DEVICE void store_partial(const AttentionItemDevice& item, int64_t offset, const State& state) const {
    const int rows = rows_in_tile_;
    float* to = args_.partials + offset;
    const uint64_t policy = policy_keep();  // the kernel that combines them reads them soon
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (column(c) >= rows || !Base::stores(item, leaf()[column(c)])) continue;
      float* row = to + column(c) * D + key(0);  // the thread's dimensions stand where its keys do
#pragma unroll
      for (int n = 0; n < kParts * 2; ++n)
        store_to_keep(row + (n / 2 * 64 + n % 2 * 8), state.o[n / 2][c / 2 * 4 + n % 2 * 2 + c % 2], policy);
      if (t_ < 4) *reinterpret_cast<float2*>(to + rows * D + column(c) * 2) = make_float2(state.top[c], state.total[c]);
    }
  }

  HUNCH_DEVICE void spoil(const AttentionRunDevice& run, const TileInFlight& tile, float (&total)[kColumns]) const {
    for (int e = 0; e < kPageLen; ++e)
      if (is_bad(e))
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          if (reads(run, last()[column(c)], leaf()[column(c)], tile.entry + e, tile.leaf)) total[c] = __int_as_float(0x7fffffff);
  }
  HUNCH_DEVICE void mask(const AttentionRunDevice& run, const TileInFlight& tile, float (&s)[N / 2]) const {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const int in_tile = column(i / 4 * 2 + i % 2);
      if (!reads(run, last()[in_tile], leaf()[in_tile], tile.entry + key(i / 2 % 2), tile.leaf)) s[i] = -INFINITY;
    }
  }

  // Pooled scores of the tile's entries out of what a row and an entry have: the metric of the logits, or of their weights.
  HUNCH_DEVICE void score_logits(const AttentionRunDevice& run, int entry, const float (&s)[N / 2]) const {
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
  HUNCH_DEVICE void score_weights(
      const AttentionRunDevice& run, int entry, const float (&p)[N / 2], const float (&top)[kColumns]) const {
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
  HUNCH_DEVICE void score(const AttentionRunDevice& run, int entry, const float (&x)[N / 2]) const {
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
    if (sink_ == ScoreSink::Blocks) {  // the lanes of a block's keys are four apart
#pragma unroll
      for (int step = 4; step < 32; step *= 2) pooled = fmaxf(pooled, __shfl_xor_sync(~0u, pooled, step));
      if (lane_ < 2 && at < scored_end_) scores_[at / kScoreBlock] = pooled;
      return;
    }
    if (!(lane_ & 2) && at < scored_end_) scores_[at] = pooled;
  }
  // The score of a row whose heads have been added; of a row that does not count, what changes nothing.
  HUNCH_DEVICE float ended(float x, int c) const { return row_used_ >> c & 1 ? x * mean_ : sum_ ? 0.0f : -INFINITY; }

  // One score per row, entry and KV head: the sum over the group, rows apart.
  HUNCH_DEVICE void put_row(const AttentionRunDevice& run, int c, int entry, float x) const {
    const int to = plane()[column(c)];
    if (to >= 0 && entry < scored_end_) run.scores[to * run.scores_stride + entry] = x;
  }

  uint32_t used_ = 0, row_used_ = 0;  // by scores, a bit each of the thread's columns; the second of padding heads too
  int turn_ = 0;                      // of the two places of weights
};

}
