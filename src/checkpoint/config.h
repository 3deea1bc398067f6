// ModelShape, SamplingDefaults and TokenizerSource from the JSON files of a Hugging Face folder (config.cpp) or the keys of a
// GGUF file (gguf_config.cpp); ranges and the tensors that a shape needs (check_shape.cpp).
#pragma once

#include <array>
#include <functional>

#include "checkpoint/fp8.h"
#include "checkpoint/gguf.h"

namespace hunch {

// Architectures by the name that config.json's model_type and GGUF's general.architecture use (mistral is llama in GGUF,
// qwen3_moe is qwen3moe, gpt_oss is gpt-oss, both of DeepSeek's are deepseek2; llama-nsa of config.json is nsa).
inline constexpr std::array<std::string_view, 9> kFamilies{
    "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "nsa", "deepseek_v2", "deepseek_v3"};
inline bool is_family(std::string_view name) { return std::ranges::find(kFamilies, name) != kFamilies.end(); }

// What a folder describes besides its weights. Texts of absent files are empty.
struct FolderTexts {
  std::string config, generation_config, tokenizer, tokenizer_config, chat_template, special_tokens_map;
};

struct ModelDescription {
  ModelShape shape;
  TokenizerSource tokenizer;
  SamplingDefaults sampling;
  Fp8Scales fp8 = Fp8Scales::None;  // of a folder
};

// `folder` stands in messages. Features that would change results and are not computed here are refused by name.
Result<ModelDescription> describe_folder(FolderTexts texts, std::string_view folder);

// `vocab_only`: architecture keys may be absent. rope_factors is filled from the tensor rope_freqs.weight.
Result<ModelDescription> describe_gguf(const GgufFile& file, bool vocab_only);

// The template named tool_use that stands beside the default one, for chats with tools; empty: there is none.
std::string tool_template(const TokenizerSource& tokenizer);

// Ranges and divisibility; `source` stands in messages. The names in messages are ModelShape's.
Status check_shape(const ModelShape& shape, std::string_view source);

// Token ids inside the vocabulary, equal lengths of the vocabulary's columns.
Status check_tokenizer(const TokenizerSource& tokenizer, const ModelShape& shape, std::string_view source);

// A tensor that a shape calls for; a matrix may be quantised.
struct TensorNeed {
  std::string name;
  std::vector<int64_t> shape;
  bool matrix;
  bool optional = false;
};
// In the model's order: the first that is missing is the first in a message. `predicts`: whether a prediction layer is there.
std::vector<TensorNeed> needs_of(const ModelShape& shape, const std::function<bool(int layer)>& predicts);

// Every tensor that the shape needs is there with the right shape and no other is: names the first that is not.
Status check_tensors(const Checkpoint& checkpoint, std::string_view source);

}
