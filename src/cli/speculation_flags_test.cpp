// Flags and --speculative-config against each other and against everything that people paste.
#include "cli/speculation_flags.h"

#include <tuple>

#include "cli/test_flags.h"

namespace hunch {
namespace {

using namespace test;

using Notes = std::vector<std::string>;

Outcome config(const std::string& json) { return resolve({"--speculative-config", json}); }

// What a configuration is told, behind the name of its flag.
std::string refused(const std::string& json) {
  const std::string message = config(json).message, flag = "--speculative-config: ";
  EXPECT_TRUE(message.starts_with(flag)) << message;
  return message.substr(std::min(flag.size(), message.size()));
}

TEST(SpeculationFlags, LeavesDefaultsAlone) {
  const Outcome o = resolve({});
  const SpeculationOptions defaults;
  EXPECT_EQ(std::tie(o.message, o.options.proposer, o.options.num_tokens, o.options.min_tokens, o.options.spread),
      std::tuple("", "auto", defaults.num_tokens, 16, defaults.spread));
  EXPECT_TRUE(o.options.verify);
}

TEST(SpeculationFlags, FlagsAndConfigurationSayTheSame) {
  const Outcome a = resolve({"--spec", "self", "--draft", "5", "--policy", "vegas", "--ratio", "0.07", "--min-tokens", "32",
      "--metric", "true_weight", "--rows", "first_last", "--combine", "sum", "--share", "layer", "--spread", "8", "--block", "4",
      "--sinks", "4", "--recent", "64", "--rule", "ratio", "--draft-weights", "q4_0"});
  const Outcome b = config(
      R"({"method": "sparse_attn", "num_speculative_tokens": 5, "sparse_attn_algorithm": "vegas", "sparse_attn_ratio": 0.07,
      "sparse_attn_min_tokens": 32, "sparse_attn_metric": "true_weight", "sparse_attn_rows": "first_last", "sparse_attn_combine": "sum",
      "sparse_attn_share": "layer", "sparse_attn_spread": 8, "sparse_attn_block": 4, "sparse_attn_sinks": 4, "sparse_attn_recent": 64, "rule": "ratio",
      "sparse_attn_draft_weights": "q4_0"})");
  for (const Outcome* outcome : {&a, &b}) {
    EXPECT_EQ(outcome->message, "");
    const SpeculationOptions& o = outcome->options;
    EXPECT_EQ(std::tie(o.proposer, o.num_tokens, o.policy, o.ratio, o.min_tokens, o.metric, o.rows, o.combine),
        std::tuple("self", 5, "vegas", 0.07, 32, "true_weight", "first_last", "sum"));
    EXPECT_EQ(std::tie(o.share, o.spread, o.block, o.sinks, o.recent, o.rule, o.draft_weights),
        std::tuple("layer", 8, 4, 4, 64, "ratio", "q4_0"));
  }
}

TEST(SpeculationFlags, SparseChecksByFlagAndByKey) {
  const Outcome flags = resolve({"--verify", "sparse", "--verify-ratio", "0.2", "--verify-dense", "64", "--verify-scope", "joint",
      "--verify-channels", "0.05", "--verify-experts", "2", "--verify-expert-mode", "tail_mass"});
  const Outcome keys = config(R"({"verify": "sparse", "verify_attn_ratio": 0.2, "verify_attn_dense_len": 64,
      "verify_attn_budget_scope": "joint", "verify_ffn_threshold": 0.05, "verify_experts": 2, "verify_expert_mode": "tail_mass"})");
  for (const Outcome* o : {&flags, &keys}) {
    EXPECT_EQ(o->message, "");
    EXPECT_EQ(o->options.proposer, "auto");
    const SparseVerification& s = o->options.sparse;
    EXPECT_TRUE(s.on && !o->options.lossless());
    EXPECT_EQ(std::tie(s.ratio, s.dense_len, s.scope, s.channel_threshold, s.skip_experts, s.expert_mode),
        std::tuple(0.2, 64, "joint", 0.05, 2, "tail_mass"));
  }
  EXPECT_TRUE(resolve({}).options.lossless());
  EXPECT_EQ(resolve({"--verify-ratio", "0.2"}).notes, Notes{"--verify-ratio has no effect without --verify sparse or drafts"});
}

TEST(SpeculationFlags, CheaperDraftsByFlagAndByKey) {
  const Outcome flags = resolve({"--skip-layers", "3,5", "--layer-step", "2", "--self-lookup", "ngram"});
  const Outcome keys = config(R"({"sparse_attn_skip_layers": [3, 5], "sparse_attn_layer_step": 2, "self_lookup": "ngram"})");
  EXPECT_EQ(flags.options.draft_skip_layers, "3,5");
  EXPECT_EQ(keys.options.draft_skip_layers, "3,5,");
  for (const Outcome* o : {&flags, &keys})
    EXPECT_EQ(std::tie(o->message, o->options.layer_step, o->options.self_lookup), std::tuple("", 2, "ngram"));
  EXPECT_EQ(config(R"({"sparse_attn_skip_layers": 2})").options.draft_skip_layers, "2");
  EXPECT_TRUE(resolve({"--skip-layers", "two"}).message.starts_with("--skip-layers: layers to skip: say how many"));
  EXPECT_TRUE(config(R"({"sparse_attn_skip_layers": "2"})")
                  .message.ends_with("must be a number of layers or a list of them, not a string"));
  expect_part(config(R"({"sparse_attn_skip_layers": ["a"]})").message, "layers to skip: say how many");
  expect_part(resolve({"--layer-step", "0"}).message, "--layer-step");
  EXPECT_EQ(resolve({"--policy", "quest", "--layer-step", "2"}).notes, Notes{"--layer-step has no effect with --policy quest"});
}

TEST(SpeculationFlags, TakesTheReleasesOwnConfiguration) {
  const Outcome o = config(
      R"({"method":"sparse_attn","sparse_attn_algorithm":"streamingllm","num_speculative_tokens":7,"sparse_attn_ratio":0.05})");
  EXPECT_EQ(o.message, "");
  EXPECT_EQ(o.options.policy, "streamingllm");
  EXPECT_EQ(o.options.min_tokens, 16);  // ours, not the release's 256
  EXPECT_EQ(config(R"({"method":"none"})").options.proposer, "none");
  EXPECT_EQ(config(R"({"sparse_attn_ratio":1})").options.proposer, "self");
}

TEST(SpeculationFlags, PointsAtBrokenJson) {
  EXPECT_EQ(refused("{bad"), "invalid JSON at character 2, near \"{bad\"");
  EXPECT_EQ(config("{\"method\":").message, "--speculative-config: invalid JSON at character 11, where the text ends too early");
  EXPECT_EQ(refused(""), "invalid JSON at character 1, where the text ends too early");
  EXPECT_EQ(
      config("[]").message, "--speculative-config must be a JSON object such as '{\"method\": \"sparse_attn\"}', not a list");
  EXPECT_EQ(refused(R"({"rule":"match","rule":"ratio","method":"none"})"), "the key \"rule\" stands there twice");
}

TEST(SpeculationFlags, NamesTheNearestAndAllValidKeys) {
  const std::string message = config(R"({"method":"sparse_attn","sparse_atn_ratio":0.1})").message;
  EXPECT_TRUE(message.starts_with(
      "--speculative-config: unknown key \"sparse_atn_ratio\" (did you mean sparse_attn_ratio?); valid keys: method, model, "
      "num_speculative_tokens, tree_tokens, sparse_attn_algorithm, sparse_attn_ratio,"))
      << message;
  EXPECT_TRUE(config(R"({"nosuch":1})").message.starts_with("--speculative-config: unknown key \"nosuch\"; valid keys: method,"));
}

TEST(SpeculationFlags, AnswersKnownForeignMethodsAndKeysByName) {
  EXPECT_TRUE(config(R"({"method":"dflash"})")
                  .message.starts_with("--speculative-config: \"method\": dflash is not available yet; there are auto, "));
  EXPECT_EQ(config(R"({"method":"eagle3"})").message,
      "method eagle3 needs a drafter: --model-draft PATH or \"model\" in --speculative-config");
  EXPECT_EQ(resolve({"--spec", "deepseek_mtp"}).message, "");  // the model's own checkpoint may have the module
  EXPECT_EQ(resolve({"--spec", "deepseek_mtp"}).options.proposer, "mtp");
  expect_part(config(R"({"method":"sparse_attn","tensor_parallel_size":2})").message, "draft_tensor_parallel_size");
}

TEST(SpeculationFlags, TakesPrecisionClassesByFlagAndKey) {
  const SpeculationOptions typed =
      resolve({"--precision-class", "approx-reuse", "--group-rows", "8", "--traversal", "dfs", "--reuse-set", "3,1"}).options;
  const SpeculationOptions keyed =
      config(R"({"method":"ngram","precision_class":"approx-reuse","group_rows":8,"traversal":"dfs","reuse_layers":[3,1]})")
          .options;
  for (const SpeculationOptions& o : {typed, keyed}) {
    EXPECT_EQ(
        std::tie(o.precision_class, o.group_rows, o.traversal, o.reuse_layers), std::tuple("approx-reuse", 8, "dfs", "3,1"));
    EXPECT_FALSE(o.lossless());
  }
  EXPECT_EQ(config(R"({"method":"ngram","reuse_layers":[]})").options.reuse_layers, "none");
  EXPECT_TRUE(resolve({"--spec", "ngram"}).options.lossless());
  expect_part(config(R"({"method":"ngram","reuse_layers":[0]})").message, "layer 0 always chooses");
  expect_part(config(R"({"method":"ngram","reuse_layers":2})").message, "must be a list of layers or \"none\"");
  expect_part(resolve({"--precision-class", "lossy"}).message, "strict, reuse, approx, approx-reuse");
}

TEST(SpeculationFlags, ChecksTypesAndRangesInTheConfiguration) {
  EXPECT_EQ(
      refused(R"({"method":"self","num_speculative_tokens":65})"), "\"num_speculative_tokens\" must be in 1..64, not \"65\"");
  EXPECT_EQ(refused(R"({"method":"self","num_speculative_tokens":"7"})"),
      "\"num_speculative_tokens\" must be a number in 1..64, not a string");
  EXPECT_EQ(
      refused(R"({"method":"self","sparse_attn_ratio":0})"), "\"sparse_attn_ratio\" must be above 0 and at most 1, not \"0\"");
  EXPECT_EQ(refused(R"({"method":7})"),
      "\"method\" must be a string (auto, cascade, draft_model, eagle, eagle3, medusa, mtp, ngram, none, "
      "profile, self, staged, suffix), not a number");
  EXPECT_EQ(refused(R"({"num_speculative_tokens":7})"),
      "\"method\" is missing; there are auto, self (also spelled sparse_attn), ngram, suffix, "
      "cascade, staged, none, and draft_model, medusa, eagle, eagle3, mtp with a \"model\"");
}

TEST(SpeculationFlags, RefusesContradictions) {
  EXPECT_EQ(resolve({"--ratio", "0.1", "--speculative-config", R"({"method":"sparse_attn","sparse_attn_ratio":0.2})"}).message,
      "--ratio 0.1 contradicts \"sparse_attn_ratio\": 0.2 in --speculative-config; say it once");
  EXPECT_EQ(resolve({"--spec", "none", "--speculative-config", R"({"method":"sparse_attn"})"}).message,
      "--spec none contradicts \"method\": self in --speculative-config; say it once");
  EXPECT_EQ(
      resolve({"--ratio", "0.2", "--speculative-config", R"({"method":"sparse_attn","sparse_attn_ratio":0.2})"}).message, "");
}

TEST(SpeculationFlags, AllowsUncheckedOutputOnlyWhereItIsMeant) {
  const Outcome o = resolve({"--spec", "self", "--policy", "streamingllm", "--unverified"});
  EXPECT_EQ(o.message, "");
  EXPECT_FALSE(o.options.verify);
  for (const auto& [flag, value] : {std::pair("--spec", "self"), {"--policy", "streamingllm"}})
    EXPECT_EQ(resolve({flag, value, "--unverified"}).message,
        "--unverified is lossy decoding and needs --spec self --policy streamingllm");
}

TEST(SpeculationFlags, SpreadsWeightsOnlyAndRemarksOnSettingsWithoutEffect) {
  EXPECT_EQ(resolve({"--metric", "logit"}).options.spread, 0);
  EXPECT_EQ(resolve({"--metric", "logit"}).options.block, 1);
  EXPECT_EQ(resolve({"--metric", "logit", "--block", "16"}).options.block, 16);
  expect_part(resolve({"--metric", "logit", "--spread", "4"}).message, "--spread needs --metric weight or true_weight");
  EXPECT_EQ(resolve({"--policy", "streamingllm", "--metric", "logit"}).notes,
      Notes{"--metric has no effect with --policy streamingllm"});
}

}
}
