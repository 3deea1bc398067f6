// The compact copy in 8 bits of entries of other types (ops/kv.h, GatherKvArgs), and the table of all gather kernels. K goes
// by destination tiles: 16 keys are brought together in the source's form, then coded, each lane a row.
#pragma once

namespace hunch::HUNCH_ISA {

struct WideF8 {  // as those of bounds_body.h
  HUNCH_SIMD void read(const std::byte* line, F32 (&to)[1]) { to[0] = load_f8_nan(line); }
};
struct WideI16 {
  HUNCH_SIMD void read(const std::byte* line, F32 (&to)[2]) {
    const I32 pair = load_i32(line);
    to[0] = to_f32(shift_right_sign<16>(shift_left<16>(pair))), to[1] = to_f32(shift_right_sign<16>(pair));
  }
};

// 16 keys of `wide` [padded_dim][16] to lanes [0, count) of a tile and its scales.
static void code_tile(const float* wide, int padded_dim, int count, std::byte* tile, float* scales) {
  F32 greatest = zero(), zeros = zero();
  for (int d = 0; d < padded_dim; ++d) {
    const F32 x = load(wide + d * kLanes);
    greatest = max(greatest, abs(x));
    zeros = fma(x, zero(), zeros);
  }
  const F32 scale = code_scale(greatest, zeros, set1(127.0f)), factor = code_factor(greatest, set1(127.0f));
  const Mask finite = equal(zeros, zero()), taken = first_lanes(count);
  store_first(scales, scale, count);
  const I32 byte = set1_i32(255), bias = set1_i32(int32_t(0x80808080u));
  for (int d = 0; d < padded_dim; d += 4, wide += 4 * kLanes, tile += 4 * kLanes) {
    I32 c[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) c[i] = select(finite, to_i32(load(wide + i * kLanes) * factor), zero_i32()) & byte;
    const I32 word = (c[0] | shift_left<8>(c[1]) | shift_left<16>(c[2]) | shift_left<24>(c[3])) ^ bias;  // + 128 in each byte
    store(tile, select(taken, word, load_i32(tile)));
  }
}

// Two rows of V to a line of pairs.
static void code_pair(const float* even, const float* odd, int padded_dim, std::byte* to, float* scales, bool both) {
  alignas(64) int32_t a[kMaxCodedDim], b[kMaxCodedDim];
  scales[0] = code_row(even, padded_dim, padded_dim, KvQ8::kMost, a);
  if (both) scales[1] = code_row(odd, padded_dim, padded_dim, KvQ8::kMost, b);
  for (int d = 0; d < padded_dim; ++d) {
    to[2 * d] = std::byte(a[d]);
    if (both) to[2 * d + 1] = std::byte(b[d]);
  }
}

template <class Kv, class Lane, class Wide>
size_t gather_coded(const GatherItem& item) {
  constexpr int kDims = Kv::kLaneDims, kLineBytes = kLanes * int(sizeof(Lane));
  const int padded_dim = item.to.padded_dim, lines = padded_dim / kDims;
  const size_t tile_bytes = size_t(lines) * kLineBytes, to_tile_bytes = size_t(padded_dim) * kLanes;
  const size_t values = item.from.chunk_bytes / 2, to_values = item.to.chunk_bytes / 2;
  alignas(64) std::byte tile[kMaxCodedDim * kLanes * sizeof(float)];
  alignas(64) float wide[kMaxCodedDim * kLanes];
  size_t bytes_read = 0;
  int64_t look = item.first;
  for (int i = 0; i < kTilesAhead; ++i) look = next_tile(item, look);
  for (int64_t at = item.first; at < item.last;) {
    const int64_t tile_first = at, tile_end = at + kLanes < item.last ? at + kLanes : item.last;
    while (at < tile_end) {
      at = move_run<Lane>(item, at, tile_end, lines, tile, look);
      look = next_tile(item, look);
      bytes_read += tile_bytes;
    }
    alignas(64) float key_scales[kLanes] = {};
    if constexpr (Kv::kCodes)
      for (int64_t i = tile_first; i < tile_end; ++i) key_scales[i % kLanes] = *scale_of<Kv>(item.from, source_of(item, i), 0);
    for (int line = 0; line < lines; ++line) {
      F32 x[kDims];
      Wide::read(tile + line * kLineBytes, x);
      for (int i = 0; i < kDims; ++i) {
        if constexpr (Kv::kUnit != 0) x[i] = x[i] * set1(Kv::kUnit * item.from.scale.k);
        if constexpr (Kv::kCodes) x[i] = x[i] * load(key_scales);
        store(wide + (line * kDims + i) * kLanes, x[i]);
      }
    }
    std::byte* chunk = chunk_of(item.to, tile_first);
    code_tile(wide, padded_dim, int(tile_end - tile_first), tile_of(item.to, tile_first, to_tile_bytes),
        scales_of<KvQ8>(chunk, padded_dim) + tile_first % kBlockLen);
  }
  constexpr int kPer = Kv::kEntriesPerLine;
  const size_t row_bytes = tile_bytes / kLanes * kPer;  // of the entries that share a row
  float* rows[2] = {wide, wide + kMaxCodedDim};
  for (int64_t at = item.first; at < item.last; at += 2) {
    const bool both = at + 1 < item.last;
    for (int64_t ahead = at + kRowsAhead; ahead < at + kRowsAhead + 2 && ahead < item.last; ++ahead) {
      const int64_t later = source_of(item, ahead);
      const std::byte* from = chunk_of(item.from, later) + values + size_t(later % kBlockLen / kPer) * row_bytes;
      for (size_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(from + i);
    }
    for (int i = 0; i < 1 + both; ++i) {
      const int64_t source = source_of(item, at + i);
      const std::byte* from = chunk_of(item.from, source) + values + size_t(source % kBlockLen / kPer) * row_bytes;
      float unit = Kv::kUnit * item.from.scale.v;
      if constexpr (Kv::kCodes) unit = *scale_of<Kv>(item.from, source, values);
      for (int d = 0; d < padded_dim; d += kLanes, from += kLineBytes * kPer / kDims) {
        F32 x[kDims];
        Wide::read(from, x);
        F32 row = x[source % kPer];
        if constexpr (Kv::kUnit != 0 || Kv::kCodes) row = row * set1(unit);
        store(rows[i] + d, row);
      }
      bytes_read += row_bytes;
    }
    std::byte* to = chunk_of(item.to, at) + to_values;
    code_pair(rows[0], rows[1], padded_dim, to + size_t(at % kBlockLen * padded_dim),
        scales_of<KvQ8>(to, padded_dim) + at % kBlockLen, both);
  }
  return bytes_read;
}

static constexpr GatherKernels gather_kernels() {
  GatherKernels table;
  table.gather[int(DType::F32)] = gather<KvF32, uint32_t>;
  table.gather[int(DType::F16)] = gather<KvF16, uint16_t>;
  table.gather[int(DType::BF16)] = gather<KvBf16, uint32_t>;
  table.gather[int(DType::Q8_0)] = gather<KvQ8, uint32_t>;
  table.gather[int(DType::I16)] = gather<KvI16, uint32_t>;
  table.gather[int(DType::F8_E4M3)] = gather<KvF8, uint8_t>;
  table.gather_coded[int(DType::F32)] = gather_coded<KvF32, uint32_t, WideF32>;
  table.gather_coded[int(DType::F16)] = gather_coded<KvF16, uint16_t, WideF16>;
  table.gather_coded[int(DType::BF16)] = gather_coded<KvBf16, uint32_t, WideBf16>;
  table.gather_coded[int(DType::I16)] = gather_coded<KvI16, uint32_t, WideI16>;
  table.gather_coded[int(DType::F8_E4M3)] = gather_coded<KvF8, uint8_t, WideF8>;
  return table;
}

}
