// Checkpoint::open on folders, shards, indexes and wrong paths; the figures of ModelInfo.
#include "checkpoint/checkpoint.h"

#include "base/test_folder.h"
#include "base/test_results.h"
#include "checkpoint/model_info.h"
#include "checkpoint/tiny_model.h"

namespace hunch {
namespace {

using namespace tiny;

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kFirst = "model-00001-of-00002.safetensors", kSecond = "model-00002-of-00002.safetensors";

class CheckpointTest : public test::FolderTest {
 protected:
  void put_config(const char* family) { put("config.json", tiny::config(family).dump()); }
  void put_weights(const Tensors& tensors) { put("model.safetensors", safetensors(tensors)); }
  void put_folder(const char* family) { put_config(family), put_weights(folder_tensors(family)); }
  // The first `cut` tensors in one shard, the rest in another.
  json put_shards(size_t cut) {
    put_config("llama");
    const auto all = folder_tensors("llama");
    const auto middle = all.begin() + cut;
    put(kFirst, safetensors({all.begin(), middle}));
    put(kSecond, safetensors({middle, all.end()}));
    json map;
    for (size_t i = 0; i < all.size(); ++i) map[all[i].name] = i < cut ? kFirst : kSecond;
    put_index(map);
    return map;
  }
  void put_index(const json& map) { put("model.safetensors.index.json", json{{"weight_map", map}}.dump()); }
  static std::unique_ptr<Checkpoint> open(const std::string& path) { return test::good(Checkpoint::open(path)); }
  static std::string error_of(const std::string& path) { return test::error_of(Checkpoint::open(path)); }
  void expect_error(std::string_view part, const std::string& file = "") { test::expect_part(error_of(at(file)), part); }
};

TEST_F(CheckpointTest, OpensFoldersOfEveryFamily) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"}) {
    put_folder(family);
    const auto opened = open(folder_);
    EXPECT_EQ(opened->tensors().size(), folder_tensors(family).size());
    EXPECT_EQ(opened->format(), "safetensors");
    EXPECT_EQ(opened->file_bytes(), fs::file_size(at("model.safetensors")));
  }
}

TEST_F(CheckpointTest, OpensShardsAsOneModelFromFolderOrShard) {
  put_shards(5);
  for (const std::string& path : {folder_, at(kSecond)}) EXPECT_EQ(open(path)->tensors().size(), folder_tensors("llama").size());
}

TEST_F(CheckpointTest, AFileThatIsNoShardStandsAlone) {
  put_shards(5);
  const std::string other = "other.safetensors";
  put(other, safetensors(folder_tensors("llama")));
  EXPECT_EQ(open(at(other))->file_bytes(), fs::file_size(at(other)));
}

TEST_F(CheckpointTest, TheSpecialTokensMapMayNameTheEnd) {
  put_folder("llama");
  auto config = tiny::config("llama");
  config.erase("eos_token_id");
  put("config.json", config.dump());
  put("tokenizer_config.json", R"({"added_tokens_decoder":{"30":{"content":"</s>"}}})");
  put("special_tokens_map.json", R"({"eos_token":"</s>"})");
  EXPECT_EQ(open(folder_)->shape().eos_ids, Ints{30});
}

TEST_F(CheckpointTest, RefusesAnIndexThatPointsElsewhere) {
  put_shards(5);
  put(kSecond, safetensors(folder_tensors("llama")));
  expect_error("token_embd.weight appears twice");
  json map = put_shards(5);
  const auto expect_refused = [&](const std::string& shard, std::string_view part) {
    map["model.norm.weight"] = shard;
    put_index(map);
    expect_error(part);
  };
  for (const char* name : {"../model.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", "", ".hidden.safetensors"})
    expect_refused(name, "model.norm.weight: not a plain *.safetensors name");
  expect_refused("model-00003-of-00002.safetensors", "missing shards: model-00003-of-00002.safetensors");
  expect_refused(kFirst, "the index places tensor model.norm.weight here");
  put("model.safetensors.index.json", "{}");
  expect_error("weight_map");
}

TEST_F(CheckpointTest, RefusesALinkedShardOutsideButAllowsHubCacheLinks) {
  put_shards(5);
  const auto shard = at(kFirst), outside = folder_ + "_outside";
  fs::create_directories(outside);
  fs::rename(shard, outside + "/blob");
  fs::create_symlink(outside + "/blob", shard);
  expect_error("is a link that leaves the folder");
  // models--x/snapshots/rev/shard -> models--x/blobs/...
  const std::string entry = outside + "/models--x", rev = entry + "/snapshots/rev";
  fs::create_directories(entry + "/snapshots");
  fs::create_directories(entry + "/blobs");
  fs::remove(shard);
  fs::rename(outside + "/blob", entry + "/blobs/b");
  fs::rename(folder_, rev);
  fs::create_symlink("../../blobs/b", rev + "/" + kFirst);
  EXPECT_EQ(error_of(rev), "accepted");
  fs::remove_all(outside);
}

TEST_F(CheckpointTest, NamesMissingMisshapenAndSuperfluousTensors) {
  put_config("qwen3");
  const auto all = folder_tensors("qwen3");
  put_weights(without(all, "model.layers.1.self_attn.k_norm.weight"));
  expect_error("missing tensor blk.1.attn_k_norm.weight of shape [8]");
  put_weights(reshaped(all, "model.layers.0.mlp.up_proj.weight", {kHidden, kFfn}));
  expect_error("blk.0.ffn_up.weight has shape [32, 64], expected [64, 32]");
  auto tensors = all;
  tensors.push_back({"model.layers.0.self_attn.o_proj.bias", {kHidden}});
  put_weights(tensors);
  expect_error("blk.0.attn_output.bias is not part of a qwen3 model");
  put("model.safetensors", safetensors("{}", 0));
  expect_error("missing tensor token_embd.weight");
}

TEST_F(CheckpointTest, ATiedHeadIsTheEmbeddingEvenWhereTheFileStoresIt) {
  auto config = tiny::config("llama");
  config["tie_word_embeddings"] = true;
  put_folder("llama");
  put("config.json", config.dump());
  const auto opened = open(folder_);
  EXPECT_TRUE(opened->shape().tied_head);
  EXPECT_EQ(opened->find("output.weight"), nullptr);
}

TEST_F(CheckpointTest, IgnoresStoredRotaryFrequencies) {
  put_config("llama");
  auto tensors = folder_tensors("llama");
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {4}});
  put_weights(tensors);
  EXPECT_EQ(error_of(folder_), "accepted");
}

TEST_F(CheckpointTest, WrongPathsAndFormatsGetAMessageThatHelps) {
  expect_error("No such file", "none.gguf");
  expect_error("no model.safetensors");
  put("pytorch_model.bin", "x");
  expect_error("convert them to safetensors");
  expect_error("convert them to safetensors", "pytorch_model.bin");
  put("model.gguf", gguf_qwen3());
  EXPECT_EQ(error_of(at("model.gguf")), "accepted");
  put("renamed.safetensors", gguf_qwen3());
  expect_error("holds GGUF data", "renamed.safetensors");
  fs::remove(at("renamed.safetensors"));
  put("renamed.gguf", safetensors(folder_tensors("llama")));
  expect_error("not a GGUF file", "renamed.gguf");
  put_weights(folder_tensors("llama"));
  expect_error("no config.json");
  put("empty.gguf", "");
  expect_error("empty", "empty.gguf");
}

TEST_F(CheckpointTest, InfoCountsTheEmbeddingOnlyWhereItIsTheHead) {
  put_folder("llama");
  const ModelInfo info = describe(*open(folder_));
  const uint64_t embedding = 4 * kVocab * kHidden;
  EXPECT_EQ(info.weight_bytes_per_token, info.tensor_bytes - embedding);
  EXPECT_EQ(info.parameters * 4, int64_t(info.tensor_bytes));
  ASSERT_EQ(info.encodings.size(), 1u);
  EXPECT_EQ(info.encodings[0].tensors, int(folder_tensors("llama").size()));

  put("m.gguf", gguf_qwen3());
  const auto tied = open(at("m.gguf"));
  const ModelInfo tied_info = describe(*tied);
  EXPECT_EQ(tied_info.weight_bytes_per_token, tied_info.tensor_bytes);
  EXPECT_EQ(tied_info.encodings.size(), 2u);
  const double per_token = kv_bytes_per_token(tied->shape(), DType::F16);
  EXPECT_EQ(per_token, 2.0 * 2 * kLayers * kKvHeads * kHeadDim);
  EXPECT_NEAR(double(balance_len(tied_info, tied->shape(), DType::F16)) * per_token, double(tied_info.tensor_bytes), per_token);
}

}
}
