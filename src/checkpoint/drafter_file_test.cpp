// Learned drafters in folders and GGUF files written here: what opens, what it is taken for, and what is refused.
#include "checkpoint/drafter_file.h"

#include "base/test_folder.h"
#include "base/test_results.h"
#include "checkpoint/tiny_drafter.h"

namespace hunch {
namespace {

using namespace test;
using namespace tiny;

using nlohmann::json;

class DrafterFileTest : public FolderTest {
 protected:
  void put_eagle3() {
    put_config(eagle3_config());
    put("model.safetensors", drafter_safetensors(eagle3_tensors()));
  }
  void put_config(const json& config) { put("config.json", config.dump()); }
  void put_weights(const Tensors& tensors, const std::string& name = "model") {
    put(name + ".safetensors", safetensors(tensors));
  }
  static std::unique_ptr<DrafterFile> open(const std::string& path) { return good(DrafterFile::open(path)); }
  static std::string error_of(const std::string& path, std::string_view method = {}) {
    return test::error_of(DrafterFile::open(path, method));
  }
  void expect_refused(std::string_view part) { expect_part(error_of(folder_), part); }
};

TEST_F(DrafterFileTest, ReadsAFoldersConfigWeightsAndWholeNumbers) {
  put_eagle3();
  const auto file = open(folder_);
  EXPECT_EQ(file->method(), "eagle3");
  EXPECT_EQ(file->format(), "safetensors");
  EXPECT_EQ(file->config().integer("draft_vocab_size").value(), kDraftVocab);
  EXPECT_EQ(file->config().integers("eagle_config.eagle_aux_hidden_state_layer_ids").value(), (std::vector<int64_t>{0, 1, 1}));
  const Tensor* fc = good(file->take("fc.weight", {kHidden, 3 * kHidden}));
  EXPECT_EQ(std::memcmp(fc->data, values(3 * kHidden * kHidden, 1).data(), 64), 0);
  EXPECT_EQ(file->integers("d2t").value(), d2t());
  const auto kept = t2d();
  EXPECT_EQ(file->integers("t2d").value(), std::vector<int64_t>(kept.begin(), kept.end()));
  EXPECT_EQ(file->find("d2t"), nullptr);
  expect_error(file->integers("fc.weight"), folder_ + ": tensor fc.weight: holds weights");
  expect_error(file->take("d2t", {kDraftVocab}), "holds whole numbers");
}

TEST_F(DrafterFileTest, NamesWhatNothingTook) {
  put_eagle3();
  const auto file = open(folder_);
  expect_error(file->all_consumed(), folder_ + ": tensors fc.weight, ");
  expect_error(file->all_consumed(), " more are not part of a drafter of method eagle3");
  for (const auto& tensor : eagle3_tensors())
    if (tensor.name != "midlayer.hidden_norm.weight") file->ignore(tensor.name);
  EXPECT_EQ(file->unconsumed(), std::vector<std::string>{"midlayer.hidden_norm.weight"});
  expect_error(file->all_consumed(), ": tensor midlayer.hidden_norm.weight is not part of a drafter of method eagle3");
  EXPECT_NE(file->find("midlayer.hidden_norm.weight"), nullptr);
  EXPECT_TRUE(file->all_consumed().ok());
}

TEST_F(DrafterFileTest, TakingChecksPresenceAndShape) {
  put_eagle3();
  const auto file = open(folder_);
  expect_error(file->take("fc.bias", {kHidden}), "tensor fc.bias: missing; a drafter of method eagle3 needs it");
  EXPECT_EQ(file->take_optional("fc.bias", {kHidden}).value(), nullptr);
  expect_error(file->take("norm.weight", {kHidden + 1}), "tensor norm.weight: has shape [32], expected [33]");
}

TEST_F(DrafterFileTest, PrefixesAreStrippedUnlessTwoNamesBecomeOne) {
  put_config({{"model_type", "medusa"}});
  put_weights({{"medusa_heads.blocks.0.weight", {2, 2}}, {"lm_head.weight", {4, 2}}});
  const auto opened = open(folder_);
  ASSERT_TRUE(opened->strip_prefix("medusa_heads.").ok());
  EXPECT_TRUE(opened->has("blocks.0.weight"));
  EXPECT_FALSE(opened->has("medusa_heads.blocks.0.weight"));
  EXPECT_TRUE(opened->has("lm_head.weight"));
  put_weights({{"model.a.weight", {2, 2}}, {"a.weight", {2, 2}}});
  const auto clash = open(folder_);
  expect_error(clash->strip_prefix("model."), "tensor a.weight: appears twice");
}

TEST_F(DrafterFileTest, AModuleInsideATargetIsKeptAlone) {
  put_config({{"model_type", "qwen3"}});
  put_weights({{"mtp.fc.weight", {2, 4}}, {"model.norm.weight", {2}}, {"mtp.norm.weight", {2}}});
  const auto opened = open(folder_);
  EXPECT_EQ(opened->method(), "mtp");
  ASSERT_TRUE(opened->keep_only("mtp.").ok());
  EXPECT_EQ(opened->unconsumed(), (std::vector<std::string>{"fc.weight", "norm.weight"}));
  expect_error(opened->keep_only("x."), "no tensor is named x.*");
}

TEST_F(DrafterFileTest, TheMethodIsDetectedAsPublishersWriteIt) {
  const auto detected = [&](const json& config, const Tensors& tensors = {{"x.weight", {2, 2}}}) {
    put_config(config);
    put_weights(tensors);
    const auto opened = DrafterFile::open(folder_);
    return opened.ok() ? opened.value()->method() : opened.error().message;
  };
  for (const auto& [name, method] : {std::pair("LlamaForCausalLMEagle3", "eagle3"), {"Eagle3LlamaForCausalLM", "eagle3"},
           {"EagleLlamaForCausalLM", "eagle"}, {"DeepSeekMTPModel", "mtp"}, {"EagleDeepSeekMTPModel", "mtp"},
           {"MedusaModel", "medusa"}, {"LlamaForCausalLM", "draft_model"}})
    EXPECT_EQ(detected({{"architectures", {name}}, {"model_type", "llama"}}), method) << name;
  EXPECT_EQ(detected({{"model_type", "qwen3_next_mtp"}}), "mtp");
  EXPECT_EQ(detected({{"speculators_model_type", "eagle3"}}), "eagle3");
  EXPECT_EQ(detected({{"medusa_num_heads", 3}, {"medusa_num_layers", 1}}), "medusa");
  EXPECT_EQ(detected({{"model_type", "llama"}, {"eagle_config", json::object()}}), "eagle3");
  EXPECT_EQ(detected({{"model_type", "deepseek_v3"}, {"num_nextn_predict_layers", 1}}), "mtp");
  // EAGLE's first heads call themselves llama: only their tensors tell.
  EXPECT_EQ(detected({{"model_type", "llama"}}, {{"fc.weight", {2, 4}}, {"layers.0.mlp.up_proj.weight", {2, 2}}}), "eagle");
  EXPECT_EQ(detected({{"model_type", "llama"}}, {{"midlayer.hidden_norm.weight", {2}}, {"fc.weight", {2, 6}}}), "eagle3");
  expect_part(detected({{"model_type", "gpt7"}}),
      "no drafter that is known (speculators_model_type absent, architectures absent, model_type gpt7;");
  expect_part(detected({{"speculators_model_type", "dflash"}}, {{"fc.weight", {2, 4}}}), "speculators_model_type dflash");
  expect_part(detected({{"model_type", 7}}), folder_ + "/config.json: model_type: must be a string, not a whole number");
  expect_part(detected({{"architectures", "Eagle"}}), "architectures: must be a list of strings, not a string");
}

TEST_F(DrafterFileTest, ASaidMethodHelpsWhereNothingIsFoundAndNeverContradicts) {
  put_eagle3();
  EXPECT_EQ(error_of(folder_, "eagle3"), "accepted");
  EXPECT_EQ(error_of(folder_, "medusa"), folder_ + ": a drafter of method eagle3, not medusa");
  expect_part(error_of(folder_, "ngram"), "unknown method ngram of a drafter; known are draft_model, medusa, eagle, eagle3, mtp");
  put("config.json", "{}");
  put_weights({{"0.0.linear.weight", {2, 2}}});
  expect_refused("no drafter that is known");
  EXPECT_EQ(error_of(folder_, "medusa"), "accepted");
}

TEST_F(DrafterFileTest, FindsTheOnlyWeightsOfAFolderOrTheNamedOnes) {
  put_config({{"medusa_num_heads", 1}});
  put_weights({{"0.0.linear.weight", {2, 2}}}, "heads");
  EXPECT_EQ(error_of(folder_), "accepted");
  put_weights({{"1.0.linear.weight", {2, 2}}}, "other");
  expect_refused("2 *.safetensors files and no index of them");
  EXPECT_EQ(error_of(at("other.safetensors")), "accepted");
  put_weights({{"2.0.linear.weight", {2, 2}}}, "medusa_lm_head");
  const auto opened = open(folder_);
  EXPECT_TRUE(opened->has("2.0.linear.weight"));
}

TEST_F(DrafterFileTest, ShardsAreOneDrafterAndATensorIsInOneOfThem) {
  put_config({{"model_type", "eagle3"}});
  put_weights({{"fc.weight", {2, 6}}}, "a");
  put_weights({{"norm.weight", {2}}}, "b");
  put("model.safetensors.index.json",
      json{{"weight_map", {{"fc.weight", "a.safetensors"}, {"norm.weight", "b.safetensors"}}}}.dump());
  const auto opened = open(folder_);
  EXPECT_EQ(opened->unconsumed(), (std::vector<std::string>{"fc.weight", "norm.weight"}));
  put_weights({{"fc.weight", {2, 6}}}, "b");
  expect_refused(folder_ + ": tensor fc.weight: appears twice");
}

TEST_F(DrafterFileTest, PicklesAreRefusedWithTheCommandThatConvertsThem) {
  put_config({{"medusa_num_heads", 1}});
  put("medusa_lm_head.pt", "x");
  for (const std::string& path : {folder_, at("medusa_lm_head.pt")}) {
    expect_part(error_of(path), at("medusa_lm_head.pt") + ": pickled weights can run code and are not read");
    expect_part(error_of(path), "python3 -c \"import torch, safetensors.torch as s; s.save_file({k: v.clone().contiguous()");
    expect_part(error_of(path), "'" + at("medusa_lm_head.safetensors") + "')\"");
  }
}

TEST_F(DrafterFileTest, WrongPathsAndConfigsGetAMessageThatHelps) {
  expect_part(error_of(at("none")), "No such file");
  expect_refused("no model.safetensors");
  put("model.safetensors", drafter_safetensors(eagle3_tensors()));
  expect_refused("no config.json beside the weights");
  for (const auto& [text, part] : {
           std::pair{"[]", "must be a JSON object, not a list"},
           {"{", "not valid JSON"},
           {"{\"quantization_config\": {}}", "quantised Hugging Face checkpoints are not supported"},
       }) {
    put("config.json", text);
    expect_refused(folder_ + "/config.json: ");
    expect_refused(part);
  }
  put("config.json", std::string(1000, '['));
  expect_refused("nested deeper than 64");
  put("config.json", "{\"model_type\": \"eagle3\"}");
  put("model.safetensors", safetensors("{}", 0));
  expect_refused(folder_ + ": holds no tensors");
  put("model.safetensors", safetensors(R"({"fc.weight":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]}})", 4));
  expect_refused("fp8 is read in models, not in drafters");
  put("note.txt", "hello");
  expect_part(error_of(at("note.txt")), "not a GGUF file");
}

TEST_F(DrafterFileTest, ReadsGgufDraftersWithQuantisedMatricesAndMaps) {
  put("d.gguf", gguf_eagle3(DType::Q4_0));
  const auto file = open(at("d.gguf"));
  EXPECT_EQ(file->method(), "eagle3");
  EXPECT_EQ(file->format(), "gguf");
  EXPECT_EQ(file->config_text(), eagle3_config().dump());
  EXPECT_EQ(file->take("fc.weight", {kHidden, 3 * kHidden}).value()->dtype, DType::Q4_0);
  EXPECT_EQ(file->take("norm.weight", {kHidden}).value()->dtype, DType::F32);
  EXPECT_EQ(file->integers("d2t").value()[5], 5);
  EXPECT_EQ(file->integers("t2d").value()[2], 1);
  EXPECT_EQ(file->integers("t2d").value()[3], 0);
  expect_part(error_of(at("d.gguf"), "eagle"), "a drafter of method eagle3, not eagle");
}

TEST_F(DrafterFileTest, APlainGgufModelIsADraftModelAndOthersAreRefused) {
  put("m.gguf", gguf_qwen3());
  const auto opened = open(at("m.gguf"));
  EXPECT_EQ(opened->method(), "draft_model");
  const auto with_keys = [&](const char* architecture, const char* method, bool config) {
    GgufWriter out;
    out.add_text("general.architecture", architecture);
    if (*method) out.add_text(kDrafterMethodKey, method);
    if (config) out.add_text(kDrafterConfigKey, "{}");
    put("x.gguf", finish_gguf(out, {{"fc.weight", {32, 32}}}));
    return error_of(at("x.gguf"));
  };
  expect_part(
      with_keys("eagle3", "", false), "key general.architecture: eagle3 is no drafter that is read; hunch quantize makes one");
  expect_part(with_keys("hunch-drafter", "eagle3", false), "key hunch.drafter.config: missing");
  expect_part(with_keys("hunch-drafter", "", true), "key hunch.drafter.method: missing");
  expect_part(with_keys("hunch-drafter", "telepathy", true), "key hunch.drafter.method: telepathy; known are draft_model");
  EXPECT_EQ(with_keys("hunch-drafter", "mtp", true), "accepted");
}

TEST_F(DrafterFileTest, ModelsStillRefuseTablesOfWholeNumbers) {
  const Bytes folder = drafter_safetensors(eagle3_tensors()), gguf = gguf_eagle3(DType::F32);
  expect_error(parse_safetensors(folder, "f"), "type I64 is not supported (BF16, F16, F32, F8_E4M3 are)");
  expect_error(GgufFile::parse(gguf, "g"), "tensor d2t: type 27");
}

}
}
