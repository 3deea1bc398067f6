// The arithmetic of one block for query rows that stand anywhere: as attention_block_body.h, with a pointer per row, since of the
// rows of a group each reads blocks of its own. Used by nsa_body.h.
#pragma once

namespace hunch::HUNCH_ISA {

// The block that comes next, asked for a few lines at every step of this one: `stride` bytes of its K and, `behind`, of its V.
// Into the second-level cache: V is read in a later go over the same blocks, and requests that go to the first one wait for its
// few miss buffers (blocks of 16 kB in any order, one core of Zen 4: 19 instead of 15 GB/s).
struct NsaAhead {
  const std::byte *at, *end;
  size_t stride = 0, behind = 0;

  // `bytes` from `next` on in about `steps` steps. Null: nothing; `any` is asked for then.
  HUNCH_SIMD NsaAhead over(const std::byte* any, const std::byte* next, size_t bytes, size_t behind, int steps) {
    if (!next) return {any, any};
    const size_t lines = bytes / 64 / size_t(steps);
    return {next, next + bytes, lines >= 4 ? size_t(256) : lines >= 2 ? size_t(128) : size_t(64), behind};
  }
  [[gnu::always_inline]] inline void step() {
    for (size_t i = 0; i < 256; i += 64) {
      if (i >= 64 && i >= stride) break;
      __builtin_prefetch(at + i, 0, 2), __builtin_prefetch(at + behind + i, 0, 2);
    }
    at += stride;
  }
  [[gnu::always_inline]] inline void moved_to(const std::byte* here) {
    at = here;
    if (stride && at >= end) at = end - 256, stride = 0;  // asked for again and again: these lines are there by now
  }
};

// out[r][entry] = q[r] . k[entry] for W tiles of 16 entries, dimensions ascending.
template <class Kv, int R, int W>
void nsa_scores(const std::byte* keys, int padded_dim, const typename Kv::Query* const* q, float* const* out, NsaAhead& ahead) {
  constexpr int kPart = W < wide_of(R) ? W : wide_of(R);
  const int steps = padded_dim / Kv::kPerStep;
  const size_t tile_bytes = size_t(steps) * Kv::kLineBytes;
  NsaAhead asked = ahead;
  for (int tile = 0; tile < W; tile += kPart) {
    const std::byte* line_at = keys + size_t(tile) * tile_bytes;
    F32 sums[R][kPart];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int t = 0; t < kPart; ++t) sums[r][t] = zero();
    for (int step = 0; step < steps; ++step, line_at += Kv::kLineBytes) {
      typename Kv::Line lines[kPart];
      asked.step();
#pragma GCC unroll 8
      for (int t = 0; t < kPart; ++t) lines[t] = Kv::read(line_at + size_t(t) * tile_bytes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const typename Kv::Wide f = Kv::widen(q[r] + step * Kv::kFactorsPerStep);
#pragma GCC unroll 8
        for (int t = 0; t < kPart; ++t) sums[r][t] = Kv::add_product(sums[r][t], lines[t], f);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int t = 0; t < kPart; ++t) store(out[r] + (tile + t) * kLanes, sums[r][t]);
  }
  ahead.moved_to(asked.at);
}

template <class Kv, int W>
void nsa_score_rows(
    const std::byte* keys, int padded_dim, const typename Kv::Query* const* q, float* const* out, int rows, NsaAhead& ahead) {
  constexpr bool kMany = Kv::kWidened || 2 * W <= kWide;  // few tiles of keys: more rows, to have as many sums
  each_tile<kMany>(rows, [&]<int R>(int at) { nsa_scores<Kv, R, W>(keys, padded_dim, q + at, out + at, ahead); });
}

// sums[r] += weights[r][e] values[e] for the entries e in [first, last) of a block, ascending; 16 V dimensions.
template <class Kv, int R, int V>
void nsa_values(const std::byte* values, int padded_dim, const typename Kv::Factor* weights, int first, int last,
    float* const* states, int at, NsaAhead& ahead) {
  F32 sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[r][v] = load(states[r] + at + v * kLanes);
  constexpr int kPer = Kv::kPerStep;
  const size_t step_bytes = size_t(padded_dim / kLanes) * Kv::kLineBytes;
  const int begin = (first + kPer - 1) / kPer, end = last / kPer;
  if (begin * kPer != first)
    value_step<Kv, R, V>(values + (begin - 1) * step_bytes, weights + (begin - 1) * kPer, false, true, sums);
  const std::byte* lines_at = values + begin * step_bytes;
  NsaAhead asked = ahead;
  for (int step = begin; step < end; ++step, lines_at += step_bytes) {
    asked.step();
    value_step<Kv, R, V>(lines_at, weights + step * kPer, true, true, sums);
  }
  ahead.moved_to(asked.at);
  if (end * kPer != last) value_step<Kv, R, V>(values + end * step_bytes, weights + end * kPer, true, false, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(states[r] + at + v * kLanes, sums[r][v]);
}

template <class Kv, int R>
void nsa_values_all_dims(const std::byte* values, int padded_dim, const typename Kv::Factor* weights, int first, int last,
    float* const* states, NsaAhead& ahead) {
  constexpr int kWide = wide_of(R);
  int at = 0;
  for (; padded_dim - at >= kWide * kLanes; at += kWide * kLanes, values += kWide * Kv::kLineBytes)
    nsa_values<Kv, R, kWide>(values, padded_dim, weights, first, last, states, at, ahead);
  for (; at < padded_dim; at += kLanes, values += Kv::kLineBytes)
    nsa_values<Kv, R, 1>(values, padded_dim, weights, first, last, states, at, ahead);
}

template <class Kv>
void nsa_value_rows(const std::byte* values, int padded_dim, const typename Kv::Factor* weights, int rows, int first, int last,
    float* const* states, NsaAhead& ahead) {
  each_tile<Kv::kWidened>(rows, [&]<int R>(int at) {
    nsa_values_all_dims<Kv, R>(values, padded_dim, weights + at * kBlockLen, first, last, states + at, ahead);
  });
}

}  // namespace hunch::HUNCH_ISA
