// Single elements are read and poisoned here by the definition of the layout, not by the kernels' way through it.
#include "backend/cpu/kv_store.h"

#include <cstring>

#include "backend/cpu/threads.h"
#include "base/check.h"
#include "base/half.h"

namespace hunch {
namespace {

constexpr int kLaneMultiple = 16;

// Coded: without the scale. V of Q8_0; its K is biased.
float element(const std::byte* p, DType dtype) {
  if (dtype == DType::Q8_0) return float(int8_t(*p));
  if (dtype == DType::F8_E4M3) return f8_to_f32(uint8_t(*p));
  if (dtype == DType::F32) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, p, sizeof half);
  if (dtype == DType::I16) return float(int16_t(half));
  return dtype == DType::BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

void set_nan(std::byte* p, DType dtype) {
  const float nan = NAN;
  if (dtype == DType::F32) {
    std::memcpy(p, &nan, sizeof nan);
    return;
  }
  if (dtype == DType::F8_E4M3) {
    *p = std::byte(0x7f);
    return;
  }
  const uint16_t half = dtype == DType::BF16 ? f32_to_bf16(nan) : f32_to_f16(nan);
  std::memcpy(p, &half, sizeof half);
}

}

KvLayout::KvLayout(DType type, int dim) : dtype(type), head_dim(dim) {
  HUNCH_CHECK(is_kv_dtype(type));
  HUNCH_CHECK(dim > 0 && (!is_coded(type) || dim <= kMaxCodedDim));
  padded_dim = (dim + kLaneMultiple - 1) / kLaneMultiple * kLaneMultiple;
  element_bytes = type == DType::F32 ? 4 : type == DType::Q8_0 || type == DType::F8_E4M3 ? 1 : 2;
  const size_t scale_bytes = is_coded(type) ? kPageLen * sizeof(float) : 0;
  chunk_bytes = 2 * (size_t(kPageLen) * padded_dim * element_bytes + scale_bytes);
}

float KvLayout::key(const std::byte* chunk, int e, int d) const {
  const std::byte* at = chunk + k_offset(e, d);
  return dtype == DType::Q8_0 ? float(int(*at) - 128) : element(at, dtype);
}

size_t CpuKvStore::page_bytes(const KvGeometry& geometry) {
  return KvLayout(geometry.dtype, geometry.head_dim).chunk_bytes * size_t(geometry.layers) * geometry.kv_heads;
}

std::unique_ptr<CpuKvStore> CpuKvStore::make(const KvGeometry& geometry, int64_t num_pages) {
  Buffer memory = allocate_aligned(page_bytes(geometry) * size_t(num_pages));
  if (!memory) return nullptr;
  auto store = std::make_unique<CpuKvStore>();
  store->layout_ = KvLayout(geometry.dtype, geometry.head_dim);
  store->memory_ = std::move(memory);
  store->dtype = geometry.dtype;
  store->layers = geometry.layers;
  store->kv_heads = geometry.kv_heads;
  store->head_dim = geometry.head_dim;
  store->num_pages = num_pages;
  store->scales.assign(geometry.scales.begin(), geometry.scales.end());
  store->bytes = page_bytes(geometry) * size_t(num_pages);
  return store;
}

void CpuKvStore::poison(View<const int32_t, 1> pages, int64_t first, int64_t last) {
  for (int layer = 0; layer < layers; ++layer)
    for (int head = 0; head < kv_heads; ++head)
      for (int64_t entry = first; entry < last; ++entry) {
        std::byte* chunk = plane(layer, head) + size_t(pages(entry / kPageLen)) * layout_.chunk_bytes;
        const int at = int(entry % kPageLen);
        if (at == 0 && entry + kPageLen <= last) {  // all bits set is a NaN in every KV type
          std::memset(chunk, 0xff, layout_.chunk_bytes);
          entry += kPageLen - 1;
          continue;
        }
        if (is_coded(dtype)) {  // codes are numbers whatever they are
          set_nan(chunk + layout_.k_scale_offset(at), DType::F32);
          set_nan(chunk + layout_.v_scale_offset(at), DType::F32);
          continue;
        }
        for (int d = 0; d < layout_.padded_dim; ++d) {  // the padding too: stores write it again
          set_nan(chunk + layout_.k_offset(at, d), dtype);
          set_nan(chunk + layout_.v_offset(at, d), dtype);
        }
      }
}

void CpuKvStore::read(int layer, int kv_head, View<const int32_t, 1> pages, int64_t entry, float* k, float* v) const {
  const std::byte* chunk = plane(layer, kv_head) + size_t(pages(entry / kPageLen)) * layout_.chunk_bytes;
  const int at = int(entry % kPageLen);
  KvScale unit = scale(layer);
  if (is_coded(dtype))
    unit = {element(chunk + layout_.k_scale_offset(at), DType::F32), element(chunk + layout_.v_scale_offset(at), DType::F32)};
  for (int d = 0; d < head_dim; ++d) {
    k[d] = unit.k * layout_.key(chunk, at, d);
    v[d] = unit.v * element(chunk + layout_.v_offset(at, d), dtype);
  }
}

void CpuKvStore::move(View<const int32_t, 1> pages, int64_t from, int64_t to) {
  const int a = int(from % kPageLen), b = int(to % kPageLen);
  for (int layer = 0; layer < layers; ++layer)
    for (int head = 0; head < kv_heads; ++head) {
      const std::byte* source = plane(layer, head) + size_t(pages(from / kPageLen)) * layout_.chunk_bytes;
      std::byte* target = plane(layer, head) + size_t(pages(to / kPageLen)) * layout_.chunk_bytes;
      for (int d = 0; d < layout_.padded_dim; ++d) {
        std::memcpy(target + layout_.k_offset(b, d), source + layout_.k_offset(a, d), layout_.element_bytes);
        std::memcpy(target + layout_.v_offset(b, d), source + layout_.v_offset(a, d), layout_.element_bytes);
      }
      if (!is_coded(dtype)) continue;
      std::memcpy(target + layout_.k_scale_offset(b), source + layout_.k_scale_offset(a), sizeof(float));
      std::memcpy(target + layout_.v_scale_offset(b), source + layout_.v_scale_offset(a), sizeof(float));
    }
}

}
