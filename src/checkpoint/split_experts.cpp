#include "checkpoint/split_experts.h"

#include <fmt/ranges.h>

#include "base/failure.h"
#include "checkpoint/quantise.h"
#include "checkpoint/quote.h"

namespace hunch {
namespace {

constexpr std::string_view kBlocks = ".blocks", kScales = ".scales", kBias = ".bias", kBoth = ".ffn_gate_up_exps";
constexpr int64_t kBlock = 32;

Error misshapen(std::string_view source, std::string_view name, const TensorEntry& entry, const std::vector<int64_t>& wanted) {
  return failure(
      "{}: tensor {} has shape [{}], expected [{}]", source, quote(name), fmt::join(entry.shape, ", "), fmt::join(wanted, ", "));
}

}

bool SplitExperts::takes(std::string_view name) {
  const std::string_view stem = name.substr(0, name.rfind('.')), kind = name.substr(stem.size());
  return (stem.ends_with(kBoth) && (kind == kBlocks || kind == kScales || kind == kBias)) ||
      (stem.ends_with(".ffn_down_exps") && (kind == kBlocks || kind == kScales));
}

Status SplitExperts::add(std::string name, TensorEntry entry, FileBytes file, std::string_view source) {
  const bool bytes = !name.ends_with(kBias);
  if (bytes != (entry.integer == IntegerType::U8) || (!bytes && entry.integer != IntegerType::None))
    return failure("{}: tensor {} must hold {}", source, quote(entry.name), bytes ? "U8" : "BF16, F16 or F32");
  const std::byte* data = file.data() + entry.offset;
  const auto [at, fresh] = parts_.try_emplace(std::move(name), Part{std::move(entry), data});
  if (!fresh) return failure("{}: tensor {} appears twice", source, quote(at->first));
  return {};
}

Status SplitExperts::join(const ModelShape& shape, std::string_view source, std::vector<Tensor>& out) {
  for (const auto& [name, part] : parts_) {
    const std::string stem = name.substr(0, name.rfind('.'));
    const bool scales = name.ends_with(kScales);
    if (shape.num_experts == 0)
      return failure("{}: tensor {} belongs to experts, of which this model has none", source, quote(name));
    if (name.ends_with(kBias)) HUNCH_OK(join_bias(shape, stem, part, source, out));
    else if (!scales) HUNCH_OK(join_matrices(shape, stem, part, source, out));
    else if (!parts_.contains(stem + std::string(kBlocks))) return failure("{}: tensor {} lacks its blocks", source, quote(name));
  }
  return {};
}

Status SplitExperts::join_matrices(
    const ModelShape& shape, const std::string& stem, const Part& blocks, std::string_view source, std::vector<Tensor>& out) {
  const auto scales = parts_.find(stem + std::string(kScales));
  if (scales == parts_.end()) return failure("{}: tensor {}{} lacks its scales", source, stem, kBlocks);
  const bool both = stem.ends_with(kBoth);
  const int64_t experts = shape.num_experts, step = both ? 2 : 1;
  const int64_t rows = both ? shape.expert_ffn : shape.hidden, columns = both ? shape.hidden : shape.expert_ffn;
  if (columns % kBlock != 0)
    return failure("{}: tensor {}{}: rows of {} elements are no multiple of {}", source, stem, kBlocks, columns, kBlock);
  const std::vector<int64_t> wanted{experts, step * rows, columns / kBlock};
  std::vector<int64_t> wanted_blocks = wanted;
  wanted_blocks.push_back(kBlock / 2);
  if (blocks.entry.shape != wanted_blocks) return misshapen(source, blocks.entry.name, blocks.entry, wanted_blocks);
  if (scales->second.entry.shape != wanted) return misshapen(source, scales->first, scales->second.entry, wanted);

  const std::string layer = stem.substr(0, stem.rfind('.'));
  constexpr const char* kinds[] = {"gate", "up"};
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t part = 0; part < step; ++part) {
      const int64_t first_row = e * step * rows + part;
      const char* kind = both ? kinds[part] : "down";
      Tensor matrix{
          .name = fmt::format("{}.ffn_{}.{}.weight", layer, kind, e),
          .dtype = DType::MXFP4,
          .shape = {rows, columns},
          .data = blocks.data + first_row * (columns / 2),
          .bytes = dtype_bytes(DType::MXFP4, rows * columns),
      };
      matrix.split = {scales->second.data + first_row * (columns / kBlock), step};
      out.push_back(std::move(matrix));
    }
  return {};
}

Status SplitExperts::join_bias(
    const ModelShape& shape, const std::string& stem, const Part& bias, std::string_view source, std::vector<Tensor>& out) {
  const int64_t experts = shape.num_experts, width = shape.expert_ffn, count = experts * 2 * width;
  const std::vector<int64_t> wanted{experts, 2 * width};
  if (bias.entry.shape != wanted) return misshapen(source, bias.entry.name, bias.entry, wanted);
  std::vector<float> turns(count);
  dequantise_row(bias.entry.dtype, bias.data, turns.data(), count);
  for (int64_t part = 0; part < 2; ++part) {
    float* values = biases_.emplace_back(std::make_unique<float[]>(count / 2)).get();
    for (int64_t i = 0; i < count / 2; ++i) values[i] = turns[2 * i + part];
    out.push_back({
        .name = fmt::format("{}.ffn_{}_exps.bias", stem.substr(0, stem.rfind('.')), part == 0 ? "gate" : "up"),
        .dtype = DType::F32,
        .shape = {experts, width},
        .data = reinterpret_cast<const std::byte*>(values),
        .bytes = size_t(count / 2) * sizeof(float),
    });
  }
  return {};
}

}
