// FP8 folders: the spellings that are read, what their rows decode to, and what is refused with which words.
#include "checkpoint/fp8.h"

#include <cmath>

#include "base/half.h"
#include "checkpoint/model_info.h"
#include "checkpoint/test_configs.h"

namespace hunch {
namespace {

using namespace tiny;
using enum Fp8Scales;

using nlohmann::json;

// A tensor of the file under construction; FP8 codes are any bytes but NaN.
using Part = Stored;

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
    for (auto [name, shape] : folder_tensors("llama")) {
      // The heads' rows are as many as the tiny model is wide, and stay so.
      for (int64_t& extent : shape) extent = extent == tiny::kHidden ? kHidden : extent == tiny::kFfn ? kFfn : extent;
      if (name.find("q_proj") != name.npos) shape[0] = kHeads * kHeadDim;
      if (name.find("o_proj") != name.npos) shape[1] = kHeads * kHeadDim;
      const bool fp8 = shape.size() == 2 && name.find("layers") != name.npos;
      const auto values = tiny::values(elements(shape), uint32_t(parts.size() + 1));
      parts.push_back({name, fp8 ? "F8_E4M3" : "F32", shape, encoded(fp8 ? DType::F8_E4M3 : DType::F32, values)});
      if (!fp8) continue;
      const int64_t rows = (shape[0] + 127) / 128, columns = (shape[1] + 127) / 128;
      Part scale{name.substr(0, name.size() - 6) + suffix, scale_dtype, {}, {}};
      if (kind == Rows) scale.shape = {shape[0], 1};
      if (kind == Blocks) scale.shape = {rows, columns};
      Floats scales;
      for (size_t i = 0; i < elements(scale.shape); ++i) scales.push_back(std::ldexp(float(i % 50 + 1), -6));
      scale.data = encoded(scale_dtype == "F32" ? DType::F32 : DType::BF16, scales);
      parts.push_back(scale);
    }
  }
  void make_blocks() { make(Blocks, "weight_scale_inv", "F32"), config["quantization_config"] = kBlocks; }
  void make_matrix() { make(Matrix, "weight_scale", "F32"), config["quantization_config"] = kMatrix; }
  Result<std::unique_ptr<Checkpoint>> open() {
    file = file_of(parts);
    return test::opened(file, config);
  }
  Part& part(const std::string& name) {
    for (Part& part : parts)
      if (part.name == name) return part;
    ADD_FAILURE() << name;
    return parts[0];
  }
  std::unique_ptr<Checkpoint> opened() { return test::good(open()); }
  void expect_error(std::string_view words) { test::expect_error(open(), words); }

  json config;
  std::vector<Part> parts;
  Bytes file;
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
  const Spelling spellings[] = {{Blocks, "weight_scale_inv", "F32", kBlocks}, {Blocks, "weight_scale_inv", "BF16", kBlocks},
      {Matrix, "weight_scale", "F32", kMatrix}, {Matrix, "weight_scale", "F32", compressed(float8("tensor"))},
      {Rows, "weight_scale", "BF16", compressed(float8("channel"))}, {Blocks, "weight_scale", "BF16", compressed(structured)}};
  for (const Spelling& spelling : spellings) {
    make(spelling.kind, spelling.suffix, spelling.dtype);
    config["quantization_config"] = spelling.config;
    const auto model = opened();
    const Tensor* tensor = model->find("blk.1.ffn_down.weight");
    ASSERT_TRUE(tensor);
    EXPECT_EQ(tensor->dtype, DType::F8_E4M3);
    const Part& codes = part("model.layers.1.mlp.down_proj.weight");
    for (const int64_t row : {int64_t(0), int64_t(127), int64_t(128), kHidden - 1}) {
      Floats out(kFfn);
      dequantise_row(*tensor, row, out.data());
      for (int64_t i = 0; i < kFfn; ++i) {
        const int64_t index = spelling.kind == Rows ? row : spelling.kind == Blocks ? row / 128 * 2 + i / 128 : 0;
        const float scale = std::ldexp(float(index % 50 + 1), -6);
        EXPECT_EQ(out[i], scale * f8_to_f32(uint8_t(codes.data[row * kFfn + i]))) << row << " " << i;
      }
    }
    test::expect_part(model->note(), "fp8 weights");
  }
}

TEST_F(Fp8Folder, CountsScalesAmongItsBytes) {
  make_blocks();
  const auto model = opened();
  const ModelInfo info = describe(*model);
  EXPECT_EQ(info.encodings.back().dtype, DType::F8_E4M3);
  EXPECT_EQ(info.encodings.back().tensors, 7 * kLayers);
  EXPECT_GT(info.encodings.back().bytes, uint64_t(info.encodings.back().elements));
}

TEST_F(Fp8Folder, LeavesOutScalesOfActivationsAndSaysHowMany) {
  make_matrix();
  const Part scale = part("model.layers.0.mlp.down_proj.weight_scale");
  for (const char* name : {"model.layers.0.mlp.down_proj.input_scale", "model.layers.0.self_attn.q_scale"})
    parts.push_back({name, "F32", {}, scale.data});
  const auto model = opened();
  test::expect_part(model->note(), "2 scales of activations are");
  EXPECT_TRUE(model->kv_scales().empty());
  config.erase("quantization_config");
  for (Part& part : parts)
    if (part.dtype == "F8_E4M3") part.dtype = "F32", part.data.resize(4 * part.data.size());
  std::erase_if(parts, [](const Part& part) { return part.name.ends_with("weight_scale"); });
  expect_error("unknown tensor");  // a model that is not FP8 has no such tensors
}

TEST_F(Fp8Folder, ReadsScalesOfTheKvCacheByLayerAsPowersOfTwo) {
  const auto put = [&](const std::string& name, const char* dtype, Shape shape, float value) {
    const DType type = dtype == std::string("F32") ? DType::F32 : DType::BF16;
    parts.push_back({name, dtype, std::move(shape), encoded(type, {value})});
  };
  make_matrix();
  put("model.layers.0.self_attn.k_scale", "F32", {}, 0.25f);
  put("model.layers.1.self_attn.k_proj.k_scale", "BF16", {1}, 0.2578125f);  // up: what fitted the range still does
  put("model.layers.1.self_attn.v_proj.v_scale", "F32", {1}, 3);
  const auto model = opened();
  const auto scales = model->kv_scales();
  ASSERT_EQ(scales.size(), size_t(kLayers));
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
  put("model.layers.2.self_attn.v_scale", "F32", {}, 1);
  expect_error("scales a layer that this model has not");
  make_matrix();
  parts.push_back({"model.layers.0.self_attn.v_scale", "F32", {2}, Bytes(8)});
  expect_error("a KV cache has one scale a layer");
  make_matrix();
  parts.push_back({"model.layers.0.self_attn.v_scale", "F8_E4M3", {}, Bytes(1)});
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
            part(scale).shape = Shape{4, 1};
          }},
      {"holds inf", [&] { part(scale).data[6] = std::byte(0x80), part(scale).data[7] = std::byte(0x7f); }},
      {"has two tensors of scales", [&] { parts.push_back(part(scale)), parts.back().name = down + "_scale"; }},
      {"scales output.weight, which is f32", [&] { parts.push_back(part(scale)), parts.back().name = "lm_head.weight_scale"; }},
      {"scales no matrix", [&] { parts.push_back(part(scale)), parts.back().name = "model.layers.7.mlp.up_proj.weight_scale"; }},
      {"must be F32, BF16 or F16", [&] { part(scale).dtype = "F8_E4M3", part(scale).data.resize(4); }},
      {"config.json has no quantization_config", [&] { config.erase("quantization_config"); }},
      {"norms, biases and factors must be", [&] {
         Part& norm = part("model.norm.weight");
         norm.dtype = "F8_E4M3", norm.data.resize(norm.data.size() / 4);
       }}};
  for (const Case& c : cases) {
    make_blocks();
    c.damage();
    expect_error(c.words);
  }
}

TEST_F(Fp8Folder, RefusesOtherQuantisationByName) {
  json blocks64 = kBlocks, e5m2 = kBlocks, int8 = float8("channel"), fp4 = int8, packed = compressed(float8("tensor")),
       mixed = packed, sparse = packed, turned = packed;
  fp4["num_bits"] = 4, turned["transform_config"] = {{"x", 1}};
  blocks64["weight_block_size"] = {64, 64}, e5m2["fmt"] = "e5m2", int8["type"] = "int", packed["format"] = "pack-quantized";
  mixed["config_groups"]["group_1"] = {{"weights", float8("channel")}};
  sparse["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  const std::pair<json, const char*> cases[] = {{{{"quant_method", "gptq"}}, "gptq is not supported"},
      {json::object(), "quant_method"}, {blocks64, "blocks of 128 x 128 are supported; found [64,64]"},
      {e5m2, "e5m2 is not supported"}, {compressed(int8), "only float with 8 bits"}, {compressed(fp4), "only float with 8 bits"},
      {turned, "transform_config"}, {compressed(float8("group")), "group is not supported"},
      {packed, "pack-quantized is not supported"}, {mixed, "groups of layers with different ones"},
      {sparse, "sparse-24-bitmask is not supported"},
      {{{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}}, "config_groups: missing"}};
  make(Matrix, "weight_scale", "F32");
  for (const auto& [quantisation, words] : cases) {
    config["quantization_config"] = quantisation;
    expect_error(words);
  }
}

}
}
