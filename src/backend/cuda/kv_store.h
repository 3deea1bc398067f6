// KV memory of the CUDA backend: pages of 64 token rows by layer and KV head. A token row is K then V of one head, so that a
// selected token is one contiguous read; attention fetches a whole page of a head by one TMA box.
//
//   [layer][kv_head][page] chunks;  chunk: [64 entries][K row | V row], for Q8_0 codes, then [64 entries][K scale, V scale] fp32
//   FP8: rows of codes alone; the scales of a layer travel with its plane.
#pragma once

#include <cuda.h>

#include "backend/backend.h"
#include "backend/cuda/commands.h"

namespace hunch {

// What kernels know of one layer of a store.
struct KvPlane {
  std::byte* keys = nullptr;             // KV head 0, page 0
  int64_t head_bytes = 0;                // from one KV head to the next
  int64_t chunk_bytes = 0;               // from page to page
  const CUtensorMap* maps = nullptr;     // two in device memory: of a page's K and V, of either; null: of 16 bits no element
  bool on_tensor_cores = false;          // attention has a form for them
  int32_t first_row = 0, head_rows = 0;  // of the tensor maps: entry 0 of page 0 of KV head 0, and rows of a head
  DType dtype = DType::BF16;
  int head_dim = 0, kv_heads = 0;
  KvScale scale;  // FP8
};

class CudaKvStore final : public KvStore {
 public:
  // nullptr if the memory cannot be had. `commands` outlives the store: poison() and read() wait for it.
  static std::unique_ptr<CudaKvStore> make(Commands& commands, const KvGeometry& geometry, int64_t num_pages);
  static size_t page_bytes(const KvGeometry& geometry);
  ~CudaKvStore() override;

  void poison(View<const int32_t, 1> pages, int64_t first, int64_t last) override;
  void read(int layer, int kv_head, View<const int32_t, 1> pages, int64_t entry, float* k, float* v) const override;

  KvPlane plane(int layer) const;

 private:
  CudaKvStore() = default;
  std::byte* row(int layer, int kv_head, int64_t page, int64_t entry) const;
  bool make_maps();

  Commands* commands_ = nullptr;
  std::byte* memory_ = nullptr;
  CUtensorMap* maps_ = nullptr;  // device memory, never changed
  int64_t chunk_bytes_ = 0;
  size_t row_bytes_ = 0;  // of K and V of one entry, without scales
};

inline KvPlane kv_plane(const KvRef& kv, int layer) { return static_cast<const CudaKvStore&>(*kv.store).plane(layer); }

}
