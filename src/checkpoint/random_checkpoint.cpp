#include "checkpoint/random_checkpoint.h"

#include <fmt/ranges.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "checkpoint/config.h"
#include "checkpoint/expert_tensors.h"

namespace hunch {
namespace {

// The keys of the models' own config.json that their shapes need.
constexpr char kQwen3[] =
    R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
     "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
     "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": false})";
constexpr char kLlama3[] =
    R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
     "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
     "rope_theta": 500000, "tie_word_embeddings": false, "rope_scaling": {"rope_type": "llama3", "factor": 8,
     "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}})";

struct Known {
  const char *name, *config;
  const char* but = "{}";  // what stands in its place or beside it
};
constexpr Known kKnown[] = {
    {"qwen3-8b", kQwen3},
    {"qwen3-4b", kQwen3, R"({"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": true})"},
    {"qwen3-30b-a3b", kQwen3,
        R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
         "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
         "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []})"},
    {"gpt-oss-20b",
        R"({"model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
         "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
         "sliding_window": 128, "swiglu_limit": 7.0, "attention_bias": true, "max_position_embeddings": 131072,
         "rms_norm_eps": 1e-5, "rope_theta": 150000, "tie_word_embeddings": false, "rope_scaling": {"rope_type": "yarn",
         "factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": false, "original_max_position_embeddings": 4096}})"},
    {"llama-3.1-8b", kLlama3},
    {"llama-3.2-1b", kLlama3,
        R"({"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
         "tie_word_embeddings": true, "rope_scaling": {"factor": 32}})"},
};

Result<std::string> config_of(const std::string& name) {
  for (const Known& known : kKnown)
    if (name == known.name) {
      auto config = nlohmann::json::parse(known.config);
      config.merge_patch(nlohmann::json::parse(known.but));
      return config.dump();
    }
  if (!name.ends_with(".json"))
    return usage_error("no shape is known as '{}'; there are {}, or give a path that ends in .json", name,
        fmt::join(random_model_names(), ", "));
  std::ifstream file(name, std::ios::binary);
  if (!file) return failure("{}: cannot be read", name);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class RandomCheckpoint final : public Checkpoint {
 public:
  RandomCheckpoint(ModelDescription description, std::string_view name, DType dtype, uint64_t seed) {
    shape_ = std::move(description.shape), tokenizer_ = std::move(description.tokenizer), sampling_ = description.sampling;
    shape_.name = fmt::format("{} (random weights)", name);
    for (TensorNeed& need : needs_of(shape_, [](int) { return false; })) {
      if (need.optional) continue;
      // Routers stay in fp32, as in GGUF files; gpt-oss's experts are as published.
      const bool exact = !need.matrix || need.name.ends_with("ffn_gate_inp.weight");
      const bool published = shape_.expert_bias && is_expert_matrix(need.name);
      Tensor tensor{
          .name = std::move(need.name),
          .dtype = exact  ? DType::F32
              : published ? DType::MXFP4
                          : dtype,
          .shape = std::move(need.shape),
          .seed = seed * 0x9e3779b97f4a7c15ull + tensors_.size() + 1,
      };
      tensor.bytes = dtype_bytes(tensor.dtype, elements_of(tensor.shape));
      tensors_.push_back(std::move(tensor));
    }
    for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  }
  std::string_view format() const override { return "random"; }
  size_t file_bytes() const override {
    size_t bytes = 0;
    for (const Tensor& tensor : tensors_) bytes += tensor.bytes;
    return bytes;
  }
};

}

std::vector<std::string> random_model_names() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) names.emplace_back(known.name);
  return names;
}

Result<std::unique_ptr<Checkpoint>> random_checkpoint(const std::string& name, DType dtype, uint64_t seed) {
  HUNCH_TRY(std::string config, config_of(name));
  HUNCH_TRY(ModelDescription description, describe_folder({.config = std::move(config)}, name));
  return std::unique_ptr<Checkpoint>(new RandomCheckpoint(std::move(description), name, dtype, seed));
}

}
