// Learned drafters against plain PyTorch (models/tiny/README.md): the chains and trees that they draft, from the prompt and in
// the middle of decoding, on tiny models in the layouts in which such drafters are published.

#include <set>

#include "base/test_folder.h"
#include "checkpoint/tiny_model.h"
#include "logits.h"

namespace hunch {
namespace {

using namespace test;
using Json = nlohmann::json;

const Json& golden() {
  static const Json json = read_golden("drafters");
  return json;
}

struct Drafter {
  const Json* golden;
  std::unique_ptr<Engine> engine;
  std::string method;
  Ints text;  // prompt and greedy continuation
};

Drafter load_drafter(const Json& golden_of, const char* device) {
  Drafter out{.golden = &golden_of};
  const std::string name = golden_of["name"], target = golden_of["target"];
  EngineOptions options{.model = tiny_path(target), .device = device, .threads = 2, .kv_dtype = "f32"};
  options.drafters.push_back({.method = name.starts_with("draft") ? "draft_model" : "", .path = tiny_path(name)});
  out.engine = load(options);
  out.method = out.engine->parts().learned.at(0).name;
  const Json& of_target = golden()["targets"][target];
  out.text = of_target["ids"].get<Ints>();
  for (const Json& token : of_target["greedy"]) out.text.push_back(token);
  return out;
}

Request drafting(const Drafter& drafter, int64_t prompt_len, int tokens) {
  auto asked = ask({drafter.text.begin(), drafter.text.begin() + prompt_len}, 20);
  guess(asked, drafter.method, tokens);
  return asked;
}

class DrafterGolden : public testing::TestWithParam<std::tuple<std::string, const char*>> {
 protected:
  const Json& mine() const {
    for (const Json& drafter : golden()["drafters"])
      if (drafter["name"] == std::get<0>(GetParam())) return drafter;
    HUNCH_CHECK(false);
    return golden();
  }
};
std::string name_of(const testing::TestParamInfo<std::tuple<std::string, const char*>>& info) {
  return test_name(std::get<0>(info.param) + "_" + std::get<1>(info.param));
}
const std::vector<std::string> kNames{
    "eagle3", "eagle3-speculators", "eagle1", "medusa", "medusa-vllm", "mtp-deepseek", "mtp-qwen", "draft-llama"};
INSTANTIATE_TEST_SUITE_P(
    All, DrafterGolden, testing::Combine(testing::ValuesIn(kNames), testing::Values("reference", "cpu")), name_of);

// What is drafted when `committed` tokens are behind the pending one: right after a prompt, and after rounds that began with the
// first 20 tokens.
TEST_P(DrafterGolden, DraftsTheChainsOfPyTorch) {
  const Drafter drafter = load_drafter(mine(), std::get<1>(GetParam()));
  for (const Json& chain : mine()["chains"]) {
    const auto committed = chain["committed"].get<int64_t>();
    const auto wanted = chain["tokens"].get<Ints>();
    for (const int64_t prompt_len : std::set<int64_t>{20, committed}) {
      const auto run = make_step(*drafter.engine, drafting(drafter, prompt_len, int(wanted.size())));
      Ints drafted;
      run->hot_loop().after_drafts = [&](Running& who) {
        if (who.sequence.committed_len != committed) return;
        drafted.clear();
        for (int node = 0; node < who.tree().size; ++node) drafted.push_back(who.tree().tokens(node));
      };
      ASSERT_TRUE(run->prefill(nullptr).ok());
      while (run->sequence().committed_len <= committed) ASSERT_TRUE(run->round().ok());
      for (int64_t i = 0; i < run->sequence().len() && i < std::ssize(drafter.text); ++i)
        ASSERT_EQ(run->sequence().tokens[i], drafter.text[i]) << "the target's own token " << i;
      EXPECT_EQ(drafted, wanted) << "behind " << committed << " tokens, prompt of " << prompt_len;
    }
  }
}

// Tokens and parents of what the first round drafts.
std::pair<Ints, Ints> first_drafts(Engine& engine, const Request& asked) {
  const auto run = make_step(engine, asked);
  std::pair<Ints, Ints> out;
  run->hot_loop().after_drafts = [&](Running& who) {
    for (int node = 0; node < who.tree().size; ++node)
      out.first.push_back(who.tree().tokens(node)), out.second.push_back(who.tree().parents[node]);
  };
  EXPECT_TRUE(run->prefill(nullptr).ok() && run->round().ok());
  return out;
}

// Files of other makers: norms of random weights, the choice of the residual. Each changes what is drafted.
using DrafterForms = FolderTest;
TEST_F(DrafterForms, EveryNormAndTheResidualCount) {
  const auto drafts = [&](const std::string& name, const std::vector<tiny::NamedShape>& more, bool residual) {
    const std::string from = tree_path() + "/models/tiny/drafters/" + name;
    Json config = Json::parse(std::ifstream(from + "/config.json")), recipe = Json::parse(std::ifstream(from + "/weights.json"));
    config.erase("draft_vocab_size"), config["norm_before_residual"] = residual;
    put("config.json", config.dump());
    std::vector<tiny::NamedShape> tensors;
    for (const Json& t : recipe["files"][0]["tensors"])
      if (t[0] != "d2t" && t[0] != "t2d" && t[0] != "lm_head.weight") tensors.push_back({t[0], t[1]});
    tensors.insert(tensors.end(), more.begin(), more.end());
    put("model.safetensors", tiny::safetensors(tensors));
    const auto engine = load({.model = tiny_path("qwen3-deep"), .context_len = 128, .drafters = {{.path = folder_}}});
    Request asked = ask(random_prompt(40, 256, 1), 20);
    guess(asked, engine->parts().learned.at(0).name, 12);
    return first_drafts(*engine, asked);
  };
  const auto count = [&](const char* name, const std::vector<tiny::NamedShape>& more, bool residual = false) {
    EXPECT_NE(drafts(name, more, residual), drafts(name, {}, false)) << name;
  };
  for (const char* norm : {"enorm.weight", "hnorm.weight", "layers.0.input_layernorm.weight", "pre_lm_head_layernorm.weight"})
    count("eagle1", {{norm, {64}}});
  count("eagle3", {{"fc.bias", {64}}});
  count("eagle3", {{"fc_norm.0.weight", {64}}, {"fc_norm.1.weight", {64}}, {"fc_norm.2.weight", {64}}});
  count("eagle3", {}, true);
}

// A prediction layer of DeepSeek's own kind, in the target's checkpoint: against transformers' layer, fed and recycled behind the
// last norm (make_golden.py).
TEST(LatentPrediction, DraftsTheChainsOfTransformers) {
  const Json data = read_golden("deepseek-v3");
  for (const char* device : {"reference", "cpu"}) {
    EngineOptions options{.model = tiny_path("deepseek-v3"), .device = device, .threads = 2, .kv_dtype = "f32"};
    options.drafters.push_back({.method = "mtp"});
    const auto engine = load(options);
    for (const Json& c : data["cases"]) {
      const auto wanted = c["mtp"].get<Ints>();
      auto asked = ask(c["ids"].get<Ints>(), 20);
      guess(asked, "mtp", int(wanted.size()));
      EXPECT_EQ(first_drafts(*engine, asked).first, wanted) << device << " " << c["name"];
    }
  }
}

// Paths of a tree's nodes, as texts of token ids.
std::set<std::string> paths(const Ints& tokens, const Ints& parents, const Ints& which) {
  std::set<std::string> out;
  for (const int node : which) {
    std::string path;
    for (int at = node; at >= 0; at = parents[at]) path = fmt::format("{} {}", tokens[at], path);
    out.insert(path);
  }
  return out;
}

using DrafterTrees = DrafterGolden;
INSTANTIATE_TEST_SUITE_P(Eagle, DrafterTrees,
    testing::Combine(testing::Values("eagle3", "eagle3-speculators", "eagle1"), testing::Values("reference", "cpu")), name_of);

TEST_P(DrafterTrees, AreThoseOfPyTorch) {
  const Drafter drafter = load_drafter(mine(), std::get<1>(GetParam()));
  const Json& tree = mine()["tree"];
  const int total = tree["total"], depth = tree["depth"], top_k = tree["top_k"];
  // Levels behind the first are `depth`: chains of depth + 1 tokens.
  Request asked = drafting(drafter, 20, depth + 1);
  asked.speculation.tree_tokens = total - 1 - (depth + 1);
  asked.speculation.tree_top_k = top_k;
  const auto [tokens, parents] = first_drafts(*drafter.engine, asked);
  Ints all(tokens.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(paths(tokens, parents, all), paths(tree["tokens"], tree["parents"], tree["kept"]));
}

}
}
