// The arithmetic of one block of 64 entries for a few query rows in registers (q.k, and weights times values), and how each KV
// type is read. A row's operations are written once; tiles of rows repeat them in other registers. Used by attention_body.h.
#pragma once

namespace hunch::HUNCH_ISA {

inline constexpr int kBlockLen = 64, kKeyTiles = kBlockLen / kLanes, kSplitEntries = 1024;
inline constexpr int kQueryTile = 16;  // query rows whose scores and weights of a block are kept at a time: 8 KiB of L1
// Register tiles: rows x key tiles for scores, rows x vectors of dimensions for values. 16 accumulators of 32 registers
// (AVX-512): 8 loads then feed 16 products, so the arithmetic is the limit. Of 16 registers (AVX2, where a vector of lanes is
// two) 12 at most: one more and the loop spills. Lines that are widened before they are multiplied are better shared by more
// rows: kManyRows.
#if HUNCH_LEVEL >= 2
inline constexpr int kRowTile = 4, kWide = 4, kManyRows = 8;
#elif HUNCH_LEVEL == 1
inline constexpr int kRowTile = 4, kWide = 1, kManyRows = 6;
#else
inline constexpr int kRowTile = 1, kWide = 2, kManyRows = 1;
#endif
constexpr int wide_of(int rows) {
  if (HUNCH_LEVEL == 1) return rows > 2 ? 1 : 2;
  return rows > kRowTile ? 2 : kWide;
}
inline constexpr float kLog2e = 1.44269504089f, kLn2 = 0.69314718056f;

// How one KV type is read. A line is kPerStep dimensions (keys) or entries (values) of 16 lanes; a factor stands opposite to it:
// the query's dimensions or the entries' weights. Of a line of keys each lane has kLaneBytes for kLaneDims dimensions; of values
// kEntriesPerLine elements of kElementBytes.
struct KvF32 {
  using Factor = float;
  using Line = F32;
  using Wide = F32;
  static constexpr int kPerStep = 1, kKeyStep = 1, kFactorsPerStep = 1, kLineBytes = 64;
  static constexpr int kLaneBytes = 4, kLaneDims = 1, kEntriesPerLine = 1, kElementBytes = 4;
  static constexpr bool kCodes = false, kWidened = false;  // kWidened: `read` is more than a load
  static constexpr float kUnit = 0;  // what `read` gives, times this and the plane's scale, is the value; 0: it is the value
  using Query = Factor;
  static constexpr int64_t query_stride(int padded_dim) { return padded_dim; }
  HUNCH_SIMD Line read(const std::byte* p) { return load(reinterpret_cast<const float*>(p)); }
  HUNCH_SIMD Wide widen(const Factor* f) { return set1(*f); }
  HUNCH_SIMD F32 add_product(F32 sum, Line line, Wide f) { return fma(line, f, sum); }
  HUNCH_SIMD Line keep(Line line, bool, bool) { return line; }
  HUNCH_SIMD void put(Factor* to, F32 a) { store(to, a); }
  HUNCH_SIMD void put(Factor* to, F32 a, F32 b) { store(to, a), store(to + kLanes, b); }
};
struct KvF16 : KvF32 {
  static constexpr int kLineBytes = 32, kLaneBytes = 2, kElementBytes = 2;
  static constexpr bool kWidened = true;
  HUNCH_SIMD Line read(const std::byte* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }
};
// Codes widened in registers. Their unit and scale, powers of two and hence exact, go into queries and weights.
struct KvF8 : KvF32 {
  static constexpr int kLineBytes = 16, kLaneBytes = 1, kElementBytes = 1;
  static constexpr bool kWidened = true;
  static constexpr float kUnit = 256;
  HUNCH_SIMD Line read(const std::byte* p) { return load_f8_nan(p); }
};
struct KvPairs : KvF32 {
  static constexpr int kPerStep = 2, kKeyStep = 2, kFactorsPerStep = 2;
  static constexpr int kLaneDims = 2, kEntriesPerLine = 2, kElementBytes = 2;
};
#if HUNCH_LEVEL >= 4
// Pairs multiplied as they are; the query and the weights are rounded to bf16.
struct KvBf16 : KvPairs {
  using Factor = uint16_t;
  using Query = Factor;
  using Line = I32;
  using Wide = I32;
  static constexpr bool kWidened = false;
  HUNCH_SIMD Line read(const std::byte* p) { return load_i32(p); }
  HUNCH_SIMD Wide widen(const Factor* f) {
    int32_t pair;
    __builtin_memcpy(&pair, f, 4);
    return set1_i32(pair);
  }
  HUNCH_SIMD F32 add_product(F32 sum, Line line, Wide f) { return dot_bf16(sum, line, f); }
  HUNCH_SIMD Line keep(Line line, bool even, bool odd) {
    return line & set1_i32(int32_t((even ? 0xffffu : 0u) | (odd ? 0xffff0000u : 0u)));
  }
  HUNCH_SIMD void put(Factor* to, F32 a, F32 b) { store(to, to_bf16(a, b)); }
  HUNCH_SIMD void put(Factor* to, F32 a) { _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(a.v)); }
};
#else
struct KvBf16 : KvPairs {
  struct Line {
    F32 even, odd;
  };
  using Wide = Line;
  static constexpr bool kWidened = true;
  HUNCH_SIMD Line read(const std::byte* p) {
    const I32 pair = load_i32(p);
    return {bf16_even(pair), bf16_odd(pair)};
  }
  HUNCH_SIMD Wide widen(const Factor* f) { return {set1(f[0]), set1(f[1])}; }
  HUNCH_SIMD F32 add_product(F32 sum, Line line, Wide f) { return fma(line.odd, f.odd, fma(line.even, f.even, sum)); }
  HUNCH_SIMD Line keep(Line line, bool even, bool odd) { return {even ? line.even : zero(), odd ? line.odd : zero()}; }
};
#endif

// ---- steps of one block; R rows of a tile in registers

// K (or V) of the block that follows, asked for evenly over the steps of this one's: the machine's own prefetchers stop at page
// ends and at each change between K tiles and V, a burst of requests would fill the miss buffers and stall the loads behind them,
// and what comes too early pushes out what is in use. Into the second-level cache: in the first, beside a block that several
// tiles of rows read and their state, there is no room.
struct Ahead {
  const std::byte *at = nullptr, *end = nullptr;
  size_t stride = 0;  // per step; 0: nothing more to ask for

  // `bytes` from `next` on in about so many steps. Null: nothing; `any` is asked for then.
  HUNCH_SIMD Ahead over(const std::byte* any, const std::byte* next, size_t bytes, int steps) {
    if (!next) return {any, any, 0};
    const size_t stride = (bytes + size_t(steps) - 1) / size_t(steps);
    return {next, next + bytes, stride < 256 ? stride : 256};
  }
  // Loops step a copy, which stays in registers, and hand it on.
  [[gnu::always_inline]] inline void step() {
    __builtin_prefetch(at, 0, 2);
    if (stride > 64) __builtin_prefetch(at + 64, 0, 2);
    if (stride > 128) __builtin_prefetch(at + 128, 0, 2), __builtin_prefetch(at + 192, 0, 2);
    at += stride;
  }
  [[gnu::always_inline]] inline Ahead handed_on() const {
    if (stride == 0 || at < end) return *this;
    return {end - 256, end, 0};  // asked for again and again: these lines are there by now
  }
};

// out(r)[entry] = q(r) . k[entry] for W tiles of 16 entries, dimensions ascending. Look: Ahead or its like.
template <class Kv, int R, int W, class Query, class Out, class Look>
HUNCH_SIMD void score_tiles(const std::byte* keys, int padded_dim, Query q, Out out, Look& ahead) {
  constexpr int kWide = W < wide_of(R) ? W : wide_of(R);
  const int steps = padded_dim / Kv::kPerStep;
  const size_t tile_bytes = size_t(steps) * Kv::kLineBytes;
  Look asked = ahead;
  for (int tile = 0; tile < W; tile += kWide) {
    const std::byte* line_at = keys + size_t(tile) * tile_bytes;
    F32 sums[R][kWide];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int t = 0; t < kWide; ++t) sums[r][t] = zero();
    for (int step = 0; step < steps; ++step, line_at += Kv::kLineBytes) {
      typename Kv::Line lines[kWide];
      asked.step();
#pragma GCC unroll 8
      for (int t = 0; t < kWide; ++t) lines[t] = Kv::read(line_at + size_t(t) * tile_bytes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const typename Kv::Wide f = Kv::widen(q(r) + step * Kv::kFactorsPerStep);
#pragma GCC unroll 8
        for (int t = 0; t < kWide; ++t) sums[r][t] = Kv::add_product(sums[r][t], lines[t], f);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int t = 0; t < kWide; ++t) store(out(r) + (tile + t) * kLanes, sums[r][t]);
  }
  ahead = asked.handed_on();
}

template <class Kv, int R>
void score_block(
    const std::byte* keys, int padded_dim, const typename Kv::Factor* q, int64_t q_stride, float* scores, Ahead& ahead) {
  score_tiles<Kv, R, kKeyTiles>(
      keys, padded_dim, [=](int r) { return q + r * q_stride; }, [=](int r) { return scores + r * kBlockLen; }, ahead);
}

// One step of V lines for R rows and V vectors of dimensions.
template <class Kv, int R, int V>
HUNCH_SIMD void value_step(
    const std::byte* lines_at, const typename Kv::Factor* weights, bool even, bool odd, F32 (&sums)[R][V]) {
  typename Kv::Line lines[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    lines[v] = Kv::read(lines_at + v * Kv::kLineBytes);
    if (!even || !odd) lines[v] = Kv::keep(lines[v], even, odd);  // the masked half may hold NaN
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const typename Kv::Wide f = Kv::widen(weights + r * kBlockLen);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[r][v] = Kv::add_product(sums[r][v], lines[v], f);
  }
}

// state(r)[16 V dims] += weights[r][e] values[e] for the entries e in [first, last), ascending.
template <class Kv, int R, int V, class State, class Look>
HUNCH_SIMD void add_to_states(
    const std::byte* values, int padded_dim, const typename Kv::Factor* weights, int first, int last, State state, Look& ahead) {
  F32 sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[r][v] = load(state(r) + v * kLanes);
  constexpr int kPer = Kv::kPerStep;
  const size_t step_bytes = size_t(padded_dim / kLanes) * Kv::kLineBytes;
  const int begin = (first + kPer - 1) / kPer, end = last / kPer;
  if (begin * kPer != first)
    value_step<Kv, R, V>(values + (begin - 1) * step_bytes, weights + (begin - 1) * kPer, false, true, sums);
  const std::byte* lines_at = values + begin * step_bytes;
  Look asked = ahead;
  for (int step = begin; step < end; ++step, lines_at += step_bytes) {
    asked.step();
    value_step<Kv, R, V>(lines_at, weights + step * kPer, true, true, sums);
  }
  ahead = asked.handed_on();
  if (end * kPer != last) value_step<Kv, R, V>(values + end * step_bytes, weights + end * kPer, true, false, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(state(r) + v * kLanes, sums[r][v]);
}

template <class Kv, int R, int V>
void add_values(const std::byte* values, int padded_dim, const typename Kv::Factor* weights, int first, int last, float* states,
    int64_t state_stride, Ahead& ahead) {
  add_to_states<Kv, R, V>(
      values, padded_dim, weights, first, last, [=](int r) { return states + r * state_stride; }, ahead);
}

// A row's vectors of dimensions, as many at once as R rows leave registers for: step<V>(the first of V).
template <int R, class Step>
HUNCH_SIMD void each_vectors(int padded_dim, Step step) {
  constexpr int kWide = wide_of(R);
  const int vectors = padded_dim / kLanes;
  int at = 0;
  for (; vectors - at >= kWide; at += kWide) step.template operator()<kWide>(at);
  if constexpr (kWide > 2) {
    if (vectors - at == 3) step.template operator()<3>(at);
    if (vectors - at == 2) step.template operator()<2>(at);
  }
  if (vectors - at == 1) step.template operator()<1>(at);
}

template <class Kv, int R>
void add_values_all_dims(const std::byte* values, int padded_dim, const typename Kv::Factor* weights, int first, int last,
    float* states, int64_t state_stride, Ahead& ahead) {
  each_vectors<R>(padded_dim, [&]<int V>(int at) {
    add_values<Kv, R, V>(
        values + at * Kv::kLineBytes, padded_dim, weights, first, last, states + at * kLanes, state_stride, ahead);
  });
}

// Query rows in tiles of kManyRows (if kMany), of kRowTile, and one of what is left: step<R>(its first row).
template <bool kMany, class Step>
HUNCH_SIMD void each_tile(int rows, Step step) {
  int at = 0;
  if constexpr (kMany && kManyRows > kRowTile)
    for (; rows - at >= kManyRows; at += kManyRows) step.template operator()<kManyRows>(at);
  for (; rows - at >= kRowTile; at += kRowTile) step.template operator()<kRowTile>(at);
  if constexpr (kRowTile > 2) {
    if (rows - at == 3) step.template operator()<3>(at);
    if (rows - at == 2) step.template operator()<2>(at);
  }
  if constexpr (kRowTile > 1)
    if (rows - at == 1) step.template operator()<1>(at);
}

// Steps of a block's K or V, for Ahead: so many rows, per_step dimensions or entries of a line at once.
template <class Kv>
HUNCH_SIMD int block_steps(int rows, int padded_dim, int per_step) {
  int goes = 0;
  const auto add = [&]<int R>(int) { goes += kKeyTiles / wide_of(R); };
  each_tile<Kv::kWidened>(kQueryTile, add);
  goes *= rows / kQueryTile;
  each_tile<Kv::kWidened>(rows % kQueryTile, add);
  return goes * padded_dim / per_step;
}

template <class Kv>
void score_rows(const std::byte* keys, int padded_dim, const typename Kv::Factor* q, int64_t q_stride, int rows, float* scores,
    Ahead& ahead) {
  each_tile<Kv::kWidened>(rows,
      [&]<int R>(int at) { score_block<Kv, R>(keys, padded_dim, q + at * q_stride, q_stride, scores + at * kBlockLen, ahead); });
}

template <class Kv>
void value_rows(const std::byte* values, int padded_dim, const typename Kv::Factor* weights, int rows, int first, int last,
    float* states, int64_t stride, Ahead& ahead) {
  each_tile<Kv::kWidened>(rows, [&]<int R>(int at) {
    add_values_all_dims<Kv, R>(values, padded_dim, weights + at * kBlockLen, first, last, states + at * stride, stride, ahead);
  });
}

HUNCH_SIMD std::byte* chunk_at(const KeyPlane& keys, int64_t block) {
  return keys.first_chunk + size_t(keys.pages[block]) * keys.chunk_bytes;
}

}
