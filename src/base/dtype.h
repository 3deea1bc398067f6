// Element encodings of tensors and KV rows, with their block geometry (GGUF's names and layouts for the quantised ones; FP8 is
// what Hugging Face folders publish, its scales are a tensor of their own: WeightScales of checkpoint/checkpoint.h). MXFP4: Open
// Compute Project, Microscaling Formats v1.0, of weights only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace hunch {

enum class DType : uint8_t { F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, F8_E4M3, MXFP4, I16 };
inline constexpr int kNumDTypes = 11;

struct DTypeInfo {
  std::string_view name;  // as the command line takes and prints it
  int block;              // elements per block along the input dimension
  int block_bytes;
};

constexpr DTypeInfo dtype_info(DType t) {
  switch (t) {
    case DType::F32: return {"f32", 1, 4};
    case DType::F16: return {"f16", 1, 2};
    case DType::BF16: return {"bf16", 1, 2};
    case DType::Q8_0: return {"q8_0", 32, 34};    // f16 d, int8 q[32]; w = d q
    case DType::Q4_0: return {"q4_0", 32, 18};    // f16 d, 16 bytes (element i low nibble, i+16 high); w = d (q - 8)
    case DType::Q4_K: return {"q4_k", 256, 144};  // f16 d, f16 dmin, 12 bytes of 6-bit scales and mins, 128 bytes of nibbles
    case DType::Q5_K: return {"q5_k", 256, 176};  // as Q4_K, with 32 bytes of fifth bits before the nibbles
    case DType::Q6_K: return {"q6_k", 256, 210};  // 128 low nibbles, 64 high bits, int8 scales[16], f16 d; w = d sc (q - 32)
    case DType::F8_E4M3: return {"fp8", 1, 1};    // sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, 0x7f is NaN
    case DType::MXFP4: return {"mxfp4", 32, 17};  // u8 e, nibbles as Q4_0; w = 2^(e - 128) kMxfp4Doubled[code]
    case DType::I16: return {"i16", 32, 66};  // of KV rows alone (backend/ops/kv.h): their scale counts as 2 bytes in 32 elements
  }
  return {"?", 1, 0};
}

// Twice the values of E2M1, by code: sign, 2 bits of exponent, 1 of mantissa.
inline constexpr int kMxfp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr std::optional<DType> dtype_named(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i)
    if (dtype_info(DType(i)).name == name) return DType(i);
  return {};
}

// Of an FP8 KV cache, for each layer: value = scale code. Powers of two (backend/ops/kv.h).
struct KvScale {
  float k = 1, v = 1;
};

// Bytes of `elements` consecutive elements; `elements` is a multiple of the block.
constexpr size_t dtype_bytes(DType t, size_t elements) {
  return elements / size_t(dtype_info(t).block) * size_t(dtype_info(t).block_bytes);
}

}
