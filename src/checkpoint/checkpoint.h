// Checkpoint: an opened model of any file format: shape, named tensors in memory-mapped files, tokenizer source, sampling
// defaults. Read-only and validated: tensors lie inside their files, none overlap, sizes match shapes and encodings. A path is a
// Hugging Face folder, a *.safetensors inside one, or a GGUF v3 file.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>

#include "base/dtype.h"
#include "base/result.h"
#include "checkpoint/shape.h"

namespace hunch {

// What the codes of an FP8 matrix are multiplied with: one value for `rows` x `columns` elements of it, so that the whole matrix
// (rows, columns at least its own), each row (1, columns) and blocks (128, 128) are the same thing. No values: 1.
struct WeightScales {
  const float* values = nullptr;  // [ceil(out / rows)][ceil(in / columns)]
  int64_t rows = 0, columns = 0;
};

// Blocks of MXFP4 as Hugging Face publishes them: codes and scales apart, neighbours of a row in one byte (the first in the low
// nibble). Row r of the matrix is row r * step of the codes (Tensor::data) and of the scales. No scales: GGUF's blocks.
struct SplitBlocks {
  const std::byte* scales = nullptr;  // one for 32 elements of a row
  int64_t step = 1;                   // 2: rows of two matrices take turns
};

// A borrowed tensor; rows of `shape.back()` elements, slowest axis first ([out][in] for a matrix).
struct Tensor {
  std::string name;  // canonical: GGUF's ("blk.3.attn_q.weight", "token_embd.weight", "output_norm.weight", "output.weight")
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t seed = 0;    // data null: random values, made by the backend (random_checkpoint.h)
  WeightScales scales;  // F8_E4M3
  SplitBlocks split;    // MXFP4; a kernel wants pack_blocks() of checkpoint/quantise.h
};

// Defaults a model brings along (generation_config.json, GGUF `general.sampling.*`); absent keys are the caller's defaults.
struct SamplingDefaults {
  std::optional<double> temperature, top_p, min_p;
  std::optional<int> top_k;
};

// Where the tokenizer is described; text/ turns it into a Tokenizer.
struct TokenizerSource {
  // Hugging Face: the texts of the files, empty where absent.
  std::string tokenizer_json, tokenizer_config_json, chat_template;  // chat_template: from the config, the .jinja file or GGUF
  // GGUF: `tokenizer.ggml.*`
  std::string model, pre;            // "gpt2", "qwen2"
  std::vector<std::string> tokens;   // in GGUF's byte-to-unicode spelling
  std::vector<int32_t> token_types;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<std::string> merges;   // "a b"
  std::optional<int32_t> bos_id, eos_id;
  std::optional<bool> add_bos;
  bool from_gguf() const { return !model.empty(); }
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  // `vocab_only`: accept a GGUF file without tensors (shape() is then only partly filled).
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path, bool vocab_only = false);

  const ModelShape& shape() const { return shape_; }
  const Tensor* find(std::string_view canonical_name) const;  // null: none of that name
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const TokenizerSource& tokenizer() const { return tokenizer_; }
  const SamplingDefaults& sampling() const { return sampling_; }
  virtual std::string_view format() const = 0;  // "safetensors", "gguf"
  // What an FP8 KV cache of this model is scaled with, where the files say so: [layer], powers of two. Empty: 1 everywhere.
  virtual std::span<const KvScale> kv_scales() const { return {}; }
  virtual size_t file_bytes() const = 0;
  virtual std::string_view note() const { return {}; }  // what the files ask for and is done otherwise here; empty: nothing

 protected:
  ModelShape shape_;
  TokenizerSource tokenizer_;
  SamplingDefaults sampling_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // views into tensors_, which has stopped growing
};

}
