// Drafters through `hunch quantize`: what goes in comes out under the same names.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/convert.h"
#include "checkpoint/tiny_drafter.h"

namespace hunch {
namespace {

namespace fs = std::filesystem;

class ConvertDrafterTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    put("config.json", tiny::eagle3_config().dump(2));
    put("model.safetensors", tiny::drafter_safetensors(tiny::eagle3_tensors()));
  }
  void TearDown() override { fs::remove_all(folder_); }
  void put(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  void put(const std::string& name, const tiny::Bytes& bytes) {
    std::ofstream(folder_ + "/" + name).write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
  }
  std::unique_ptr<DrafterFile> converted(const std::string& in, DType type) {
    auto report = quantise_drafter(in, out_, type);
    if (!report.ok()) ADD_FAILURE() << report.error().message;
    auto opened = DrafterFile::open(out_);
    if (!opened.ok()) ADD_FAILURE() << opened.error().message;
    return opened.ok() ? std::move(opened).value() : nullptr;
  }
  static std::vector<float> values_of(const Tensor& tensor) {
    std::vector<float> out(tiny::elements(tensor.shape));
    dequantise_row(tensor.dtype, tensor.data, out.data(), int64_t(out.size()));
    return out;
  }

  std::string folder_ = testing::TempDir() + "hunch_convert_drafter_" + std::to_string(getpid()), out_ = folder_ + "/out.gguf";
};

TEST_F(ConvertDrafterTest, KeepsNamesConfigMethodAndWholeNumbers) {
  const auto out = converted(folder_, DType::F32);
  ASSERT_TRUE(out);
  EXPECT_EQ(out->method(), "eagle3");
  EXPECT_EQ(out->config_text(), tiny::eagle3_config().dump(2));
  auto original = DrafterFile::open(folder_);
  ASSERT_TRUE(original.ok());
  ASSERT_EQ(out->items().size(), (*original)->items().size() - 1);
  for (const auto& item : (*original)->items()) {
    if (item.tensor.name == "t2d") continue;  // which ids d2t reaches
    if (item.integer != IntegerType::None) {
      EXPECT_EQ(out->integers(item.tensor.name).value(), (*original)->integers(item.tensor.name).value());
      continue;
    }
    const Tensor* tensor = out->find(item.tensor.name);
    ASSERT_TRUE(tensor) << item.tensor.name;
    EXPECT_EQ(tensor->shape, item.tensor.shape);
    EXPECT_EQ(values_of(*tensor), values_of(item.tensor));
  }
  EXPECT_TRUE(out->all_consumed().ok());
}

TEST_F(ConvertDrafterTest, MatricesTakeTheEncodingAndVectorsStayFloat) {
  const auto out = converted(folder_, DType::Q4_0);
  ASSERT_TRUE(out);
  EXPECT_EQ(out->find("lm_head.weight")->dtype, DType::Q4_0);
  EXPECT_EQ(out->find("midlayer.mlp.down_proj.weight")->dtype, DType::Q4_0);
  EXPECT_EQ(out->find("norm.weight")->dtype, DType::F32);
  auto report = quantise_drafter(folder_, folder_ + "/k.gguf", DType::Q4_K);
  ASSERT_TRUE(report.ok()) << report.error().message;
  ASSERT_FALSE(report->notes.empty());
  EXPECT_NE(report->notes[0].find("fc.weight: q8_0 instead of q4_k"), std::string::npos) << report->notes[0];
}

TEST_F(ConvertDrafterTest, AConvertedDrafterConvertsAgain) {
  ASSERT_TRUE(converted(folder_, DType::F32));
  const std::string first = folder_ + "/first.gguf";
  fs::rename(out_, first);
  const auto again = converted(first, DType::Q8_0);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->find("fc.weight")->dtype, DType::Q8_0);
  EXPECT_EQ(again->integers("d2t").value().size(), size_t(tiny::kDraftVocab));
  EXPECT_EQ(again->config_text(), tiny::eagle3_config().dump(2));
  EXPECT_TRUE(is_learned_drafter(first));
}

TEST_F(ConvertDrafterTest, RefusesToOverwriteTheInputAndUnknownMethods) {
  fs::create_hard_link(folder_ + "/model.safetensors", folder_ + "/same.gguf");
  EXPECT_NE(quantise_drafter(folder_, folder_ + "/same.gguf", DType::Q8_0).error().message.find("overwrite the input"),
      std::string::npos);
  put("config.json", "{}");
  put("model.safetensors", tiny::safetensors({{"0.0.linear.weight", {32, 32}}}));
  EXPECT_NE(quantise_drafter(folder_, out_, DType::Q8_0).error().message.find("no drafter that is known"), std::string::npos);
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_TRUE(quantise_drafter(folder_, out_, DType::Q8_0, "medusa").ok());
}

TEST_F(ConvertDrafterTest, ModelsAreNoDraftersAndDamagedDraftersStayDrafters) {
  EXPECT_TRUE(is_learned_drafter(folder_));
  put("model.safetensors", "damaged");
  EXPECT_TRUE(is_learned_drafter(folder_));
  put("config.json", tiny::config("llama").dump());
  put("model.safetensors", tiny::safetensors(tiny::folder_tensors("llama")));
  EXPECT_FALSE(is_learned_drafter(folder_));
  put("m.gguf", tiny::gguf_qwen3());
  EXPECT_FALSE(is_learned_drafter(folder_ + "/m.gguf"));
  EXPECT_FALSE(is_learned_drafter(folder_ + "/none"));
}

}  // namespace
}  // namespace hunch
