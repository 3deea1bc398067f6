// Models with natively trained sparse attention: keys and tensor names of three publishers, and what is refused by name.
#include "checkpoint/nsa_config.h"

#include "checkpoint/test_configs.h"

namespace hunch {
namespace {

using namespace test;

Json with(const char* key, Json value) {
  Json config = tiny::config("nsa");
  config["nsa"][key] = std::move(value);
  return config;
}
Json flat(Json keys, const char* type = "nsa") {
  Json config = tiny::config("nsa");
  config.erase("nsa");
  config["model_type"] = type;
  config.update(keys);
  return config;
}

TEST(NsaConfig, ReadsAnObjectOfKeysWithThePublishersDefaults) {
  const NsaShape n = shape_of(with("cmp_kind", "linear")).nsa;
  EXPECT_EQ(std::tie(n.cmp_len, n.cmp_stride, n.sel_block, n.sel_count, n.init_blocks, n.local_blocks, n.window),
      std::tuple(8, 4, 16, 4, 1, 2, 24));
  EXPECT_TRUE(n.kind == NsaShape::Kind::Linear && !n.rope_before && n.block_positions);
  const NsaShape fla = shape_of(flat({{"nsa", {{"variant", "fla"}, {"sel_block", 32}}}})).nsa;
  EXPECT_EQ(
      std::tie(fla.cmp_len, fla.cmp_stride, fla.sel_count, fla.init_blocks, fla.local_blocks), std::tuple(32, 32, 16, 0, 1));
  EXPECT_TRUE(fla.kind == NsaShape::Kind::Mean && fla.rope_before && !fla.block_positions);
  EXPECT_EQ(shape_of(with("window_counts_self", false)).nsa.window, 25);
}

TEST(NsaConfig, ReadsTheFlatKeysOfEachPublisher) {
  const ModelShape ssa = shape_of(flat({{"block_size", 16}, {"block_counts", 16}, {"window_size", 128}}, "llama-nsa"));
  EXPECT_EQ(ssa.family, "nsa");
  EXPECT_EQ(std::tie(ssa.nsa.variant, ssa.nsa.cmp_len, ssa.nsa.sel_block, ssa.nsa.sel_count, ssa.nsa.window),
      std::tuple("fla", 16, 16, 16, 128));
  const NsaShape xunhao =
      shape_of(flat({{"kernel_size", 32}, {"kernel_stride", 16}, {"block_size", 64}, {"topk", 8}, {"window_size", 256},
                   {"init_blocks", 2}, {"local_blocks", 3}, {"compress_type", "avgpool"}}))
          .nsa;
  EXPECT_EQ(std::tie(xunhao.variant, xunhao.cmp_len, xunhao.cmp_stride, xunhao.sel_count, xunhao.window, xunhao.init_blocks,
                xunhao.local_blocks),
      std::tuple("std", 32, 16, 8, 256, 2, 3));
  EXPECT_EQ(xunhao.kind, NsaShape::Kind::Mean);
  Json own = flat({{"block_size", 64}, {"block_counts", 16}, {"num_heads", 4}, {"num_kv_heads", 2}, {"norm_eps", 1e-4},
      {"hidden_act", "swish"}, {"qkv_bias", true}});
  own.erase("num_attention_heads"), own.erase("num_key_value_heads"), own.erase("intermediate_size");
  const ModelShape fla = shape_of(own);
  EXPECT_EQ(std::tie(fla.heads, fla.kv_heads, fla.ffn, fla.norm_eps), std::tuple(4, 2, int64_t(256), 1e-4));
  EXPECT_TRUE(fla.qkv_bias);
  own["elementwise_affine"] = false;
  expect_error(described(own), "norms without weights");
}

TEST(NsaConfig, RefusesByNameWhatDoesNotDivideOrIsNotComputed) {
  const std::pair<Json, const char*> cases[] = {
      {with("cmp_stride", 3), "a stride of 3 does not divide compressed rows of 8 tokens"},
      {with("cmp_stride", 0), "compressed rows of 8 tokens every 0"},
      {with("cmp_len", 24).patch(Json::parse(R"([{"op":"add","path":"/nsa/cmp_stride","value":24}])")),
          "a stride of 24 does not divide blocks of 16 tokens"},
      {with("sel_block", 48), "blocks of 48 tokens; blocks of 16, 32 and 64 are supported"},
      {with("sel_count", 2), "1 first and 2 last blocks are forced, but a query reads 2"},
      {with("sel_count", 0), "0 blocks a query"}, {with("local_blocks", 0), "a query must read its own block"},
      {with("cmp_kind", "mlp"), "nsa.cmp_kind: mlp is not supported; mean, weighted and linear are"},
      {with("cmp_rope", "none"), "nsa.cmp_rope: none is not supported"},
      {with("kv_sharing", "per_branch"), "the branches must share one K and V"},
      {with("variant", "lucid"), "nsa.variant: must be std or fla, not lucid"}, {with("cmp_lenght", 8), "unknown key cmp_lenght"},
      {with("window", -1), "nsa.window"}, {with("window", "24"), "nsa.window"},
      {flat(Json::object()), "this model needs an object nsa"},
      {flat({{"attention_bias", true}, {"block_counts", 4}}), "attention_bias"}};
  for (const auto& [config, message] : cases) expect_error(described(config), message);
}

TEST(NsaConfig, KnowsTheTensorNamesOfThreePublishers) {
  const std::pair<const char*, std::vector<const char*>> names[] = {
      {"blk.3.nsa_gate",
          {"model.layers.3.self_attn.g_proj.weight", "model.layers.3.attn.g_proj.weight", "layers.3.nsa.gate.0.weight"}},
      {"blk.3.attn_q",
          {"model.layers.3.self_attn.q_proj.weight", "model.layers.3.attn.q_proj.weight", "layers.3.nsa.proj_q.weight"}},
      {"blk.3.attn_output", {"layers.3.nsa.proj_o.weight"}},
      {"blk.3.nsa_cmp_k", {"model.layers.3.self_attn.compress_key", "layers.3.nsa.compress_key"}},
      {"blk.3.nsa_cmp_v", {"layers.3.nsa.compress_value"}}, {"blk.3.nsa_cmp_pe", {"layers.3.nsa.intra_block_pe"}},
      {"blk.3.attn_norm", {"layers.3.attn_norm.weight"}},
      {"blk.3.ffn_norm",
          {"layers.3.ffn_norm.weight", "model.layers.3.mlp_norm.weight", "model.layers.3.post_attention_layernorm.weight"}},
      {"blk.3.ffn_up", {"layers.3.ffn.up_proj.weight"}}, {"blk.3.ffn_down", {"model.layers.3.mlp.down_proj.weight"}},
      {"token_embd", {"embedding.weight", "model.embeddings.weight", "model.embed_tokens.weight"}},
      {"output_norm", {"norm.weight", "model.norm.weight"}}, {"output", {"lm_head.weight"}}};
  for (const auto& [canonical, spellings] : names)
    for (const char* spelt : spellings) EXPECT_EQ(good(nsa_canonical_name(spelt)), std::string(canonical) + ".weight") << spelt;
  for (const char* name : {"layers.x.nsa.compress_key", "layers.3.nsa.memory_kv", "layers.3", "layers.", "nsa.gate.0.weight",
           "layers.3.nsa.proj_q.scale", "layers.-1.nsa.gate.0.weight"})
    expect_error(nsa_canonical_name(name), name);
}

TEST(NsaConfig, NamesTheTensorThatIsMissingOrTooMuchOrOfAnotherShape) {
  const auto all = tiny::folder_tensors("nsa");
  const Json config = tiny::config("nsa");
  EXPECT_EQ(open_error(all, config), "accepted");
  for (const char* part : {"g_proj", "compress_key", "compress_value", "intra_block_pe"}) {
    expect_part(open_error(tiny::without(all, part), config), "missing tensor blk.0.nsa_");
    auto tensors = all;
    for (auto& t : tensors)
      if (t.name.find(part) != t.name.npos) t.shape.back() += 1;
    expect_part(open_error(tensors, config), "has shape");
  }
  // A mean needs no weights: those of the file would not be read.
  expect_part(open_error(all, with("cmp_kind", "mean")), "nsa_cmp_k.weight is not part of a nsa model");
}

}
}
