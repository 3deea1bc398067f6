#include "checkpoint/fp8.h"

#include <fmt/ranges.h>

#include <charconv>
#include <cmath>

#include "base/failure.h"
#include "checkpoint/quantise.h"
#include "checkpoint/quote.h"

namespace hunch {

using enum Fp8Scales;

namespace {

// "model.layers.3.self_attn.k_scale", or behind k_proj.
Fp8Name kv_scale_name(std::string_view hf_name) {
  constexpr std::string_view kBefore = "model.layers.";
  if (!hf_name.starts_with(kBefore)) return {};
  hf_name.remove_prefix(kBefore.size());
  int layer = 0;
  const auto [end, error] = std::from_chars(hf_name.data(), hf_name.data() + hf_name.size(), layer);
  if (error != std::errc() || layer < 0) return {};
  hf_name.remove_prefix(end - hf_name.data());
  if (hf_name == ".self_attn.k_scale" || hf_name == ".self_attn.k_proj.k_scale") return {Fp8Part::KeyScale, {}, layer};
  if (hf_name == ".self_attn.v_scale" || hf_name == ".self_attn.v_proj.v_scale") return {Fp8Part::ValueScale, {}, layer};
  return {};
}

}

Fp8Name fp8_name(std::string_view hf_name) {
  const size_t dot = hf_name.rfind('.');
  if (dot == hf_name.npos) return {};
  const std::string_view suffix = hf_name.substr(dot + 1);
  if (suffix == "weight_scale" || suffix == "weight_scale_inv")
    return {Fp8Part::Scale, fmt::format("{}.weight", hf_name.substr(0, dot))};
  if (Fp8Name kv = kv_scale_name(hf_name); kv.part != Fp8Part::None) return kv;
  for (const std::string_view unused : {"input_scale", "output_scale", "q_scale", "k_scale", "v_scale"})
    if (suffix == unused) return {Fp8Part::Unused, {}};
  return {};
}

Result<float> read_kv_scale(const TensorEntry& scale, const std::byte* data, std::string_view source) {
  const Failing fail{[&] { return fmt::format("{}: tensor {}", source, quote(scale.name)); }};
  if (elements_of(scale.shape) != 1)
    return fail("has shape [{}]; a KV cache has one scale a layer", fmt::join(scale.shape, ", "));
  if (scale.dtype != DType::F32 && scale.dtype != DType::BF16 && scale.dtype != DType::F16)
    return fail("scales must be F32, BF16 or F16");
  float value = 0;
  dequantise_row(scale.dtype, data, &value, 1);
  if (!(value >= 0x1p-32f && value <= 0x1p32f)) return fail("is {}; a scale lies in 2^-32..2^32", value);
  return std::exp2(std::ceil(std::log2(value)));
}

WeightScales fp8_scales_of(Fp8Scales kind, const Tensor& matrix) {
  const int64_t out = matrix.shape[0], in = matrix.shape[1];
  if (kind == Rows) return {nullptr, 1, in};
  if (kind == Blocks) return {nullptr, kFp8Block, kFp8Block};
  return {nullptr, out, in};
}

Result<std::vector<float>> read_fp8_scales(
    Fp8Scales kind, const Tensor& matrix, const TensorEntry& scale, const std::byte* data, std::string_view source) {
  const Failing fail{[&] { return fmt::format("{}: tensor {}", source, quote(scale.name)); }};
  if (kind == None) return fail("scales {}, but config.json has no quantization_config", matrix.name);
  if (matrix.dtype != DType::F8_E4M3)
    return fail("scales {}, which is {} and not fp8", matrix.name, dtype_info(matrix.dtype).name);
  if (scale.dtype == DType::F8_E4M3) return fail("scales must be F32, BF16 or F16");
  const WeightScales of = fp8_scales_of(kind, matrix);
  const int64_t rows = (matrix.shape[0] + of.rows - 1) / of.rows, columns = (matrix.shape[1] + of.columns - 1) / of.columns;
  // One value is written as [], [1] or [1, 1]; one a row as [out] or [out, 1].
  std::vector<int64_t> shape = scale.shape;
  while (kind != Blocks && !shape.empty() && shape.back() == 1 && (shape.size() > 1 || kind == Matrix)) shape.pop_back();
  const std::vector<int64_t> want = kind == Matrix ? std::vector<int64_t>{}
      : kind == Rows                               ? std::vector<int64_t>{rows}
                                                   : std::vector<int64_t>{rows, columns};
  if (shape != want)
    return fail("has shape [{}]; {} of shape [{}] needs [{}] ({})", fmt::join(scale.shape, ", "), matrix.name,
        fmt::join(matrix.shape, ", "), fmt::join(want, ", "),
        kind == Matrix     ? "one scale a matrix"
            : kind == Rows ? "one a row"
                           : "one a block of 128 x 128");
  std::vector<float> values(rows * columns);
  dequantise_row(scale.dtype, data, values.data(), std::ssize(values));
  for (const float value : values)
    if (!std::isfinite(value)) return fail("holds {}", value);
  return values;
}

}
