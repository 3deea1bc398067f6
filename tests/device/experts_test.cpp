// Where models with experts load and where they are refused; what a pass of one row is said to read.

#include "backend/reference/reference_backend.h"
#include "checkpoint/memory_checkpoint.h"
#include "checkpoint/tiny_model.h"
#include "engine/test_engines.h"
#include "model/model.h"

namespace hunch {
namespace {

using namespace test;

// A device that lacks what some models need.
struct Lacking final : ReferenceBackend {
  std::string description() const override { return "a device"; }
  bool has_experts() const override { return experts; }
  std::string lacks(const Checkpoint& checkpoint) const override {
    if (checkpoint.shape().attention_sinks) return "attention sinks";
    return checkpoint.shape().latent.used() ? "latent attention (DeepSeek)" : "";
  }
  bool experts = true;
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
  Lacking backend;
  backend.experts = false;
  EXPECT_EQ(error_of(load(backend, **opened.checkpoint)),
      "qwen3_moe: mixtures of experts do not run on a device yet; use --device cpu, or a model without experts");
}

TEST(ExpertModels, NameWhatABackendLacks) {
  for (const auto& [folder, family, lacks] :
      {std::tuple{"gpt-oss", "gpt_oss", "attention sinks"}, {"deepseek-v3", "deepseek_v3", "latent attention (DeepSeek)"}}) {
    const auto checkpoint = good(Checkpoint::open(tiny_path(folder)));
    Lacking backend;
    const auto model = Register<Model>::find(family)->make({.backend = &backend, .checkpoint = checkpoint.get()});
    EXPECT_EQ(error_of(model), fmt::format("{}: a device has no {} yet; use --device cpu", family, lacks));
  }
}

TEST(ExpertModels, CountTheExpertsThatOneRowReads) {
  Opened opened;
  ReferenceBackend backend;
  const auto model = good(load(backend, **opened.checkpoint));
  size_t matrices = 0;
  for (const Tensor& tensor : (*opened.checkpoint)->tensors())
    if (tensor.shape.size() == 2) matrices += tensor.bytes;
  const size_t expert = 4 * 3 * tiny::kExpertFfn * tiny::kHidden, table = 4 * tiny::kVocab * tiny::kHidden;
  EXPECT_EQ(model->weight_bytes(), matrices - table - 2 * expert);
}

}
}
