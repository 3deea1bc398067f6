// See kv_store.h.
#include "backend/cuda/kv_store.h"

#include <cstring>

#include "base/half.h"

namespace hunch {
namespace {

constexpr size_t kScaleBytes = 2 * sizeof(float);  // of one entry of codes

size_t element_row_bytes(DType dtype, int head_dim) {  // K or V of an entry without its scale
  return dtype == DType::Q8_0 ? size_t(head_dim) : dtype_bytes(dtype, head_dim);
}

// cuTensorMapEncodeTiled without linking against the driver, which a machine without a device lacks.
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
EncodeTiled encode_tiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    return nullptr;
  return reinterpret_cast<EncodeTiled>(function);
}

}

size_t CudaKvStore::page_bytes(const KvGeometry& geometry) {
  return size_t(2) * kPageLen * geometry.layers * geometry.kv_heads * kv_row_bytes(geometry.dtype, geometry.head_dim);
}

std::unique_ptr<CudaKvStore> CudaKvStore::make(Commands& commands, const KvGeometry& geometry, int64_t num_pages) {
  HUNCH_CHECK(is_kv_dtype(geometry.dtype) && num_pages > 0);
  std::unique_ptr<CudaKvStore> store(new CudaKvStore);
  store->commands_ = &commands;
  store->dtype = geometry.dtype, store->layers = geometry.layers, store->kv_heads = geometry.kv_heads;
  store->head_dim = geometry.head_dim, store->num_pages = num_pages;
  store->scales.assign(geometry.scales.begin(), geometry.scales.end());
  store->bytes = page_bytes(geometry) * size_t(num_pages);
  store->row_bytes_ = 2 * element_row_bytes(geometry.dtype, geometry.head_dim);
  store->chunk_bytes_ = int64_t(kPageLen * (store->row_bytes_ + (geometry.dtype == DType::Q8_0 ? kScaleBytes : 0)));
  if (cudaMalloc(&store->memory_, store->bytes) != cudaSuccess) {
    (void)cudaGetLastError();  // not an error of the next call
    return nullptr;
  }
  if (!store->make_maps()) return nullptr;
  return store;
}

// A page's token rows as boxes of 128 bytes by 64 rows, in the order [K low, K high, V low, V high] for heads of 128.
bool CudaKvStore::make_maps() {
  const bool halves = dtype == DType::BF16 || dtype == DType::F16;
  if (!halves || (head_dim != 64 && head_dim != 128) || !is_hopper()) return true;
  const EncodeTiled encode = encode_tiled();
  if (!encode || cudaMalloc(&maps_, 2 * sizeof(CUtensorMap)) != cudaSuccess) return false;
  const cuuint32_t parts = cuuint32_t(row_bytes_ / 128);
  const cuuint64_t extents[3] = {64, cuuint64_t(bytes / row_bytes_), parts};
  const cuuint64_t strides[2] = {row_bytes_, 128};
  const cuuint32_t steps[3] = {1, 1, 1};
  alignas(64) CUtensorMap maps[2];
  for (int keys_only = 0; keys_only < 2; ++keys_only) {
    const cuuint32_t box[3] = {64, kPageLen, keys_only ? parts / 2 : parts};
    if (encode(&maps[keys_only], dtype == DType::BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
            memory_, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
      return false;
  }
  return copy_to_device(maps_, maps, sizeof maps) == cudaSuccess;
}

CudaKvStore::~CudaKvStore() {
  if (memory_ || maps_) (void)cudaDeviceSynchronize();
  if (memory_) (void)cudaFree(memory_);
  if (maps_) (void)cudaFree(maps_);
}

KvPlane CudaKvStore::plane(int layer) const {
  KvPlane plane;
  plane.head_bytes = num_pages * chunk_bytes_, plane.chunk_bytes = chunk_bytes_;
  plane.keys = memory_ + int64_t(layer) * kv_heads * plane.head_bytes;
  plane.maps = maps_;
  const bool coded = dtype == DType::F8_E4M3 || dtype == DType::Q8_0;
  plane.on_tensor_cores = maps_ || (coded && (head_dim == 64 || head_dim == 128) && is_hopper());
  plane.head_rows = int32_t(num_pages * kPageLen);
  plane.first_row = maps_ ? int32_t(int64_t(layer) * kv_heads * plane.head_rows) : 0;
  plane.dtype = dtype, plane.head_dim = head_dim, plane.kv_heads = kv_heads;
  plane.scale = scale(layer);
  return plane;
}

std::byte* CudaKvStore::row(int layer, int kv_head, int64_t page, int64_t entry) const {
  HUNCH_CHECK(page >= 0 && page < num_pages);
  const int64_t chunk = (int64_t(layer) * kv_heads + kv_head) * num_pages + page;
  return memory_ + chunk * chunk_bytes_ + size_t(entry) * row_bytes_;
}

void CudaKvStore::poison(View<const int32_t, 1> pages, int64_t first, int64_t last) {
  HUNCH_CHECK(commands_->wait().ok());
  for (int64_t e = first; e < last;) {
    const int64_t in_page = e % kPageLen, count = std::min<int64_t>(last - e, kPageLen - in_page), page = pages(e / kPageLen);
    for (int layer = 0; layer < layers; ++layer)
      for (int head = 0; head < kv_heads; ++head) {  // all ones is a NaN in every type
        HUNCH_CUDA_CHECK(cudaMemset(row(layer, head, page, in_page), 0xff, size_t(count) * row_bytes_));
        if (dtype == DType::Q8_0)
          HUNCH_CUDA_CHECK(
              cudaMemset(row(layer, head, page, kPageLen) + size_t(in_page) * kScaleBytes, 0xff, size_t(count) * kScaleBytes));
      }
    e += count;
  }
  HUNCH_CUDA_CHECK(cudaDeviceSynchronize());
}

void CudaKvStore::read(int layer, int kv_head, View<const int32_t, 1> pages, int64_t entry, float* k, float* v) const {
  HUNCH_CHECK(commands_->wait().ok());
  std::vector<std::byte> bits(row_bytes_);
  const int64_t page = pages(entry / kPageLen), in_page = entry % kPageLen;
  HUNCH_CUDA_CHECK(cudaMemcpy(bits.data(), row(layer, kv_head, page, in_page), row_bytes_, cudaMemcpyDeviceToHost));
  float scales[2] = {scale(layer).k, scale(layer).v};
  if (dtype == DType::Q8_0)
    HUNCH_CUDA_CHECK(cudaMemcpy(
        scales, row(layer, kv_head, page, kPageLen) + size_t(in_page) * kScaleBytes, kScaleBytes, cudaMemcpyDeviceToHost));
  for (int part = 0; part < 2; ++part) {
    const std::byte* from = bits.data() + size_t(part) * row_bytes_ / 2;
    float* to = part == 0 ? k : v;
    for (int i = 0; i < head_dim; ++i) {
      uint16_t half;
      if (dtype == DType::F32) {
        std::memcpy(&to[i], from + i * sizeof(float), sizeof(float));
      } else if (dtype == DType::Q8_0) {
        to[i] = scales[part] * float(int8_t(from[i]));
      } else if (dtype == DType::F8_E4M3) {
        to[i] = scales[part] * f8_to_f32(uint8_t(from[i]));
      } else {
        std::memcpy(&half, from + size_t(i) * 2, 2);
        to[i] = dtype == DType::BF16 ? bf16_to_f32(half) : f16_to_f32(half);
      }
    }
  }
}

}
