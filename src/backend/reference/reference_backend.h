// ReferenceBackend: every op as its textbook loop in fp32, one file per op. It is the definition the other backends are tested
// against, a complete slow engine, and the base class of `cpu`, which overrides op by op.
#pragma once

#include "backend/backend.h"

namespace hunch {

// A matrix as fp32, whatever the file held; `dtype` stays the file's.
class ReferenceWeight : public Weight {
 public:
  std::vector<float> values;  // [out_dim][in_dim]
  const float* row(int64_t i) const { return values.data() + i * in_dim; }
};

// Entry-major pages of rounded rows. A backend with another layout overrides all ops that read or write them
// (docs/recipes/add-a-backend.md).
class ReferenceKvStore : public KvStore {
 public:
  ReferenceKvStore(const KvGeometry& geometry, int64_t num_pages);
  void poison(View<const int32_t, 1> pages, int64_t first, int64_t last) override;
  void read(int layer, int kv_head, View<const int32_t, 1> pages, int64_t entry, float* k, float* v) const override;
  void write(int layer, int kv_head, View<const int32_t, 1> pages, int64_t entry, const float* k, const float* v);
  // Bits of one entry: K then V, each [head_dim] of the dtype.
  std::byte* entry(int layer, int kv_head, View<const int32_t, 1> pages, int64_t entry);
  const std::byte* entry(int layer, int kv_head, View<const int32_t, 1> pages, int64_t entry) const;
  size_t entry_bytes() const { return 2 * kv_row_bytes(dtype, head_dim); }
  bool allocated() const { return memory_ != nullptr; }

 private:
  std::unique_ptr<std::byte[]> memory_;  // [layer][kv_head][page][kPageLen][K, V][row]
};

// Below it a temperature means greedy (backend/ops/sample.h).
inline constexpr float kGreedyTemperature = 1e-5f;

class ReferenceBackend : public Backend {
 public:
  ReferenceBackend() = default;

  std::string description() const override { return "reference"; }
  int threads() const override { return 1; }
  DType default_kv_dtype() const override { return DType::F16; }

#include "backend/every_op.inc"

  void thin_channels(const ThinChannelsArgs& args) override { hunch::thin_channels(args); }
  void thin_experts(const ThinExpertsArgs& args) override { hunch::thin_experts(args); }
  bool has_nsa() const override { return true; }

  // 0.98^steps with the bits that every backend's top_k uses.
  static float dilation_factor(int steps);

 private:
  std::vector<float> shares_;  // of one row, in route()
};

}
