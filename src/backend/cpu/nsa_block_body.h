// The arithmetic of one block for query rows that stand anywhere: as attention_block_body.h, with a pointer per row, since each
// reads blocks of its own. Used by nsa_body.h.
#pragma once

namespace hunch::HUNCH_ISA {

// The block that comes next, asked for a few lines at every step of this one: `stride` bytes of its K and, `behind`, of its V.
// Into the second-level cache: V is read in a later go over the same blocks, and requests to the first wait for its few miss
// buffers (blocks of 16 kB in any order, one core of Zen 4: 19 instead of 15 GB/s).
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
  [[gnu::always_inline]] inline NsaAhead handed_on() const {
    if (stride == 0 || at < end) return *this;
    return {end - 256, end, 0, behind};  // asked for again and again: these lines are there by now
  }
};

template <class Kv, int W>
void nsa_score_rows(
    const std::byte* keys, int padded_dim, const typename Kv::Query* const* q, float* const* out, int rows, NsaAhead& ahead) {
  constexpr bool kMany = Kv::kWidened || 2 * W <= kWide;  // few tiles of keys: more rows, to have as many sums
  each_tile<kMany>(rows, [&]<int R>(int at) {
    score_tiles<Kv, R, W>(
        keys, padded_dim, [=](int r) { return q[at + r]; }, [=](int r) { return out[at + r]; }, ahead);
  });
}

template <class Kv, int R, int V>
void nsa_values(const std::byte* values, int padded_dim, const typename Kv::Factor* weights, int first, int last,
    float* const* states, int at, NsaAhead& ahead) {
  add_to_states<Kv, R, V>(
      values, padded_dim, weights, first, last, [=](int r) { return states[r] + at; }, ahead);
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

}
