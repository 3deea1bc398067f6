// Finding a folder's files and refusing an index that points elsewhere.
#include "checkpoint/folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json_depth.h"
#include "checkpoint/mapped_file.h"

namespace hunch {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostTokenizerBytes = 256 << 20, kMostTemplateBytes = 1 << 20;

// A name from the index: one path component, a *.safetensors.
bool plain_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.find('/') == name.npos && name.find('\\') == name.npos &&
      name.find('\0') == name.npos && name.size() < 256 && name[0] != '.';
}

// The file after following links must stay under the folder, or under the cache entry that the snapshot belongs to
// (models--org--name/snapshots/revision links into models--org--name/blobs).
bool stays_inside(const fs::path& folder, const fs::path& file) {
  std::error_code bad;
  fs::path root = fs::canonical(folder, bad);
  if (bad) return false;
  if (root.parent_path().filename() == "snapshots") root = root.parent_path().parent_path();
  const fs::path real = fs::canonical(file, bad);
  if (bad) return false;
  const auto [end, unused] = std::mismatch(root.begin(), root.end(), real.begin(), real.end());
  return end == root.end();
}

Error no_weights(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".gguf")
      return {fmt::format("{}: no model.safetensors in the folder; did you mean {}?", folder, entry.path().string())};
    if (is_pickle(entry.path().string())) return pickled_weights(entry.path().string());
  }
  return {fmt::format("{}: no model.safetensors and no model.safetensors.index.json in the folder", folder)};
}

Result<std::string> optional_text(const std::string& path, size_t most) {
  std::error_code ignored;
  if (!exists(path) || fs::file_size(path, ignored) == 0) return std::string();
  return read_text_file(path, most);
}

}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_pickle(const std::string& path) {
  const std::string extension = fs::path(path).extension().string();
  return extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt";
}

// Whoever trusts them converts them once.
Error pickled_weights(const std::string& path) {
  fs::path out = path;
  out.replace_extension(".safetensors");
  if (out.stem() == "pytorch_model") out.replace_filename("model.safetensors");
  return {fmt::format(
      "{0}: pickled weights can run code and are not read; convert them to safetensors once: python3 -c \"import torch, "
      "safetensors.torch as s; s.save_file({{k: v.clone().contiguous() for k, v in torch.load('{0}', map_location='cpu', "
      "weights_only=True).items()}}, '{1}')\"",
      path, out.string())};
}

Result<ShardList> list_shards(const std::string& folder) {
  ShardList out;
  const std::string single = folder + "/model.safetensors", index = folder + "/model.safetensors.index.json";
  if (exists(single)) {
    out.files.push_back(single);
    return out;
  }
  if (!exists(index)) return no_weights(folder);
  HUNCH_TRY(const std::string text, read_text_file(index, kMostTokenizerBytes));
  if (nested_deeper_than(text, kMostJsonDepth)) return failure("{}: nested deeper than {}", index, kMostJsonDepth);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) return failure("{}: not valid JSON", index);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object() || map->empty())
    return failure("{}: weight_map: must be an object with at least one tensor", index);
  std::vector<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) return failure("{}: weight_map: {}: must be a file name", index, quote(tensor));
    const std::string name = file.get<std::string>();
    if (!plain_name(name))
      return failure("{}: weight_map: {}: not a plain *.safetensors name in this folder: {}", index, quote(tensor), quote(name));
    auto at = std::ranges::lower_bound(names, name);
    if (at == names.end() || *at != name) names.insert(at, name);
  }
  std::string missing;
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    if (!exists(path)) {
      missing += (missing.empty() ? "" : ", ") + quote(name);
      continue;
    }
    if (!stays_inside(folder, path)) return failure("{}: shard {} is a link that leaves the folder", index, quote(name));
    out.files.push_back(path);
  }
  if (!missing.empty()) return failure("{}: missing shards: {}", folder, missing);
  for (const auto& [tensor, file] : map->items()) {
    const auto at = std::ranges::lower_bound(names, file.get<std::string>());
    out.where.emplace_back(tensor, at - names.begin());
  }
  return out;
}

Result<FolderTexts> read_folder_texts(const std::string& folder) {
  FolderTexts out;
  if (!exists(folder + "/config.json")) return failure("{}: no config.json beside the weights", folder);
  HUNCH_TRY(out.config, read_text_file(folder + "/config.json", kMostConfigBytes));
  HUNCH_TRY(out.generation_config, optional_text(folder + "/generation_config.json", kMostConfigBytes));
  HUNCH_TRY(out.tokenizer, optional_text(folder + "/tokenizer.json", kMostTokenizerBytes));
  HUNCH_TRY(out.tokenizer_config, optional_text(folder + "/tokenizer_config.json", kMostConfigBytes));
  HUNCH_TRY(out.chat_template, optional_text(folder + "/chat_template.jinja", kMostTemplateBytes));
  HUNCH_TRY(out.special_tokens_map, optional_text(folder + "/special_tokens_map.json", kMostConfigBytes));
  return out;
}

}
