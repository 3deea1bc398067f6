#include "checkpoint/random_checkpoint.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "checkpoint/config.h"

namespace hunch {
namespace {

struct Known {
  const char* name;
  const char* config;  // the keys of the model's own config.json that its shape needs
};
constexpr Known kKnown[] = {
    {"qwen3-8b",
        R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
         "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": false})"},
    {"qwen3-4b",
        R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
         "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": true})"},
    {"qwen3-30b-a3b",
        R"({"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
         "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
         "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true, "decoder_sparse_step": 1,
         "mlp_only_layers": [], "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
         "tie_word_embeddings": false})"},
    {"gpt-oss-20b",
        R"({"model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
         "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
         "sliding_window": 128, "swiglu_limit": 7.0, "attention_bias": true, "max_position_embeddings": 131072,
         "rms_norm_eps": 1e-5, "rope_theta": 150000, "tie_word_embeddings": false, "rope_scaling": {"rope_type": "yarn",
         "factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": false, "original_max_position_embeddings": 4096}})"},
    {"llama-3.1-8b",
        R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
         "rope_theta": 500000, "tie_word_embeddings": false, "rope_scaling": {"rope_type": "llama3", "factor": 8,
         "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}})"},
    {"llama-3.2-1b",
        R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
         "rms_norm_eps": 1e-5, "rope_theta": 500000, "tie_word_embeddings": true, "rope_scaling": {"rope_type": "llama3",
         "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}})"},
};

Result<std::string> config_of(const std::string& name) {
  for (const Known& known : kKnown)
    if (name == known.name) return std::string(known.config);
  if (!name.ends_with(".json")) {
    std::string names;
    for (const Known& known : kKnown) names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
    return usage_error(fmt::format("no shape is known as '{}'; there are {}, or give a path that ends in .json", name, names));
  }
  std::ifstream file(name, std::ios::binary);
  if (!file) return Error{fmt::format("{}: cannot be read", name)};
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class RandomCheckpoint final : public Checkpoint {
 public:
  RandomCheckpoint(ModelDescription description, std::string name, DType dtype, uint64_t seed) : dtype_(dtype), seed_(seed) {
    shape_ = std::move(description.shape), tokenizer_ = std::move(description.tokenizer), sampling_ = description.sampling;
    ModelShape& s = shape_;
    s.name = fmt::format("{} (random weights)", name);
    const int64_t q = int64_t(s.heads) * s.head_dim, kv = int64_t(s.kv_heads) * s.head_dim;
    add("token_embd.weight", {s.vocab_size, s.hidden});
    add("output_norm.weight", {s.hidden});
    if (!s.tied_head) add("output.weight", {s.vocab_size, s.hidden});
    for (int i = 0; i < s.layers; ++i) {
      const auto part = [&](const std::string& what, std::vector<int64_t> shape) {
        add(fmt::format("blk.{}.{}", i, what), std::move(shape));
      };
      part("attn_norm.weight", {s.hidden}), part("ffn_norm.weight", {s.hidden});
      if (const LatentShape& l = s.latent; l.used()) {
        const int64_t queries = int64_t(s.heads) * (l.nope + l.rope);
        if (l.q_rank > 0) part("attn_q_a.weight", {l.q_rank, s.hidden}), part("attn_q_a_norm.weight", {l.q_rank});
        part(l.q_rank > 0 ? "attn_q_b.weight" : "attn_q.weight", {queries, l.q_rank > 0 ? l.q_rank : s.hidden});
        part("attn_kv_a_mqa.weight", {l.kv_rank + l.rope, s.hidden}), part("attn_kv_a_norm.weight", {l.kv_rank});
        part("attn_kv_b.weight", {int64_t(s.heads) * (l.nope + l.value), l.kv_rank});
      } else {
        part("attn_q.weight", {q, s.hidden}), part("attn_k.weight", {kv, s.hidden}), part("attn_v.weight", {kv, s.hidden});
      }
      part("attn_output.weight", {s.hidden, s.attended()});
      if (s.nsa.used()) {
        const NsaShape& n = s.nsa;
        part("nsa_gate.weight", {3 * s.heads, s.hidden});
        for (const char* name : {"nsa_cmp_k.weight", "nsa_cmp_v.weight"}) {
          if (n.kind == NsaShape::Kind::Weighted) part(name, {s.kv_heads, n.cmp_len});
          if (n.kind == NsaShape::Kind::Linear) part(name, {s.kv_heads, int64_t(n.cmp_len) * s.head_dim, s.head_dim});
        }
        if (n.block_positions) part("nsa_cmp_pe.weight", {s.kv_heads, n.cmp_len, s.head_dim});
      }
      const auto ffn = [&](const std::string& of, int64_t width) {
        part(fmt::format("ffn_gate{}.weight", of), {width, s.hidden});
        part(fmt::format("ffn_up{}.weight", of), {width, s.hidden});
        part(fmt::format("ffn_down{}.weight", of), {s.hidden, width});
      };
      if (!s.has_experts(i)) ffn("", s.ffn);
      else part("ffn_gate_inp.weight", {s.num_experts, s.hidden});
      if (s.has_experts(i) && s.shared_ffn > 0) ffn("_shexp", s.shared_ffn);
      if (s.has_experts(i) && s.sigmoid_shares) part("exp_probs_b.bias", {s.num_experts});
      const DType given = dtype_;
      if (s.expert_bias) dtype_ = DType::MXFP4;  // gpt-oss: as published
      for (int e = 0; s.has_experts(i) && e < s.num_experts; ++e) ffn(fmt::format(".{}", e), s.expert_ffn);
      dtype_ = given;
      if (s.qk_norm) part("attn_q_norm.weight", {s.head_dim}), part("attn_k_norm.weight", {s.head_dim});
      if (s.qkv_bias) part("attn_q.bias", {q}), part("attn_k.bias", {kv}), part("attn_v.bias", {kv});
      if (s.output_bias) part("attn_output.bias", {s.hidden});
      if (s.attention_sinks) part("attn_sinks.weight", {s.heads});
      if (!s.expert_bias) continue;
      part("ffn_gate_inp.bias", {s.num_experts}), part("ffn_down_exps.bias", {s.num_experts, s.hidden});
      part("ffn_gate_exps.bias", {s.num_experts, s.expert_ffn}), part("ffn_up_exps.bias", {s.num_experts, s.expert_ffn});
    }
    for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  }
  std::string_view format() const override { return "random"; }
  size_t file_bytes() const override {
    size_t bytes = 0;
    for (const Tensor& tensor : tensors_) bytes += tensor.bytes;
    return bytes;
  }

 private:
  void add(std::string name, std::vector<int64_t> shape) {
    // Routers and compressors stay in fp32, as in GGUF files.
    const bool exact = shape.size() == 1 || name.ends_with("ffn_gate_inp.weight") || name.ends_with(".bias") ||
        name.find(".nsa_cmp_") != name.npos;
    Tensor tensor{.name = std::move(name), .dtype = exact ? DType::F32 : dtype_, .shape = std::move(shape)};
    tensor.seed = seed_ * 0x9e3779b97f4a7c15ull + tensors_.size() + 1;
    tensor.bytes = dtype_bytes(tensor.dtype, size_t(tensor.shape.back()));
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) tensor.bytes *= size_t(tensor.shape[i]);
    tensors_.push_back(std::move(tensor));
  }

  DType dtype_;
  uint64_t seed_;
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
  auto made = std::make_unique<RandomCheckpoint>(std::move(description), name, dtype, seed);
  HUNCH_OK(check_tensors(*made, name));
  return std::unique_ptr<Checkpoint>(std::move(made));
}

}
