// libFuzzer: a safetensors file beside fixed configs (one of them keeps experts in halves that are joined); then the same bytes
// as the JSON files of a folder.

#include "checkpoint/memory_checkpoint.h"
#include "checkpoint/quantise.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hunch;
  static const std::string config =
      R"({"model_type":"llama","vocab_size":2,"hidden_size":2,"intermediate_size":2,"num_hidden_layers":1,)"
      R"("num_attention_heads":1,"head_dim":2,"tie_word_embeddings":true})";
  static const std::string split =
      R"({"model_type":"gpt_oss","vocab_size":2,"hidden_size":32,"intermediate_size":32,"num_hidden_layers":1,)"
      R"("num_attention_heads":1,"num_key_value_heads":1,"head_dim":2,"num_local_experts":1,"num_experts_per_tok":1,)"
      R"("attention_bias":false,"tie_word_embeddings":true})";
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  FolderTexts texts;
  texts.config = config;
  // A header that was accepted promises tensors inside the file: touch the first and last byte of each.
  if (const auto opened = open_safetensors_bytes(bytes, texts, "fuzz"); opened.ok())
    for (const Tensor& tensor : (*opened.value()).tensors())
      if (tensor.bytes > 0 && tensor.data[0] == std::byte(1) && tensor.data[tensor.bytes - 1] == std::byte(2)) return 0;
  texts.config = split;
  if (const auto opened = open_safetensors_bytes(bytes, texts, "fuzz"); opened.ok())
    for (const Tensor& tensor : (*opened.value()).tensors()) {
      std::vector<float> row(tensor.shape.back());
      if (tensor.shape.size() == 2) dequantise_row(tensor, tensor.shape.front() - 1, row.data());
    }
  if (const auto entries = parse_safetensors(bytes, "fuzz"); entries.ok())
    for (const TensorEntry& entry : entries.value())
      if (entry.offset + entry.bytes > size) __builtin_trap();
  texts.config.assign(reinterpret_cast<const char*>(data), size);
  texts.generation_config = texts.tokenizer_config = texts.config;
  (void)describe_folder(std::move(texts), "fuzz");
  return 0;
}
