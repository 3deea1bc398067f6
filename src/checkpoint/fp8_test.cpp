// FP8 folders: the spellings that are read, what their rows decode to, and what is refused with which words.
#include "checkpoint/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/half.h"
#include "checkpoint/memory_checkpoint.h"
#include "checkpoint/model_info.h"
#include "checkpoint/quantise.h"
#include "checkpoint/tiny_model.h"

namespace hunch {
namespace {

using nlohmann::json;

// A tensor of the file under construction; FP8 codes are any bytes but NaN.
struct Part {
  std::string name, dtype;
  tiny::Shape shape;
  std::vector<std::byte> bytes;
};

const json kBlocks = {
    {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
const json kMatrix = {{"quant_method", "fp8"}, {"activation_scheme", "static"}};

class Fp8Folder : public testing::Test {
 protected:
  static constexpr int64_t kHidden = 160, kFfn = 200;  // two blocks of 128 each way, the second one short

  // A tiny llama whose layers' matrices are FP8 with scales named by `suffix` of the given kind.
  void make(Fp8Scales kind, const std::string& suffix, const std::string& scale_dtype) {
    config = tiny::config("llama");
    config["hidden_size"] = kHidden, config["intermediate_size"] = kFfn;
    parts.clear();
    for (auto [name, shape] : tiny::folder_tensors("llama")) {
      reshape(name, shape);
      const bool fp8 = shape.size() == 2 && name.find("layers") != name.npos;
      Part part{name, fp8 ? "F8_E4M3" : "F32", shape, {}};
      const auto values = tiny::values(tiny::elements(shape), uint32_t(parts.size() + 1));
      part.bytes.resize(values.size() * (fp8 ? 1 : 4));
      quantise_row(fp8 ? DType::F8_E4M3 : DType::F32, values.data(), part.bytes.data(), int64_t(values.size()));
      parts.push_back(part);
      if (!fp8) continue;
      const int64_t rows = (shape[0] + 127) / 128, columns = (shape[1] + 127) / 128;
      Part scale{name.substr(0, name.size() - 6) + suffix, scale_dtype, {}, {}};
      if (kind == Fp8Scales::Rows) scale.shape = {shape[0], 1};
      if (kind == Fp8Scales::Blocks) scale.shape = {rows, columns};
      std::vector<float> scales;
      for (size_t i = 0; i < tiny::elements(scale.shape); ++i) scales.push_back(std::ldexp(float(i % 50 + 1), -6));
      const DType dtype = scale_dtype == "F32" ? DType::F32 : DType::BF16;
      scale.bytes.resize(dtype_bytes(dtype, scales.size()));
      quantise_row(dtype, scales.data(), scale.bytes.data(), int64_t(scales.size()));
      parts.push_back(scale);
    }
  }
  void make_blocks() { make(Fp8Scales::Blocks, "weight_scale_inv", "F32"), config["quantization_config"] = kBlocks; }
  void make_matrix() { make(Fp8Scales::Matrix, "weight_scale", "F32"), config["quantization_config"] = kMatrix; }
  // folder_tensors' shapes at these sizes; the embedding and the head have rows of kHidden too.
  static void reshape(const std::string& name, tiny::Shape& shape) {
    const bool ffn = name.find("mlp.") != name.npos, down = name.find("down_proj") != name.npos;
    const bool query = name.find("q_proj") != name.npos, out = name.find("o_proj") != name.npos;
    if (shape.size() == 1) shape = {kHidden};
    else if (ffn) shape = down ? tiny::Shape{kHidden, kFfn} : tiny::Shape{kFfn, kHidden};
    else if (out) shape = {kHidden, tiny::kHeads * tiny::kHeadDim};
    else if (query) shape = {tiny::kHeads * tiny::kHeadDim, kHidden};
    else if (name.find("_proj") != name.npos) shape = {tiny::kKvHeads * tiny::kHeadDim, kHidden};
    else shape = {tiny::kVocab, kHidden};
  }
  Result<std::unique_ptr<Checkpoint>> open() {
    nlohmann::ordered_json header;
    size_t at = 0;
    for (const Part& part : parts) {
      header[part.name] = {{"dtype", part.dtype}, {"shape", part.shape}, {"data_offsets", {at, at + part.bytes.size()}}};
      at += part.bytes.size();
    }
    const std::string text = header.dump();
    file = tiny::safetensors(text, at);
    at = 8 + text.size();
    for (const Part& part : parts)
      std::copy(part.bytes.begin(), part.bytes.end(), file.begin() + long(at)), at += part.bytes.size();
    return open_safetensors_bytes(file, {.config = config.dump()}, "m");
  }
  Part& part(const std::string& name) {
    for (Part& part : parts)
      if (part.name == name) return part;
    ADD_FAILURE() << name;
    return parts[0];
  }
  std::unique_ptr<Checkpoint> opened() {
    auto made = open();
    if (!made.ok()) ADD_FAILURE() << made.error().message;
    return std::move(made).value();
  }
  void expect_error(const std::string& words) {
    const auto opened = open();
    ASSERT_FALSE(opened.ok()) << words;
    EXPECT_NE(opened.error().message.find(words), std::string::npos) << words << " in: " << opened.error().message;
  }

  json config;
  std::vector<Part> parts;
  tiny::Bytes file;
};

json compressed(const json& weights) {
  return {{"quant_method", "compressed-tensors"}, {"format", "float-quantized"},
      {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}, {"ignore", {"lm_head"}}};
}
json float8(const std::string& strategy) { return {{"type", "float"}, {"num_bits", 8}, {"strategy", strategy}}; }

TEST_F(Fp8Folder, DecodesEverySpellingOfItsScales) {
  struct Spelling {
    Fp8Scales kind;
    const char *suffix, *dtype;
    json config;
  };
  json structured = float8("block");
  structured["block_structure"] = {128, 128};
  const Spelling spellings[] = {
      {Fp8Scales::Blocks, "weight_scale_inv", "F32", kBlocks},
      {Fp8Scales::Blocks, "weight_scale_inv", "BF16", kBlocks},
      {Fp8Scales::Matrix, "weight_scale", "F32", kMatrix},
      {Fp8Scales::Matrix, "weight_scale", "F32", compressed(float8("tensor"))},
      {Fp8Scales::Rows, "weight_scale", "BF16", compressed(float8("channel"))},
      {Fp8Scales::Blocks, "weight_scale", "BF16", compressed(structured)},
  };
  for (const Spelling& spelling : spellings) {
    make(spelling.kind, spelling.suffix, spelling.dtype);
    config["quantization_config"] = spelling.config;
    const auto model = opened();
    const Tensor* tensor = model->find("blk.1.ffn_down.weight");
    ASSERT_TRUE(tensor);
    EXPECT_EQ(tensor->dtype, DType::F8_E4M3);
    const Part& codes = part("model.layers.1.mlp.down_proj.weight");
    for (const int64_t row : {int64_t(0), int64_t(127), int64_t(128), kHidden - 1}) {
      std::vector<float> out(kFfn);
      dequantise_row(*tensor, row, out.data());
      for (int64_t i = 0; i < kFfn; ++i) {
        const int64_t index = spelling.kind == Fp8Scales::Rows ? row
            : spelling.kind == Fp8Scales::Blocks               ? row / 128 * 2 + i / 128
                                                               : 0;
        const float scale = std::ldexp(float(index % 50 + 1), -6);
        EXPECT_EQ(out[size_t(i)], scale * f8_to_f32(uint8_t(codes.bytes[size_t(row * kFfn + i)]))) << row << " " << i;
      }
    }
    EXPECT_NE(model->note().find("fp8 weights"), std::string::npos);
  }
}

TEST_F(Fp8Folder, CountsScalesAmongItsBytes) {
  make_blocks();
  const auto model = opened();
  const ModelInfo info = describe(*model);
  EXPECT_EQ(info.encodings.back().dtype, DType::F8_E4M3);
  EXPECT_EQ(info.encodings.back().tensors, 7 * tiny::kLayers);
  EXPECT_GT(info.encodings.back().bytes, uint64_t(info.encodings.back().elements));
}

TEST_F(Fp8Folder, LeavesOutScalesOfActivationsAndSaysHowMany) {
  make_matrix();
  const Part scale = part("model.layers.0.mlp.down_proj.weight_scale");
  for (const char* name : {"model.layers.0.mlp.down_proj.input_scale", "model.layers.0.self_attn.q_scale"})
    parts.push_back({name, "F32", {}, scale.bytes});
  const auto model = opened();
  EXPECT_NE(model->note().find("2 scales of activations are"), std::string_view::npos) << model->note();
  EXPECT_TRUE(model->kv_scales().empty());
  config.erase("quantization_config");
  for (Part& part : parts)
    if (part.dtype == "F8_E4M3") part.dtype = "F32", part.bytes.resize(4 * part.bytes.size());
  std::erase_if(parts, [](const Part& part) { return part.name.ends_with("weight_scale"); });
  expect_error("unknown tensor");  // a model that is not FP8 has no such tensors
}

TEST_F(Fp8Folder, ReadsScalesOfTheKvCacheByLayerAsPowersOfTwo) {
  const auto put = [&](const std::string& name, const char* dtype, tiny::Shape shape, float value) {
    const DType type = dtype == std::string("F32") ? DType::F32 : DType::BF16;
    parts.push_back({name, dtype, std::move(shape), {}});
    parts.back().bytes.resize(dtype_bytes(type, 1));
    quantise_row(type, &value, parts.back().bytes.data(), 1);
  };
  make_matrix();
  put("model.layers.0.self_attn.k_scale", "F32", {}, 0.25f);
  put("model.layers.1.self_attn.k_proj.k_scale", "BF16", {1}, 0.2578125f);  // up: what fitted the range still does
  put("model.layers.1.self_attn.v_proj.v_scale", "F32", {1}, 3);
  const auto model = opened();
  const auto scales = model->kv_scales();
  ASSERT_EQ(scales.size(), size_t(tiny::kLayers));
  EXPECT_EQ(scales[0].k, 0.25f);
  EXPECT_EQ(scales[0].v, 1.0f);  // not in the file
  EXPECT_EQ(scales[1].k, 0.5f);
  EXPECT_EQ(scales[1].v, 4.0f);

  for (const float value : {0.0f, -1.0f, INFINITY, NAN, 1e20f}) {
    make_matrix();
    put("model.layers.0.self_attn.v_scale", "F32", {}, value);
    expect_error("a scale lies in 2^-32..2^32");
  }
  make_matrix();
  put("model.layers.99.self_attn.v_scale", "F32", {}, 1);
  expect_error("scales a layer that this model has not");
  make_matrix();
  parts.push_back({"model.layers.0.self_attn.v_scale", "F32", {2}, std::vector<std::byte>(8)});
  expect_error("a KV cache has one scale a layer");
  make_matrix();
  parts.push_back({"model.layers.0.self_attn.v_scale", "F8_E4M3", {}, std::vector<std::byte>(1)});
  expect_error("must be F32, BF16 or F16");
}

TEST_F(Fp8Folder, RefusesScalesThatDoNotFitAndSaysWhy) {
  const std::string down = "model.layers.0.mlp.down_proj.weight", scale = down + "_scale_inv";
  struct Case {
    const char* words;
    std::function<void()> damage;
  };
  const Case cases[] = {
      {"is fp8 and has no weight_scale", [&] { std::erase_if(parts, [&](const Part& p) { return p.name == scale; }); }},
      {"has shape [4, 1]; blk.0.ffn_down.weight of shape [160, 200] needs [2, 2] (one a block",
          [&] {
            part(scale).shape = {4, 1};
          }},
      {"holds inf", [&] { part(scale).bytes[6] = std::byte(0x80), part(scale).bytes[7] = std::byte(0x7f); }},
      {"has two tensors of scales", [&] { parts.push_back(part(scale)), parts.back().name = down + "_scale"; }},
      {"scales output.weight, which is f32", [&] { parts.push_back(part(scale)), parts.back().name = "lm_head.weight_scale"; }},
      {"scales no matrix", [&] { parts.push_back(part(scale)), parts.back().name = "model.layers.7.mlp.up_proj.weight_scale"; }},
      {"must be F32, BF16 or F16", [&] { part(scale).dtype = "F8_E4M3", part(scale).bytes.resize(4); }},
      {"config.json has no quantization_config", [&] { config.erase("quantization_config"); }},
      {"norms, biases and factors must be", [&] {
         Part& norm = part("model.norm.weight");
         norm.dtype = "F8_E4M3", norm.bytes.resize(norm.bytes.size() / 4);
       }}};
  for (const Case& c : cases) {
    make_blocks();
    c.damage();
    expect_error(c.words);
  }
}

TEST_F(Fp8Folder, RefusesOtherQuantisationByName) {
  json blocks64 = kBlocks, e5m2 = kBlocks, int8 = float8("channel"), group = float8("group"),
       packed = compressed(float8("tensor"));
  blocks64["weight_block_size"] = {64, 64}, e5m2["fmt"] = "e5m2", int8["type"] = "int", packed["format"] = "pack-quantized";
  json mixed = compressed(float8("tensor")), sparse = compressed(float8("tensor"));
  mixed["config_groups"]["group_1"] = {{"weights", float8("channel")}};
  sparse["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  const std::pair<json, const char*> cases[] = {{{{"quant_method", "gptq"}}, "gptq is not supported"},
      {json::object(), "quant_method"}, {blocks64, "blocks of 128 x 128 are supported; found [64,64]"},
      {e5m2, "e5m2 is not supported"}, {compressed(int8), "only float with 8 bits"},
      {compressed(group), "group is not supported"}, {packed, "pack-quantized is not supported"},
      {mixed, "groups of layers with different ones"}, {sparse, "sparse-24-bitmask is not supported"},
      {{{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}}, "config_groups: missing"}};
  make(Fp8Scales::Matrix, "weight_scale", "F32");
  for (const auto& [quantisation, words] : cases) {
    config["quantization_config"] = quantisation;
    expect_error(words);
  }
}

}  // namespace
}  // namespace hunch
