// KV in codes with a scale (ops/kv.h): rows to codes, and the two products in integers: queries and weights have 16 bits, codes
// of 8 are widened to 16 in registers, sums are exact and hence the same in any order. Used by attention_body.h, store_kv_body.h
// and gather_codes_body.h.
//
//   q ~ s c, |c| <= 32767 (16383 for heads over 512), and for I16 sum|c| < 2^18: no sum passes 31 bits at its end; on the way it
//   may wrap. Keys of Q8_0 are stored as bytes k + 128, and -128 sum(c) is what a sum begins with.
//   A block's weights times the scales of V, w_e ~ f u_e with u_e in [0, 32767] and, for I16, sum(u_e) < 2^18: f is the row's own
//   for the block, hence nearer than a weight in bf16. Codes hold no NaN: a masked entry's weight of zero is enough.
#pragma once

namespace hunch::HUNCH_ISA {

// codes[i] = row[i] most / max|row|, rounded; returns max|row| / most (ops/kv.h). All lanes hold one row, or each its
// own: greatest and zeros (x 0 of every element: NaN where one is not finite) per lane.
HUNCH_SIMD F32 code_factor(F32 greatest, F32 most) { return select(less(greatest, set1(kLeastCoded)), zero(), most / greatest); }
HUNCH_SIMD F32 code_scale(F32 greatest, F32 zeros, F32 most) {
  return select(less(greatest, set1(kLeastCoded)), zero(), greatest / most) + zeros;
}
static float code_row(const float* row, int head_dim, int padded_dim, int most, int32_t* codes) {
  F32 greatest = zero(), zeros = zero();
  for (int d = 0; d < padded_dim; d += kLanes) {
    const F32 x = load_row(row + d, head_dim - d);
    greatest = max(greatest, abs(x));
    zeros = fma(x, zero(), zeros);
  }
  greatest = set1(max_of(greatest));
  alignas(64) float scale[kLanes];
  store(scale, code_scale(greatest, set1(sum(zeros)), set1(float(most))));
  const F32 factor = code_factor(greatest, set1(float(most)));
  const bool finite = scale[0] == scale[0];
  for (int d = 0; d < padded_dim; d += kLanes)
    store(codes + d, finite ? to_i32(load_row(row + d, head_dim - d) * factor) : zero_i32());
  return scale[0];
}

struct KvCodes {
  using Factor = int16_t;
  using Query = std::byte;  // [padded_dim] 16-bit codes as `score_codes` reads them, then a CodedQuery
  static constexpr bool kCodes = true;
  static constexpr int kPerStep = 2, kLaneBytes = 4, kEntriesPerLine = 2;
  static constexpr float kUnit = 0;
  static constexpr int64_t query_stride(int padded_dim) { return int64_t(padded_dim) * 4; }
};
struct KvQ8 : KvCodes {
  using Code = uint8_t;
  static constexpr bool kWidened = true;
  static constexpr int kKeyStep = 4, kLaneDims = 4, kElementBytes = 1, kKeyBias = 128, kMost = most_code(DType::Q8_0);
  HUNCH_SIMD void read_keys(const std::byte* p, I32 (&parts)[2]) {
    const I32 line = load_i32(p);
    parts[0] = even_bytes(line), parts[1] = odd_bytes(line);
  }
  HUNCH_SIMD I32 read_values(const std::byte* p) { return widen_s8(p); }
};
struct KvI16 : KvCodes {
  using Code = int16_t;
  static constexpr bool kWidened = false;
  static constexpr int kKeyStep = 2, kLaneDims = 2, kElementBytes = 2, kKeyBias = 0, kMost = most_code(DType::I16);
  HUNCH_SIMD void read_keys(const std::byte* p, I32 (&parts)[1]) { parts[0] = load_i32(p); }
  HUNCH_SIMD I32 read_values(const std::byte* p) { return load_i32(p); }
};
inline constexpr int kMostSum = 1 << 18;  // of sizes of a query's codes, or of a block's weights, for I16
static_assert(int64_t(kMostSum) * KvI16::kMost < int64_t(1) << 31);

// Scales of a K or V block: behind its codes.
template <class Kv>
HUNCH_SIMD float* scales_of(std::byte* block, int padded_dim) {
  return reinterpret_cast<float*>(block + size_t(kBlockLen * Kv::kElementBytes) * padded_dim);
}
template <class Kv>
HUNCH_SIMD const float* scales_of(const std::byte* block, int padded_dim) {
  return scales_of<Kv>(const_cast<std::byte*>(block), padded_dim);
}

struct CodedQuery {
  float scale;
  int32_t start;
};
inline constexpr float kLeastWeight = 0x1p-112f;  // blocks of smaller weights add nothing

template <class Kv>
void code_query(const float* q, int head_dim, int padded_dim, std::byte* to) {
  alignas(64) int32_t codes[kMaxCodedDim];
  int most = padded_dim <= 512 ? 32767 : 16383;
  if constexpr (Kv::kElementBytes == 2) {
    F32 sizes = zero(), greatest = zero();
    for (int d = 0; d < padded_dim; d += kLanes) {
      const F32 size = abs(load_row(q + d, head_dim - d));
      sizes = sizes + size, greatest = max(greatest, size);
    }
    const float fits = max_of(greatest) / sum(sizes) * float(kMostSum - kMaxCodedDim);  // rounding adds half a dimension at most
    if (fits < float(most)) most = int(fits);  // whole: what is as great as the greatest loses nothing
  }
  CodedQuery tail{code_row(q, head_dim, padded_dim, most, codes), 0};
  auto* pairs = reinterpret_cast<int16_t*>(to);
  for (int d = 0; d < padded_dim; d += 4, pairs += 4) {  // Q8_0: even_bytes of four dimensions, then odd_bytes
    constexpr int kSecond = Kv::kLaneDims / 2;
    pairs[0] = int16_t(codes[d]), pairs[1] = int16_t(codes[d + kSecond]);
    pairs[2] = int16_t(codes[d + 3 - kSecond]), pairs[3] = int16_t(codes[d + 3]);
    tail.start -= Kv::kKeyBias * (codes[d] + codes[d + 1] + codes[d + 2] + codes[d + 3]);
  }
  __builtin_memcpy(pairs, &tail, sizeof tail);
}

HUNCH_SIMD I32 pair_at(const void* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return set1_i32(pair);
}

// scores[r][entry] = q[r] . k[entry].
template <class Kv, int R>
void score_codes(const std::byte* keys, int padded_dim, const std::byte* q, int64_t q_stride, float* scores, Ahead& ahead) {
  constexpr int kWide = wide_of(R);
  constexpr int kParts = Kv::kLaneDims / 2;
  const int steps = padded_dim / Kv::kLaneDims;
  const size_t tile_bytes = size_t(steps) * 64;
  const float* scales = scales_of<Kv>(keys, padded_dim);
  Ahead asked = ahead;
  CodedQuery tails[R];
  for (int r = 0; r < R; ++r) __builtin_memcpy(&tails[r], q + r * q_stride + 2 * padded_dim, sizeof tails[r]);
  for (int tile = 0; tile < kKeyTiles; tile += kWide) {
    const std::byte* line_at = keys + size_t(tile) * tile_bytes;
    I32 sums[R][kWide];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int t = 0; t < kWide; ++t) sums[r][t] = set1_i32(tails[r].start);
    for (int step = 0; step < steps; ++step, line_at += 64) {
      I32 lines[kWide][kParts];
      asked.step();
#pragma GCC unroll 8
      for (int t = 0; t < kWide; ++t) Kv::read_keys(line_at + size_t(t) * tile_bytes, lines[t]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
          const I32 f = pair_at(q + r * q_stride + (step * kParts + part) * 4);
#pragma GCC unroll 8
          for (int t = 0; t < kWide; ++t) sums[r][t] = dot2(sums[r][t], lines[t][part], f);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kWide; ++t) {
      const F32 scale = load(scales + (tile + t) * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        store(scores + r * kBlockLen + (tile + t) * kLanes, to_f32(sums[r][t]) * scale * set1(tails[r].scale));
    }
  }
  ahead = asked.handed_on();
}

template <class Kv>
void score_code_rows(
    const std::byte* keys, int padded_dim, const std::byte* q, int64_t q_stride, int rows, float* scores, Ahead& ahead) {
  each_tile<Kv::kWidened>(rows,
      [&]<int R>(int at) { score_codes<Kv, R>(keys, padded_dim, q + at * q_stride, q_stride, scores + at * kBlockLen, ahead); });
}

// The weights of one row and block, not negative and zero where masked, as 16 bits to `to`; returns their unit f, NaN if one is.
// Numbers that are not negative have the order of their bits; what is not finite, whatever its sign, comes behind them.
template <class Kv>
HUNCH_SIMD float code_weights(const float* weights, int16_t* to) {
  F32 w[kKeyTiles];
#pragma GCC unroll 4
  for (int t = 0; t < kKeyTiles; ++t) w[t] = load(weights + t * kLanes);
  // I16: the greatest of what each lane's weights add up to, less what rounding may add.
  constexpr float kMostWeight = Kv::kElementBytes == 2 ? kMostSum / kLanes - kKeyTiles : 32767;
  uint32_t top;
  if constexpr (Kv::kElementBytes == 2) {
    top = max_unsigned(bits_of((w[0] + w[1]) + (w[2] + w[3])));
  } else {
    const I32 some = max_unsigned(bits_of(w[0]), bits_of(w[1])), others = max_unsigned(bits_of(w[2]), bits_of(w[3]));
    top = max_unsigned(max_unsigned(some, others));
  }
  float greatest;
  __builtin_memcpy(&greatest, &top, 4);
  const F32 factor = set1(greatest >= kLeastWeight ? kMostWeight / greatest : 0.0f);
#pragma GCC unroll 4
  for (int t = 0; t < kKeyTiles; t += 2) store_s16(to + t * kLanes, w[t], w[t + 1], factor);
  return top < 0x7f800000u ? greatest * (1 / kMostWeight) : __builtin_nanf("");
}

// states[r][16 V dims] += units[r] (weights[r] . values) of the pairs of entries [begin, end).
template <class Kv, int R, int V>
void add_value_codes(const std::byte* values, int padded_dim, const int16_t* weights, const float* units, int begin, int end,
    float* states, int64_t state_stride, Ahead& ahead) {
  I32 sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[r][v] = zero_i32();
  const size_t pair_bytes = size_t(padded_dim) * 2 * Kv::kElementBytes;
  const std::byte* line_at = values + begin * pair_bytes;
  Ahead asked = ahead;
  for (int pair = begin; pair < end; ++pair, line_at += pair_bytes) {
    I32 lines[V];
    asked.step();
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) lines[v] = Kv::read_values(line_at + v * 2 * kLanes * Kv::kElementBytes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const I32 f = pair_at(weights + r * kBlockLen + 2 * pair);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = dot2(sums[r][v], lines[v], f);
    }
  }
  ahead = asked.handed_on();
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      float* state = states + r * state_stride + v * kLanes;
      store(state, fma(to_f32(sums[r][v]), set1(units[r]), load(state)));
    }
}

template <class Kv, int R>
void add_value_codes_all_dims(const std::byte* values, int padded_dim, const int16_t* weights, const float* units, int begin,
    int end, float* states, int64_t state_stride, Ahead& ahead) {
  each_vectors<R>(padded_dim, [&]<int V>(int at) {
    add_value_codes<Kv, R, V>(values + at * 2 * kLanes * Kv::kElementBytes, padded_dim, weights, units, begin, end,
        states + at * kLanes, state_stride, ahead);
  });
}

template <class Kv>
void value_code_rows(const std::byte* values, int padded_dim, const int16_t* weights, const float* units, int rows, int first,
    int last, float* states, int64_t stride, Ahead& ahead) {
  each_tile<Kv::kWidened>(rows, [&]<int R>(int at) {
    add_value_codes_all_dims<Kv, R>(
        values, padded_dim, weights + at * kBlockLen, units + at, first / 2, (last + 1) / 2, states + at * stride, stride, ahead);
  });
}

}
