// Sizes and feature taps of drafters, as different publishers write them.
#include "cli/drafter_info.h"

#include <tuple>

#include "base/test_folder.h"
#include "base/test_results.h"
#include "checkpoint/tiny_drafter.h"

namespace hunch {
namespace {

using namespace tiny;

using nlohmann::json;

class DrafterInfoTest : public test::FolderTest {
 protected:
  Result<DrafterInfo> described(const json& config, const Tensors& tensors = eagle3_tensors()) {
    put("config.json", config.dump());
    put("model.safetensors", drafter_safetensors(tensors));
    HUNCH_TRY(const auto file, DrafterFile::open(folder_));
    return describe_drafter(*file);
  }
  DrafterInfo shape_of(const json& config, const Tensors& tensors = eagle3_tensors()) {
    return test::good(described(config, tensors));
  }
  void expect_error(const json& config, std::string_view words) { test::expect_error(described(config), words); }
};

TEST_F(DrafterInfoTest, TapsAreOutputsWhoeverWroteThem) {
  json config = eagle3_config();
  const json nested = {{"eagle_aux_hidden_state_layer_ids", {1, 11, 21}}};
  const auto expect_taps = [&](FeatureTaps::Convention convention) {
    const auto taps = shape_of(config).taps;
    EXPECT_EQ(taps.outputs, (Ints{1, 11, 21}));
    EXPECT_EQ(taps.convention, convention);
  };
  config["eagle_config"] = nested;
  expect_taps(FeatureTaps::Convention::Outputs);
  config.erase("eagle_config");
  config["eagle_aux_hidden_state_layer_ids"] = {2, 12, 22};
  expect_taps(FeatureTaps::Convention::Inputs);
  config["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", {2, 12, 22}}};
  expect_error(config, "names other layers than eagle_config.");
  config["eagle_config"] = nested;
  EXPECT_TRUE(described(config).ok());
}

TEST_F(DrafterInfoTest, RopeStandsBesideItsScalingOrInsideOfIt) {
  json config = eagle3_config();
  config.erase("rms_norm_eps");
  config["rope_theta"] = 5000, config["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
  auto layer = *shape_of(config).layer;
  const RopeScaling& scaling = layer.rope_scaling;
  EXPECT_EQ(std::tie(layer.rope_theta, scaling.factor, layer.norm_eps), std::tuple(5000, 4, 1e-6));
  EXPECT_EQ(scaling.kind, RopeScaling::Kind::Linear);
  config["rope_parameters"] = {{"rope_type", "llama3"}, {"rope_theta", 7000}, {"factor", 8}};
  layer = *shape_of(config).layer;
  EXPECT_EQ(std::tie(layer.rope_theta, scaling.high_freq_factor, scaling.original_context), std::tuple(7000, 4, 8192));
  EXPECT_EQ(scaling.kind, RopeScaling::Kind::Llama3);
}

TEST_F(DrafterInfoTest, UnsaidTapsAreTheDefault) {
  json config = eagle3_config();
  config.erase("eagle_config");
  auto shape = shape_of(config);
  EXPECT_TRUE(shape.taps.outputs.empty());
  EXPECT_EQ(shape.taps.convention, FeatureTaps::Convention::Default);
}

TEST_F(DrafterInfoTest, AnEagle3LayerHasItsOwnSizesAndVocabulary) {
  auto shape = shape_of(eagle3_config());
  ASSERT_TRUE(shape.layer);
  EXPECT_EQ(std::tie(shape.layer->heads, shape.hidden, shape.target_hidden, shape.vocab_size, shape.draft_vocab),
      std::tuple(kHeads, kHidden, kHidden, kVocab, kDraftVocab));
  EXPECT_FALSE(shape.norm_before_residual);
  json config = eagle3_config();
  config["draft_vocab_size"] = nullptr;
  config["target_hidden_size"] = 48;
  shape = shape_of(config);
  EXPECT_EQ(std::tie(shape.draft_vocab, shape.target_hidden), std::tuple(kVocab, 48));
}

TEST_F(DrafterInfoTest, SpeculatorsNestTheLayerAndNormaliseBeforeTheResidual) {
  json layer = config("llama");
  layer["rope_theta"] = 5000;
  const json config = {{"speculators_model_type", "eagle3"}, {"draft_vocab_size", 20}, {"transformer_layer_config", layer}};
  auto shape = shape_of(config);
  ASSERT_TRUE(shape.layer);
  EXPECT_EQ(shape.layer->rope_theta, 5000);
  EXPECT_EQ(shape.hidden, kHidden);
  EXPECT_TRUE(shape.norm_before_residual);
}

TEST_F(DrafterInfoTest, MedusaHeadsOfBothPublishers) {
  auto first = shape_of({{"medusa_num_heads", 3}, {"medusa_num_layers", 1}},
      {{"0.0.linear.weight", {32, 32}}, {"0.0.linear.bias", {32}}, {"0.1.weight", {40, 32}}});
  EXPECT_EQ(
      std::tie(first.heads, first.head_layers, first.hidden, first.vocab_size, first.draft_vocab), std::tuple(3, 1, 32, 40, 40));
  auto second = shape_of({{"model_type", "medusa"}, {"num_heads", 5}, {"num_hidden_layers", 2}, {"hidden_size", 64},
                             {"vocab_size", 100}, {"truncated_vocab_size", 50}},
      {{"blocks.0.layers.0.weight", {64, 64}}});
  EXPECT_EQ(std::tie(second.heads, second.head_layers, second.draft_vocab), std::tuple(5, 2, 50));
}

TEST_F(DrafterInfoTest, WrongTypesAndSizesNameTheKey) {
  json config = eagle3_config();
  config["draft_vocab_size"] = "many";
  expect_error(config, "config.json: draft_vocab_size: must be a whole number, not a string");
  config["draft_vocab_size"] = 1 << 30;
  expect_error(config, "draft_vocab_size: 1073741824 is out of range");
  config = eagle3_config();
  config["eagle_config"] = 7;
  expect_error(config, "config.json: eagle_config: must be an object, not a whole number");
  config.erase("eagle_config");
  config["eagle_aux_hidden_state_layer_ids"] = {0, 1, 2};
  expect_error(config, "eagle_aux_hidden_state_layer_ids: layer 0 is out of range, 1 to 1024");
  config = eagle3_config();
  config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {1, "x"};
  expect_error(config, "must be a list of whole numbers, but holds a string");
}

}
}
