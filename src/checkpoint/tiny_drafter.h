// Tiny learned drafters in both formats, for tests: an EAGLE-3 layer for the tiny models of tiny_model.h.
#pragma once

#include <numeric>

#include "checkpoint/drafter_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tiny_model.h"

namespace hunch::tiny {

inline constexpr int kDraftVocab = 20;  // even ids of the target

inline nlohmann::json eagle3_config() {
  nlohmann::json out = config("llama");
  out["architectures"] = {"LlamaForCausalLMEagle3"};
  out["num_hidden_layers"] = 1;
  out["draft_vocab_size"] = kDraftVocab;
  out["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", {0, 1, 1}}};
  return out;
}

inline Tensors eagle3_tensors() {
  Tensors out{{"fc.weight", {kHidden, 3 * kHidden}}};
  const auto add = [&](const char* name, Shape shape) { out.push_back({fmt::format("midlayer.{}.weight", name), shape}); };
  for (const char* name : {"input_layernorm", "hidden_norm"}) add(name, {kHidden});
  add("self_attn.q_proj", {kQueryDim, 2 * kHidden});
  for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"}) add(name, {kKvDim, 2 * kHidden});
  add("self_attn.o_proj", {kHidden, kQueryDim});
  add("post_attention_layernorm", {kHidden});
  for (const char* name : {"mlp.gate_proj", "mlp.up_proj"}) add(name, {kFfn, kHidden});
  add("mlp.down_proj", {kHidden, kFfn});
  out.insert(out.end(),
      {{"norm.weight", {kHidden}}, {"lm_head.weight", {kDraftVocab, kHidden}}, {"d2t", {kDraftVocab}}, {"t2d", {kVocab}}});
  return out;
}

inline std::vector<int64_t> d2t() {
  std::vector<int64_t> out(kDraftVocab);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

inline std::vector<uint8_t> t2d() {
  std::vector<uint8_t> out(kVocab);
  for (size_t i = 0; i < kDraftVocab; ++i) out[2 * i] = 1;
  return out;
}

// As safetensors(tensors), with d2t as I64 and t2d as BOOL.
inline Bytes drafter_safetensors(const Tensors& tensors) {
  std::vector<Stored> out;
  for (const auto& [name, shape] : tensors) {
    if (name == "d2t") out.push_back({name, "I64", shape, bytes_of(d2t())});
    else if (name == "t2d") out.push_back({name, "BOOL", shape, bytes_of(t2d())});
    else out.push_back({name, "F32", shape, bytes_of(values(elements(shape), uint32_t(out.size() + 1)))});
  }
  return file_of(out);
}

inline Bytes gguf_eagle3(DType dtype) {
  GgufWriter out;
  out.add_text("general.architecture", kDrafterArchitecture);
  out.add_text(kDrafterMethodKey, "eagle3");
  out.add_text(kDrafterConfigKey, eagle3_config().dump());
  Bytes data;
  const auto append = [&](const Bytes& bytes) { data.insert(data.end(), bytes.begin(), bytes.end()); };
  const auto tensors = eagle3_tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, shape] = tensors[i];
    if (name == "d2t" || name == "t2d") {
      out.add_integers(name, name == "d2t" ? IntegerType::I64 : IntegerType::I8, shape);
      append(name == "d2t" ? bytes_of(d2t()) : bytes_of(t2d()));
      continue;
    }
    const DType type = shape.size() > 1 ? dtype : DType::F32;
    append(encoded(type, values(elements(shape), uint32_t(i + 1))));
    out.add_tensor(name, type, shape);
  }
  return out.to_bytes(data);
}

}
