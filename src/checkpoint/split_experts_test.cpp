// The experts of gpt-oss folders: codes and scales apart, gate and up in turns, and what does not fit.
#include "checkpoint/split_experts.h"

#include "checkpoint/test_configs.h"

namespace hunch {
namespace {

using namespace tiny;

constexpr int kHidden = 64, kWidth = 32, kExperts = 3;

nlohmann::json gpt_oss_config() {
  nlohmann::json out = tiny::config("gpt_oss");
  out.update({
      {"hidden_size", kHidden},
      {"intermediate_size", kWidth},
      {"num_hidden_layers", 1},
      {"num_local_experts", kExperts},
      {"num_experts_per_tok", 2},
      {"sliding_window", 16},
      {"quantization_config", {{"quant_method", "mxfp4"}}},
  });
  return out;
}

using Entry = Stored;

std::vector<Entry> entries() {
  const std::string a = "model.layers.0.self_attn.", m = "model.layers.0.mlp.";
  std::vector<Entry> out{
      {"model.embed_tokens.weight", "F32", {kVocab, kHidden}},
      {"model.norm.weight", "F32", {kHidden}},
      {"lm_head.weight", "F32", {kVocab, kHidden}},
      {"model.layers.0.input_layernorm.weight", "F32", {kHidden}},
      {"model.layers.0.post_attention_layernorm.weight", "F32", {kHidden}},
      {a + "sinks", "F32", {kHeads}},
      {m + "router.weight", "F32", {kExperts, kHidden}},
      {m + "router.bias", "F32", {kExperts}},
  };
  const int64_t q = kHeads * kHeadDim, kv = kKvHeads * kHeadDim;
  const auto linear = [&](const char* name, int64_t rows, int64_t columns) {
    out.push_back({a + name + "_proj.weight", "F32", {rows, columns}}), out.push_back({a + name + "_proj.bias", "F32", {rows}});
  };
  linear("q", q, kHidden), linear("k", kv, kHidden), linear("v", kv, kHidden), linear("o", kHidden, q);
  const auto experts = [&](const std::string& name, int64_t rows, int64_t columns) {
    out.push_back({m + "experts." + name + "_blocks", "U8", {kExperts, rows, columns / 32, 16}});
    out.push_back({m + "experts." + name + "_scales", "U8", {kExperts, rows, columns / 32}});
    out.push_back({m + "experts." + name + "_bias", "F32", {kExperts, rows}});
  };
  experts("gate_up_proj", 2 * kWidth, kHidden), experts("down_proj", kHidden, kWidth);
  return out;
}

// Every byte is the low one of its place among all of them times 7: codes and scales that differ.
Bytes filled(std::vector<Entry>& entries) {
  size_t place = 0;
  for (Entry& entry : entries) {
    entry.data.resize(elements(entry.shape) * (entry.dtype == "U8" ? 1 : entry.dtype == "I64" ? 8 : 4));
    for (std::byte& byte : entry.data) byte = std::byte(uint8_t(place++ * 7));
  }
  return file_of(entries);
}

Entry& at(std::vector<Entry>& all, std::string_view end) {
  return *std::ranges::find_if(all, [&](const Entry& e) { return e.name.ends_with(end); });
}

TEST(SplitExperts, RowsOfGateAndUpTakeTurns) {
  auto stored = entries();
  const Bytes file = filled(stored);
  const auto opened = test::good(test::opened(file, gpt_oss_config()));
  const Checkpoint& c = *opened;
  struct Kind {
    std::string ours, theirs;
    int64_t rows, columns, step, part;
  };
  for (const Kind& kind : {Kind{"gate", "gate_up", kWidth, kHidden, 2, 0}, Kind{"up", "gate_up", kWidth, kHidden, 2, 1},
           Kind{"down", "down", kHidden, kWidth, 1, 0}}) {
    const std::byte* codes = at(stored, "." + kind.theirs + "_proj_blocks").data.data();
    const std::byte* scales = at(stored, "." + kind.theirs + "_proj_scales").data.data();
    for (int64_t e = 0; e < kExperts; ++e) {
      const Tensor* tensor = c.find(fmt::format("blk.0.ffn_{}.{}.weight", kind.ours, e));
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(tensor->dtype, DType::MXFP4);
      EXPECT_EQ(tensor->shape, (Shape{kind.rows, kind.columns}));
      EXPECT_EQ(tensor->bytes, size_t(kind.rows * kind.columns / 32 * 17));
      for (int64_t r = 0; r < kind.rows; ++r) {
        const int64_t row = (e * kind.rows + r) * kind.step + kind.part;
        std::vector<float> got(kind.columns);
        dequantise_row(*tensor, r, got.data());
        for (int64_t i = 0; i < kind.columns; ++i) {
          const int code = int(codes[row * kind.columns / 2 + i / 2]) >> (i % 2 * 4) & 15;
          const float want = std::ldexp(float(kMxfp4Doubled[code]), int(scales[row * kind.columns / 32 + i / 32]) - 128);
          ASSERT_EQ(got[i], want) << kind.ours << " " << e << " " << r << " " << i;
        }
      }
    }
  }
  float turns[2 * kWidth];
  std::memcpy(turns, at(stored, "gate_up_proj_bias").data.data() + sizeof turns, sizeof turns);  // of expert 1
  for (const int part : {0, 1}) {
    const Tensor* bias = c.find(part ? "blk.0.ffn_up_exps.bias" : "blk.0.ffn_gate_exps.bias");
    ASSERT_NE(bias, nullptr);
    for (int i = 0; i < kWidth; ++i)
      EXPECT_EQ(std::memcmp(bias->data + (kWidth + i) * 4, &turns[2 * i + part], 4), 0) << part << " " << i;
  }
  EXPECT_NE(c.find("blk.0.ffn_down_exps.bias"), nullptr);
  EXPECT_TRUE(c.shape().attention_sinks && c.shape().expert_bias && c.shape().shares_of_chosen);
  EXPECT_EQ(c.shape().gate_limit, 7);
  EXPECT_EQ(c.shape().window_of(0), 16);
}

TEST(SplitExperts, RefusesWhatDoesNotFitByName) {
  using Change = std::function<void(std::vector<Entry>&, nlohmann::json&)>;
  const auto drop = [](std::string_view end) -> Change {
    return [=](auto& all, auto&) { std::erase_if(all, [&](const Entry& e) { return e.name.ends_with(end); }); };
  };
  const auto with = [](const char* key, nlohmann::json value) -> Change {
    return [=](auto&, auto& config) { config[key] = value; };
  };
  const auto typed = [&](std::string_view end, const char* dtype) -> Change {
    return [=](auto& all, auto&) { at(all, end).dtype = dtype; };
  };
  const auto sized = [&](std::string_view end, size_t axis, int64_t extent) -> Change {
    return [=](auto& all, auto&) { at(all, end).shape[axis] = extent; };
  };
  const std::pair<Change, const char*> cases[] = {
      {drop("down_proj_scales"), "blk.0.ffn_down_exps.blocks lacks its scales"},
      {drop("gate_up_proj_blocks"), "blk.0.ffn_gate_up_exps.scales lacks its blocks"},
      {[&](auto& t, auto& c) { drop("gate_up_proj_blocks")(t, c), drop("gate_up_proj_scales")(t, c); },
          "missing tensor blk.0.ffn_gate.0.weight"},
      {drop("gate_up_proj_bias"), "missing tensor blk.0.ffn_gate_exps.bias"},
      {drop("sinks"), "missing tensor blk.0.attn_sinks.weight"},
      {sized("down_proj_blocks", 1, 63), "has shape [3, 63, 1, 16], expected [3, 64, 1, 16]"},
      {sized("down_proj_scales", 2, 2), "has shape [3, 64, 2], expected [3, 64, 1]"},
      {sized("gate_up_proj_bias", 1, 63), "has shape [3, 63], expected [3, 64]"},
      {typed("down_proj_blocks", "F32"), "must hold U8"},
      {typed("gate_up_proj_bias", "U8"), "must hold BF16, F16 or F32"},
      {typed("router.bias", "I64"), "holds whole numbers"},
      {[&](auto& t, auto&) { at(t, "down_proj_blocks").name = "model.layers.0.mlp.experts.down_proj"; }, "are read as MXFP4"},
      {[&](auto& t, auto&) { at(t, "sinks").name = "model.layers.0.self_attn.sinks_blocks"; },
          "missing tensor blk.0.attn_sinks.weight"},
      {with("intermediate_size", 40), "are no multiple of 32"},
      {with("swiglu_limit", -1), "limit of the gates is -1"},
      {[&](auto&, auto& c) { c["quantization_config"]["quant_method"] = "awq"; }, "awq is not supported"},
      {with("num_local_experts", 0), "number of experts is 0"},
      {with("num_experts_per_tok", 9), "a token goes to 9 experts, the model has 3"},
  };
  for (const auto& [change, expected] : cases) {
    auto tensors = entries();
    auto config = gpt_oss_config();
    change(tensors, config);
    test::expect_error(test::opened(filled(tensors), config), expected);
  }
}

TEST(SplitExperts, BelongToGptOssAlone) {
  std::vector<Entry> tensors;
  for (const auto& [name, shape] : folder_tensors("llama")) tensors.push_back({name, "F32", shape});
  tensors.push_back({"model.layers.0.mlp.experts.down_proj_blocks", "U8", {3, 64, 1, 16}});
  test::expect_error(test::opened(filled(tensors), tiny::config("llama")), "belongs to experts, of which this model has none");
}

}
}
