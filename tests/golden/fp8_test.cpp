// Whole models with FP8 weights against the same model with their values as F32: on every backend, loaded from the folder and
// converted to GGUF. Widths of two blocks of 128, the second one short.

#include "base/half.h"
#include "base/test_folder.h"
#include "base/test_results.h"
#include "checkpoint/convert.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tiny_model.h"
#include "logits.h"

namespace hunch {
namespace {

using namespace test;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kHidden = 192, kFfn = 320, kVocab = 260;

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

// The shapes of a tiny model at these widths: DeepSeek-V3's, with its prediction layer, or a qwen3's. Heads of DeepSeek's have 80
// + 72 rows in the map out of the latent, and most blocks of 128 belong to two of them.
std::vector<int64_t> widened(const std::string& name, std::vector<int64_t> shape, bool deepseek) {
  static const std::map<int64_t, int64_t> kDeepseek{{24, 136}, {32, 160}, {40, 168}, {48, 4 * 72}, {96, 4 * 88}, {112, 4 * 152}};
  const bool dense = name.find("mlp.") != name.npos && name.find("expert") == name.npos && name.find("_proj") != name.npos;
  const size_t ffn_axis = name.find("down_proj") != name.npos ? 1 : 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    int64_t& extent = shape[axis];
    if (deepseek && name.find("self_attn.") != name.npos && kDeepseek.count(extent)) extent = kDeepseek.at(extent);
    else if (extent % 64 == 0) extent = dense && axis == ffn_axis ? kFfn : extent / 64 * kHidden;
  }
  return shape;
}

class Fp8Model : public FolderTest {
 protected:
  // fp8 and f32 in the test's folder, with random weights.
  void make(const Kind& kind, bool deepseek = false) {
    const auto source = tiny_path(deepseek ? "deepseek-v3" : "qwen3-untied");
    for (const char* folder : {"/fp8", "/f32"}) {
      fs::create_directories(folder_ + folder);
      for (const auto& entry : fs::directory_iterator(source))
        if (entry.path().extension() == ".json")
          fs::copy_file(entry, folder_ + folder + "/" + entry.path().filename().string(), fs::copy_options::overwrite_existing);
      Json config = Json::parse(std::ifstream(folder_ + folder + "/config.json"));
      config["hidden_size"] = kHidden, config["intermediate_size"] = kFfn;
      if (deepseek) config.update({{"q_lora_rank", 136}, {"kv_lora_rank", 160}, {"qk_nope_head_dim", 80}, {"v_head_dim", 72}});
      if (folder == std::string("/fp8")) config["quantization_config"] = kind.config;
      std::ofstream(folder_ + folder + "/config.json") << config;
    }
    std::vector<tiny::Stored> coded, plain;
    const auto add = [](auto& file, const std::string& name, const tiny::Shape& shape, const std::vector<float>& values) {
      file.push_back({name, "F32", shape, tiny::bytes_of(values)});
    };
    const MappedFile names = good(MappedFile::open(source + "/model.safetensors"));
    uint64_t seed = 1;
    for (const TensorEntry& entry : good(parse_safetensors(names.bytes(), source))) {
      Dice dice(seed++);
      const std::string& name = entry.name;
      const tiny::Shape shape = widened(name, entry.shape, deepseek);
      std::vector<float> values(tiny::elements(shape));
      if (shape.size() == 1) {
        for (float& value : values) value = 0.75f + float(dice.below(512)) / 1024;
        add(coded, name, shape, values), add(plain, name, shape, values);
        continue;
      }
      const int64_t out = shape[0], in = shape[1], rows = kind.rows ? kind.rows : out, columns = kind.columns ? kind.columns : in;
      const int64_t across = (in + columns - 1) / columns, down = (out + rows - 1) / rows;
      std::vector<float> scales(across * down);
      for (float& scale : scales) scale = (0.5f + float(dice.below(1024)) / 1024) / (256 * std::sqrt(float(in)));
      std::vector<uint8_t> codes;
      for (int64_t i = 0; i < out * in; ++i) {
        codes.push_back(f32_to_f8(float(dice.below(896) - 448)));
        values[i] = scales[i / in / rows * across + i % in / columns] * f8_to_f32(codes.back());
      }
      add(plain, name, shape, values);
      if (name.find("_proj") == name.npos) {
        add(coded, name, shape, values);
        continue;
      }
      coded.push_back({name, "F8_E4M3", shape, tiny::bytes_of(codes)});
      add(coded, name + kind.suffix, kind.rows ? tiny::Shape{down, across} : tiny::Shape{}, scales);
    }
    for (int layer = 0; layer < (deepseek ? 0 : 2); ++layer)  // of an FP8 cache
      for (const char* which : {"k_scale", "v_scale"})
        add(coded, fmt::format("model.layers.{}.self_attn.{}", layer, which), which[0] == 'k' ? tiny::Shape{} : tiny::Shape{1},
            {layer == 0 ? 0.125f : 3.0f});
    put("fp8/model.safetensors", tiny::file_of(coded)), put("f32/model.safetensors", tiny::file_of(plain));
  }
  std::map<int64_t, std::vector<float>> logits(const std::string& model, const std::string& device, const std::string& isa) {
    EngineOptions options{.model = folder_ + model, .device = device, .isa = isa, .threads = 1, .context_len = 256};
    options.kv_dtype = device == "cuda" ? "bf16" : "f32", options.chunk_len = 64;
    auto engine = load(options);
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
    good(quantise_checkpoint(at("fp8"), at("out.gguf"), type));
    EXPECT_LE(off(logits("/out.gguf", "reference", ""), want), bound) << dtype_info(type).name;
  }
  expect_error(quantise_checkpoint(at("fp8"), at("other.gguf"), DType::F8_E4M3), "fp8 cannot be written");
}

// An FP8 cache under the file's scales, as powers of two; other caches have none. Speculation keeps the stream.
TEST_F(Fp8Model, ScalesAnFp8CacheAsItsFilesSay) {
  make(kKinds[0]);
  const auto prompt = random_prompt(60, kVocab, 6);
  for (const char* device : {"reference", "cpu"})
    for (const char* kv : {"fp8", "bf16"}) {
      auto engine = load({.model = at("fp8"), .device = device, .threads = 1, .kv_dtype = kv, .context_len = 256});
      const KvStore& store = *engine->parts().store;
      EXPECT_EQ(store.scale(0).k, kv == std::string("fp8") ? 0.125f : 1);
      EXPECT_EQ(store.scale(1).v, kv == std::string("fp8") ? 4 : 1);
      auto request = ask(prompt, 40);
      request.speculation.proposer = "self", request.speculation.ratio = 0.3;
      EXPECT_EQ(generate(*engine, request).tokens, plain_stream(*engine, request)) << device << " " << kv;
    }
}

void expect_plain_stream_with_coarser_copies(Engine& engine) {
  auto request = ask(random_prompt(60, kVocab, 5), 40);
  request.speculation.proposer = "self", request.speculation.draft_weights = "q4_0";
  EXPECT_EQ(generate(engine, request).tokens, plain_stream(engine, request));
}

// The maps into the latent and out of it are cut from blocks that share scales; the prediction layer is in FP8 like the others.
TEST_F(Fp8Model, MayHaveLatentAttention) {
  make(kKinds[0], true);
  const auto want = logits("/f32", "reference", "");
  EXPECT_EQ(off(logits("/fp8", "reference", ""), want), 0);
  for (const std::string& isa : available_isas()) EXPECT_LT(off(logits("/fp8", "cpu", isa), want), 2e-4) << isa;
  EngineOptions options{.model = at("fp8"), .threads = 1, .kv_dtype = "bf16", .context_len = 256};
  options.drafters.push_back({.method = "mtp"});
  auto engine = load(options);
  expect_plain_stream_with_coarser_copies(*engine);
  Request request = ask(random_prompt(60, kVocab, 5), 40);
  request.speculation = {.proposer = "mtp"};
  EXPECT_EQ(generate(*engine, request).tokens, plain_stream(*engine, request));
}

// Drafts read 4-bit copies, whose rows are made from FP8 rows; the stream is the plain one.
TEST_F(Fp8Model, SpeculatesWithCoarserCopiesOfItsWeights) {
  make(kKinds[0]);
  expect_plain_stream_with_coarser_copies(*load({.model = at("fp8"), .threads = 1, .kv_dtype = "bf16", .context_len = 256}));
}

}
}
