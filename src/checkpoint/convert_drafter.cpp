// A drafter's conversion: tensors under their published names, the text of config.json as it was; declared in convert.h.
#include <fmt/ranges.h>

#include <list>

#include "checkpoint/convert_tensors.h"
#include "checkpoint/drafter_file.h"
#include "checkpoint/quantise.h"

namespace hunch {
namespace {

constexpr size_t kMostDims = 4, kMostNameBytes = 255;  // what GGUF holds

Status check_storable(const DrafterFile& file) {
  for (const DrafterFile::Item& item : file.items()) {
    const Tensor& t = item.tensor;
    if (t.shape.size() > kMostDims)
      return file.wrong(t.name, fmt::format("{} dimensions, a GGUF file holds {}", t.shape.size(), kMostDims));
    if (t.name.size() > kMostNameBytes) return file.wrong(t.name, "its name is too long for a GGUF file");
    if (std::ranges::find(t.shape, 0) != t.shape.end()) return file.wrong(t.name, "has no elements");
  }
  return {};
}

}

Result<ConvertReport> quantise_drafter(const std::string& in, const std::string& out, DType type, std::string_view method,
    const ConvertCallback& progress, const std::atomic<bool>* interrupted) {
  using enum IntegerType;
  if (!can_quantise(type) || type == DType::MXFP4) return usage_error("type {} cannot be written", dtype_info(type).name);
  HUNCH_TRY(const auto file, DrafterFile::open(in, method));
  HUNCH_OK(check_destination(in, out));
  HUNCH_OK(check_storable(*file));
  GgufWriter writer;
  writer.add_text("general.architecture", kDrafterArchitecture);
  writer.add_text("general.type", "drafter");
  writer.add_text("general.name", name_of_folder(in));
  writer.add_text(kDrafterMethodKey, file->method());
  writer.add_text(kDrafterConfigKey, file->config_text());
  writer.add_u32("general.file_type", file_type_of(type));
  writer.add_u32("general.quantization_version", 2);

  ConvertReport report;
  std::vector<PlannedTensor> plan;
  std::list<Tensor> tensors;               // as written: scalars are vectors of one, tables as wide as stored
  std::list<std::vector<int32_t>> tables;  // GGUF has no unsigned bytes, and ids and counts need no 64 bits
  for (const DrafterFile::Item& item : file->items()) {
    if (item.tensor.name == "t2d") continue;  // which ids d2t reaches: no loader reads it
    Tensor& tensor = tensors.emplace_back(item.tensor);
    if (tensor.shape.empty()) tensor.shape = {1};
    if (item.integer == None) {
      plan.push_back({&tensor, encoding_for(tensor, type, report.notes)});
      writer.add_tensor(tensor.name, plan.back().dtype, tensor.shape);
    } else {
      IntegerType stored = item.integer == Bool ? I8 : item.integer;
      if (stored == U8 || stored == I64) {
        HUNCH_TRY(const auto values, file->integers(tensor.name));
        const auto fits = [](int64_t value) { return value == int32_t(value); };
        if (std::ranges::all_of(values, fits)) {
          const auto& table = tables.emplace_back(values.begin(), values.end());
          tensor.data = reinterpret_cast<const std::byte*>(table.data()), tensor.bytes = 4 * table.size();
          stored = I32;
        }
      }
      plan.push_back({.tensor = &tensor, .whole_numbers = true});
      writer.add_integers(tensor.name, stored, tensor.shape);
    }
    report.bytes_in += tensor.bytes;
  }
  HUNCH_OK(write_planned(writer, out, plan, 0, report.bytes_in, progress, interrupted));
  report.bytes_out = writer.file_bytes();
  return report;
}

}
