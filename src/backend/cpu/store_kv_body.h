// New rows of K and V into the tiles of kv_store.h: rounded, then spread over lanes. Used by the store kernels of
// attention_body.h's table.
#pragma once

namespace hunch::HUNCH_ISA {

struct RowF32 {
  using Bits = float;
  static constexpr bool kPairs = false;
  HUNCH_SIMD void put(Bits* to, F32 a) { store(to, a); }
};
struct RowF16 {
  using Bits = uint16_t;
  static constexpr bool kPairs = false;
  HUNCH_SIMD void put(Bits* to, F32 a) { store_f16(to, a); }
};
struct RowBf16 {
  using Bits = uint16_t;
  static constexpr bool kPairs = true;
  HUNCH_SIMD void put(Bits* to, F32 a) { store_bf16(to, a); }
};

// Rounds rows and spreads them over the lanes of their tiles. A pair's other entry is never read: another row may be due there.
template <class Row>
void store_rows(const StoreItem& item) {
  using Bits = typename Row::Bits;
  const int head_dim = item.keys.head_dim, padded_dim = item.keys.padded_dim;
  alignas(64) Bits rounded[kLanes];
  for (int64_t row = 0; row < item.num_rows; ++row) {
    const int64_t entry = item.first_entry + row;
    std::byte* chunk = chunk_at(item.keys, entry / kBlockLen);
    const int e = int(entry % kBlockLen), lane = e % kLanes;
    Bits* keys = reinterpret_cast<Bits*>(chunk) + e / kLanes * kLanes * padded_dim;
    Bits* values = reinterpret_cast<Bits*>(chunk + item.keys.chunk_bytes / 2);
    for (int d = 0; d < padded_dim; d += kLanes) {
      const int left = head_dim - d;
      Row::put(rounded, load_row(item.k + row * item.k_stride + d, left));
      if constexpr (Row::kPairs) {
        for (int i = 0; i < kLanes; i += 2) __builtin_memcpy(keys + ((d + i) / 2 * kLanes + lane) * 2, rounded + i, 4);
        Row::put(rounded, load_row(item.v + row * item.v_stride + d, left));
        for (int i = 0; i < kLanes; ++i) values[(e / 2 * padded_dim + d + i) * 2 + e % 2] = rounded[i];
      } else {
        for (int i = 0; i < kLanes; ++i) keys[(d + i) * kLanes + lane] = rounded[i];
        Row::put(values + e * padded_dim + d, load_row(item.v + row * item.v_stride + d, left));
      }
    }
  }
}

// Codes of E4M3, the bits of f32_to_f8 (base/half.h).
HUNCH_SIMD I32 f8_codes(F32 x) {
  const I32 u = bits_of(x), sign = shift_right<24>(u) & set1_i32(128), magnitude = u & set1_i32(0x7fffffff);
  const I32 halfway = set1_i32(0x7ffff - 0x3c000000) + (shift_right<20>(magnitude) & set1_i32(1));
  const I32 steps = bits_of(float_of(magnitude) + set1(0x1p14f)) - set1_i32(0x46800000);  // of 2^-9
  I32 code = select(less(magnitude, set1_i32(0x3c800000)), steps, shift_right<20>(magnitude + halfway));
  code = select(less(magnitude, set1_i32(0x43e00000)), code, set1_i32(126));  // 448
  return select(less(set1_i32(0x7f800000), magnitude), set1_i32(127), code) | sign;
}
HUNCH_SIMD void store_f8(std::byte* to, F32 x) {
  alignas(64) int32_t codes[kLanes];
  store(codes, f8_codes(x));
  for (int i = 0; i < kLanes; ++i) to[i] = std::byte(codes[i]);
}
static void store_f8_rows(const StoreItem& item) {
  const int head_dim = item.keys.head_dim, padded_dim = item.keys.padded_dim;
  const F32 k_factor = set1(1 / item.keys.scale.k), v_factor = set1(1 / item.keys.scale.v);  // powers of two: exact
  std::byte codes[kLanes];
  for (int64_t row = 0; row < item.num_rows; ++row) {
    const int64_t entry = item.first_entry + row;
    std::byte* chunk = chunk_at(item.keys, entry / kBlockLen);
    const int e = int(entry % kBlockLen);
    std::byte* keys = chunk + size_t(e / kLanes * kLanes * padded_dim) + size_t(e % kLanes);
    std::byte* values = chunk + item.keys.chunk_bytes / 2 + size_t(e * padded_dim);
    for (int d = 0; d < padded_dim; d += kLanes) {
      store_f8(codes, load_row(item.k + row * item.k_stride + d, head_dim - d) * k_factor);
      for (int i = 0; i < kLanes; ++i) keys[(d + i) * kLanes] = codes[i];
      store_f8(values + d, load_row(item.v + row * item.v_stride + d, head_dim - d) * v_factor);
    }
  }
}

// Rows of codes with a scale.
template <class Kv>
void store_code_rows(const StoreItem& item) {
  using Code = typename Kv::Code;
  const int head_dim = item.keys.head_dim, padded_dim = item.keys.padded_dim;
  alignas(64) int32_t codes[kMaxCodedDim];
  const auto code = [&](const float* of) { return code_row(of, head_dim, padded_dim, Kv::kMost, codes); };
  for (int64_t row = 0; row < item.num_rows; ++row) {
    const int64_t entry = item.first_entry + row;
    std::byte* keys = chunk_at(item.keys, entry / kBlockLen);
    std::byte* values = keys + item.keys.chunk_bytes / 2;
    const int e = int(entry % kBlockLen);
    scales_of<Kv>(keys, padded_dim)[e] = code(item.k + row * item.k_stride);
    Code* lane = reinterpret_cast<Code*>(keys) + e / kLanes * kLanes * padded_dim + e % kLanes * Kv::kLaneDims;
    for (int d = 0; d < padded_dim; d += Kv::kLaneDims, lane += Kv::kLaneDims * kLanes)
      for (int i = 0; i < Kv::kLaneDims; ++i) lane[i] = Code(codes[d + i] + Kv::kKeyBias);
    scales_of<Kv>(values, padded_dim)[e] = code(item.v + row * item.v_stride);
    Code* pair = reinterpret_cast<Code*>(values) + e / 2 * 2 * padded_dim + e % 2;
    for (int d = 0; d < padded_dim; ++d) pair[2 * d] = Code(codes[d]);
  }
}

}
