// Checkpoint::open: from a path to mapped files, canonical tensors and a checked shape, whichever the format.
#include "checkpoint/checkpoint.h"

#include <filesystem>

#include "checkpoint/expert_tensors.h"
#include "checkpoint/folder.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/memory_checkpoint.h"
#include "checkpoint/nsa_config.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/split_experts.h"

namespace hunch {
namespace {

namespace fs = std::filesystem;

class OpenedCheckpoint final : public Checkpoint {
 public:
  OpenedCheckpoint(ModelDescription description, std::string_view format) : format_(format), fp8_(description.fp8) {
    shape_ = std::move(description.shape), tokenizer_ = std::move(description.tokenizer), sampling_ = description.sampling;
  }

  std::string_view format() const override { return format_; }
  std::span<const KvScale> kv_scales() const override { return kv_scales_; }
  size_t file_bytes() const override { return file_bytes_; }
  std::string_view note() const override { return note_; }

  void count_file(FileBytes file) { file_bytes_ += file.size(); }
  void own(MappedFile file) { files_.push_back(std::move(file)); }

  // `entry` lies in `file`.
  void add(std::string name, TensorEntry entry, FileBytes file) {
    const std::byte* data = aligned_data(entry, file, copies_);
    tensors_.push_back({std::move(name), entry.dtype, std::move(entry.shape), data, size_t(entry.bytes)});
  }

  // The same, and a tensor of all experts as the matrices of each.
  Status add_parts(std::string name, TensorEntry entry, FileBytes file, std::string_view source) {
    HUNCH_TRY(auto parts, split_experts(name, entry, shape(), source));
    for (NamedEntry& part : parts) add(std::move(part.name), std::move(part.entry), file);
    if (parts.empty()) add(std::move(name), std::move(entry), file);
    return {};
  }

  // Codes, scales or biases of experts that are put together in finish().
  Status add_split(std::string name, TensorEntry entry, FileBytes file, std::string_view source) {
    return split_.add(std::move(name), std::move(entry), file, source);
  }

  // Scales of the FP8 matrix `weight`, in any order with it, from any file.
  Status add_scales(std::string weight, TensorEntry entry, FileBytes file, std::string_view source) {
    const std::byte* data = file.data() + entry.offset;
    const auto [at, fresh] = scales_.try_emplace(std::move(weight), Scales{std::move(entry), data, {}});
    if (!fresh) return failure("{}: {} has two tensors of scales", source, at->first);
    return {};
  }
  // In any order and from any file; layers without one keep 1.
  Status add_kv_scale(const Fp8Name& name, const TensorEntry& entry, FileBytes file, std::string_view source) {
    if (name.layer >= shape_.layers)
      return failure("{}: tensor {} scales a layer that this model has not", source, quote(entry.name));
    kv_scales_.resize(shape_.layers);
    KvScale& scale = kv_scales_[name.layer];
    HUNCH_TRY((name.part == Fp8Part::KeyScale ? scale.k : scale.v), read_kv_scale(entry, file.data() + entry.offset, source));
    return {};
  }
  // A scale that nothing here reads; false where the model is not FP8, in which it has no place.
  bool has_fp8() const { return fp8_ != Fp8Scales::None; }
  bool leave_out_scale() { return has_fp8() && ++unused_scales_; }

  // After the last add: the index, and the check that the tensors are the shape's.
  Status finish(std::string_view source, bool vocab_only = false) {
    HUNCH_OK(split_.join(shape(), source, tensors_));
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (!index_.emplace(tensors_[i].name, i).second)
        return failure("{}: tensor {} appears twice", source, quote(tensors_[i].name));
    if (vocab_only && tensors_.empty()) return {};
    HUNCH_OK(check_tensors(*this, source));
    return join_scales(source);
  }

 private:
  struct Scales {
    TensorEntry entry;
    const std::byte* data;
    std::vector<float> values;
  };

  // Every FP8 matrix finds its scales, and all scales their matrix.
  Status join_scales(std::string_view source) {
    size_t joined = 0;
    for (Tensor& tensor : tensors_) {
      const auto at = scales_.find(tensor.name);
      if (at == scales_.end() && tensor.dtype == DType::F8_E4M3)
        return failure("{}: tensor {} is fp8 and has no weight_scale or weight_scale_inv", source, tensor.name);
      if (at == scales_.end()) continue;
      Scales& scales = at->second;
      HUNCH_TRY(scales.values, read_fp8_scales(fp8_, tensor, scales.entry, scales.data, source));
      tensor.scales = fp8_scales_of(fp8_, tensor);
      tensor.scales.values = scales.values.data();
      ++joined;
    }
    for (const auto& [weight, scales] : scales_)
      if (scales.values.empty()) return failure("{}: tensor {} scales no matrix of this model", source, quote(scales.entry.name));
    if (joined > 0) note_ = "fp8 weights are multiplied with activations that are not rounded to fp8";
    if (joined > 0 && unused_scales_ > 0) note_ += fmt::format("; {} scales of activations are not used", unused_scales_);
    return {};
  }

  std::string_view format_;
  Fp8Scales fp8_;
  std::vector<MappedFile> files_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  SplitExperts split_;
  std::map<std::string, Scales, std::less<>> scales_;  // by the canonical name of the matrix
  std::string note_;
  std::vector<KvScale> kv_scales_;
  size_t file_bytes_ = 0;
  int unused_scales_ = 0;
};

Result<std::unique_ptr<OpenedCheckpoint>> assemble_gguf(FileBytes bytes, std::string_view name, bool vocab_only) {
  HUNCH_TRY(GgufFile file, GgufFile::parse(bytes, name));
  HUNCH_TRY(ModelDescription description, describe_gguf(file, vocab_only));
  auto out = std::make_unique<OpenedCheckpoint>(std::move(description), "gguf");
  out->count_file(bytes);
  for (const TensorEntry& entry : file.tensors()) {
    std::string canonical = entry.name;
    // gpt-oss files name the norm in front of the experts after where it stands.
    constexpr std::string_view kNorm = ".post_attention_norm.weight";
    if (out->shape().family == "gpt_oss" && canonical.ends_with(kNorm))
      canonical.replace(canonical.size() - kNorm.size(), kNorm.size(), ".ffn_norm.weight");
    HUNCH_OK(out->add_parts(std::move(canonical), entry, bytes, name));
  }
  HUNCH_OK(out->finish(name, vocab_only));
  return out;
}

// Layers that predict tokens behind the next one (MTP): a drafter opens them (drafter_file.h). Those of DeepSeek are layers like
// the others, in FP8 like them, and read with them.
bool is_prediction_module(std::string_view name, const ModelShape& shape) {
  if (name.starts_with("mtp.")) return true;
  if (shape.latent.used()) return false;
  for (int layer = shape.layers; layer < shape.layers + shape.prediction_layers; ++layer)
    if (name.starts_with(fmt::format("model.layers.{}.", layer))) return true;
  return false;
}

// All tensors of one shard; their names as the file spells them go to `names`, to check the index against.
Status add_shard(OpenedCheckpoint& out, FileBytes bytes, const std::string& path, std::vector<std::string>* names) {
  HUNCH_TRY(auto entries, parse_safetensors(bytes, path, IntegerTensors::Read));
  out.count_file(bytes);
  for (TensorEntry& entry : entries) {
    if (names) names->push_back(entry.name);
    if (is_prediction_module(entry.name, out.shape())) continue;
    const Fp8Name fp8 = fp8_name(entry.name);
    if (fp8.part == Fp8Part::Unused && out.leave_out_scale()) continue;
    if ((fp8.part == Fp8Part::KeyScale || fp8.part == Fp8Part::ValueScale) && out.has_fp8()) {
      HUNCH_OK(out.add_kv_scale(fp8, entry, bytes, path));
      continue;
    }
    const std::string_view spelt = fp8.part == Fp8Part::Scale ? std::string_view(fp8.weight) : std::string_view(entry.name);
    auto canonical = out.shape().nsa.used() ? nsa_canonical_name(spelt) : canonical_name(spelt);
    if (!canonical) return failure("{}: {}", path, canonical.error().message);
    // A tied head is the embedding; files that also store it store it twice.
    if (canonical->empty() || (*canonical == "output.weight" && out.shape().tied_head)) continue;
    if (out.shape().family == "gpt_oss" && canonical->ends_with("_exps.weight"))
      return failure(
          "{}: tensor {}: experts of gpt-oss are read as MXFP4 (blocks and scales), not widened: use the "
          "original folder or a GGUF file",
          path, quote(entry.name));
    if (SplitExperts::takes(*canonical)) {
      HUNCH_OK(out.add_split(std::move(*canonical), std::move(entry), bytes, path));
      continue;
    }
    if (entry.integer != IntegerType::None)
      return failure("{}: tensor {} holds whole numbers, which no part of this model does", path, quote(entry.name));
    if (fp8.part == Fp8Part::Scale) HUNCH_OK(out.add_scales(std::move(*canonical), std::move(entry), bytes, path));
    else HUNCH_OK(out.add_parts(std::move(*canonical), std::move(entry), bytes, path));
  }
  return {};
}

Result<std::unique_ptr<Checkpoint>> open_folder(const std::string& folder, const ShardList& shards) {
  HUNCH_TRY(FolderTexts texts, read_folder_texts(folder));
  HUNCH_TRY(ModelDescription description, describe_folder(std::move(texts), folder));
  auto out = std::make_unique<OpenedCheckpoint>(std::move(description), "safetensors");
  std::vector<std::vector<std::string>> names(shards.files.size());
  for (size_t i = 0; i < shards.files.size(); ++i) {
    HUNCH_TRY(MappedFile file, MappedFile::open(shards.files[i]));
    HUNCH_OK(add_shard(*out, file.bytes(), shards.files[i], shards.where.empty() ? nullptr : &names[i]));
    std::ranges::sort(names[i]);
    out->own(std::move(file));
  }
  for (const auto& [name, shard] : shards.where)
    if (!std::binary_search(names[shard].begin(), names[shard].end(), name))
      return failure("{}: the index places tensor {} here, but it is not in the file", shards.files[shard], quote(name));
  HUNCH_OK(out->finish(folder));
  return std::unique_ptr<Checkpoint>(std::move(out));
}

// One *.safetensors: alone with its folder's config, or, where it is a shard of an index, the whole folder.
Result<std::unique_ptr<Checkpoint>> open_safetensors_file(const std::string& path) {
  {  // errors of the file itself come before those of its folder
    HUNCH_TRY(const MappedFile file, MappedFile::open(path));
    HUNCH_OK(parse_safetensors(file.bytes(), path, IntegerTensors::Read));
  }
  const std::string parent = fs::path(path).parent_path().string(), folder = parent.empty() ? "." : parent;
  std::error_code ignored;
  if (fs::path(path).filename() != "model.safetensors" && fs::exists(folder + "/model.safetensors.index.json", ignored)) {
    HUNCH_TRY(const ShardList shards, list_shards(folder));
    const auto same = [&](const std::string& file) { return fs::path(file).filename() == fs::path(path).filename(); };
    if (std::ranges::any_of(shards.files, same)) return open_folder(folder, shards);
  }
  return open_folder(folder, ShardList{{path}, {}});
}

}

Result<std::unique_ptr<Checkpoint>> open_gguf_bytes(FileBytes bytes, std::string_view name, bool vocab_only) {
  HUNCH_TRY(auto out, assemble_gguf(bytes, name, vocab_only));
  return std::unique_ptr<Checkpoint>(std::move(out));
}

Result<std::unique_ptr<Checkpoint>> open_safetensors_bytes(FileBytes bytes, FolderTexts texts, std::string_view name) {
  HUNCH_TRY(ModelDescription description, describe_folder(std::move(texts), name));
  auto out = std::make_unique<OpenedCheckpoint>(std::move(description), "safetensors");
  HUNCH_OK(add_shard(*out, bytes, std::string(name), nullptr));
  HUNCH_OK(out->finish(name));
  return std::unique_ptr<Checkpoint>(std::move(out));
}

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &tensors_[at->second];
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& path, bool vocab_only) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    HUNCH_TRY(const ShardList shards, list_shards(path));
    return open_folder(path, shards);
  }
  const std::string extension = fs::path(path).extension().string();
  if (is_pickle(path)) return pickled_weights(path);
  if (extension == ".safetensors") return open_safetensors_file(path);
  HUNCH_TRY(MappedFile file, MappedFile::open(path));
  HUNCH_TRY(auto out, assemble_gguf(file.bytes(), path, vocab_only));
  out->own(std::move(file));
  return std::unique_ptr<Checkpoint>(std::move(out));
}

}
