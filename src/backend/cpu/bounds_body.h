// Least and greatest keys of pages, or means. Lanes of a K tile are keys, so a tile's bound of one dimension is a maximum over
// lanes; lanes outside the page are replaced after loading (they may hold NaN). Contract in ops/kv.h, memory layout in
// kv_store.h.
#pragma once

namespace hunch::HUNCH_ISA {

// A line of a tile of K, or of a row of V: 16 lanes of fp32 for each of its kDims dimensions (entries).
struct WideF32 {
  using Bits = float;
  static constexpr int kDims = 1;
  HUNCH_SIMD void read(const void* line, F32 (&x)[kDims]) { x[0] = load(static_cast<const float*>(line)); }
  HUNCH_SIMD Bits bits_of_value(float a) { return a; }
};
struct WideF16 {
  using Bits = uint16_t;
  static constexpr int kDims = 1;
  HUNCH_SIMD void read(const void* line, F32 (&x)[kDims]) { x[0] = load_f16(static_cast<const uint16_t*>(line)); }
  HUNCH_SIMD Bits bits_of_value(float a) { return f32_to_f16(a); }
};
struct WideBf16 {
  using Bits = uint16_t;
  static constexpr int kDims = 2;
  HUNCH_SIMD void read(const void* line, F32 (&x)[kDims]) {
    const I32 pair = load_i32(line);
    x[0] = bf16_even(pair), x[1] = bf16_odd(pair);
  }
  HUNCH_SIMD Bits bits_of_value(float a) { return f32_to_bf16(a); }
};

template <class Wide>
void bound_pages(const BoundsItem& item) {
  using Bits = typename Wide::Bits;
  constexpr int kDims = Wide::kDims;
  const F32 never = set1(-kInf);
  const int dim = item.from.head_dim, from_dim = item.from.padded_dim, to_dim = item.to.padded_dim;
  for (int64_t page = item.first_page; page < item.last_page; ++page) {
    const int e = int(page % kBlockLen), lane = e % kLanes;
    Bits* to = reinterpret_cast<Bits*>(chunk_at(item.to, page / kBlockLen)) + e / kLanes * kLanes * to_dim;
    const auto put = [&](int d, Bits value) { to[d / kDims * kDims * kLanes + lane * kDims + d % kDims] = value; };
    const int64_t first = page * item.page_len, end = first + item.page_len;
    for (int line = 0; line * kDims < dim; ++line) {
      F32 greatest[kDims], least[kDims], sums[kDims];  // least: of -x, as a greatest
      for (int i = 0; i < kDims; ++i) greatest[i] = least[i] = never, sums[i] = zero();
      for (int64_t at = first / kLanes * kLanes; at < end; at += kLanes) {
        const Bits* tile =
            reinterpret_cast<const Bits*>(chunk_at(item.from, at / kBlockLen)) + at % kBlockLen / kLanes * kLanes * from_dim;
        const uint32_t in_page = bits(first_lanes(int(end - at))) & ~bits(first_lanes(int(first - at)));
        F32 x[kDims];
        Wide::read(tile + line * kDims * kLanes, x);
        for (int i = 0; i < kDims; ++i) {
          if (item.means) {
            sums[i] = sums[i] + select(mask_of(in_page), x[i], zero());
            continue;
          }
          greatest[i] = max(greatest[i], select(mask_of(in_page), x[i], never));
          least[i] = max(least[i], select(mask_of(in_page), zero() - x[i], never));
        }
      }
      for (int i = 0; i < kDims && line * kDims + i < dim; ++i) {
        put(line * kDims + i, Wide::bits_of_value(item.means ? sum(sums[i]) / float(item.page_len) : max_of(greatest[i])));
        if (!item.means) put(dim + line * kDims + i, Wide::bits_of_value(-max_of(least[i])));
      }
    }
    for (int d = item.to.head_dim; d < to_dim; ++d) put(d, Bits(0));  // K padding is zero
  }
}

static constexpr BoundsKernels bounds_kernels() {
  BoundsKernels table;
  table.bound[int(DType::F32)] = bound_pages<WideF32>;
  table.bound[int(DType::F16)] = bound_pages<WideF16>;
  table.bound[int(DType::BF16)] = bound_pages<WideBf16>;
  return table;
}

}
