// Drafters through `hunch quantize`: what goes in comes out under the same names.
#include "base/test_folder.h"
#include "base/test_results.h"
#include "checkpoint/convert.h"
#include "checkpoint/tiny_drafter.h"

namespace hunch {
namespace {

using namespace test;
using namespace tiny;
using enum DType;
namespace fs = std::filesystem;

class ConvertDrafterTest : public FolderTest {
 protected:
  void SetUp() override {
    put("config.json", eagle3_config().dump(2));
    put("model.safetensors", drafter_safetensors(eagle3_tensors()));
  }
  std::unique_ptr<DrafterFile> converted(const std::string& in, DType type) {
    good(quantise_drafter(in, out_, type));
    return good(DrafterFile::open(out_));
  }

  const std::string out_ = at("out.gguf");
};

TEST_F(ConvertDrafterTest, KeepsNamesConfigMethodAndWholeNumbers) {
  const auto out = converted(folder_, F32);
  EXPECT_EQ(out->method(), "eagle3");
  EXPECT_EQ(out->config_text(), eagle3_config().dump(2));
  const auto original = good(DrafterFile::open(folder_));
  ASSERT_EQ(out->items().size(), original->items().size() - 1);
  for (const auto& item : original->items()) {
    if (item.tensor.name == "t2d") continue;  // which ids d2t reaches
    if (item.integer != IntegerType::None) {
      EXPECT_EQ(out->integers(item.tensor.name).value(), original->integers(item.tensor.name).value());
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
  const auto out = converted(folder_, Q4_0);
  EXPECT_EQ(out->find("lm_head.weight")->dtype, Q4_0);
  EXPECT_EQ(out->find("midlayer.mlp.down_proj.weight")->dtype, Q4_0);
  EXPECT_EQ(out->find("norm.weight")->dtype, F32);
  const auto report = good(quantise_drafter(folder_, at("k.gguf"), Q4_K));
  ASSERT_FALSE(report.notes.empty());
  expect_part(report.notes[0], "fc.weight: q8_0 instead of q4_k");
}

TEST_F(ConvertDrafterTest, AConvertedDrafterConvertsAgain) {
  converted(folder_, F32);
  const auto first = at("first.gguf");
  fs::rename(out_, first);
  const auto again = converted(first, Q8_0);
  EXPECT_EQ(again->find("fc.weight")->dtype, Q8_0);
  EXPECT_EQ(again->integers("d2t").value().size(), size_t(kDraftVocab));
  EXPECT_EQ(again->config_text(), eagle3_config().dump(2));
  EXPECT_TRUE(is_learned_drafter(first));
}

TEST_F(ConvertDrafterTest, RefusesToOverwriteTheInputAndUnknownMethods) {
  fs::create_hard_link(at("model.safetensors"), at("same.gguf"));
  expect_error(quantise_drafter(folder_, at("same.gguf"), Q8_0), "overwrite the input");
  put("config.json", "{}");
  put("model.safetensors", safetensors({{"0.0.linear.weight", {32, 32}}}));
  expect_error(quantise_drafter(folder_, out_, Q8_0), "no drafter that is known");
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_TRUE(quantise_drafter(folder_, out_, Q8_0, "medusa").ok());
}

TEST_F(ConvertDrafterTest, ModelsAreNoDraftersAndDamagedDraftersStayDrafters) {
  EXPECT_TRUE(is_learned_drafter(folder_));
  put("model.safetensors", "damaged");
  EXPECT_TRUE(is_learned_drafter(folder_));
  put("config.json", config("llama").dump());
  put("model.safetensors", safetensors(folder_tensors("llama")));
  EXPECT_FALSE(is_learned_drafter(folder_));
  auto with_module = folder_tensors("llama");
  with_module.push_back({"mtp.fc.weight", {32, 64}});
  put("model.safetensors", safetensors(with_module));
  EXPECT_EQ(good(DrafterFile::open(folder_))->method(), "mtp");
  EXPECT_FALSE(is_learned_drafter(folder_));
  put("m.gguf", gguf_qwen3());
  EXPECT_FALSE(is_learned_drafter(at("m.gguf")));
  EXPECT_FALSE(is_learned_drafter(at("none")));
}

}
}
