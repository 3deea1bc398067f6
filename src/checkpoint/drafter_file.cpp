#include "checkpoint/drafter_file.h"

#include <fmt/ranges.h>

#include <filesystem>

#include "checkpoint/deepseek_config.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"

namespace hunch {
namespace {

namespace fs = std::filesystem;

// The weights of a folder: as of any model, or the only *.safetensors in it (medusa_lm_head.safetensors among several).
Result<ShardList> weights_of(const std::string& folder) {
  if (exists(folder + "/model.safetensors") || exists(folder + "/model.safetensors.index.json")) return list_shards(folder);
  const std::string medusa = folder + "/medusa_lm_head.safetensors";
  if (exists(medusa)) return ShardList{{medusa}, {}};
  std::vector<std::string> tensors, pickles;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".safetensors") tensors.push_back(entry.path().string());
    if (is_pickle(entry.path().string())) pickles.push_back(entry.path().string());
  }
  std::ranges::sort(pickles);
  if (tensors.size() == 1) return ShardList{std::move(tensors), {}};
  if (tensors.size() > 1)
    return failure("{}: {} *.safetensors files and no index of them; name the one that is meant", folder, tensors.size());
  if (!pickles.empty()) return pickled_weights(pickles[0]);
  return list_shards(folder);  // says what is missing
}

}

void DrafterFile::add(TensorEntry entry, FileBytes file) {
  if (entry.name.ends_with("rotary_emb.inv_freq")) return;  // derived from rope_theta
  const std::byte* data = aligned_data(entry, file, copies_);
  items_.push_back({{std::move(entry.name), entry.dtype, std::move(entry.shape), data, size_t(entry.bytes)}, entry.integer});
}

Status DrafterFile::index_names() {
  index_.clear();
  for (size_t i = 0; i < items_.size(); ++i) {
    const Tensor& tensor = items_[i].tensor;
    if (!index_.emplace(tensor.name, i).second) return wrong(tensor.name, "appears twice");
    if (tensor.dtype == DType::F8_E4M3 || tensor.dtype == DType::MXFP4)
      return wrong(
          tensor.name, fmt::format("{} is read in models, not in drafters: use its original", dtype_info(tensor.dtype).name));
  }
  return {};
}

Result<std::unique_ptr<DrafterFile>> DrafterFile::open_folder(
    const std::string& path, const std::string& folder, std::vector<std::string> files) {
  if (!exists(folder + "/config.json"))
    return failure("{}: no config.json beside the weights; a drafter needs the one that it was published with", folder);
  HUNCH_TRY(std::string text, read_text_file(folder + "/config.json", kMostConfigBytes));
  HUNCH_TRY(JsonConfig config, JsonConfig::parse(text, folder + "/config.json"));
  if (config.has("quantization_config"))
    return config.wrong("quantization_config", "quantised Hugging Face checkpoints are not supported; use the original weights");
  std::unique_ptr<DrafterFile> out(new DrafterFile(path, "safetensors", std::move(config)));
  out->config_text_ = std::move(text);
  for (const std::string& name : files) {
    HUNCH_TRY(MappedFile file, MappedFile::open(name));
    HUNCH_TRY(auto entries, parse_safetensors(file.bytes(), name, IntegerTensors::Read));
    for (TensorEntry& entry : entries) out->add(std::move(entry), file.bytes());
    out->file_bytes_ += file.bytes().size();
    out->files_.push_back(std::move(file));
  }
  return out;
}

Result<std::unique_ptr<DrafterFile>> DrafterFile::open_gguf(const std::string& path) {
  HUNCH_TRY(MappedFile file, MappedFile::open(path));
  HUNCH_TRY(const GgufFile gguf, GgufFile::parse(file.bytes(), path, IntegerTensors::Read));
  HUNCH_TRY(const auto architecture, gguf.text("general.architecture"));
  std::string text, method;
  if (architecture == kDrafterArchitecture) {
    HUNCH_TRY(const auto stored_config, gguf.text(kDrafterConfigKey));
    HUNCH_TRY(const auto stored_method, gguf.text(kDrafterMethodKey));
    if (!stored_config) return gguf.wrong(kDrafterConfigKey, "missing");
    if (!stored_method || !is_drafter_method(*stored_method))
      return gguf.wrong(kDrafterMethodKey, "{}; known are {}", stored_method ? quote(*stored_method) : "missing",
          fmt::join(kDrafterMethods, ", "));
    if (stored_config->size() > kMostConfigBytes) return gguf.wrong(kDrafterConfigKey, "longer than 16 MiB");
    text = *stored_config, method = *stored_method;
  } else if (architecture && is_family(*architecture)) {
    method = "draft_model";
  } else {
    return gguf.wrong("general.architecture",
        "{} is no drafter that is read; hunch quantize makes one of the folder that was published",
        architecture ? quote(*architecture) : "missing");
  }
  HUNCH_TRY(JsonConfig config, JsonConfig::parse(text, fmt::format("{}: {}", path, kDrafterConfigKey)));
  std::unique_ptr<DrafterFile> out(new DrafterFile(path, "gguf", std::move(config)));
  out->config_text_ = std::move(text);
  out->stored_method_ = std::move(method);
  for (const TensorEntry& entry : gguf.tensors()) out->add(entry, file.bytes());
  out->file_bytes_ = file.bytes().size();
  out->files_.push_back(std::move(file));
  return out;
}

// What the user says wins only where the file does not contradict: a wrong pairing would load and merely guess badly.
Status DrafterFile::settle_method(std::string_view asked, std::string_view stored) {
  if (!stored.empty()) {
    method_ = stored;
  } else {
    std::vector<std::string_view> names;
    for (const Item& item : items_) names.push_back(item.tensor.name);
    HUNCH_TRY(const auto detected, detect_drafter_method(config_, names));
    if (!detected && asked.empty()) return unknown_drafter(config_);
    method_ = detected ? *detected : std::string(asked);
  }
  if (!asked.empty() && asked != method_) return failure("{}: a drafter of method {}, not {}", path_, method_, quote(asked));
  return {};
}

Result<std::unique_ptr<DrafterFile>> DrafterFile::open(const std::string& path, std::string_view method) {
  if (!method.empty() && !is_drafter_method(method))
    return usage_error("{}: unknown method {} of a drafter; known are {}", path, quote(method), fmt::join(kDrafterMethods, ", "));
  std::error_code ignored;
  const auto opened = [&]() -> Result<std::unique_ptr<DrafterFile>> {
    if (fs::is_directory(path, ignored)) {
      HUNCH_TRY(ShardList shards, weights_of(path));
      return open_folder(path, path, std::move(shards.files));
    }
    if (is_pickle(path)) return pickled_weights(path);
    if (fs::path(path).extension() != ".safetensors") return open_gguf(path);
    const std::string parent = fs::path(path).parent_path().string();
    return open_folder(path, parent.empty() ? "." : parent, {path});
  };
  HUNCH_TRY(auto out, opened());
  if (out->items_.empty()) return failure("{}: holds no tensors", path);
  HUNCH_OK(out->index_names());
  HUNCH_OK(out->settle_method(method, out->stored_method_));
  return out;
}

bool is_learned_drafter(const std::string& path) {
  const auto whole_model = [](const JsonConfig& config) {  // whose prediction layer is read with it
    const auto type = config.text("model_type");
    return type.ok() && type.value() && is_deepseek(*type.value());
  };
  if (const auto opened = DrafterFile::open(path); opened.ok()) {
    DrafterFile& file = *opened.value();
    const bool with_model = file.method() == "mtp" && file.find("model.layers.0.input_layernorm.weight");
    return file.method() != "draft_model" && !with_model && !whole_model(file.config());
  }
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    const auto file = MappedFile::open(path);
    if (!file.ok()) return false;
    const auto gguf = GgufFile::parse(file.value().bytes(), path, IntegerTensors::Read);
    if (!gguf.ok()) return false;
    const auto architecture = gguf.value().text("general.architecture");
    return architecture.ok() && architecture.value() == kDrafterArchitecture;
  }
  const auto text = read_text_file(path + "/config.json", kMostConfigBytes);
  if (!text.ok()) return false;
  const auto config = JsonConfig::parse(text.value(), path);
  if (!config.ok() || whole_model(config.value())) return false;
  const auto method = detect_drafter_method(config.value(), {});
  return method.ok() && method.value() && *method.value() != "draft_model";
}

Error DrafterFile::wrong(std::string_view tensor, std::string_view what) const {
  return {fmt::format("{}: tensor {}: {}", path_, quote(tensor), what)};
}

Status DrafterFile::strip_prefix(std::string_view prefix) {
  for (Item& item : items_) {
    HUNCH_CHECK(!item.consumed);
    if (item.tensor.name.starts_with(prefix)) item.tensor.name.erase(0, prefix.size());
  }
  return index_names();
}

Status DrafterFile::keep_only(std::string_view prefix) {
  std::erase_if(items_, [&](const Item& item) { return !item.tensor.name.starts_with(prefix); });
  if (items_.empty()) return failure("{}: no tensor is named {}*", path_, quote(prefix));
  return strip_prefix(prefix);
}

DrafterFile::Item* DrafterFile::item(std::string_view name) {
  const auto at = index_.find(std::string(name));
  return at == index_.end() ? nullptr : &items_[at->second];
}

const Tensor* DrafterFile::find(std::string_view name) {
  Item* found = item(name);
  if (!found || found->integer != IntegerType::None) return nullptr;
  found->consumed = true;
  return &found->tensor;
}

Result<const Tensor*> DrafterFile::take_optional(std::string_view name, std::vector<int64_t> shape) {
  if (!has(name)) return nullptr;
  const Tensor* tensor = find(name);
  if (!tensor) return wrong(name, "holds whole numbers, expected weights");
  if (tensor->shape != shape)
    return wrong(name, fmt::format("has shape [{}], expected [{}]", fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")));
  return tensor;
}

Result<const Tensor*> DrafterFile::take(std::string_view name, std::vector<int64_t> shape) {
  if (!has(name)) return wrong(name, fmt::format("missing; a drafter of method {} needs it", method_));
  return take_optional(name, std::move(shape));
}

Result<std::vector<int64_t>> DrafterFile::integers(std::string_view name) {
  using enum IntegerType;
  Item* found = item(name);
  if (!found) return wrong(name, fmt::format("missing; a drafter of method {} needs it", method_));
  if (found->integer == None) return wrong(name, "holds weights, expected whole numbers");
  found->consumed = true;
  const size_t width = integer_bytes(found->integer);
  std::vector<int64_t> out(found->tensor.bytes / width);
  const std::byte* at = found->tensor.data;
  for (int64_t& value : out) {
    int64_t wide = 0;
    int32_t half = 0;
    switch (found->integer) {
      case I64: std::memcpy(&wide, at, 8); break;
      case I32: std::memcpy(&half, at, 4), wide = half; break;
      case I8: wide = int8_t(*at); break;
      case Bool: wide = *at != std::byte(0); break;
      case U8: wide = uint8_t(*at); break;
      case None: break;
    }
    value = wide;
    at += width;
  }
  return out;
}

void DrafterFile::ignore(std::string_view name) {
  if (Item* found = item(name)) found->consumed = true;
}

std::vector<std::string> DrafterFile::unconsumed() const {
  std::vector<std::string> out;
  for (const Item& item : items_)
    if (!item.consumed) out.push_back(item.tensor.name);
  return out;
}

Status DrafterFile::all_consumed() const {
  std::vector<std::string> left = unconsumed();
  if (left.empty()) return {};
  constexpr size_t kMostNamed = 4;
  const size_t more = left.size() > kMostNamed ? left.size() - kMostNamed : 0;
  for (std::string& name : left) name = quote(name);
  const bool one = left.size() == 1;
  left.resize(left.size() - more);
  return failure("{}: tensor{} {}{} {} not part of a drafter of method {}", path_, one ? "" : "s", fmt::join(left, ", "),
      more ? fmt::format(" and {} more", more) : "", one ? "is" : "are", method_);
}

}
