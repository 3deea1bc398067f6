// Folder to GGUF and back: values, permutation, vocabulary, rope, fallbacks, refusals, no partial files.
#include "checkpoint/convert.h"

#include <cmath>
#include <set>

#include "base/test_folder.h"
#include "base/test_results.h"
#include "checkpoint/config.h"
#include "checkpoint/tiny_model.h"

namespace hunch {
namespace {

using namespace test;
using namespace tiny;
using enum DType;
namespace fs = std::filesystem;
using nlohmann::json;

class ConvertTest : public FolderTest {
 protected:
  void put_model(const std::string& family, json config = nullptr) {
    put("config.json", (config.is_null() ? tiny::config(family) : config).dump());
    put("tokenizer.json", tiny::tokenizer().dump());
    put("tokenizer_config.json",
        R"({"pad_token":"<|end|>","chat_template":[{"name":"default","template":"T"},{"name":"tool_use","template":"U"}]})");
    put("generation_config.json", R"({"eos_token_id":[30,3],"temperature":0.7,"top_k":20})");
    put("model.safetensors", safetensors(folder_tensors(family)));
  }
  std::unique_ptr<Checkpoint> unconverted() const { return good(Checkpoint::open(folder_)); }
  std::unique_ptr<Checkpoint> converted(DType type, const std::string& in = "") {
    const ConvertReport report = good(quantise_checkpoint(in.empty() ? folder_ : in, out_, type));
    EXPECT_EQ(report.bytes_out, fs::file_size(out_));
    notes_ = report.notes;
    return good(Checkpoint::open(out_));
  }
  Result<ConvertReport> written(const std::string& out, DType type = Q8_0) { return quantise_checkpoint(folder_, out, type); }

  const std::string out_ = at("out.gguf");
  std::vector<std::string> notes_;
};

TEST_F(ConvertTest, RefusesModelsWithExpertsByName) {
  put_model("qwen3_moe");
  expect_error(written(out_), "models with experts (qwen3_moe) cannot be written to GGUF yet");
  EXPECT_FALSE(fs::exists(out_));
}

// Compressors decide what is read: they stay as exact as a GGUF file can be.
TEST_F(ConvertTest, NsaKeepsItsKeysAndExactCompressors) {
  json config = tiny::config("nsa");
  config["nsa"]["window_counts_self"] = false;
  put_model("nsa", config);
  const auto original = unconverted(), c = converted(Q8_0);
  const auto fields = [](const NsaShape& n) {
    return std::tie(n.variant, n.kind, n.cmp_len, n.cmp_stride, n.rope_before, n.block_positions, n.sel_block, n.sel_count,
        n.init_blocks, n.local_blocks, n.window);
  };
  EXPECT_EQ(c->shape().family, "nsa");
  EXPECT_EQ(original->shape().nsa.window, 25);
  EXPECT_EQ(fields(c->shape().nsa), fields(original->shape().nsa));
  for (const char* name : {"blk.1.nsa_cmp_k.weight", "blk.1.nsa_cmp_v.weight", "blk.1.nsa_cmp_pe.weight"}) {
    ASSERT_NE(c->find(name), nullptr) << name;
    EXPECT_EQ(values_of(*c->find(name)), values_of(*original->find(name))) << name;
  }
  EXPECT_EQ(c->find("blk.0.nsa_gate.weight")->dtype, Q8_0);
}

TEST_F(ConvertTest, Qwen3KeepsShapeVocabularyAndDefaults) {
  put_model("qwen3");
  const auto c = converted(Q8_0), original = unconverted();
  const auto fields = [](const ModelShape& s) {
    return std::tie(s.family, s.vocab_size, s.hidden, s.ffn, s.layers, s.heads, s.kv_heads, s.head_dim, s.context_len);
  };
  EXPECT_EQ(fields(c->shape()), fields(original->shape()));
  EXPECT_EQ(c->shape().eos_ids, (Ints{30, 3}));
  EXPECT_EQ(std::tie(c->sampling().temperature, c->sampling().top_k), std::tuple(0.7, 20));
  const TokenizerSource& t = c->tokenizer();
  EXPECT_EQ(std::tie(t.model, t.pre, t.chat_template, t.add_bos), std::tuple("gpt2", "qwen2", "T", false));
  EXPECT_EQ(std::tie(t.tokens[3], t.tokens[39], t.merges[0]), std::tuple("d", "[PAD39]", "a b"));
  EXPECT_EQ(Ints(t.token_types.begin() + 29, t.token_types.begin() + 33), (Ints{1, 3, 4, 5}));
  EXPECT_EQ(tool_template(t), "U");
  for (const Tensor& tensor : c->tensors()) EXPECT_EQ(tensor.dtype, tensor.shape.size() > 1 ? Q8_0 : F32) << tensor.name;

  auto tokenizer = tiny::tokenizer();
  tokenizer.erase("normalizer");
  put("tokenizer.json", tokenizer.dump());
  EXPECT_EQ(converted(Q8_0)->tokenizer().pre, "deepseek-r1-qwen");
}

TEST_F(ConvertTest, TakesTheTokenizersTemplateAndMerges) {
  put_model("qwen3");
  auto tokenizer = tiny::tokenizer();
  tokenizer["post_processor"] = json::parse(R"({"type": "Sequence", "processors": [
      {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>"}}, {"Sequence": {"id": "A"}}]}]})");
  auto& split = tokenizer["pre_tokenizer"]["pretokenizers"];
  std::string regex = split[0]["pattern"]["Regex"];
  split[0]["pattern"]["Regex"] = regex.replace(regex.find("|\\p{N}|") + 6, 0, "{1,3}");
  tokenizer["model"]["merges"][0] = {"a", "b"};
  put("tokenizer.json", tokenizer.dump());
  put("tokenizer_config.json", R"({"add_bos_token":false})");
  const TokenizerSource t = converted(Q8_0)->tokenizer();
  EXPECT_EQ(std::tie(t.pre, t.add_bos, t.merges[0]), std::tuple("llama-bpe", true, "a b"));
  const std::pair<const char*, json> cases[] = {{"/model/byte_fallback", true}, {"/pre_tokenizer/pretokenizers/0/invert", true},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true}};
  for (const auto& [where, what] : cases) {
    auto other = tokenizer;
    other[json::json_pointer(where)] = what;
    put("tokenizer.json", other.dump());
    EXPECT_FALSE(written(out_).ok()) << where;
  }
}

TEST_F(ConvertTest, WritesTheValuesOfEveryTensorInF32) {
  put_model("qwen2");
  const auto c = converted(F32), original = unconverted();
  ASSERT_EQ(c->tensors().size(), original->tensors().size());
  for (const Tensor& tensor : original->tensors()) {
    ASSERT_NE(c->find(tensor.name), nullptr);
    EXPECT_EQ(values_of(*c->find(tensor.name)), values_of(tensor)) << tensor.name;
  }
}

TEST_F(ConvertTest, LlamaQueryAndKeyRowsBecomeNeighbours) {
  for (const char* family : {"llama", "mistral"}) {
    put_model(family);
    const auto c = converted(F32), original = unconverted();
    EXPECT_EQ(c->shape().family, "llama");
    EXPECT_EQ(c->shape().rope_pairs, RopePairs::Neighbours);
    EXPECT_EQ(c->shape().sliding_window, std::string(family) == "mistral" ? 4096 : 0);
    const auto from = values_of(*original->find("blk.1.attn_k.weight")), to = values_of(*c->find("blk.1.attn_k.weight"));
    for (int head = 0; head < kKvHeads; ++head)
      for (int i = 0; i < kHeadDim / 2; ++i)
        for (int half = 0; half < 2; ++half) {
          const int source = head * kHeadDim + half * kHeadDim / 2 + i, target = head * kHeadDim + 2 * i + half;
          EXPECT_EQ(from[size_t(source) * kHidden + 5], to[size_t(target) * kHidden + 5]);
        }
    EXPECT_EQ(values_of(*original->find("blk.1.attn_v.weight")), values_of(*c->find("blk.1.attn_v.weight")));
  }
}

TEST_F(ConvertTest, Llama3ScalingBecomesFactors) {
  auto config = tiny::config("llama");
  config["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4},
      {"original_max_position_embeddings", 64}};
  put_model("llama", config);
  const auto c = converted(Q8_0);
  const auto& factors = c->shape().rope_factors;
  ASSERT_EQ(factors.size(), size_t(kHeadDim / 2));
  EXPECT_EQ(factors[0], 1);  // wavelength 2 pi < 64 / 4
  EXPECT_GT(factors[1], 1);  // 62.8 lies between 64 / 4 and 64
  EXPECT_LT(factors[1], 8);
  EXPECT_EQ(factors[2], 8);
}

TEST_F(ConvertTest, YarnSurvivesTheRoundTrip) {
  auto config = tiny::config("qwen3");
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 512},
      {"attention_factor", 1.5}, {"beta_fast", 20}};
  put_model("qwen3", config);
  const auto c = converted(Q8_0);
  const RopeScaling& scaling = c->shape().rope_scaling;
  EXPECT_NEAR(scaling.attention_factor, 1.5, 1e-6);
  EXPECT_EQ(std::tie(scaling.beta_fast, scaling.original_context, c->shape().context_len), std::tuple(20, 512, 2048));
}

TEST_F(ConvertTest, RowsThatNoBlockDividesFallBackWithANote) {
  put_model("qwen3");  // rows of 32 and 64: no 256-element blocks
  const auto c = converted(Q4_K);
  EXPECT_EQ(c->find("blk.0.ffn_up.weight")->dtype, Q8_0);
  ASSERT_FALSE(notes_.empty());
  expect_part(notes_[0], "token_embd.weight: q8_0 instead of q4_k");
}

TEST_F(ConvertTest, GgufInputsKeepTheirKeysAndEqualBlocks) {
  put_model("qwen3");
  converted(Q8_0);
  const auto first = at("first.gguf");
  fs::rename(out_, first);
  converted(Q8_0, first);
  std::ifstream a(first), b(out_);
  const std::string one{std::istreambuf_iterator<char>(a), {}}, two{std::istreambuf_iterator<char>(b), {}};
  EXPECT_EQ(one, two);
  EXPECT_EQ(converted(Q4_0, first)->tokenizer().tokens[3], "d");
}

TEST_F(ConvertTest, RefusesBadDestinationsAndLeavesNoPartialFile) {
  put_model("qwen3");
  expect_error(written(at("model.safetensors")), "must be named *.gguf");
  fs::create_hard_link(at("model.safetensors"), at("same.gguf"));
  expect_error(written(at("same.gguf")), "overwrite the input");
  fs::remove(at("same.gguf"));
  expect_error(written(at("none/x.gguf")), "cannot create");
  expect_error(written(out_, Q6_K), "q6_k cannot be written");
  const std::atomic<bool> interrupted = true;
  expect_error(quantise_checkpoint(folder_, out_, Q8_0, {}, &interrupted), "interrupted");
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder_)) left.insert(entry.path().filename());
  EXPECT_EQ(left,
      (std::set<std::string>{
          "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}));
}

TEST_F(ConvertTest, RefusesWeightsThatTheEncodingCannotHold) {
  put_model("qwen3");
  const auto put_last = [&](float value) {
    auto bytes = safetensors(folder_tensors("qwen3"));
    std::memcpy(bytes.data() + bytes.size() - 4, &value, 4);
    put("model.safetensors", bytes);
  };
  put_last(NAN);
  expect_error(written(out_), "output.weight holds NaN");
  EXPECT_FALSE(fs::exists(out_));
  put_last(70000);
  expect_error(written(out_, F16), "output.weight holds NaN or a value too large for f16");
  EXPECT_TRUE(written(out_).ok());
}

TEST_F(ConvertTest, RefusesTokenizersThatGgufHasNoNameFor) {
  put_model("qwen3");
  const std::pair<const char*, const char*> cases[] = {
      {"/model/type", "Unigram"}, {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "x+"}, {"/model/vocab/a", nullptr}};
  for (const auto& [where, what] : cases) {
    auto tokenizer = tiny::tokenizer();
    tokenizer[json::json_pointer(where)] = what ? json(what) : json(1000);
    put("tokenizer.json", tokenizer.dump());
    expect_error(written(out_), "tokenizer.json: ");
  }
  put("tokenizer.json", std::string(100000, '['));
  expect_error(written(out_), "nested deeper");
}

TEST_F(ConvertTest, ReportsProgressUpToTheWhole) {
  put_model("qwen3");
  uint64_t done = 0, total = 0;
  const auto report = good(quantise_checkpoint(folder_, out_, Q8_0, [&](const ConvertProgress& p) {
    EXPECT_GT(p.bytes_done, done);
    done = p.bytes_done, total = p.bytes_total;
  }));
  EXPECT_EQ(done, total);
  EXPECT_EQ(done, report.bytes_in);
}

}
}
