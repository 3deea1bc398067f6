// Drafters by flag and by configuration: which are loaded, which guesses, and what is refused.

#include <tuple>

#include "api/token_tree.h"
#include "base/test_folder.h"
#include "checkpoint/tiny_drafter.h"
#include "cli/drafter_report.h"
#include "cli/test_flags.h"
#include "engine/plan.h"

namespace hunch {
namespace {

using namespace test;

class DrafterFlags : public FolderTest {
 protected:
  void SetUp() override {
    put("eagle/config.json", tiny::eagle3_config().dump());
    put("eagle/model.safetensors", tiny::drafter_safetensors(tiny::eagle3_tensors()));
    put("medusa/config.json", R"({"medusa_num_heads": 1, "medusa_num_layers": 1})");
    put("medusa/medusa_lm_head.safetensors", tiny::safetensors({{"0.0.linear.weight", {32, 32}}, {"0.1.weight", {40, 32}}}));
  }
  Outcome config(const std::string& model, const std::string& rest = "", const std::vector<DrafterOptions>* loaded = nullptr) {
    return resolve({"--speculative-config", R"({"model": ")" + model + "\"" + rest + "}"}, loaded);
  }
  const std::string eagle_ = at("eagle"), medusa_ = at("medusa");
};

TEST_F(DrafterFlags, ANamedDrafterIsLoadedAndGuesses) {
  for (const Outcome& o : {resolve({"-md", eagle_}), resolve({"--model-draft", eagle_, "--spec", "eagle3"}), config(eagle_),
           config(eagle_, R"(, "method": "eagle3", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1)"),
           resolve({"-md", eagle_, "--speculative-config", R"({"model": ")" + eagle_ + "\"}"})}) {
    ASSERT_EQ(o.message, "");
    EXPECT_EQ(o.options.proposer, "eagle3");
    ASSERT_EQ(o.drafters.size(), 1u);
    EXPECT_EQ(std::tie(o.drafters[0].method, o.drafters[0].path), std::tuple("eagle3", eagle_));
  }
}

TEST_F(DrafterFlags, AnotherMethodMayBeNamedBesideALoadedDrafter) {
  const Outcome o = resolve({"-md", eagle_, "--spec", "suffix"});
  EXPECT_EQ(o.message, "");
  EXPECT_EQ(o.options.proposer, "suffix");
  EXPECT_EQ(o.drafters.size(), 1u);
  EXPECT_EQ(resolve({"-md", eagle_, "--spec", "auto"}).options.proposer, "auto");
  EXPECT_EQ(config(eagle_, R"(, "method": "ngram")").message,
      "--speculative-config: \"model\" names a drafter, and method ngram has none: leave one out");
  EXPECT_EQ(config(eagle_, R"(, "method": "sparse_attn")").message,
      "--speculative-config: \"model\" names a drafter, and method self has none: leave one out; self guesses with the "
      "target's own weights");
}

TEST_F(DrafterFlags, OfSeveralDraftersOneMustBeMeant) {
  EXPECT_EQ(resolve({"-md", eagle_, "-md", medusa_}).message,
      "several drafters are loaded: eagle3 (" + eagle_ + "), medusa (" + medusa_ + "); name the one that guesses with --spec");
  const Outcome o = resolve({"-md", eagle_, "-md", medusa_, "--spec", "medusa"});
  EXPECT_EQ(o.message, "");
  EXPECT_EQ(o.options.proposer, "medusa");
  EXPECT_EQ(o.drafters.size(), 2u);
  std::filesystem::copy(eagle_, at("copy"));
  expect_part(resolve({"-md", eagle_, "-md", at("copy"), "--spec", "eagle3"}).message, "two drafters of method eagle3");
}

TEST_F(DrafterFlags, AMethodWithoutItsDrafterIsAnError) {
  EXPECT_EQ(resolve({"--spec", "eagle3"}).message,
      "method eagle3 needs a drafter: --model-draft PATH or \"model\" in --speculative-config");
  EXPECT_EQ(resolve({"--spec", "medusa", "-md", eagle_}).message, eagle_ + ": a drafter of method eagle3, not medusa");
  EXPECT_EQ(resolve({"--spec", "eagle", "-md", eagle_, "-md", medusa_}).message,
      "method eagle is not loaded; loaded are eagle3 (" + eagle_ + "), medusa (" + medusa_ + "): add --model-draft PATH");
  expect_part(resolve({"-md", at("none")}).message, at("none") + ": No such file");
  EXPECT_EQ(resolve({"-md", ""}).message, "-md needs the path of a folder or file");
}

TEST_F(DrafterFlags, ARequestNamesWhatIsLoadedAndNothingElse) {
  const std::vector<DrafterOptions> loaded{{"eagle3", eagle_}}, none;
  const auto request = [&](const std::string& json) { return resolve({"--speculative-config", json}, &loaded); };
  EXPECT_EQ(request(R"({"method": "eagle3"})").options.proposer, "eagle3");
  EXPECT_EQ(request(R"({"method": "none"})").options.proposer, "none");
  EXPECT_EQ(config(eagle_, "", &loaded).options.proposer, "eagle3");
  EXPECT_EQ(request(R"({"method": "medusa"})").message,
      "method medusa is not loaded; loaded are eagle3 (" + eagle_ + "): add --model-draft PATH");
  // What is not loaded is not even opened.
  EXPECT_EQ(config("/no/such", "", &loaded).message,
      "--speculative-config: \"model\": /no/such is not loaded; loaded drafters: eagle3 (" + eagle_ + ")");
  EXPECT_EQ(
      config("/no/such", "", &none).message, "--speculative-config: \"model\": /no/such is not loaded; loaded drafters: none");
  EXPECT_EQ(config(eagle_, R"(, "method": "medusa")", &loaded).message,
      "--speculative-config: \"model\": " + eagle_ + " is a drafter of method eagle3, not medusa");
}

TEST_F(DrafterFlags, VllmsOtherKeysAreTakenOrAnswered) {
  const auto message = [&](const std::string& rest) { return config(eagle_, ", " + rest).message; };
  for (const char* neutral : {R"("parallel_drafting": false, "use_heterogeneous_vocab": false)",
           R"("enforce_eager": true, "kv_cache_dtype": "auto", "quantization": null, "num_speculative_tokens": null)"})
    EXPECT_EQ(message(neutral), "");
  const std::pair<const char*, const char*> answers[] = {
      {R"("draft_tensor_parallel_size": 2)", "must be 1: guesses run on one device"},
      {R"("tensor_parallel_size": 1)", "draft_tensor_parallel_size"}, {R"("parallel_drafting": true)", "must be false"},
      {R"("quantization": "fp8")", "with hunch quantize"}, {R"("max_model_len": 2048)", "guesses share the target's context"},
      {R"("revision": "main")", "nothing is downloaded"}, {R"("sparse_attn_ratio": 0.1)", "\"model\" beside keys of self"},
      {R"("use_heterogeneous_vocab": 1)", "must be true or false, not a number"},
      {R"("draft_vocab_mode": "same", "use_heterogeneous_vocab": true)", "contradicts \"draft_vocab_mode\""}};
  for (const auto& [rest, words] : answers) expect_part(message(rest), words);
  EXPECT_EQ(config("").message, "--speculative-config: \"model\" must be a string, the path of a drafter, not empty");
  EXPECT_EQ(resolve({"--speculative-config", R"({"method": "eagle3", "model": 7})"}).message,
      "--speculative-config: \"model\" must be a string, the path of a drafter, not a number");
  const Outcome other = config(eagle_, R"(, "use_heterogeneous_vocab": true)");
  ASSERT_EQ(other.drafters.size(), 1u);
  EXPECT_EQ(other.drafters[0].vocab_mode, "intersection");
  EXPECT_EQ(other.notes, std::vector<std::string>{"--draft-vocab has no effect with method eagle3"});
}

TEST_F(DrafterFlags, SettingsOfDraftersTravel) {
  const Outcome flags = resolve({"-md", eagle_, "--tree", "20", "--tree-top-k", "4", "--mtp-feed-norm", "pre",
      "--mtp-recycle-norm", "pre", "--draft-vocab", "intersection"});
  const Outcome keys = config(eagle_, R"(, "tree_tokens": 20, "tree_top_k": 4, "mtp_feed_norm": "pre",
                                        "mtp_recycle_norm": "pre", "draft_vocab_mode": "intersection")");
  for (const Outcome* o : {&flags, &keys}) {
    EXPECT_EQ(std::tie(o->message, o->options.tree_tokens, o->options.tree_top_k), std::tuple("", 20, 4));
    ASSERT_EQ(o->drafters.size(), 1u);
    const DrafterOptions& drafter = o->drafters[0];
    EXPECT_EQ(std::tie(drafter.feed_norm, drafter.recycle_norm, drafter.vocab_mode), std::tuple("pre", "pre", "intersection"));
    EXPECT_EQ(o->notes.size(), 3u);  // for eagle3 the last three change nothing
  }
  const std::vector<std::string> ngram{"--ratio has no effect with method ngram", "--tree-top-k has no effect with method ngram"};
  EXPECT_EQ(resolve({"--spec", "ngram", "--tree-top-k", "4", "--ratio", "0.1", "--ngram-max", "3"}).notes, ngram);
  const std::vector<std::string> cascade{"--suffix-depth has no effect with method cascade"};
  EXPECT_EQ(resolve({"--spec", "cascade", "--suffix-depth", "4", "--ratio", "0.1", "--ngram-max", "3"}).notes, cascade);
  EXPECT_EQ(resolve({"--mtp-feed-norm", "both"}).message, "--mtp-feed-norm must be one of post, pre, not \"both\"");
  EXPECT_EQ(resolve({"--tree-top-k", "0"}).message, "--tree-top-k must be in 1..16, not \"0\"");
}

TEST_F(DrafterFlags, AFixedTreeSetsDepthAndWidth) {
  for (const char* tree : {R"("[(0,), (1,), (0, 0), (0, 0, 2)]")", "[[0, 0, 2], [1], [0], [0, 0]]"}) {
    const Outcome o = config(eagle_, std::string(R"(, "speculative_token_tree": )") + tree);
    ASSERT_EQ(o.message, "");
    EXPECT_EQ(o.options.token_tree, (std::vector<Ints>{{0}, {1}, {0, 0}, {0, 0, 2}}));
    EXPECT_EQ(o.options.num_tokens, 0);  // the tree says how many
    EXPECT_EQ(o.options.tree_tokens, 0);
  }
  EXPECT_EQ(config(eagle_, R"(, "num_speculative_tokens": 2, "speculative_token_tree": "[(0,), (0, 0)]")").message, "");
  EXPECT_EQ(config(eagle_, R"(, "num_speculative_tokens": 5, "speculative_token_tree": "[(0,), (0, 0)]")").message,
      "--draft 5 contradicts a tree of 2 tokens: leave it out");
  EXPECT_EQ(resolve({"-md", eagle_, "--token-tree", "[(0,)]", "--tree", "3"}).message,
      "--tree grows trees and --token-tree fixes one: leave one out");
}

TEST(TokenTreeText, BreaksAreShownAndTreesAreTrees) {
  EXPECT_EQ(*parse_token_tree("t", " [ (1, 0,) , (1) ]"), (std::vector<Ints>{{1, 0}, {1}}));
  const auto error = [](std::string_view text) { return parse_token_tree("t", text).error().message; };
  for (const char* broken :
      {"", "[", "[]", "[()]", "[(0)", "[(0]x", "[(-1,)]", "[(16,)]", "[(a,)]", "0", "[(0,)] 1", "[(99999999999,)]"})
    expect_part(error(broken), "it breaks at character");
  EXPECT_TRUE(error("[(0,), (0,)]").starts_with("t: ")) << error("[(0,), (0,)]");
  expect_part(error("[(0,), (1, 2)]"), "(1, 2)");
  std::string many = "[";
  for (int i = 0; i < 65; ++i) many += "(0,), ";
  EXPECT_EQ(error(many + "]"), "t has more than 64 nodes");
}

TEST_F(DrafterFlags, InfoSaysWhatADrafterIs) {
  auto eagle = good(drafter_json(eagle_));
  EXPECT_EQ(eagle["method"], "eagle3");
  EXPECT_EQ(eagle["draft_vocab"], tiny::kDraftVocab);
  EXPECT_EQ(eagle["taps"], (Ints{0, 1, 1}));
  EXPECT_EQ(eagle["taps_convention"], "outputs");
  EXPECT_EQ(eagle["encodings"]["integers"]["tensors"], 2);
  for (const char* part : {"drafter           eagle3 (", "1 layers, hidden 32", "target            hidden 32, 40 tokens",
           "draft vocabulary  20 tokens", "outputs of layers 0, 1, 1 (the file lists outputs)"})
    expect_part(drafter_text(eagle), part);
  expect_part(drafter_text(good(drafter_json(medusa_))), "1 heads of 1 residual layers");
}

TEST(CheckDrafter, NamesWhatIsLoaded) {
  EXPECT_TRUE(check_drafter("self", {}).ok());
  EXPECT_TRUE(check_drafter("mtp", {{"eagle", "e"}, {"mtp", "m"}}).ok());
  EXPECT_EQ(check_drafter("mtp", {{"eagle", "e"}}).error().message,
      "method mtp is not loaded; loaded are eagle (e): add --model-draft PATH");
}

}
}
