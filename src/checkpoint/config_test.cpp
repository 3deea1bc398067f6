// config.json of all families: defaults, scaling, windows, refusals.
#include "checkpoint/config.h"

#include <cmath>

#include "checkpoint/test_configs.h"

namespace hunch {
namespace {

using namespace test;
using namespace tiny;
using test::with;

Json without(Json config, const char* key) {
  config.erase(key);
  return config;
}

// Of a llama, where no family is named.
Json with(const char* key, Json value) { return with(config("llama"), key, std::move(value)); }
Json without(const char* key) { return without(config("llama"), key); }

TEST(Config, FamiliesDifferInBiasesNormsAndHeadSize) {
  for (const auto family : kFamilies) {
    const ModelShape s = shape_of(config(std::string(family)));
    EXPECT_EQ(s.family, family);
    EXPECT_EQ(s.qkv_bias, family == "qwen2" || family == "gpt_oss");
    EXPECT_EQ(s.qk_norm, family.starts_with("qwen3"));
    EXPECT_EQ(s.output_bias, family == "gpt_oss");
    EXPECT_EQ(s.rope_pairs, family.starts_with("deepseek") ? RopePairs::Neighbours : RopePairs::Halves);
  }
  const ModelShape biased = shape_of(with("attention_bias", true));
  EXPECT_TRUE(biased.qkv_bias && biased.output_bias);
  EXPECT_EQ(shape_of(without("head_dim")).head_dim, kHidden / kHeads);
  EXPECT_EQ(shape_of(without(config("qwen3"), "head_dim")).head_dim, 128);
  EXPECT_EQ(shape_of(without("num_key_value_heads")).kv_heads, kHeads);
  EXPECT_EQ(shape_of(without(config("qwen3_moe"), "num_key_value_heads")).kv_heads, 4);
  const ModelShape eight = shape_of(without(with(config("mistral"), "num_attention_heads", 8), "num_key_value_heads"));
  EXPECT_EQ(eight.kv_heads, 8);
  EXPECT_FALSE(shape_of(with(config("mistral"), "attention_bias", true)).qkv_bias);
  EXPECT_FALSE(shape_of(with(config("qwen2"), "attention_bias", true)).output_bias);
  EXPECT_EQ(shape_of(without("max_position_embeddings")).context_len, 2048);
  EXPECT_EQ(shape_of(with("_name_or_path", "/home/x/m")).name, "m") << "nobody's folders";
}

TEST(Config, GptOssHasDefaultsOfItsOwn) {
  Json oss = config("gpt_oss");
  for (const char* key : {"head_dim", "rms_norm_eps", "max_position_embeddings"}) oss.erase(key);
  const ModelShape s = shape_of(oss);
  EXPECT_EQ(std::tie(s.head_dim, s.norm_eps, s.context_len, s.rope_theta), std::tuple(64, 1e-5, 131072, 150000));
  EXPECT_EQ(std::tie(s.num_experts, s.experts_per_token, s.gate_alpha), std::tuple(128, 4, 1.702));
  const RopeScaling& r = s.rope_scaling;
  EXPECT_EQ(std::tie(r.kind, r.factor, r.original_context, r.truncate), std::tuple(RopeScaling::Kind::Yarn, 32, 4096, false));
  EXPECT_EQ(std::pair(s.window_of(0), s.window_of(1)), std::pair(128, 0));
  oss["experts_per_token"] = 2, oss["layer_types"] = {"full_attention", "sliding_attention"};
  const ModelShape other = shape_of(oss);
  EXPECT_EQ(std::tuple(other.experts_per_token, other.window_of(0), other.window_of(1)), std::tuple(2, 0, 128));
}

TEST(Config, RefusesWhatItCannotComputeByName) {
  expect_refused({
      {with("model_type", "gemma"),
          "unknown architecture gemma; known are llama, mistral, qwen2, qwen3, qwen3_moe, gpt_oss, nsa, deepseek_v2, "
          "deepseek_v3"},
      {without("model_type"), "model_type: missing"},
      {with("quantization_config", Json::object()), "quantization_config"},
      {with("mlp_bias", true), "mlp_bias"},
      {with("hidden_act", "gelu"), "hidden_act: gelu"},
      {with("num_local_experts", 8), "num_local_experts"},
      {with("rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}), "dynamic is not supported"},
      {with("rope_scaling", {{"type", "longrope"}, {"factor", 2}}), "longrope is not supported"},
      {with("rope_scaling", {{"type", "linear"}}), "factor: missing"},
      {with("rope_parameters", {{"full_attention", {{"rope_theta", 500}}}}), "full_attention: one for every type of layers"},
      {with(with("rope_parameters", {{"rope_type", "default"}}), "rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}),
          "differs from rope_parameters"},
      {with("rope_scaling", {{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}}), "0 < low_freq_factor < high_"},
      {with("rope_scaling", {{"type", "yarn"}, {"factor", 2}, {"beta_fast", 0.5}}), "0 < beta_slow <= beta_fast"},
      {with("rope_scaling", {{"type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 0}}), "original context"},
      {with("is_causal", false), "is_causal"},
      {with("partial_rotary_factor", 0.5), "partial_rotary_factor"},
      {with("rope_parameters", {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor"},
      {with("final_logit_softcapping", 30), "final_logit_softcapping"},
      {with("embedding_multiplier", 2), "embedding_multiplier"},
      {with("num_nextn_predict_layers", 17), "num_nextn_predict_layers"},
      {without("hidden_size"), "hidden_size: missing"},
      {with("hidden_size", "32"), "hidden_size: must be an integer"},
      {with("hidden_size", 1e30), "hidden_size: must be an integer"},
      {with("num_hidden_layers", 0), "num_hidden_layers"},
      {with("num_hidden_layers", 1 << 30), "num_hidden_layers"},
      {with("num_attention_heads", 0), "num_attention_heads"},
      {with("num_key_value_heads", 0), "number of KV heads is 0"},
      {with("num_key_value_heads", 3), "4 heads cannot share 3 KV heads"},
      {with("head_dim", 7), "head size 7 is odd"},
      {with("head_dim", 1024), "head size is 1024"},
      {with("vocab_size", int64_t(1) << 31), "vocabulary size"},
      {with("max_position_embeddings", int64_t(1) << 40), "max_position_embeddings"},
      {with("rms_norm_eps", 0), "norm epsilon is 0"},
      {with("rms_norm_eps", 1), "norm epsilon is 1"},
      {with("rope_theta", -5), "rope theta"},
      {with("eos_token_id", 40), "end-of-text token id is 40"},
      {with("eos_token_id", "x"), "eos_token_id"},
      {with("bos_token_id", 4000), "bos token id 4000"},
      {without(with("hidden_size", 33), "head_dim"), "33 is not divisible by 4 heads"},
      {with(config("qwen2"), "layer_types", {"full_attention"}), "layer_types"},
      {with(config("qwen2"), "layer_types", {"full_attention", "linear_attention"}), "only full_attention and"},
      {with(config("qwen2"), "layer_types", {"full_attention", "sliding_attention"}), "use_sliding_window is off"},
      {Json::array(), "not a JSON object"},
  });
}

TEST(Config, RefusesDeepAndBrokenJson) {
  for (const auto& [text, words] : {std::pair(std::string(100000, '['), "nested deeper"), {"{\"a\":", "not valid JSON"}})
    expect_error(describe_folder({.config = text}, "m"), words);
}

TEST(Config, ReadsRopeScalingInBothSpellings) {
  Json llama3{{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
      {"original_max_position_embeddings", 8192}};
  using Kind = RopeScaling::Kind;
  const Json scaled = with("rope_scaling", llama3);
  EXPECT_EQ(shape_of(with(scaled, "original_max_position_embeddings", 32)).rope_scaling.original_context, 32);
  const RopeScaling own = shape_of(scaled).rope_scaling;
  EXPECT_EQ(own.kind, Kind::Llama3);
  EXPECT_EQ(own.original_context, 8192);
  llama3["rope_theta"] = 500000.0;
  const auto expect_shape = [](const Json& config, Kind kind, double theta) {
    const ModelShape s = shape_of(config);
    EXPECT_EQ(s.rope_scaling.kind, kind) << config;
    EXPECT_EQ(s.rope_theta, theta) << config;
  };
  expect_shape(with("rope_parameters", llama3), Kind::Llama3, 500000);
  expect_shape(with(with("rope_theta", 1e6), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}), Kind::Linear, 1e6);
  expect_shape(with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7000.0}}), Kind::None, 7000);
  Json linear{{"rope_type", "linear"}, {"factor", 2.0}};
  expect_shape(with(with("rope_parameters", linear), "rope_scaling", {{"factor", 2.0}}), Kind::Linear, 10000);
  linear["rope_theta"] = 7000;
  expect_shape(with("rope_scaling", linear), Kind::Linear, 7000);
  const RopeScaling plain = shape_of(with("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}})).rope_scaling;
  EXPECT_EQ(std::tie(plain.low_freq_factor, plain.high_freq_factor, plain.original_context), std::tuple(1, 4, 512));
}

TEST(Config, ResolvesYarnsAttentionFactorAndContext) {
  Json yarn{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}, {"beta_fast", 16.0},
      {"truncate", false}};
  const auto shape = [&] { return shape_of(with(config("qwen3"), "rope_scaling", yarn)); };
  const ModelShape s = shape();
  EXPECT_NEAR(s.rope_scaling.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  EXPECT_EQ(std::tie(s.rope_scaling.beta_fast, s.rope_scaling.truncate, s.context_len), std::tuple(16, false, 2048));
  yarn["mscale"] = 1.0, yarn["mscale_all_dim"] = 0.5;
  EXPECT_NEAR(shape().rope_scaling.attention_factor, (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-12);
  yarn["attention_factor"] = 1.25;
  EXPECT_EQ(shape().rope_scaling.attention_factor, 1.25);
  yarn = {{"rope_type", "yarn"}, {"original_max_position_embeddings", 128}, {"mscale", 0.5}};
  const RopeScaling plain = shape().rope_scaling;
  EXPECT_EQ(std::tie(plain.factor, plain.beta_fast, plain.beta_slow), std::tuple(4, 32, 1));
  EXPECT_EQ(plain.attention_factor, s.rope_scaling.attention_factor) << "half of a pair";
  yarn["factor"] = 0.5;
  EXPECT_EQ(shape().rope_scaling.attention_factor, 1);
  yarn["factor"] = 2;
  EXPECT_EQ(shape().context_len, 512);
}

TEST(Config, SlidingWindowsFollowEachFamilysRules) {
  EXPECT_EQ(shape_of(with("sliding_window", 64)).sliding_window, 0);
  EXPECT_EQ(shape_of(config("mistral")).sliding_window, 4096);  // transformers' default where the key is absent
  EXPECT_EQ(shape_of(with(config("mistral"), "sliding_window", nullptr)).sliding_window, 0);
  EXPECT_EQ(shape_of(with(config("mistral"), "sliding_window", 64)).window_of(1), 64);
  Json qwen = with(with(config("qwen2"), "sliding_window", 64), "max_window_layers", 1);
  const auto windows = [&] { return std::pair(shape_of(qwen).window_of(0), shape_of(qwen).window_of(1)); };
  EXPECT_EQ(windows(), std::pair(0, 0));
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(windows(), std::pair(0, 64));
  EXPECT_EQ(shape_of(without(qwen, "max_window_layers")).window_of(1), 0);
  EXPECT_EQ(shape_of(with(qwen, "model_type", "qwen3_moe")).window_of(0), 64);
  qwen["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(windows(), std::pair(64, 0));
  qwen["model_type"] = "mistral";
  EXPECT_EQ(windows(), std::pair(64, 0));
  qwen = with(with(config("qwen2"), "sliding_window", nullptr), "use_sliding_window", true);
  EXPECT_EQ(windows(), std::pair(0, 0));
}

TEST(Config, GenerationConfigGivesEndsAndSamplingDefaults) {
  const auto describe = [](const Json& generation) {
    return describe_folder({.config = config("qwen3").dump(), .generation_config = generation.dump()}, "m");
  };
  const auto d = good(describe({{"eos_token_id", {7, 3, 7}}, {"temperature", 0.6}, {"top_k", 20}, {"top_p", 0.95}}));
  EXPECT_EQ(d.shape.eos_ids, (Ints{7, 3}));
  EXPECT_EQ(d.sampling.temperature, 0.6);
  EXPECT_EQ(d.sampling.top_k, 20);
  EXPECT_FALSE(d.sampling.min_p);
  EXPECT_EQ(shape_of(config("qwen3")).eos_ids, Ints{3});
  for (const Json& bad :
      {Json{{"temperature", -1}}, Json{{"top_p", 0}}, Json{{"top_p", 1.5}}, Json{{"min_p", 2}}, Json{{"top_k", -4}}})
    EXPECT_FALSE(describe(bad).ok()) << bad;
}

TEST(Config, ChatTemplateFileWinsOverTheConfig) {
  FolderTexts texts;
  texts.config = config("qwen3").dump();
  texts.tokenizer_config =
      R"({"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}],"add_bos_token":true})";
  const auto tokenizer = [&] { return good(describe_folder(texts, "m")).tokenizer; };
  EXPECT_EQ(tokenizer().chat_template, "D");
  EXPECT_EQ(tool_template(tokenizer()), "T");
  EXPECT_EQ(tokenizer().add_bos, true);
  texts.chat_template = "J";
  EXPECT_EQ(tokenizer().chat_template, "J");
  EXPECT_EQ(tool_template(tokenizer()), "") << "a file serves all chats";
}

TEST(Config, NamedEndTokenServesFoldersWithoutIds) {
  Json config{{"added_tokens_decoder", {{"30", {{"content", "<|end|>"}}}, {"31", {{"content", "</s>"}}}}}};
  const auto ends = [&] {
    return good(describe_folder({.config = without(tiny::config("qwen3"), "eos_token_id").dump(),
                                    .tokenizer_config = config.dump(),
                                    .special_tokens_map = R"({"eos_token":{"content":"<|end|>"}})"},
                    "m"))
        .shape.eos_ids;
  };
  EXPECT_EQ(ends(), Ints{30});
  config["eos_token"] = "</s>";
  EXPECT_EQ(ends(), Ints{31});
}

}
}
