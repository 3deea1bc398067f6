// Whole models with FP8 weights against the same model with their values as F32: on every backend, loaded from the folder and
// converted to GGUF. Widths of two blocks of 128, the second one short.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/half.h"
#include "checkpoint/convert.h"
#include "checkpoint/quantise.h"
#include "logits.h"

namespace hunch {
namespace {

using namespace test;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kHidden = 192, kFfn = 320, kVocab = 260;

// model.safetensors, tensor by tensor.
class File {
 public:
  void add(const std::string& name, const char* dtype, const std::vector<int64_t>& shape, const void* data, size_t bytes) {
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes}}};
    data_.append(static_cast<const char*>(data), bytes);
  }
  void write(const std::string& path) const {
    std::string text = header_.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << text << data_;
  }

 private:
  Json header_;
  std::string data_;
};

struct Kind {
  const char *name, *suffix;
  int64_t rows, columns;  // that share a scale; 0: all
  Json config;
};
const Kind kKinds[] = {
    {"blocks", "_scale_inv", 128, 128, {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}}},
    {"matrix", "_scale", 0, 0, {{"quant_method", "fp8"}, {"activation_scheme", "static"}}},
    {"rows", "_scale", 1, 0,
        {{"quant_method", "compressed-tensors"}, {"format", "float-quantized"},
            {"config_groups", {{"all", {{"weights", {{"type", "float"}, {"num_bits", 8}, {"strategy", "channel"}}}}}}}}}};

class Fp8Model : public testing::Test {
 protected:
  void SetUp() override { root_ = testing::TempDir() + "hunch_fp8_" + std::to_string(getpid()); }
  void TearDown() override { fs::remove_all(root_); }

  // root/fp8 and root/f32: the shape of the tiny qwen3, or of DeepSeek-V3 with its prediction layer, wider, with random weights.
  void make(const Kind& kind, bool deepseek = false) {
    for (const char* folder : {"/fp8", "/f32"}) {
      fs::create_directories(root_ + folder);
      for (const auto& entry : fs::directory_iterator(tiny_path(deepseek ? "deepseek-v3" : "qwen3-untied")))
        if (entry.path().extension() == ".json")
          fs::copy_file(entry, root_ + folder + "/" + entry.path().filename().string(), fs::copy_options::overwrite_existing);
      Json config = Json::parse(std::ifstream(root_ + folder + "/config.json"));
      config["hidden_size"] = kHidden, config["intermediate_size"] = kFfn;
      // Heads of 80 + 72 rows of their two maps: most blocks of 128 belong to two heads.
      if (deepseek) config.update({{"q_lora_rank", 136}, {"kv_lora_rank", 160}, {"qk_nope_head_dim", 80}, {"v_head_dim", 72}});
      if (folder == std::string("/fp8")) config["quantization_config"] = kind.config;
      std::ofstream(root_ + folder + "/config.json") << config;
    }
    File coded, plain;
    uint64_t seed = 1;
    const auto vector = [&](const std::string& name, int64_t n) {
      Dice dice(seed++);
      std::vector<float> x(static_cast<size_t>(n));
      for (float& value : x) value = 0.75f + float(dice.below(512)) / 1024;
      for (File* file : {&coded, &plain}) file->add(name, "F32", {n}, x.data(), x.size() * 4);
    };
    const auto matrix = [&](const std::string& name, int64_t out, int64_t in, bool fp8) {
      Dice dice(seed++);
      const int64_t rows = kind.rows ? kind.rows : out, columns = kind.columns ? kind.columns : in;
      const int64_t across = (in + columns - 1) / columns, down = (out + rows - 1) / rows;
      std::vector<float> scales(size_t(across * down)), values(size_t(out * in));
      for (float& scale : scales) scale = (0.5f + float(dice.below(1024)) / 1024) / (256 * std::sqrt(float(in)));
      std::string codes(values.size(), '\0');
      for (int64_t i = 0; i < out * in; ++i) {
        const uint8_t code = f32_to_f8(float(dice.below(896) - 448));
        codes[size_t(i)] = char(code);
        values[size_t(i)] = scales[size_t(i / in / rows * across + i % in / columns)] * f8_to_f32(code);
      }
      plain.add(name, "F32", {out, in}, values.data(), values.size() * 4);
      if (!fp8) return coded.add(name, "F32", {out, in}, values.data(), values.size() * 4);
      coded.add(name, "F8_E4M3", {out, in}, codes.data(), codes.size());
      std::vector<int64_t> shape{down, across};
      if (kind.rows == 0) shape.clear();
      coded.add(name + kind.suffix, "F32", shape, scales.data(), scales.size() * 4);
    };
    matrix("model.embed_tokens.weight", kVocab, kHidden, false);
    for (int layer = 0; layer < (deepseek ? 4 : 0); ++layer) {
      const std::string at = fmt::format("model.layers.{}.", layer), attention = at + "self_attn.", mlp = at + "mlp.";
      vector(at + "input_layernorm.weight", kHidden), vector(at + "post_attention_layernorm.weight", kHidden);
      matrix(attention + "q_a_proj.weight", 136, kHidden, true), vector(attention + "q_a_layernorm.weight", 136);
      matrix(attention + "q_b_proj.weight", 4 * 88, 136, true);
      matrix(attention + "kv_a_proj_with_mqa.weight", 168, kHidden, true), vector(attention + "kv_a_layernorm.weight", 160);
      matrix(attention + "kv_b_proj.weight", 4 * 152, 160, true), matrix(attention + "o_proj.weight", kHidden, 4 * 72, true);
      const auto block = [&](const std::string& of, int64_t width) {
        matrix(of + "gate_proj.weight", width, kHidden, true), matrix(of + "up_proj.weight", width, kHidden, true);
        matrix(of + "down_proj.weight", kHidden, width, true);
      };
      if (layer == 0) block(mlp, kFfn);
      if (layer == 3) {
        for (const char* norm : {"enorm", "hnorm", "shared_head.norm"}) vector(at + norm + ".weight", kHidden);
        matrix(at + "eh_proj.weight", kHidden, 2 * kHidden, true);
      }
      if (layer == 0) continue;
      matrix(mlp + "gate.weight", 8, kHidden, false), vector(mlp + "gate.e_score_correction_bias", 8);
      block(mlp + "shared_experts.", 32);
      for (int expert = 0; expert < 8; ++expert) block(fmt::format("{}experts.{}.", mlp, expert), 32);
    }
    for (int layer = 0; layer < (deepseek ? 0 : 2); ++layer) {
      const std::string at = fmt::format("model.layers.{}.", layer);
      vector(at + "input_layernorm.weight", kHidden), vector(at + "post_attention_layernorm.weight", kHidden);
      vector(at + "self_attn.q_norm.weight", 24), vector(at + "self_attn.k_norm.weight", 24);
      matrix(at + "self_attn.q_proj.weight", 96, kHidden, true), matrix(at + "self_attn.k_proj.weight", 48, kHidden, true);
      matrix(at + "self_attn.v_proj.weight", 48, kHidden, true), matrix(at + "self_attn.o_proj.weight", kHidden, 96, true);
      matrix(at + "mlp.gate_proj.weight", kFfn, kHidden, true), matrix(at + "mlp.up_proj.weight", kFfn, kHidden, true);
      matrix(at + "mlp.down_proj.weight", kHidden, kFfn, true);
      const float scale = layer == 0 ? 0.125f : 3;  // of an FP8 cache
      coded.add(at + "self_attn.k_scale", "F32", {}, &scale, 4), coded.add(at + "self_attn.v_scale", "F32", {1}, &scale, 4);
    }
    vector("model.norm.weight", kHidden);
    matrix("lm_head.weight", kVocab, kHidden, false);
    coded.write(root_ + "/fp8/model.safetensors"), plain.write(root_ + "/f32/model.safetensors");
  }
  std::map<int64_t, std::vector<float>> logits(const std::string& model, const std::string& device, const std::string& isa) {
    auto engine = load({
        .model = root_ + model,
        .device = device,
        .isa = isa,
        .threads = 1,
        .kv_dtype = device == "cuda" ? "bf16" : "f32",
        .context_len = 256,
        .chunk_len = 64,
    });
    return logits_of(*engine, random_prompt(90, kVocab, 3), {0, 40, 63, 64, 89});
  }
  // The greatest difference between two sets of logits.
  static double off(const std::map<int64_t, std::vector<float>>& a, const std::map<int64_t, std::vector<float>>& b) {
    double worst = 0, greatest = 0;
    for (const auto& [position, row] : a)
      for (size_t i = 0; i < row.size(); ++i) {
        const double difference = std::abs(double(row[i]) - double(b.at(position)[i]));
        worst = std::isfinite(difference) ? std::max(worst, difference) : 1e9;
        greatest = std::max(greatest, std::abs(double(row[i])));
      }
    EXPECT_GT(greatest, 1);  // logits that say something
    return worst;
  }

  std::string root_;
};

TEST_F(Fp8Model, HasTheLogitsOfItsValues) {
  for (const Kind& kind : kKinds) {
    make(kind);
    const auto want = logits("/f32", "reference", "");
    EXPECT_EQ(off(logits("/fp8", "reference", ""), want), 0) << kind.name;  // the same products
    for (const std::string& isa : available_isas())
      EXPECT_LT(off(logits("/fp8", "cpu", isa), want), 2e-4) << kind.name << " " << isa;
    for (const std::string& device : accelerators())
      EXPECT_LT(off(logits("/fp8", device, ""), want), 0.2) << kind.name << " " << device;
  }
}

TEST_F(Fp8Model, KeepsItsLogitsInGguf) {
  make(kKinds[0]);
  const auto want = logits("/f32", "reference", "");
  for (const auto& [type, bound] : {std::pair{DType::F32, 0.0}, {DType::BF16, 0.1}, {DType::Q8_0, 0.2}}) {
    const auto done = quantise_checkpoint(root_ + "/fp8", root_ + "/out.gguf", type);
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_LE(off(logits("/out.gguf", "reference", ""), want), bound) << dtype_info(type).name;
  }
  const auto refused = quantise_checkpoint(root_ + "/fp8", root_ + "/other.gguf", DType::F8_E4M3);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("fp8 cannot be written"), std::string::npos);
}

// An FP8 cache under the file's scales, as powers of two; other caches have none. Speculation keeps the stream.
TEST_F(Fp8Model, ScalesAnFp8CacheAsItsFilesSay) {
  make(kKinds[0]);
  const std::vector<int32_t> prompt = random_prompt(60, kVocab, 6);
  for (const char* device : {"reference", "cpu"})
    for (const char* kv : {"fp8", "bf16"}) {
      auto engine = load({.model = root_ + "/fp8", .device = device, .threads = 1, .kv_dtype = kv, .context_len = 256});
      const KvStore& store = *engine->parts().store;
      EXPECT_EQ(store.scale(0).k, kv == std::string("fp8") ? 0.125f : 1);
      EXPECT_EQ(store.scale(1).v, kv == std::string("fp8") ? 4 : 1);
      Request request = test::request(prompt, 40);
      const auto plain = plain_stream(*engine, request);
      request.speculation.proposer = "self", request.speculation.ratio = 0.3;
      EXPECT_EQ(generate(*engine, request).tokens, plain) << device << " " << kv;
    }
}

// The maps into the latent and out of it are cut from blocks that share scales; the prediction layer is in FP8 like the others.
TEST_F(Fp8Model, MayHaveLatentAttention) {
  make(kKinds[0], true);
  const auto want = logits("/f32", "reference", "");
  EXPECT_EQ(off(logits("/fp8", "reference", ""), want), 0);
  for (const std::string& isa : available_isas()) EXPECT_LT(off(logits("/fp8", "cpu", isa), want), 2e-4) << isa;
  EngineOptions options{.model = root_ + "/fp8", .threads = 1, .kv_dtype = "bf16", .context_len = 256};
  options.drafters.push_back({.method = "mtp"});
  auto engine = load(options);
  Request request = test::request(random_prompt(60, kVocab, 5), 40);
  const auto plain = plain_stream(*engine, request);
  request.speculation.proposer = "self", request.speculation.draft_weights = "q4_0";
  EXPECT_EQ(generate(*engine, request).tokens, plain);
  request.speculation = {.proposer = "mtp"};
  EXPECT_EQ(generate(*engine, request).tokens, plain);
}

// Drafts read 4-bit copies, whose rows are made from FP8 rows; the stream is the plain one.
TEST_F(Fp8Model, SpeculatesWithCoarserCopiesOfItsWeights) {
  make(kKinds[0]);
  auto engine = load({.model = root_ + "/fp8", .threads = 1, .kv_dtype = "bf16", .context_len = 256});
  Request request = test::request(random_prompt(60, kVocab, 5), 40);
  const auto plain = plain_stream(*engine, request);
  request.speculation.proposer = "self", request.speculation.draft_weights = "q4_0";
  EXPECT_EQ(generate(*engine, request).tokens, plain);
}

}  // namespace
}  // namespace hunch
