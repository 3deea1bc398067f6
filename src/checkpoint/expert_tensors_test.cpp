// Experts in files: one by one, all in one tensor, and what does not fit.
#include "checkpoint/expert_tensors.h"

#include "checkpoint/model_info.h"
#include "checkpoint/random_checkpoint.h"
#include "checkpoint/test_configs.h"

namespace hunch {
namespace {

using namespace test;
using namespace tiny;
using enum DType;

Tensors all() { return folder_tensors("qwen3_moe"); }
const Json kConfig = config("qwen3_moe");
const std::string kPrefix = "model.layers.1.mlp.experts.";

void expect_refused(const Tensors& tensors, const std::string& part, const Json& config = kConfig) {
  expect_part(open_error(tensors, config), part);
}

Tensors without_experts() { return without(all(), kPrefix); }

TEST(ExpertTensors, TheShapeSaysWhichLayersHaveExpertsAndHowMany) {
  const ModelShape s = shape_of(kConfig);
  EXPECT_EQ(std::tie(s.num_experts, s.experts_per_token, s.expert_ffn), std::tuple(4, 2, 16));
  EXPECT_TRUE(s.norm_expert_shares);
  EXPECT_EQ(s.expert_layer, (Layers{0, 1}));
  EXPECT_TRUE(s.has_dense_ffn());
  EXPECT_EQ(s.widest_ffn(), kFfn);
  Json plain = kConfig;
  for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "mlp_only_layers"})
    plain.erase(key);
  const ModelShape defaults = shape_of(plain);  // those of transformers
  EXPECT_EQ(std::tie(defaults.num_experts, defaults.experts_per_token, defaults.expert_ffn), std::tuple(128, 8, 768));
  EXPECT_FALSE(defaults.norm_expert_shares);
  EXPECT_EQ(defaults.expert_layer, (Layers{1, 1}));
  EXPECT_FALSE(defaults.has_dense_ffn());
  plain["num_local_experts"] = 16;
  EXPECT_EQ(shape_of(plain).num_experts, 16);
  Json steps = with(kConfig, "decoder_sparse_step", 2);
  steps["num_hidden_layers"] = 6, steps["mlp_only_layers"] = {3};
  EXPECT_EQ(shape_of(steps).expert_layer, (Layers{0, 1, 0, 0, 0, 1}));
  const ModelShape dense = shape_of(with(kConfig, "mlp_only_layers", {0, 1}));
  EXPECT_EQ(dense.num_experts, 0);
  EXPECT_FALSE(dense.has_experts(1));
}

TEST(ExpertTensors, TwoTensorsOfAllExpertsAreThoseOfEach) {
  constexpr int64_t kWidth = kExpertFfn;
  Tensors tensors = without_experts();
  tensors.push_back({kPrefix + "gate_up_proj", {kExperts, 2 * kWidth, kHidden}});
  tensors.push_back({kPrefix + "down_proj", {kExperts, kHidden, kWidth}});
  const Bytes file = safetensors(tensors);
  const auto checkpoint = good(opened(file, kConfig));
  const size_t both = size_t(2 * kWidth * kHidden), one = both / 2;
  const auto gate_up = values(kExperts * both, uint32_t(tensors.size() - 1));
  const auto down = values(kExperts * one, uint32_t(tensors.size()));
  for (size_t e = 0; e < kExperts; ++e) {
    const auto part = [&](const Floats& from, size_t at) { return Floats(from.begin() + at, from.begin() + (at + one)); };
    const auto stored = [&](const char* name) {
      return values_of(*checkpoint->find(fmt::format("blk.1.ffn_{}.{}.weight", name, e)));
    };
    EXPECT_EQ(stored("gate"), part(gate_up, e * both));
    EXPECT_EQ(stored("up"), part(gate_up, e * both + one));
    EXPECT_EQ(stored("down"), part(down, e * one));
  }
}

TEST(ExpertTensors, NamesCountsThatDoNotFit) {
  const struct {
    const char* key;
    Json value;
    const char* message;
  } cases[] = {
      {"num_experts_per_tok", 5, "a token goes to 5 experts, the model has 4"},
      {"num_experts_per_tok", 0, "a token goes to 0 experts, the model has 4"},
      {"num_experts", 1 << 20, "number of experts is 1048576, possible are 1 to 1024"},
      {"num_experts", -1, "num_experts: -1 is out of range"},
      {"moe_intermediate_size", 0, "width of an expert is 0"},
      {"decoder_sparse_step", 0, "decoder_sparse_step: must be at least 1"},
      {"mlp_only_layers", {2}, "mlp_only_layers: 2 is no layer, the model has 0 to 1"},
      {"mlp_only_layers", {-1}, "mlp_only_layers: -1 is no layer"},
      {"mlp_only_layers", 1, "mlp_only_layers: must be a list"},
      {"norm_topk_prob", "yes", "norm_topk_prob: must be true or false"},
      {"n_routed_experts", 4, "n_routed_experts"},
  };
  for (const auto& c : cases) expect_refused(all(), c.message, with(kConfig, c.key, c.value));
}

TEST(ExpertTensors, NamesMissingMisshapenAndSuperfluousMatrices) {
  expect_refused(without(all(), kPrefix + "3.up_proj.weight"), "missing tensor blk.1.ffn_up.3.weight of shape [16, 32]");
  expect_refused(without_experts(), "missing tensor blk.1.ffn_gate.0.weight of shape [16, 32]");
  expect_refused(
      reshaped(all(), kPrefix + "2.down_proj.weight", {16, 32}), "blk.1.ffn_down.2.weight has shape [16, 32], expected [32, 16]");
  expect_refused(reshaped(all(), "model.layers.1.mlp.gate.weight", {3, 32}),
      "blk.1.ffn_gate_inp.weight has shape [3, 32], expected [4, 32]");
  const auto more = [](Tensors out, const char* name, const Shape& shape) {
    out.push_back({kPrefix + name, shape});
    return out;
  };
  expect_refused(more(all(), "4.up_proj.weight", {16, 32}), "blk.1.ffn_up.4.weight is not part of a qwen3_moe model");
  expect_refused(more(without_experts(), "gate_up_proj", {3, 32, 32}),
      "blk.1.ffn_gate_up_exps.weight has shape [3, 32, 32], expected [4, 32, 32] (4 experts of width 16)");
  // A dense model with experts in its file.
  expect_refused(more(folder_tensors("qwen3"), "gate_up_proj", {4, 32, 32}),
      "blk.1.ffn_gate_up_exps.weight is not part of a qwen3 model", config("qwen3"));
}

TEST(ExpertTensors, ATokenIsChargedForTheExpertsItGoesTo) {
  const Bytes file = safetensors(all());
  const ModelInfo info = describe(*good(opened(file, kConfig)));
  const uint64_t expert = 4 * 3 * kExpertFfn * kHidden, embedding = 4 * kVocab * kHidden;
  EXPECT_EQ(info.weight_bytes_per_token, info.tensor_bytes - embedding - 2 * expert);
}

TEST(ExpertTensors, GptOssOfRandomWeightsHasItsExpertsInMxfp4) {
  const auto made = good(random_checkpoint("gpt-oss-20b", BF16));
  EXPECT_NEAR(double(describe(*made).parameters), 20.9e9, 0.1e9);
  EXPECT_EQ(made->find("blk.23.ffn_down.31.weight")->dtype, MXFP4);
  EXPECT_EQ(made->find("blk.23.attn_q.weight")->dtype, BF16);
}

TEST(ExpertTensors, TheKnownModelOfRandomWeightsHasThirtyBillion) {
  const auto made = good(random_checkpoint("qwen3-30b-a3b", BF16));
  const ModelInfo info = describe(*made);
  EXPECT_NEAR(double(info.parameters), 30.5e9, 0.1e9);
  EXPECT_NEAR(double(info.weight_bytes_per_token) / 2, 3.03e9, 0.1e9);  // 3.3 of which 0.3 are the table's
  EXPECT_EQ(made->find("blk.47.ffn_gate_inp.weight")->dtype, F32);
}

// GGUF: one tensor for all experts of a layer, in any encoding.
Result<std::unique_ptr<Checkpoint>> open_gguf(
    Bytes& bytes, int used, const Shape& down, std::pair<const char*, uint32_t> key = {"expert_feed_forward_length", 64}) {
  GgufWriter out;
  add_keys(out, "qwen3moe");
  out.add_u32("qwen3moe.expert_count", 4);
  out.add_u32("qwen3moe.expert_used_count", uint32_t(used));
  out.add_u32("qwen3moe.expert_feed_forward_length", 64);
  if (key.second != 64) out.add_u32(fmt::format("qwen3moe.{}", key.first), key.second);
  add_vocabulary(out);
  Tensors tensors;
  for (const auto& tensor : gguf_tensors()) {
    const auto is = [&](const char* part) { return tensor.name.find(part) != tensor.name.npos; };
    if (!is(".ffn_gate.") && !is(".ffn_up.") && !is(".ffn_down.")) tensors.push_back(tensor);
    if (!is(".ffn_gate.")) continue;
    const std::string ffn = tensor.name.substr(0, tensor.name.find("gate."));
    tensors.push_back({ffn + "gate_inp.weight", {4, kHidden}});
    for (const char* name : {"gate", "up"}) tensors.push_back({ffn + name + "_exps.weight", {4, 64, kHidden}});
    tensors.push_back({ffn + "down_exps.weight", down});
  }
  bytes = finish_gguf(out, tensors);
  return open_gguf_bytes(bytes, "m.gguf");
}

TEST(ExpertTensors, AGgufFileIsOpenedWithItsExpertsOneByOne) {
  Bytes bytes;
  const auto opened = good(open_gguf(bytes, 3, {4, kHidden, 64}));
  const ModelShape& s = opened->shape();
  EXPECT_EQ(s.family, "qwen3_moe");
  EXPECT_EQ(s.experts_per_token, 3);
  EXPECT_TRUE(s.norm_expert_shares && s.qk_norm && s.has_experts(0) && s.has_experts(1));
  const Tensor *first = opened->find("blk.0.ffn_down.0.weight"), *last = opened->find("blk.0.ffn_down.3.weight");
  ASSERT_TRUE(first && last);
  EXPECT_EQ(first->shape, (Shape{kHidden, 64}));
  EXPECT_EQ(first->dtype, Q8_0);
  EXPECT_EQ(size_t(last->data - first->data), 3 * dtype_bytes(Q8_0, kHidden * 64));
  EXPECT_TRUE(open_gguf(bytes, 3, {4, kHidden, 64}, {"expert_gating_func", 1}).ok());
  for (const auto& key : {std::pair("expert_gating_func", 2u), {"expert_shared_count", 1u}, {"leading_dense_block_count", 1u}})
    expect_error(open_gguf(bytes, 3, {4, kHidden, 64}, key), fmt::format("{}: {} is not", key.first, key.second));
  expect_error(open_gguf(bytes, 5, {4, kHidden, 64}), "a token goes to 5 experts, the model has 4");
  expect_error(open_gguf(bytes, 3, {4, 64, kHidden}), "blk.0.ffn_down_exps.weight has shape [4, 64, 32], expected [4, 32, 64]");
}

}
}
