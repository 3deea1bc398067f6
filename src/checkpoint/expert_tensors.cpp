// Nothing is copied: the parts point into the tensor.
#include "checkpoint/expert_tensors.h"

#include <fmt/ranges.h>

#include "base/failure.h"

namespace hunch {
namespace {

constexpr std::string_view kWeight = ".weight", kAll = "_exps";

}

bool is_expert_matrix(std::string_view name) {
  if (!name.starts_with("blk.") || !name.ends_with(kWeight)) return false;
  name.remove_suffix(kWeight.size());
  const size_t dot = name.rfind('.');
  const std::string_view id = name.substr(dot + 1);
  return name.find(".ffn_") < dot && !id.empty() && id.find_first_not_of("0123456789") == id.npos;
}

Result<std::vector<NamedEntry>> split_experts(
    std::string_view name, const TensorEntry& entry, const ModelShape& shape, std::string_view source) {
  std::vector<NamedEntry> out;
  if (shape.num_experts == 0 || !name.starts_with("blk.") || !name.ends_with("_exps.weight")) return out;
  std::string_view stem = name.substr(0, name.size() - kWeight.size() - kAll.size());  // "blk.3.ffn_gate_up"
  const bool both = stem.ends_with(".ffn_gate_up"), down = stem.ends_with(".ffn_down");
  if (!both && !down && !stem.ends_with(".ffn_gate") && !stem.ends_with(".ffn_up")) return out;
  if (both) stem.remove_suffix(std::string_view("_up").size());
  const int64_t experts = shape.num_experts, rows = down ? shape.hidden : shape.expert_ffn;
  const std::vector<int64_t> wanted{experts, both ? 2 * rows : rows, down ? shape.expert_ffn : shape.hidden};
  if (entry.shape != wanted)
    return failure("{}: tensor {} has shape [{}], expected [{}] ({} experts of width {})", source, name,
        fmt::join(entry.shape, ", "), fmt::join(wanted, ", "), experts, shape.expert_ffn);
  if (entry.dtype == DType::F8_E4M3)
    return failure("{}: tensor {} holds all experts in fp8; such files are read with a tensor for each expert", source, name);
  const int parts = both ? 2 : 1;
  const uint64_t bytes = entry.bytes / uint64_t(experts * parts);
  const std::string layer(stem.substr(0, stem.rfind('.')));
  for (int64_t id = 0; id < experts; ++id)
    for (int part = 0; part < parts; ++part) {
      TensorEntry matrix = entry;
      matrix.shape = {rows, wanted[2]};
      matrix.offset += bytes * uint64_t(id * parts + part), matrix.bytes = bytes;
      out.push_back(
          {part == 0 ? fmt::format("{}.{}.weight", stem, id) : fmt::format("{}.ffn_up.{}.weight", layer, id), std::move(matrix)});
    }
  return out;
}

}
