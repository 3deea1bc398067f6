// Where models with experts load and where they are refused; what a pass of one row is said to read.
#include <gtest/gtest.h>

#include "backend/reference/reference_backend.h"
#include "checkpoint/memory_checkpoint.h"
#include "checkpoint/tiny_model.h"
#include "engine/test_engines.h"
#include "model/model.h"

namespace hunch {
namespace {

class NoExperts final : public ReferenceBackend {
 public:
  std::string description() const override { return "a device"; }
  bool has_experts() const override { return false; }
};

class NoSinks final : public ReferenceBackend {
 public:
  std::string description() const override { return "a device"; }
  std::string lacks(const Checkpoint& checkpoint) const override {
    return checkpoint.shape().attention_sinks ? "attention sinks" : "";
  }
};

struct Opened {
  tiny::Bytes bytes = tiny::safetensors(tiny::folder_tensors("qwen3_moe"));
  Result<std::unique_ptr<Checkpoint>> checkpoint =
      open_safetensors_bytes(bytes, {.config = tiny::config("qwen3_moe").dump()}, "m");
};

Result<std::unique_ptr<Model>> load(Backend& backend, const Checkpoint& checkpoint, std::optional<DType> requantise = {}) {
  return Register<Model>::find("qwen3_moe")->make({.backend = &backend, .checkpoint = &checkpoint, .requantise = requantise});
}

TEST(ExpertModels, AreRefusedByNameWhereTheyDoNotRun) {
  Opened opened;
  ASSERT_TRUE(opened.checkpoint.ok()) << opened.checkpoint.error().message;
  NoExperts backend;
  auto model = load(backend, **opened.checkpoint);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().message,
            "qwen3_moe: mixtures of experts do not run on a device yet; use --device cpu, or a model without experts");
}

TEST(ExpertModels, NameWhatABackendLacks) {
  auto checkpoint = Checkpoint::open(test::tiny_path("gpt-oss"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  NoSinks backend;
  auto model = Register<Model>::find("gpt_oss")->make({.backend = &backend, .checkpoint = checkpoint->get()});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().message, "gpt_oss: a device has no attention sinks yet; use --device cpu");
}

class NoLatent final : public ReferenceBackend {
 public:
  std::string description() const override { return "a device"; }
  std::string lacks(const Checkpoint& checkpoint) const override {
    return checkpoint.shape().latent.used() ? "latent attention (DeepSeek)" : "";
  }
};

TEST(LatentModels, AreRefusedWhereTheyDoNotRun) {
  auto checkpoint = Checkpoint::open(test::tiny_path("deepseek-v3"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  NoLatent backend;
  auto model = Register<Model>::find("deepseek_v3")->make({.backend = &backend, .checkpoint = checkpoint->get()});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().message, "deepseek_v3: a device has no latent attention (DeepSeek) yet; use --device cpu");
}

TEST(ExpertModels, CountTheExpertsThatOneRowReads) {
  Opened opened;
  ReferenceBackend backend;
  auto model = load(backend, **opened.checkpoint);
  ASSERT_TRUE(model.ok()) << model.error().message;
  size_t matrices = 0;
  for (const Tensor& tensor : (*opened.checkpoint)->tensors())
    if (tensor.shape.size() == 2) matrices += tensor.bytes;
  const size_t expert = 4 * 3 * tiny::kExpertFfn * tiny::kHidden, table = 4 * tiny::kVocab * tiny::kHidden;
  EXPECT_EQ((*model)->weight_bytes(), matrices - table - 2 * expert);
}

}  // namespace
}  // namespace hunch
