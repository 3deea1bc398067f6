// KV memory: a store of pages whose layout only its backend knows; stores of new rows; the compact copy of selected entries.
#pragma once

#include <span>
#include <vector>

#include "base/dtype.h"
#include "tensor/view.h"

namespace hunch {

inline constexpr int kPageLen = 64;  // entries of a page: one attention block

// KV stores hold BF16, F16, F32, I16, Q8_0 or FP8. I16 and Q8_0 (not GGUF's block here) are coded: K, and likewise V, of one
// entry and head are head_dim codes with one fp32 scale,  scale = max|x| / most,  code = x (most / max|x|) rounded to nearest
// even, value = scale code. A row that stays below kLeastCoded is all zero; one that is not finite reads as NaN. Codes are a
// function of the row alone. Why 14 bits of 16: docs/decisions/2026-12-01-keys-in-integers.md.
constexpr bool is_coded(DType t) { return t == DType::Q8_0 || t == DType::I16; }
constexpr int most_code(DType t) { return t == DType::I16 ? 8191 : 127; }
inline constexpr float kLeastCoded = 0x1p-100f;
inline constexpr int kMaxCodedDim = 1024;  // greatest head_dim of a coded store
// FP8 (E4M3): code = x / scale rounded to nearest even, what is past +-448 (infinities too) becomes that; value = scale code; NaN
// stays NaN. The scale is a power of two, hence exact, for K and for V of a layer (KvScale): docs/decisions/2026-11-22-fp8-kv.md.
constexpr bool is_kv_dtype(DType t) {
  return t == DType::BF16 || t == DType::F16 || t == DType::F32 || is_coded(t) || t == DType::F8_E4M3;
}
// Bytes of K (or of V) of one entry and head.
constexpr size_t kv_row_bytes(DType t, int head_dim) {
  return is_coded(t) ? size_t(head_dim) * (t == DType::I16 ? 2 : 1) + sizeof(float) : dtype_bytes(t, head_dim);
}

// Memory of `num_pages` pages, each kPageLen entries of K and V for every layer and KV head. Allocated once, contents undefined.
class KvStore {
 public:
  virtual ~KvStore() = default;
  DType dtype = DType::BF16;  // of stored rows, see above
  int layers = 0, kv_heads = 0, head_dim = 0;
  int64_t num_pages = 0;
  size_t bytes = 0;
  std::vector<KvScale> scales;  // [layer], or empty: 1; other types than FP8 ignore them
  KvScale scale(int layer) const { return dtype == DType::F8_E4M3 && !scales.empty() ? scales[layer] : KvScale{}; }
  // Overwrites entries [first, last) of a page table with NaN in every layer, K and V (poison tests).
  virtual void poison(View<const int32_t, 1> pages, int64_t first, int64_t last) = 0;
  // Entry `entry` of a page as fp32 (tests, tools): k and v [head_dim].
  virtual void read(int layer, int kv_head, View<const int32_t, 1> pages, int64_t entry, float* k, float* v) const = 0;
};

// The entries of one sequence: entry e lives in pages[e / kPageLen] at e % kPageLen.
struct KvRef {
  KvStore* store = nullptr;
  // Host memory, read at the next op that neither stores nor copies, or where replay() or synchronize() ends.
  View<const int32_t, 1> pages;
};

// Rounds and stores K and V of rows [first_row, first_row + num_rows) at entries first_entry, first_entry + 1, ...
struct StoreKvArgs {
  int layer = 0;
  View<const float, 3> k, v;  // [rows of these entries][kv_head][head_dim]
  KvRef kv;
  int64_t first_entry = 0;
};

// Moves entries of one sequence in every layer, K and V, bits as they are: entry from[i] to entry to[i], one after the other in
// order of i; to[i] <= from[i], both ascending (a tree's accepted path closes up).
struct MoveKvArgs {
  KvRef kv;
  std::span<const int64_t> from, to;
};

// Rows of a draft tree change places in every layer, K and V, bits as they are: in the stretch of `lengths[g]` entries that
// begins behind stretch g - 1 (the first at first_entry), entry i becomes what entry from(i) was, for i < from.extent <=
// lengths[g]. So the branches that go on each stand in a column of their own, whichever branch they left.
struct ShuffleKvArgs {
  KvRef kv;
  int64_t first_entry = 0;
  std::span<const int32_t> lengths;
  View<const int32_t, 1> from;  // memory of the backend; not descending, in [0, lengths[g])
};
inline constexpr int64_t kMostShuffled = 16;  // from.extent

// Copies the selected entries, then the entries [tail_first, tail_last), of one layer from `from` to entries 0.. of `to`.
// Both stores have the same geometry, scales included. With the same dtype bits are copied; the only conversion is to Q8_0 (a
// copy for drafts in half the bytes, while the exact rows stay as they are): what store_kv makes of the entries as they read.
// Lists are ascending.
struct GatherKvArgs {
  int layer = 0;
  KvRef from, to;
  View<const int32_t, 2> index;  // [kv_heads or 1 (shared)][count]
  int64_t tail_first = 0, tail_last = 0;
};

// Bounds of the keys of aligned pages of page_len entries: for each page p of [first_page, last_page), the key of entry p of `to`
// becomes [greatest, least] of the keys of entries [p page_len, (p + 1) page_len) of `from`, element by element. Both stores have
// the same layers and KV heads; head_dim of `to` is twice that of `from`; its dtype is bounds_dtype(). Values of `to` are not
// written. Bits are exact (every FP8 value is a bf16), those of codes with a scale rounded to bf16.
// `means`: the key of entry p becomes the mean instead, summed in fp32 and rounded once; head_dim of `to` is that of `from`.
inline DType bounds_dtype(DType keys) { return is_coded(keys) || keys == DType::F8_E4M3 ? DType::BF16 : keys; }
struct PageBoundsArgs {
  int layer = 0;
  KvRef from, to;
  int page_len = 16;
  int64_t first_page = 0, last_page = 0;
  bool means = false;
};
inline bool page_bounds_fit(const PageBoundsArgs& a) {
  const KvStore &from = *a.from.store, &to = *a.to.store;
  return to.dtype == bounds_dtype(from.dtype) && to.kv_heads == from.kv_heads && a.page_len >= 1 &&
      to.head_dim == (a.means ? 1 : 2) * from.head_dim;
}

// Queries in a form whose product with [greatest, least] bounds (page_bounds) is the greatest logit that a page can hold:
// out[..][d] = max(q[d], 0), out[..][head_dim + d] = min(q[d], 0). A row of `out` per query row and head of a group, its columns
// the groups (by_group), or the rows and heads of q as they are.
struct SplitSignsArgs {
  View<const float, 3> q;  // [rows][head][head_dim]
  bool by_group = false;
  View<float, 3> out;  // [rows][head][2 head_dim], or by group [rows * group][kv_head][2 head_dim]: row r * group + head % group
};

}
