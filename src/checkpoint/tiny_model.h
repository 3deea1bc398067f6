// Tiny random models in both formats, for tests: 2 layers, 4 heads of 8 over 2 KV heads, vocabulary 40.
#pragma once

#include <nlohmann/json.hpp>

#include "checkpoint/gguf_writer.h"
#include "checkpoint/quantise.h"

namespace hunch::tiny {

inline constexpr int kVocab = 40, kHidden = 32, kFfn = 64, kLayers = 2, kHeads = 4, kKvHeads = 2, kHeadDim = 8;
inline constexpr int kQueryDim = kHeads * kHeadDim, kKvDim = kKvHeads * kHeadDim;
inline constexpr int kExperts = 4, kExpertsPerToken = 2, kExpertFfn = 16;  // of qwen3_moe and DeepSeek's, in their last layer
inline constexpr int kQRank = 12, kKvRank = 16, kNope = 8, kRope = 4;      // of DeepSeek's

using Bytes = std::vector<std::byte>;
using Shape = std::vector<int64_t>;
using Floats = std::vector<float>;

struct NamedShape {
  std::string name;
  Shape shape;
};
using Tensors = std::vector<NamedShape>;

inline nlohmann::json config(const std::string& family) {
  nlohmann::json out{{"model_type", family}, {"vocab_size", kVocab}, {"hidden_size", kHidden}, {"intermediate_size", kFfn},
      {"num_hidden_layers", kLayers}, {"num_attention_heads", kHeads}, {"num_key_value_heads", kKvHeads}, {"head_dim", kHeadDim},
      {"max_position_embeddings", 512}, {"rms_norm_eps", 1e-5}, {"tie_word_embeddings", false}, {"eos_token_id", 3}};
  if (family == "qwen3_moe")
    out.update({
        {"num_experts", kExperts},
        {"num_experts_per_tok", kExpertsPerToken},
        {"moe_intermediate_size", kExpertFfn},
        {"norm_topk_prob", true},
        {"mlp_only_layers", {0}},
    });
  if (family.starts_with("deepseek"))  // sigmoid and queries' latent in v3 alone; a dense layer, then experts
    out.update({{"num_key_value_heads", kHeads}, {"q_lora_rank", family == "deepseek_v3" ? nlohmann::json(kQRank) : nullptr},
        {"kv_lora_rank", kKvRank}, {"qk_nope_head_dim", kNope}, {"qk_rope_head_dim", kRope}, {"v_head_dim", kHeadDim},
        {"n_routed_experts", kExperts}, {"num_experts_per_tok", kExpertsPerToken}, {"moe_intermediate_size", kExpertFfn},
        {"n_shared_experts", 2}, {"first_k_dense_replace", 1}, {"n_group", 2}, {"topk_group", 1}});
  if (family == "nsa")
    out["nsa"] = {{"variant", "std"}, {"cmp_len", 8}, {"cmp_stride", 4}, {"sel_block", 16}, {"sel_count", 4}, {"window", 24}};
  return out;
}

// Hugging Face's tensors of a family.
inline Tensors folder_tensors(const std::string& family) {
  Tensors out{{"model.embed_tokens.weight", {kVocab, kHidden}}};
  const bool deepseek = family.starts_with("deepseek");
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto named = [&](const std::string& name, Shape shape) {
      out.push_back({fmt::format("model.layers.{}.{}", layer, name), shape});
    };
    const auto add = [&](const std::string& name, Shape shape) { named(name + ".weight", shape); };
    add("input_layernorm", {kHidden});
    if (deepseek) {
      const bool v3 = family == "deepseek_v3";
      if (v3) add("self_attn.q_a_proj", {kQRank, kHidden}), add("self_attn.q_a_layernorm", {kQRank});
      add(v3 ? "self_attn.q_b_proj" : "self_attn.q_proj", {kHeads * (kNope + kRope), v3 ? kQRank : kHidden});
      add("self_attn.kv_a_proj_with_mqa", {kKvRank + kRope, kHidden});
      add("self_attn.kv_a_layernorm", {kKvRank});
      add("self_attn.kv_b_proj", {kHeads * (kNope + kHeadDim), kKvRank});
    } else {
      add("self_attn.q_proj", {kQueryDim, kHidden});
      for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"}) add(name, {kKvDim, kHidden});
    }
    if (family == "qwen2") {
      named("self_attn.q_proj.bias", {kQueryDim});
      for (const char* name : {"self_attn.k_proj.bias", "self_attn.v_proj.bias"}) named(name, {kKvDim});
    }
    if (family == "qwen3" || family == "qwen3_moe") {
      add("self_attn.q_norm", {kHeadDim});
      add("self_attn.k_norm", {kHeadDim});
    }
    if (family == "nsa") {
      add("self_attn.g_proj", {3 * kHeads, kHidden});
      for (const char* name : {"self_attn.compress_key", "self_attn.compress_value"}) named(name, {kKvHeads, 8});
      named("self_attn.intra_block_pe", {kKvHeads, 8, kHeadDim});
    }
    add("self_attn.o_proj", {kHidden, kQueryDim});
    add("post_attention_layernorm", {kHidden});
    const bool experts = (family == "qwen3_moe" || deepseek) && layer == kLayers - 1;
    if (experts) add("mlp.gate", {kExperts, kHidden});
    if (experts && family == "deepseek_v3") named("mlp.gate.e_score_correction_bias", {kExperts});
    const auto add_mlp = [&](const std::string& of, int width) {
      for (const char* name : {"gate_proj", "up_proj"}) add(of + name, {width, kHidden});
      add(of + "down_proj", {kHidden, width});
    };
    if (experts && deepseek) add_mlp("mlp.shared_experts.", 2 * kExpertFfn);
    if (!experts) add_mlp("mlp.", kFfn);
    for (int e = 0; experts && e < kExperts; ++e) add_mlp(fmt::format("mlp.experts.{}.", e), kExpertFfn);
  }
  out.push_back({"model.norm.weight", {kHidden}});
  out.push_back({"lm_head.weight", {kVocab, kHidden}});
  return out;
}

// Without those whose names hold `part`.
inline Tensors without(Tensors tensors, std::string_view part) {
  std::erase_if(tensors, [&](const NamedShape& t) { return t.name.find(part) != t.name.npos; });
  return tensors;
}

inline Tensors reshaped(Tensors tensors, std::string_view name, const Shape& shape) {
  std::ranges::find(tensors, name, &NamedShape::name)->shape = shape;
  return tensors;
}

inline size_t elements(const Shape& shape) {
  size_t n = 1;
  for (const int64_t extent : shape) n *= size_t(extent);
  return n;
}

// Values in [-1, 1) that differ from tensor to tensor.
inline Floats values(size_t count, uint32_t seed) {
  Floats out(count);
  for (float& value : out) seed = seed * 1664525u + 1013904223u, value = float(int32_t(seed)) * 0x1p-31f;
  return out;
}

inline Bytes encoded(DType dtype, const Floats& values) {
  Bytes out(dtype_bytes(dtype, values.size()));
  quantise_row(dtype, values.data(), out.data(), std::ssize(values));
  return out;
}

// What a tensor of a file holds.
inline Floats values_of(const Tensor& tensor) {
  Floats out(elements(tensor.shape));
  dequantise_row(tensor.dtype, tensor.data, out.data(), std::ssize(out));
  return out;
}

// A safetensors file from a header text and data bytes.
inline Bytes safetensors(const std::string& header, size_t data_bytes) {
  Bytes out(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  return out;
}

struct Stored {
  std::string name, dtype;
  Shape shape;
  Bytes data;
};

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto* begin = reinterpret_cast<const std::byte*>(values.data());
  return {begin, begin + sizeof(T) * values.size()};
}

inline Bytes file_of(const std::vector<Stored>& tensors) {
  nlohmann::ordered_json header;
  Bytes data;
  for (const Stored& t : tensors) {
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.data.size()}}};
    data.insert(data.end(), t.data.begin(), t.data.end());
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  Bytes out = safetensors(text, 0);
  out.insert(out.end(), data.begin(), data.end());
  return out;
}

// F32 file of these tensors, filled with values(count, seed = index + 1).
inline Bytes safetensors(const Tensors& tensors) {
  std::vector<Stored> out;
  for (const auto& [name, shape] : tensors)
    out.push_back({name, "F32", shape, bytes_of(values(elements(shape), uint32_t(out.size() + 1)))});
  return file_of(out);
}

// Byte-level BPE with a few tokens: ids 0..29 normal, 30 special, 31 added; 32..39 unused.
inline nlohmann::json tokenizer() {
  nlohmann::json vocab;
  for (int i = 0; i < 30; ++i)
    vocab[i < 26 ? std::string(1, char('a' + i)) : fmt::format("{}{}", char('a' + i - 26), char('b' + i - 26))] = i;
  const std::string regex =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  return {{"added_tokens",
              {{{"id", 30}, {"content", "<|end|>"}, {"special", true}}, {{"id", 31}, {"content", "<tool>"}, {"special", false}}}},
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer",
          {
              {"type", "Sequence"},
              {"pretokenizers",
                  {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}},
                      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}},
          }},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "b c", "c d", "d e"}}}}};
}

// Keys of an architecture that has everything but a feed-forward width.
inline void add_keys(GgufWriter& out, const std::string& architecture) {
  out.add_text("general.architecture", architecture);
  for (const auto& [key, value] : {std::pair("context_length", 512), {"embedding_length", kHidden}, {"block_count", kLayers},
           {"attention.head_count", kHeads}, {"attention.head_count_kv", kKvHeads}, {"attention.key_length", kHeadDim},
           {"attention.value_length", kHeadDim}})
    out.add_u32(architecture + "." + key, uint32_t(value));
  out.add_f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f);
}

// The keys of a tiny qwen3, without tensors.
inline void add_qwen3_keys(GgufWriter& out) {
  add_keys(out, "qwen3");
  out.add_u32("qwen3.feed_forward_length", kFfn);
  out.add_f32("qwen3.rope.freq_base", 1e6f);
}

inline void add_vocabulary(GgufWriter& out, int tokens = kVocab) {
  out.add_text("tokenizer.ggml.model", "gpt2");
  out.add_text("tokenizer.ggml.pre", "qwen2");
  std::vector<std::string> texts;
  for (int i = 0; i < tokens; ++i) texts.push_back(fmt::format("t{}", i));
  out.add_texts("tokenizer.ggml.tokens", texts);
  out.add_i32s("tokenizer.ggml.token_type", std::vector<int32_t>(size_t(tokens), 1));
  out.add_texts("tokenizer.ggml.merges", {"t 1"});
  out.add_u32("tokenizer.ggml.eos_token_id", 2);
}

// GGUF's tensors of a tied qwen3.
inline Tensors gguf_tensors() {
  Tensors out{{"token_embd.weight", {kVocab, kHidden}}};
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto add = [&](const char* name, Shape shape) { out.push_back({fmt::format("blk.{}.{}.weight", layer, name), shape}); };
    add("attn_norm", {kHidden});
    add("attn_q", {kQueryDim, kHidden});
    for (const char* name : {"attn_k", "attn_v"}) add(name, {kKvDim, kHidden});
    for (const char* name : {"attn_q_norm", "attn_k_norm"}) add(name, {kHeadDim});
    add("attn_output", {kHidden, kQueryDim});
    add("ffn_norm", {kHidden});
    for (const char* name : {"ffn_gate", "ffn_up"}) add(name, {kFfn, kHidden});
    add("ffn_down", {kHidden, kFfn});
  }
  out.push_back({"output_norm.weight", {kHidden}});
  return out;
}

// Matrices in `dtype`, vectors in f32.
inline Bytes finish_gguf(GgufWriter& out, const Tensors& tensors, DType dtype = DType::Q8_0) {
  Bytes data;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const DType type = tensors[i].shape.size() > 1 ? dtype : DType::F32;
    const Bytes filled = encoded(type, values(elements(tensors[i].shape), uint32_t(i + 1)));
    data.insert(data.end(), filled.begin(), filled.end());
    out.add_tensor(tensors[i].name, type, tensors[i].shape);
  }
  return out.to_bytes(data);
}

inline Bytes gguf_qwen3() {
  GgufWriter out;
  add_qwen3_keys(out);
  add_vocabulary(out);
  return finish_gguf(out, gguf_tensors());
}

}
