// CpuKvStore: KV memory in the form that the attention kernels stream. Made by CpuBackend; written by store_kv and gather_kv.
//
//   address(layer, kv_head, page) = base + ((layer kv_heads + kv_head) num_pages + page) chunk
//   chunk = K block, then V block, of kPageLen entries each; head_dim padded to D, a multiple of 16 (K padding is zero)
//   K block: tiles of 16 entries, lanes are keys:   [tile][d][16]       bf16, i16: [tile][d / 2][16][d % 2]
//   V block: entries after each other:              [entry][d]          bf16, i16: [entry / 2][d][entry % 2]
//
// Coded (I16, Q8_0): codes, then the scales of the block's entries, fp32 [64]. Q8_0: K codes are biased by 128 (bytes 1..255):
//   K codes: [tile][d / 4][16][d % 4]   V codes: [entry / 2][d][entry % 2]
//
// FP8: bytes in the plain order, K [tile][d][16], V [entry][d].
//
// The pairs are what a pair-wise dot product eats; instruction sets without one for bf16 split them with a shift and a mask.
#pragma once

#include "backend/backend.h"
#include "backend/ops/kv.h"
#include "tensor/buffer.h"

namespace hunch {

struct KvLayout {
  DType dtype = DType::BF16;
  int head_dim = 0, padded_dim = 0;
  size_t element_bytes = 2, chunk_bytes = 0;

  KvLayout() = default;
  KvLayout(DType type, int dim);
  size_t values_offset() const { return chunk_bytes / 2; }
  // Coded: of the scale of entry `e`.
  size_t k_scale_offset(int e) const { return size_t(kPageLen) * padded_dim * element_bytes + e * sizeof(float); }
  size_t v_scale_offset(int e) const { return values_offset() + k_scale_offset(e); }
  // Bytes from the start of a chunk to element d of entry `e` in [0, kPageLen).
  size_t k_offset(int e, int d) const {
    const int tile = e / 16, lane = e % 16;
    const int per = dtype == DType::Q8_0 ? 4 : in_pairs() ? 2 : 1;  // neighbouring dimensions in a lane
    const int in_tile = (d / per * 16 + lane) * per + d % per;
    return (size_t(tile) * 16 * padded_dim + size_t(in_tile)) * element_bytes;
  }
  size_t v_offset(int e, int d) const {
    const int at = in_pairs() ? (e / 2 * padded_dim + d) * 2 + e % 2 : e * padded_dim + d;
    return values_offset() + size_t(at) * element_bytes;
  }
  bool in_pairs() const { return dtype == DType::BF16 || is_coded(dtype); }
  // Element d of K of entry `e` of a chunk; coded: without its scale.
  float key(const std::byte* chunk, int e, int d) const;
};

class CpuKvStore final : public KvStore {
 public:
  // nullptr if the memory cannot be had.
  static std::unique_ptr<CpuKvStore> make(const KvGeometry& geometry, int64_t num_pages);
  static size_t page_bytes(const KvGeometry& geometry);

  void poison(View<const int32_t, 1> pages, int64_t first, int64_t last) override;
  void read(int layer, int kv_head, View<const int32_t, 1> pages, int64_t entry, float* k, float* v) const override;

  void move(View<const int32_t, 1> pages, int64_t from, int64_t to);

  const KvLayout& layout() const { return layout_; }
  // The first page's chunk of a layer and head; page p lies p chunks further on.
  std::byte* plane(int layer, int kv_head) const {
    return static_cast<std::byte*>(memory_.data()) +
        size_t((int64_t(layer) * kv_heads + kv_head) * num_pages) * layout_.chunk_bytes;
  }

 private:
  KvLayout layout_;
  Buffer memory_;
};

}
