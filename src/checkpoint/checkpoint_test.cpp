// Checkpoint::open on folders, shards, indexes and wrong paths; the figures of ModelInfo.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/model_info.h"
#include "checkpoint/tiny_model.h"

namespace hunch {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  void put(const std::string& name, const tiny::Bytes& bytes) {
    std::ofstream(folder_ + "/" + name).write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
  }
  void put_folder(const std::string& family) {
    put("config.json", tiny::config(family).dump());
    put("model.safetensors", tiny::safetensors(tiny::folder_tensors(family)));
  }
  // The first `cut` tensors in one shard, the rest in another.
  nlohmann::json put_shards(size_t cut) {
    put("config.json", tiny::config("llama").dump());
    const auto all = tiny::folder_tensors("llama");
    const std::vector<tiny::NamedShape> first(all.begin(), all.begin() + std::ptrdiff_t(cut)),
        second(all.begin() + std::ptrdiff_t(cut), all.end());
    put("model-00001-of-00002.safetensors", tiny::safetensors(first));
    put("model-00002-of-00002.safetensors", tiny::safetensors(second));
    nlohmann::json map;
    for (const auto& tensor : first) map[tensor.name] = "model-00001-of-00002.safetensors";
    for (const auto& tensor : second) map[tensor.name] = "model-00002-of-00002.safetensors";
    put_index(map);
    return map;
  }
  void put_index(const nlohmann::json& map) { put("model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump()); }
  static std::unique_ptr<Checkpoint> open(const std::string& path) {
    auto opened = Checkpoint::open(path);
    if (!opened.ok()) ADD_FAILURE() << opened.error().message;
    return std::move(opened).value();
  }
  std::string error_of(const std::string& path) {
    auto opened = Checkpoint::open(path);
    return opened.ok() ? "accepted" : opened.error().message;
  }
  void expect_error(const std::string& path, const std::string& part) {
    const std::string message = error_of(path);
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }

  std::string root_ = testing::TempDir() + "hunch_checkpoint_" + std::to_string(getpid()), folder_ = root_ + "/model";
};

TEST_F(CheckpointTest, OpensFoldersOfEveryFamily) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"}) {
    put_folder(family);
    const auto opened = open(folder_);
    EXPECT_EQ(opened->tensors().size(), tiny::folder_tensors(family).size());
    EXPECT_EQ(opened->format(), "safetensors");
    EXPECT_EQ(opened->file_bytes(), fs::file_size(folder_ + "/model.safetensors"));
  }
}

TEST_F(CheckpointTest, OpensShardsAsOneModelFromFolderOrShard) {
  put_shards(5);
  for (const std::string& path : {folder_, folder_ + "/model-00002-of-00002.safetensors"}) {
    const auto opened = open(path);
    EXPECT_EQ(opened->tensors().size(), tiny::folder_tensors("llama").size());
  }
}

TEST_F(CheckpointTest, RefusesAnIndexThatPointsElsewhere) {
  const nlohmann::json map = put_shards(5);
  for (const char* name : {"../model.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", "", ".hidden.safetensors"}) {
    nlohmann::json bad = map;
    bad["model.norm.weight"] = name;
    put_index(bad);
    expect_error(folder_, "model.norm.weight: not a plain *.safetensors name");
  }
  nlohmann::json bad = map;
  bad["model.norm.weight"] = "model-00003-of-00002.safetensors";
  put_index(bad);
  expect_error(folder_, "missing shards: model-00003-of-00002.safetensors");
  bad["model.norm.weight"] = "model-00001-of-00002.safetensors";
  put_index(bad);
  expect_error(folder_, "the index places tensor model.norm.weight here");
  put("model.safetensors.index.json", "{}");
  expect_error(folder_, "weight_map");
}

TEST_F(CheckpointTest, RefusesALinkedShardOutsideButAllowsHubCacheLinks) {
  put_shards(5);
  const std::string shard = folder_ + "/model-00001-of-00002.safetensors";
  fs::create_directories(root_ + "/elsewhere");
  fs::rename(shard, root_ + "/elsewhere/blob");
  fs::create_symlink(root_ + "/elsewhere/blob", shard);
  expect_error(folder_, "is a link that leaves the folder");
  // models--x/snapshots/rev/shard -> models--x/blobs/...
  const std::string entry = root_ + "/models--x";
  fs::create_directories(entry + "/snapshots");
  fs::create_directories(entry + "/blobs");
  fs::remove(shard);
  fs::rename(root_ + "/elsewhere/blob", entry + "/blobs/b");
  fs::rename(folder_, entry + "/snapshots/rev");
  fs::create_symlink("../../blobs/b", entry + "/snapshots/rev/model-00001-of-00002.safetensors");
  EXPECT_EQ(error_of(entry + "/snapshots/rev"), "accepted");
}

TEST_F(CheckpointTest, NamesMissingMisshapenAndSuperfluousTensors) {
  put("config.json", tiny::config("qwen3").dump());
  auto tensors = tiny::folder_tensors("qwen3");
  std::erase_if(tensors, [](const auto& t) { return t.name == "model.layers.1.self_attn.k_norm.weight"; });
  put("model.safetensors", tiny::safetensors(tensors));
  expect_error(folder_, "missing tensor blk.1.attn_k_norm.weight of shape [8]");
  tensors = tiny::folder_tensors("qwen3");
  for (auto& t : tensors)
    if (t.name == "model.layers.0.mlp.up_proj.weight") t.shape = {tiny::kHidden, tiny::kFfn};
  put("model.safetensors", tiny::safetensors(tensors));
  expect_error(folder_, "blk.0.ffn_up.weight has shape [32, 64], expected [64, 32]");
  tensors = tiny::folder_tensors("qwen3");
  tensors.push_back({"model.layers.0.self_attn.o_proj.bias", {tiny::kHidden}});
  put("model.safetensors", tiny::safetensors(tensors));
  expect_error(folder_, "blk.0.attn_output.bias is not part of a qwen3 model");
  put("model.safetensors", tiny::safetensors("{}", 0));
  expect_error(folder_, "missing tensor token_embd.weight");
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
  put("config.json", tiny::config("llama").dump());
  auto tensors = tiny::folder_tensors("llama");
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {4}});
  put("model.safetensors", tiny::safetensors(tensors));
  EXPECT_EQ(error_of(folder_), "accepted");
}

TEST_F(CheckpointTest, WrongPathsAndFormatsGetAMessageThatHelps) {
  expect_error(root_ + "/none.gguf", "No such file");
  expect_error(folder_, "no model.safetensors");
  put("pytorch_model.bin", "x");
  expect_error(folder_, "convert them to safetensors");
  expect_error(folder_ + "/pytorch_model.bin", "convert them to safetensors");
  put("model.gguf", tiny::gguf_qwen3());
  EXPECT_EQ(error_of(folder_ + "/model.gguf"), "accepted");
  put("renamed.safetensors", tiny::gguf_qwen3());
  expect_error(folder_ + "/renamed.safetensors", "holds GGUF data");
  fs::remove(folder_ + "/renamed.safetensors");
  put("renamed.gguf", tiny::safetensors(tiny::folder_tensors("llama")));
  expect_error(folder_ + "/renamed.gguf", "not a GGUF file");
  put("model.safetensors", tiny::safetensors(tiny::folder_tensors("llama")));
  expect_error(folder_, "no config.json");
  put("empty.gguf", "");
  expect_error(folder_ + "/empty.gguf", "empty");
}

TEST_F(CheckpointTest, InfoCountsTheEmbeddingOnlyWhereItIsTheHead) {
  put_folder("llama");
  const auto untied = open(folder_);
  const ModelInfo info = describe(*untied);
  const uint64_t embedding = 4 * tiny::kVocab * tiny::kHidden;
  EXPECT_EQ(info.weight_bytes_per_token, info.tensor_bytes - embedding);
  EXPECT_EQ(info.parameters * 4, int64_t(info.tensor_bytes));
  ASSERT_EQ(info.encodings.size(), 1u);
  EXPECT_EQ(info.encodings[0].tensors, int(tiny::folder_tensors("llama").size()));

  put("m.gguf", tiny::gguf_qwen3());
  const auto tied = open(folder_ + "/m.gguf");
  const ModelInfo tied_info = describe(*tied);
  EXPECT_EQ(tied_info.weight_bytes_per_token, tied_info.tensor_bytes);
  EXPECT_EQ(tied_info.encodings.size(), 2u);
  const double per_token = kv_bytes_per_token(tied->shape(), DType::F16);
  EXPECT_EQ(per_token, 2.0 * 2 * tiny::kLayers * tiny::kKvHeads * tiny::kHeadDim);
  EXPECT_NEAR(double(balance_len(tied_info, tied->shape(), DType::F16)) * per_token, double(tied_info.tensor_bytes), per_token);
}

}  // namespace
}  // namespace hunch
