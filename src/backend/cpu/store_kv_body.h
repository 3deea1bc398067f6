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

// Rounds rows and spreads them over the lanes of their tiles. Neighbouring entries of a pair are never read: another row may be
// due there.
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

// 8-bit rows.
static void store_code_rows(const StoreItem& item) {
  const int padded_dim = item.keys.padded_dim;
  alignas(64) int32_t codes[kMaxCodedDim];
  for (int64_t row = 0; row < item.num_rows; ++row) {
    const int64_t entry = item.first_entry + row;
    std::byte* keys = chunk_at(item.keys, entry / kBlockLen);
    std::byte* values = keys + item.keys.chunk_bytes / 2;
    const int e = int(entry % kBlockLen);
    scales_of(keys, padded_dim)[e] = code_row(item.k + row * item.k_stride, item.keys.head_dim, padded_dim, 127, codes);
    std::byte* lane = keys + size_t(e / kLanes * kLanes * padded_dim) + size_t(e % kLanes) * 4;
    for (int d = 0; d < padded_dim; d += 4, lane += 4 * kLanes)
      for (int i = 0; i < 4; ++i) lane[i] = std::byte(codes[d + i] + kKeyBias);
    scales_of(values, padded_dim)[e] = code_row(item.v + row * item.v_stride, item.keys.head_dim, padded_dim, 127, codes);
    std::byte* pair = values + size_t(e / 2 * 2 * padded_dim) + size_t(e % 2);
    for (int d = 0; d < padded_dim; ++d) pair[2 * d] = std::byte(codes[d]);
  }
}

}  // namespace hunch::HUNCH_ISA
