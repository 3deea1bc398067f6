// Token rows of KV stores inside kernels: a warp encodes and decodes K or V of one entry and head. Included by the kernels of
// store, gather and bounds, and by the general attention.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "backend/cuda/commands.h"
#include "backend/cuda/kv_store.h"
#include "backend/cuda/ptx.h"
#include "backend/ops/kv.h"

namespace hunch {

// The row of K (part 0) or V (part 1) of an entry.
struct KvRow {
  std::byte* data;
  float* scale;  // Q8_0 only
  float unit;    // FP8 only
};

HUNCH_DEVICE int64_t kv_part_bytes(DType dtype, int head_dim) {
  if (dtype == DType::Q8_0 || dtype == DType::F8_E4M3) return head_dim;
  return int64_t(head_dim) * (dtype == DType::F32 ? 4 : 2);
}

HUNCH_DEVICE KvRow kv_row(const KvPlane& plane, const int32_t* pages, int kv_head, int64_t entry, int part) {
  std::byte* chunk = plane.keys + kv_head * plane.head_bytes + pages[entry / kPageLen] * plane.chunk_bytes;
  const int64_t in_page = entry % kPageLen, bytes = kv_part_bytes(plane.dtype, plane.head_dim);
  return {chunk + (2 * in_page + part) * bytes, reinterpret_cast<float*>(chunk + 2 * kPageLen * bytes) + 2 * in_page + part,
      part == 0 ? plane.scale.k : plane.scale.v};
}

HUNCH_DEVICE float kv_element(DType dtype, const KvRow& row, int d) {
  switch (dtype) {
    case DType::F32: return reinterpret_cast<const float*>(row.data)[d];
    case DType::F16: return __half2float(reinterpret_cast<const __half*>(row.data)[d]);
    case DType::BF16: return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row.data)[d]);
    case DType::F8_E4M3: return row.unit * float(reinterpret_cast<const __nv_fp8_e4m3*>(row.data)[d]);
    default: return *row.scale * float(reinterpret_cast<const int8_t*>(row.data)[d]);
  }
}

// One warp; from(d) gives element d. Codes as ops/kv.h says.
template <class From>
HUNCH_DEVICE void encode_row(DType dtype, const KvRow& to, int head_dim, From from) {
  const int lane = int(threadIdx.x % 32);
  if (dtype != DType::Q8_0) {
    const float factor = 1 / to.unit;  // a power of two
    for (int d = lane; d < head_dim; d += 32) {
      const float x = from(d);
      if (dtype == DType::F32) reinterpret_cast<float*>(to.data)[d] = x;
      if (dtype == DType::F16) reinterpret_cast<__half*>(to.data)[d] = __float2half_rn(x);
      if (dtype == DType::BF16) reinterpret_cast<__nv_bfloat16*>(to.data)[d] = __float2bfloat16_rn(x);
      if (dtype == DType::F8_E4M3)
        reinterpret_cast<__nv_fp8_storage_t*>(to.data)[d] = __nv_cvt_float_to_fp8(x * factor, __NV_SATFINITE, __NV_E4M3);
    }
    return;
  }
  float greatest = 0;
  bool finite = true;
  for (int d = lane; d < head_dim; d += 32) {
    const float x = from(d);
    finite = finite && isfinite(x);
    greatest = fmaxf(greatest, fabsf(x));
  }
  for (int step = 16; step; step /= 2) greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, step));
  finite = __all_sync(~0u, finite);
  const bool coded = finite && greatest >= kLeastCoded;
  const float inverse = coded ? 127 / greatest : 0;
  for (int d = lane; d < head_dim; d += 32)
    reinterpret_cast<int8_t*>(to.data)[d] = finite ? int8_t(rintf(from(d) * inverse)) : int8_t(0);
  if (lane == 0) *to.scale = coded ? greatest / 127 : finite ? 0 : __int_as_float(0x7fffffff);
}

// A call of store_kv as its kernels read it.
struct StoreDevice {
  const float *k, *v;
  int64_t k_row, k_head, v_row, v_head;  // strides
  KvPlane plane;
  const int32_t* pages;
  int64_t rows, first_entry;
};
inline StoreDevice store_device(Commands& commands, const StoreKvArgs& args) {
  const KvPlane plane = kv_plane(args.kv, args.layer);
  HUNCH_CHECK(args.k.extent[1] == plane.kv_heads && args.k.extent[2] == plane.head_dim);
  HUNCH_CHECK(args.k.stride[2] == 1 && args.v.stride[2] == 1);
  const int64_t rows = args.k.extent[0], first = args.first_entry / kPageLen,
                end = std::min(args.kv.pages.extent[0], (args.first_entry + rows - 1) / kPageLen + 1);  // pages
  return {args.k.data, args.v.data, args.k.stride[0], args.k.stride[1], args.v.stride[0], args.v.stride[1], plane,
      commands.data(args.kv.pages.slice(first, end - first)), rows, args.first_entry - first * kPageLen};
}

}
