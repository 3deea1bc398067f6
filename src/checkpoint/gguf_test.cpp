// The GGUF reader: a good file damaged field by field, truncations, flipped bytes; then what the keys mean.
#include "checkpoint/gguf.h"

#include <chrono>
#include <cmath>

#include "base/test_results.h"
#include "checkpoint/memory_checkpoint.h"
#include "checkpoint/tiny_model.h"

namespace hunch {
namespace {

using namespace test;
using namespace tiny;

std::string open_error(const Bytes& file) { return error_of(open_gguf_bytes(file, "m.gguf")); }

template <class... T>  // one behind the other
void poke(Bytes& file, size_t at, T... values) {
  ((std::memcpy(file.data() + at, &values, sizeof values), at += sizeof values), ...);
}

// Where `text` lies in the file, past its end.
size_t after(const Bytes& file, std::string_view text) {
  const std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  const size_t at = all.find(text);
  HUNCH_CHECK(at != all.npos);
  return at + text.size();
}

// Writes values so many bytes behind the end of `text`, behind nothing at that place of the file.
template <class... T>
std::function<void(Bytes&)> put(std::string_view text, int offset, T... values) {
  return [=](Bytes& file) { poke(file, size_t(int64_t(after(file, text)) + offset), values...); };
}

std::unique_ptr<Checkpoint> open(const Bytes& file, bool vocab_only = false) {
  return good(open_gguf_bytes(file, "m.gguf", vocab_only));
}

struct Qwen3Keys : GgufWriter {
  Qwen3Keys() { add_qwen3_keys(*this); }
  std::unique_ptr<Checkpoint> open() {
    bytes = finish_gguf(*this, gguf_tensors());
    return good(open_gguf_bytes(bytes, "m.gguf"));
  }
  Bytes bytes;
};

TEST(Gguf, OpensAModelWithShapeTensorsAndVocabulary) {
  const Bytes file = gguf_qwen3();
  const auto c = open(file);
  const ModelShape& s = c->shape();
  EXPECT_EQ(std::tie(s.family, s.vocab_size, s.head_dim), std::tuple("qwen3", kVocab, kHeadDim));
  EXPECT_EQ(s.rope_pairs, RopePairs::Halves);
  EXPECT_TRUE(s.tied_head && s.qk_norm && !s.qkv_bias);
  EXPECT_EQ(s.eos_ids, Ints{2});
  EXPECT_EQ(c->tokenizer().tokens[7], "t7");
  EXPECT_EQ(c->tokenizer().merges, std::vector<std::string>{"t 1"});
  ASSERT_NE(c->find("blk.1.ffn_up.weight"), nullptr);
  EXPECT_EQ(c->find("blk.1.ffn_up.weight")->shape, (Shape{kFfn, kHidden}));
  EXPECT_EQ(c->find("nothing"), nullptr);
  Bytes plain = file;
  put("rope.freq_base", -1, 'x')(plain);
  EXPECT_EQ(open(plain)->shape().rope_theta, 10000);
}

TEST(Gguf, RefusesDamagedFieldsAndNamesThem) {
  struct Damage {
    const char* name;
    std::function<void(Bytes&)> apply;
    const char* expected;
  };
  const std::string_view q = "blk.0.attn_q.weight";  // then: rank u32, 2 extents u64, type u32, offset u64
  const Damage cases[] = {
      {"magic", put("", 0, 'X'), "not a GGUF file"},
      {"version 1", put("", 4, 1u), "version 1 is not supported"},
      {"big-endian", put("", 4, uint32_t(0x03000000)), "big-endian"},
      {"tensor count 2^63", put("", 8, uint64_t(1) << 63), "tensors announced"},
      {"tensor count 2^32", put("", 8, uint64_t(1) << 32), "tensors announced"},
      {"key count 2^63", put("", 16, uint64_t(1) << 63), "keys announced"},
      {"key length", put("", 24, uint64_t(1) << 40), "runs past the end"},
      {"key length 70000", [](auto& f) { f.resize(f.size() + 100000), poke(f, 24, uint64_t(70000)); }, "at most 65535"},
      {"value type", put("general.architecture", 0, 77u), "unknown value type 77"},
      {"string length", put("general.architecture", 4, ~uint64_t(0)), "runs past the end"},
      {"array length", put("tokenizer.ggml.tokens", 8, uint64_t(1) << 60), "runs past the end"},
      {"array of arrays", put("tokenizer.ggml.token_type", 4, 9u), "nested arrays"},
      {"wrong element type", put("tokenizer.ggml.token_type", 4, 6u), "expected an array of i32"},
      {"wrong scalar type", put("qwen3.block_count", 0, 6u), "qwen3.block_count: expected an integer"},
      {"no layers", put("qwen3.block_count", 4, 0u), "qwen3.block_count: 0"},
      {"no heads", put("qwen3.attention.head_count", 4, 0u), "attention.head_count: 0"},
      {"KV heads", put("head_count_kv", 4, 3u), "head_count_kv: 3 does not divide"},
      {"KV heads left out", put("head_count_kv", -1, 'x'), "attn_k.weight has shape [16, 32], expected [32, 32]"},
      {"quantised norm", [](auto& f) { put("output_norm.weight", 12, 8u)(f), f.resize(f.size() - 94); },
          "must be f32, f16 or bf16"},
      {"head size", put("key_length", 4, 6u), "value_length"},
      {"context", put("context_length", 4, 1u << 30), "context length is 1073741824"},
      {"epsilon", put("layer_norm_rms_epsilon", 4, NAN), "norm epsilon"},
      {"theta", put("rope.freq_base", 4, -1.f), "rope theta"},
      {"architecture", put("general.architecture", 12, 'z'), "unknown architecture zwen3"},
      {"eos id", put("eos_token_id", 4, 40u), "eos_token_id: 40 is outside"},
      {"token type", put("tokenizer.ggml.token_type", 16, int32_t(9)), "token type 9"},
      {"rank 0", put(q, 0, 0u), "attn_q.weight: 0 dimensions"},
      {"rank 5", put(q, 0, 5u), "attn_q.weight: 5 dimensions"},
      {"extent 0", put(q, 4, uint64_t(0)), "attn_q.weight: a dimension of 0"},
      {"extents overflow", put(q, 4, uint64_t(1) << 62, uint64_t(32)), "overflows"},
      {"bytes overflow", put(q, 4, uint64_t(1) << 62, uint64_t(1), 0u), "overflows"},
      {"removed type", put(q, 20, 4u), "attn_q.weight: type 4 (Q4_2) is not supported"},
      {"unread type", put(q, 20, 10u), "type 10 (Q2_K) is not supported"},
      {"negative type", put(q, 20, int32_t(-1)), "type 4294967295 (unknown)"},
      {"row no multiple", put(q, 20, 12u), "no multiple of the 256"},
      {"offset near 2^64", put(q, 24, ~uint64_t(31)), "runs past the end"},
      {"offset misaligned", put(q, 24, uint64_t(33)), "not aligned"},
      {"offset of another", put(q, 24, uint64_t(0)), "overlaps"},
      {"duplicate name", put(q, -8, 'k'), "blk.0.attn_k.weight: appears twice"},
      {"unknown name", put(q, -8, 'j'), "missing tensor blk.0.attn_q.weight of shape [32, 32]"},
      {"gap",
          [](auto& f) {
            const size_t at = after(f, "output_norm.weight") + 16;
            f.resize(f.size() + 128), f[at] ^= std::byte(128);
          },
          "a gap of 128 bytes"},
      {"trailing bytes", [](auto& f) { f.resize(f.size() + 64); }, "64 bytes after the last tensor"},
      {"wrong extents", put(q, 4, uint64_t(64), uint64_t(16)), "attn_q.weight has shape [16, 64], expected [32, 32]"},
  };
  for (const Damage& damage : cases) {
    Bytes file = gguf_qwen3();
    damage.apply(file);
    const std::string message = open_error(file);
    SCOPED_TRACE(damage.name);
    expect_part(message, damage.expected);
    EXPECT_TRUE(message.starts_with("m.gguf: ")) << message;
  }
}

TEST(Gguf, RefusesKeysAndTensorsThatDoNotFit) {
  const auto expect = [](const auto& change, std::string_view words) {
    Qwen3Keys out;
    auto tensors = gguf_tensors();
    change(out, tensors);
    expect_part(open_error(finish_gguf(out, tensors)), words);
  };
  expect([](auto& out, auto&) { out.add_u32("qwen3.block_count", 3); }, "duplicate key: qwen3.block_count");
  for (const uint32_t no_power_of_two : {0u, 3u, 48u, 131072u, 1u << 31})  // or too large
    expect([&](auto& out, auto&) { out.add_u32("general.alignment", no_power_of_two); }, "general.alignment");
  expect(
      [](auto&, auto& tensors) {
        tensors.push_back({"blk.0.attn_k.bias", {kKvHeads * kHeadDim}});
      },
      "blk.0.attn_k.bias is not part of");
  expect([](auto& out, auto&) { out.add_u32("qwen3.rope.dimension_count", 4); }, "only whole heads are supported");
  expect([](auto& out, auto&) { add_vocabulary(out, kVocab - 1); }, "token_embd.weight has shape [40, 32], expected [39, 32]");
}

TEST(Gguf, HasTheBiasesThatTheFileHas) {
  Qwen3Keys out;
  auto tensors = gguf_tensors();
  for (int layer = 0; layer < kLayers; ++layer)
    for (const char* name : {"q", "k", "v"})
      tensors.push_back({fmt::format("blk.{}.attn_{}.bias", layer, name), {*name == 'q' ? kQueryDim : kKvDim}});
  const Bytes file = finish_gguf(out, tensors);
  EXPECT_TRUE(open(file)->shape().qkv_bias);
}

TEST(Gguf, RefusesEveryTruncationOfHeaderAndData) {
  const Bytes whole = gguf_qwen3();
  ASSERT_EQ(open_error(whole), "accepted");
  for (size_t length = 0; length + 32 < whole.size(); length += length < 4000 ? 7 : whole.size() / 64) {
    const Bytes cut(whole.begin(), whole.begin() + length);
    EXPECT_NE(open_error(cut), "accepted") << length;
  }
}

TEST(Gguf, AnswersEveryFlippedHeaderByte) {
  const Bytes whole = gguf_qwen3();
  const size_t header = after(whole, "output_norm.weight") + 32;
  const auto start = std::chrono::steady_clock::now();
  int refused = 0;
  for (size_t at = 0; at < header; ++at) {
    Bytes damaged = whole;
    damaged[at] ^= std::byte(0x81);
    refused += open_error(damaged) != "accepted";
  }
  EXPECT_GT(refused, int(header / 3));  // the rest are letters of tokens and the like
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(Gguf, ReadsBothVersionsAndFilesWithoutAVocabulary) {
  Qwen3Keys keys;
  Bytes file = finish_gguf(keys, gguf_tensors());
  poke(file, 4, uint32_t(2));
  const auto c = open(file);
  EXPECT_EQ(c->shape().vocab_size, kVocab);  // from the embedding's rows
  EXPECT_FALSE(c->tokenizer().from_gguf());
}

TEST(Gguf, OpensVocabularyFilesOnlyWhenAsked) {
  GgufWriter out;
  out.add_text("general.architecture", "llama");
  add_vocabulary(out);
  const Bytes file = out.to_bytes({});
  expect_part(open_error(file), "holds no tensors");
  const auto c = open(file, true);
  EXPECT_EQ(c->tokenizer().tokens.size(), size_t(kVocab));
}

TEST(Gguf, EndOfTextIdsComeFromKeysAndKnownControlTokens) {
  Qwen3Keys out;
  out.add_text("tokenizer.ggml.model", "gpt2");
  std::vector<std::string> tokens(kVocab, "x");
  Ints types(kVocab, 1);
  tokens[4] = "<|eom_id|>", tokens[5] = "<|im_end|>", types[4] = types[5] = 3;
  tokens[6] = "<|endoftext|>";  // a normal token that only looks like one
  out.add_texts("tokenizer.ggml.tokens", tokens);
  out.add_i32s("tokenizer.ggml.token_type", types);
  out.add_u32("tokenizer.ggml.eos_token_id", 9);
  out.add_u32("tokenizer.ggml.eot_token_id", 8);
  out.add_u32("tokenizer.ggml.eom_token_id", 7);
  const auto c = out.open();
  EXPECT_EQ(c->shape().eos_ids, (Ints{9, 8, 7, 4, 5}));
}

TEST(Gguf, ReadsRopeScalingWindowsAndSamplingKeys) {
  Qwen3Keys out;
  out.add_text("qwen3.rope.scaling.type", "yarn");
  out.add_f32("qwen3.rope.scaling.factor", 4);
  out.add_u32("qwen3.rope.scaling.original_context_length", 128);
  out.add_f32("qwen3.rope.scaling.attn_factor", 2);
  out.add_u32("qwen3.attention.sliding_window", 64);
  out.add_bools("qwen3.attention.sliding_window_pattern", {1, 0});
  out.add_f32("general.sampling.temp", 0.8f);
  out.add_i32("general.sampling.top_k", 20);
  const auto c = out.open();
  const ModelShape& s = c->shape();
  EXPECT_EQ(s.rope_scaling.kind, RopeScaling::Kind::Yarn);
  EXPECT_EQ(s.rope_scaling.original_context, 128);
  EXPECT_NEAR(s.rope_scaling.attention_factor, 2 * (0.1 * std::log(4.0) + 1), 1e-12);
  EXPECT_EQ(s.window_of(0), 64);
  EXPECT_EQ(s.window_of(1), 0);
  EXPECT_EQ(c->sampling().temperature, 0.8);
  EXPECT_EQ(c->sampling().top_k, 20);
}

TEST(Gguf, OfEveryNLayersTheLastReadsAll) {
  for (const uint32_t n : {2, 1}) {
    Qwen3Keys out;
    out.add_u32("qwen3.attention.sliding_window", 64);
    out.add_u32("qwen3.attention.sliding_window_pattern", n);
    out.add_f32("qwen3.rope.scaling.factor", 0);  // none
    const auto c = out.open();
    EXPECT_EQ(std::pair(c->shape().window_of(0), c->shape().window_of(1)), std::pair(64, n == 2 ? 0 : 64));
    EXPECT_EQ(c->shape().rope_scaling.factor, 1);
  }
}

TEST(Gguf, ScalesRopeLinearlyWhereNoTypeIsSaid) {
  for (const char* key : {"qwen3.rope.scaling.factor", "qwen3.rope.scale_linear"})
    for (const char* type : {"", "linear", "none"}) {
      Qwen3Keys out;
      out.add_f32(key, 4);
      if (*type) out.add_text("qwen3.rope.scaling.type", type);
      const auto c = out.open();
      const RopeScaling& scaling = c->shape().rope_scaling;
      EXPECT_EQ(scaling.kind == RopeScaling::Kind::Linear, std::string_view(type) != "none") << key << type;
      EXPECT_EQ(scaling.factor, std::string_view(type) == "none" ? 1 : 4) << key << type;
    }
}

TEST(Gguf, RefusesWhatWouldChangeResults) {
  const auto expect = [](std::string_view words, const auto& add) {
    Qwen3Keys out;
    add(out);
    expect_part(open_error(finish_gguf(out, gguf_tensors())), words);
  };
  for (const char* name : {"attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias", "final_logit_softcapping"})
    expect(fmt::format("{}: 1 is not supported", name), [&](auto& out) { out.add_f32(fmt::format("qwen3.{}", name), 1); });
  for (const char* name : {"logit_scale", "residual_scale", "embedding_scale"})
    for (const int factor : {1, 2})
      expect(factor == 1 ? "accepted" : fmt::format("{}: 2 is not supported", name),
          [&](auto& out) { out.add_f32(fmt::format("qwen3.{}", name), float(factor)); });
  expect("only causal", [](auto& out) { out.add_bool("qwen3.attention.causal", false); });
  expect("one of 2 parts", [](auto& out) { out.add_u32("split.count", 2); });
  expect("yarn_ext_factor: only 1",
      [](auto& out) { out.add_text("qwen3.rope.scaling.type", "yarn"), out.add_f32("qwen3.rope.scaling.yarn_ext_factor", 0); });
}

using Numbers = std::initializer_list<std::pair<const char*, uint32_t>>;
Result<ModelShape> other_family(const std::string& arch, Numbers keys) {
  GgufWriter out;
  add_keys(out, arch);
  for (const auto& [name, value] : keys) out.add_u32(fmt::format("{}.{}", arch, name), value);
  out.add_text("deepseek2.rope.scaling.type", "yarn"), out.add_bool("deepseek2.expert_weights_norm", true);
  for (const char* name : {"expert_weights_scale", "rope.scaling.factor", "rope.scaling.yarn_log_multiplier"})
    out.add_f32(fmt::format("deepseek2.{}", name), 4);
  const Bytes file = finish_gguf(out, {{"token_embd.weight", {8, 32}}, {"blk.0.attn_q_a.weight", {8, 32}}});
  HUNCH_TRY(auto described, describe_gguf(good(GgufFile::parse(file, "m")), false));
  return described.shape;
}

TEST(Gguf, ReadsTheKeysOfOtherFamilies) {
  const ModelShape s = good(other_family("deepseek2",
      {{"feed_forward_length", 64}, {"attention.q_lora_rank", 24}, {"attention.kv_lora_rank", 16}, {"rope.dimension_count", 4},
          {"attention.key_length_mla", 12}, {"attention.value_length_mla", 10}, {"expert_count", 8}, {"expert_used_count", 3},
          {"expert_feed_forward_length", 6}, {"expert_shared_count", 2}, {"leading_dense_block_count", 1},
          {"expert_gating_func", 2}, {"expert_group_count", 4}, {"expert_group_used_count", 2}}));
  const LatentShape& l = s.latent;
  EXPECT_EQ(std::tie(l.q_rank, l.kv_rank, l.rope, l.nope, l.value, s.num_experts, s.experts_per_token, s.expert_ffn, s.shared_ffn,
                s.expert_groups, s.groups_per_token, s.share_scale, s.rope_scaling.attention_factor),
      std::tuple(24, 16, 4, 8, 10, 8, 3, 6, 12, 4, 2, 4, 1));
  EXPECT_EQ(s.expert_layer, (std::vector<uint8_t>{0, 1}));
  EXPECT_TRUE(s.norm_expert_shares && s.sigmoid_shares && s.rope_pairs == RopePairs::Neighbours);
  EXPECT_NEAR(l.scale, std::pow(4 * std::log(4) + 1, 2) / std::sqrt(12), 1e-6);
  const ModelShape oss = good(other_family("gpt-oss",
      {{"expert_count", 2}, {"expert_used_count", 1}, {"expert_feed_forward_length", 8}, {"attention.sliding_window", 64},
          {"attention.sliding_window_pattern", 3}}));
  EXPECT_EQ(oss.window_of(1), 64);
}

TEST(Gguf, KeysOfOtherFamiliesMustBeThere) {
  const auto error = [](const char* arch, Numbers keys) { return error_of(other_family(arch, keys)); };
  expect_part(error("gpt-oss", {{"expert_count", 2}, {"expert_used_count", 1}, {"expert_feed_forward_length", 8}}),
      "gpt-oss.attention.sliding_window: missing");
  expect_part(
      error("deepseek2",
          {{"feed_forward_length", 64}, {"attention.kv_lora_rank", 16}, {"rope.dimension_count", 4}, {"expert_gating_func", 3}}),
      "3 is not");
}

TEST(Gguf, ReadsLlama3RopeFactorsFromTheirTensor) {
  Qwen3Keys out;
  auto tensors = gguf_tensors();
  tensors.insert(tensors.begin(), {"rope_freqs.weight", {kHeadDim / 2}});
  const Bytes negative = finish_gguf(out, tensors);  // values in [-1, 1)
  expect_part(open_error(negative), "rope_freqs.weight holds");
  Bytes file = negative;
  poke(file, (after(file, "output_norm.weight") + 24 + 31) / 32 * 32, 1.0f, 1.0f, 2.0f, 8.0f);
  const auto c = open(file);
  EXPECT_EQ(c->shape().rope_factors, (Floats{1, 1, 2, 8}));
}

}
}
