// DrafterFile: an opened learned drafter: its configuration and its tensors under their published names. A path is a Hugging Face
// folder, a *.safetensors beside a config.json, or one GGUF file of architecture `hunch-drafter`, as `hunch quantize` writes it
// (key `hunch.drafter.method`, and `hunch.drafter.config` with the text of config.json). A plain GGUF model is a draft model.
// Drafters take from it what they know; what nobody took is an error, not a difference in acceptance.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/drafter_method.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/tensor_entry.h"

namespace hunch {

inline constexpr std::string_view kDrafterArchitecture = "hunch-drafter";
inline constexpr std::string_view kDrafterMethodKey = "hunch.drafter.method", kDrafterConfigKey = "hunch.drafter.config";

class DrafterFile {
 public:
  // `method`: what the user says, one of kDrafterMethods; empty: detected. Errors name the file: missing, damaged, pickled (with
  // the command that converts it), of no known method or another than the user says.
  static Result<std::unique_ptr<DrafterFile>> open(const std::string& path, std::string_view method = {});

  const std::string& path() const { return path_; }
  const std::string& method() const { return method_; }  // one of kDrafterMethods
  std::string_view format() const { return format_; }    // "safetensors", "gguf"
  const JsonConfig& config() const { return config_; }   // of a plain GGUF model: empty
  const std::string& config_text() const { return config_text_; }
  size_t file_bytes() const { return file_bytes_; }

  // Names. Both before the first tensor is taken.
  Status strip_prefix(std::string_view prefix);  // from every name that has it; two names that become one are an error
  Status keep_only(std::string_view prefix);     // and stripped: a module inside a target's checkpoint ("mtp.")

  // Tensors of weights. Taken ones are marked; pointers stay valid as long as this object.
  bool has(std::string_view name) const { return index_.contains(std::string(name)); }
  const Tensor* find(std::string_view name);                                               // null: absent, or whole numbers
  Result<const Tensor*> take(std::string_view name, std::vector<int64_t> shape);           // absent: an error
  Result<const Tensor*> take_optional(std::string_view name, std::vector<int64_t> shape);  // absent: null
  // A table of whole numbers (d2t: int64; t2d: bool, as 0 and 1), also marked. Errors: absent, or a tensor of weights.
  Result<std::vector<int64_t>> integers(std::string_view name);
  void ignore(std::string_view name);  // known and not needed

  std::vector<std::string> unconsumed() const;
  // Names the first tensors that nothing took.
  Status all_consumed() const;

  Error wrong(std::string_view tensor, std::string_view what) const;  // "PATH: tensor fc.weight: what"

  // Everything, in the files' order: for conversion and `hunch info`.
  struct Item {
    Tensor tensor;  // with `integer`: dtype says nothing
    IntegerType integer = IntegerType::None;
    bool consumed = false;
  };
  const std::vector<Item>& items() const { return items_; }

 private:
  DrafterFile(std::string path, std::string_view format, JsonConfig config)
      : path_(std::move(path)), format_(format), config_(std::move(config)) {}
  static Result<std::unique_ptr<DrafterFile>> open_folder(
      const std::string& path, const std::string& folder, std::vector<std::string> files);
  static Result<std::unique_ptr<DrafterFile>> open_gguf(const std::string& path);
  void add(TensorEntry entry, FileBytes file);
  Status index_names();
  Status settle_method(std::string_view asked, std::string_view stored);
  Item* item(std::string_view name);

  std::string path_, method_, config_text_;
  std::string_view format_;
  JsonConfig config_;
  std::vector<MappedFile> files_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;  // of tensors that their file does not align
  std::vector<Item> items_;
  std::unordered_map<std::string, size_t> index_;
  std::string stored_method_;  // a GGUF file's
  size_t file_bytes_ = 0;
};

// Whether a path is a learned drafter, not a model; models that may be draft models are models. Of damaged files what they say of
// themselves decides, so that the user gets the right message.
bool is_learned_drafter(const std::string& path);

}
