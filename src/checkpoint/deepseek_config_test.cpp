// DeepSeek's config.json: what follows from it, and what is refused by name; its tensors, a prediction layer among them.
#include "checkpoint/deepseek_config.h"

#include <cmath>

#include "checkpoint/model_info.h"
#include "checkpoint/test_configs.h"

namespace hunch {
namespace {

using namespace test;
using namespace tiny;

Json v3() { return tiny::config("deepseek_v3"); }
Json v2() { return tiny::config("deepseek_v2"); }

TEST(DeepSeekConfig, TheCacheHasOneHeadOfLatentAndRotatedKey) {
  const ModelShape s = shape_of(v3());
  EXPECT_EQ(std::tie(s.kv_heads, s.head_dim, s.rope_dim), std::tuple(1, kKvRank + kRope, kRope));
  EXPECT_EQ(s.attended(), kQueryDim);
  EXPECT_DOUBLE_EQ(s.latent.scale, 1 / std::sqrt(double(kNope + kRope)));
  EXPECT_EQ(s.latent.q_rank, kQRank);
  EXPECT_EQ(shape_of(v2()).latent.q_rank, 0);
  EXPECT_EQ(shape_of(with(v3(), "rope_interleave", false)).rope_pairs, RopePairs::Halves);
}

TEST(DeepSeekConfig, ReadsExpertsOfBothKinds) {
  const ModelShape s = shape_of(v3()), old = shape_of(v2());
  EXPECT_EQ(s.expert_layer, (Layers{0, 1}));
  EXPECT_EQ(s.shared_ffn, 2 * kExpertFfn);
  EXPECT_TRUE(s.sigmoid_shares && s.norm_expert_shares && s.expert_groups == 2 && s.groups_per_token == 1);
  EXPECT_EQ(s.share_scale, 2.5);
  EXPECT_FALSE(old.sigmoid_shares || old.norm_expert_shares || old.expert_groups != 1);  // greedy: groups do not count
  EXPECT_EQ(shape_of(with(v2(), "topk_method", "group_limited_greedy")).expert_groups, 2);
  const ModelShape every_second =
      shape_of(with(with(with(v3(), "first_k_dense_replace", 0), "moe_layer_freq", 2), "num_hidden_layers", 4));
  EXPECT_EQ(every_second.expert_layer, (Layers{1, 0, 1, 0}));
  EXPECT_EQ(shape_of(with(v3(), "first_k_dense_replace", 2)).num_experts, 0);
}

TEST(DeepSeekConfig, WhatIsLeftOutIsTransformers) {
  const auto plain = [](Json config) {
    for (const char* key : {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
             "first_k_dense_replace", "n_group", "topk_group"})
      config.erase(key);
    return shape_of(with(config, "num_hidden_layers", 4));
  };
  const ModelShape s = plain(v3()), old = plain(v2());
  EXPECT_EQ(std::tie(s.num_experts, s.experts_per_token, s.expert_ffn, s.shared_ffn, s.expert_groups, s.groups_per_token),
      std::tuple(256, 8, 2048, 2048, 8, 4));
  EXPECT_EQ(s.expert_layer, (Layers{0, 0, 0, 1}));
  EXPECT_EQ(std::tie(old.num_experts, old.experts_per_token, old.expert_ffn, old.shared_ffn, old.share_scale),
      std::tuple(64, 8, 1407, 2814, 1));
  EXPECT_EQ(old.expert_layer, Layers(4, 1));
  // Of one expert each: judged by it where shares are no sigmoids.
  const Json single = with(with(with(v2(), "topk_method", "group_limited_greedy"), "n_group", 4), "num_experts_per_tok", 1);
  EXPECT_EQ(shape_of(single).expert_groups, 4);
}

TEST(DeepSeekConfig, YarnScalesTheSoftmaxByTheSquareOfItsMscale) {
  Json yarn = {{"rope_type", "yarn"}, {"factor", 40}, {"original_max_position_embeddings", 4096}, {"beta_fast", 32},
      {"beta_slow", 1}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}};
  const ModelShape s = shape_of(with(v3(), "rope_scaling", yarn));
  EXPECT_EQ(shape_of(with(v3(), "rope_parameters", yarn)).latent.scale, s.latent.scale);
  EXPECT_NEAR(s.latent.scale * std::sqrt(double(kNope + kRope)), 1.874, 1e-3);
  EXPECT_DOUBLE_EQ(s.rope_scaling.attention_factor, 1);
  EXPECT_EQ(s.context_len, 163840);
  yarn["factor"] = 0.5;
  EXPECT_EQ(shape_of(with(v3(), "rope_scaling", yarn)).latent.scale, shape_of(v3()).latent.scale);
}

TEST(DeepSeekConfig, RefusesWhatDoesNotGoTogether) {
  expect_refused({
      {with(v3(), "n_group", 3), "n_routed_experts 4 cannot be cut into 3 groups (n_group) evenly"},
      {with(v3(), "n_group", 4), "groups of 1 expert"},
      {with(v3(), "topk_group", 3), "topk_group 3 of only 2 groups"},
      {with(v3(), "num_experts_per_tok", 3),
          "a token goes to 3 experts, but its 1 groups of 2 (topk_group, n_group) hold only 2"},
      {with(v3(), "topk_method", "greedy"), "topk_method: greedy is not supported in deepseek_v3; noaux_tc is"},
      {with(v2(), "topk_method", "noaux_tc"), "not supported in deepseek_v2; greedy or group_limited_greedy is"},
      {with(v2(), "scoring_func", "sigmoid"), "scoring_func: sigmoid is not supported in deepseek_v2; softmax is"},
      {with(v2(), "norm_topk_prob", true), "norm_topk_prob: true is not supported in deepseek_v2"},
      {with(v3(), "attention_bias", true), "attention_bias: biases"},
      {with(v3(), "num_key_value_heads", 2), "num_key_value_heads: 2; latent attention has as many as query heads, 4"},
      {with(v3(), "qk_rope_head_dim", 5), "qk_rope_head_dim 5 is odd"},
      {with(v3(), "kv_lora_rank", 1022), "make cached rows of 1026, possible are up to 1024"},
      {with(v3(), "kv_lora_rank", 0), "kv_lora_rank: 0 is out of range"},
      {with(v3(), "num_experts_per_tok", (int64_t(1) << 32) + 2), "num_experts_per_tok: 4294967298 is out of range"},
      {with(v3(), "moe_layer_freq", 0), "moe_layer_freq: 0 is out of range"},
      {with(v3(), "routed_scaling_factor", -1), "routed_scaling_factor is -1"},
      {with(v3(), "routed_scaling_factor", 20000), "routed_scaling_factor is 20000"},
      {with(v3(), "q_lora_rank", 0), "q_lora_rank: 0 is out of range"},
      {with(tiny::config("qwen3"), "n_routed_experts", 4), "experts are supported in qwen3_moe, gpt_oss, deepseek_v2 and"},
  });
}

TEST(DeepSeekTensors, NameWhatIsMissingOrMisshapen) {
  for (const char* part : {"self_attn.kv_b_proj.weight", "self_attn.q_a_layernorm.weight", "self_attn.kv_a_proj_with_mqa.weight",
           "mlp.gate.e_score_correction_bias", "mlp.shared_experts.up_proj.weight"}) {
    expect_part(open_error(without(folder_tensors("deepseek_v3"), std::string("model.layers.1.") + part), v3()),
        "m: missing tensor blk.1.");
  }
  auto tensors = folder_tensors("deepseek_v3");
  expect_part(open_error(tensors, with(v3(), "kv_lora_rank", 12)), "has shape [20, 32], expected [16, 32]");
}

// A layer behind the last, whole or not there at all; its copies of embedding and head are not read.
TEST(DeepSeekTensors, APredictionLayerIsReadWithTheModel) {
  const Json config = with(v3(), "num_nextn_predict_layers", 1);
  auto tensors = folder_tensors("deepseek_v3");
  EXPECT_EQ(open_error(tensors, config), "accepted");  // written without it
  const size_t own = tensors.size();
  for (size_t i = 0; i < own; ++i)
    if (const std::string last = "model.layers.1."; tensors[i].name.starts_with(last))
      tensors.push_back({"model.layers.2." + tensors[i].name.substr(last.size()), tensors[i].shape});
  for (const char* norm : {"enorm", "hnorm", "shared_head.norm"})
    tensors.push_back({fmt::format("model.layers.2.{}.weight", norm), {kHidden}});
  for (const char* table : {"embed_tokens", "shared_head.head"})
    tensors.push_back({fmt::format("model.layers.2.{}.weight", table), {kVocab, kHidden}});
  tensors.push_back({"model.layers.2.eh_proj.weight", {kHidden, 2 * kHidden}});
  const Bytes bytes = safetensors(tensors), plain = safetensors(folder_tensors("deepseek_v3"));
  const auto with_layer = good(opened(bytes, config));
  EXPECT_TRUE(with_layer->find("blk.2.nextn.eh_proj.weight") && with_layer->find("blk.2.ffn_down.3.weight"));
  EXPECT_EQ(describe(*with_layer).parameters, describe(*good(opened(plain, v3()))).parameters);  // it is not part of the model
  expect_part(
      open_error(without(tensors, "model.layers.2.self_attn.o_proj.weight"), config), "missing tensor blk.2.attn_output.weight");
}

}
}
