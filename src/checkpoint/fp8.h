// FP8 matrices (E4M3) as Hugging Face folders publish them: codes in X.weight, what multiplies them in X.weight_scale_inv
// (blocks, as DeepSeek-V3 and Qwen3-FP8 do) or X.weight_scale (matrix or rows, compressed-tensors). Used by checkpoint.cpp.
// Scales of activations are not used: activations stay as they are, so results are nearer to the model before quantisation than
// those of engines that multiply FP8 with FP8. Scales of KV are for caches of that type alone.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_entry.h"

namespace hunch {

// What config.json says that one scale is for.
enum class Fp8Scales { None, Matrix, Rows, Blocks };
inline constexpr int kFp8Block = 128;  // both ways

enum class Fp8Part { None, Scale, KeyScale, ValueScale, Unused };
struct Fp8Name {
  Fp8Part part = Fp8Part::None;
  std::string weight;  // of a Scale: the file's name of its matrix
  int layer = 0;       // of a KeyScale or ValueScale
};
Fp8Name fp8_name(std::string_view hf_name);

// The scales of `matrix` as fp32, as WeightScales wants them. `scale`: the file's entry, `data`: its bytes, unaligned. An error
// where type, shape or values are not what `kind` calls for; `source` stands in messages.
Result<std::vector<float>> read_fp8_scales(
    Fp8Scales kind, const Tensor& matrix, const TensorEntry& scale, const std::byte* data, std::string_view source);

// The one value of a KeyScale or ValueScale, rounded up to a power of two: codes are floating-point numbers, so a scale is there
// for their range, not for their precision.
Result<float> read_kv_scale(const TensorEntry& scale, const std::byte* data, std::string_view source);

// Rows and columns that share a scale, without values.
WeightScales fp8_scales_of(Fp8Scales kind, const Tensor& matrix);

}
