// Medusa's heads from files of both layouts, against plain loops; what is refused; and which row, position and noise a guess is
// made of.
#include <map>
#include <set>

#include "base/test_folder.h"
#include "checkpoint/tiny_model.h"
#include "draft/medusa_heads.h"
#include "draft/static_tree.h"
#include "draft/test_drafts.h"

namespace hunch {
namespace {

using namespace test;
using nlohmann::json;
using tiny::Floats;
using tiny::kHidden;
using tiny::kVocab;
using tiny::Tensors;
using Ids = std::vector<int64_t>;

Floats product(const Floats& weight, const Floats& x) {
  Floats out(weight.size() / x.size());
  for (size_t i = 0; i < out.size(); ++i)
    for (size_t j = 0; j < x.size(); ++j) out[i] += weight[i * x.size() + j] * x[j];
  return out;
}

// A target as far as heads see it: its widths, and a head of its own.
class Target final : public Model {
 public:
  Target() {
    shape_.family = "toy", shape_.hidden = kHidden, shape_.vocab_size = kVocab, shape_.layers = 2;
    weight = tiny::values(kVocab * kHidden, 99);
  }
  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return 0; }
  void forward(Pass&, View<float, 2>, std::span<const uint8_t>) const override { HUNCH_CHECK(false); }
  void embed(Backend&, View<const int32_t, 1>, View<float, 2>) const override { HUNCH_CHECK(false); }
  void logits(Backend&, View<const float, 2> hidden, View<float, 2> out) const override {
    for (int64_t r = 0; r < hidden.extent[0]; ++r)
      std::ranges::copy(product(weight, {&hidden(r, 0), &hidden(r, 0) + kHidden}), &out(r, 0));
  }
  Floats weight;

 private:
  ModelShape shape_;
};

class MedusaTest : public FolderTest {
 protected:
  // F32 values that differ from tensor to tensor; token_map holds `map`.
  void put_heads(const json& config, const Tensors& tensors, const Ids& map = {}) {
    std::vector<tiny::Stored> stored;
    values_.clear();
    for (const auto& [name, shape] : tensors) {
      const auto& values = values_[name] = tiny::values(tiny::elements(shape), values_.size() + 1);
      const bool ids = name == "token_map";
      stored.push_back({name, ids ? "I64" : "F32", shape, ids ? tiny::bytes_of(map) : tiny::bytes_of(values)});
    }
    put("model.safetensors", tiny::file_of(stored));
    put("config.json", config.dump());
  }
  Proposer::Setup setup() {
    file_ = good(DrafterFile::open(folder_));
    if (!backend_) backend_ = Register<Backend>::find("reference")->make({}).value();
    return {.backend = backend_.get(), .target = &target_, .max_draft = 16, .max_sequences = 3, .file = file_.get()};
  }
  MedusaHeads heads(const json& config, const Tensors& tensors, const Ids& map = {}) {
    put_heads(config, tensors, map);
    return good(MedusaHeads::read(setup()));
  }
  std::string refusal(const json& config, const Tensors& tensors, const Ids& map = {}) {
    put_heads(config, tensors, map);
    const auto message = error_of(MedusaHeads::read(setup()));
    EXPECT_TRUE(message.starts_with(folder_)) << message;
    return message.substr(message.find(": ") + 2);
  }
  // The tensors of the file whose names begin so, as the definition uses them; not every layer has a bias.
  Floats layer(Floats x, const std::string& name) {
    auto gates = product(values_.at(name + "weight"), x);
    for (size_t i = 0; i < x.size(); ++i) {
      if (values_.count(name + "bias")) gates[i] += values_.at(name + "bias")[i];
      x[i] += gates[i] / (1 + std::exp(-gates[i]));
    }
    return x;
  }
  // Logits of a head for two rows, as loaded; a row alone and with another must agree.
  Floats run(const MedusaHeads& heads, int head, const Floats& x) {
    Floats rows(x), scratch(2 * x.size()), out(2 * heads.vocab());
    rows.insert(rows.begin(), x.size(), 0.25f);
    const View<float, 2> in(rows.data(), 2, kHidden), to(out.data(), 2, heads.vocab());
    heads.transform(*backend_, head, in, view(scratch, 2, kHidden));
    heads.logits(*backend_, head, in, to);
    return {out.begin() + heads.vocab(), out.end()};
  }
  static void expect_close(const Floats& got, const Floats& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-3f * (1 + std::abs(want[i]))) << i;
  }

  // Medusa's own layout.
  static json config(int num_heads, int layers) { return {{"medusa_num_heads", num_heads}, {"medusa_num_layers", layers}}; }
  static Tensors tensors(int num_heads, int layers, const std::string& prefix = "", int stored = 99) {
    Tensors out;
    for (int h = 0; h < num_heads; ++h) {
      for (int j = 0; j < std::min(layers, stored); ++j) {
        const auto linear = fmt::format("{}{}.{}.linear.", prefix, h, j);
        out.insert(out.end(), {{linear + "weight", {kHidden, kHidden}}, {linear + "bias", {kHidden}}});
      }
      out.push_back({fmt::format("{}{}.{}.weight", prefix, h, layers), {kVocab, kHidden}});
    }
    return out;
  }
  // vLLM's.
  static json vllm_config(int num_heads, const json& more = json::object()) {
    json out{{"model_type", "medusa"}, {"num_heads", num_heads}, {"num_hidden_layers", 1}, {"hidden_size", kHidden},
        {"vocab_size", kVocab}, {"medusa_fc_bias", false}};
    out.update(more);
    return out;
  }
  static Tensors vllm_tensors(int num_heads, const std::string& prefix = "", int64_t rows = kVocab) {
    Tensors out;
    for (int h = 0; h < num_heads; ++h) {
      out.push_back({fmt::format("{}blocks.{}.layers.0.weight", prefix, h), {kHidden, kHidden}});
      out.push_back({fmt::format("{}lm_heads.{}.weight", prefix, h), {rows, kHidden}});
    }
    return out;
  }

  std::map<std::string, Floats> values_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DrafterFile> file_;
  Target target_;
  Floats x_ = tiny::values(kHidden, 1234);
};

TEST_F(MedusaTest, ComputesTheLayersOfItsAuthorsFile) {
  for (const char* prefix : {"", "medusa_head."}) {
    Tensors all = tensors(2, 2, prefix);
    if (*prefix) all.push_back({"model.norm.weight", {kHidden}});  // the rest of the model that it lies in
    const MedusaHeads made = heads(config(2, 2), all);
    ASSERT_EQ(made.count(), 2);
    EXPECT_EQ(made.vocab(), kVocab);
    EXPECT_EQ(made.vocabulary().data, nullptr);
    for (int h = 0; h < 2; ++h) {
      const auto at = fmt::format("{}{}", prefix, h);
      const auto x = layer(layer(x_, at + ".0.linear."), at + ".1.linear.");
      expect_close(run(made, h, x_), product(values_.at(at + ".2.weight"), x));
    }
  }
}

// Their code repeats one object, so a file may hold it once.
TEST_F(MedusaTest, RepeatsTheFirstLayerWhereTheFileHoldsItOnce) {
  const MedusaHeads made = heads(config(1, 3), tensors(1, 3, "", 1));
  auto x = x_;
  for (int i = 0; i < 3; ++i) x = layer(x, "0.0.linear.");
  expect_close(run(made, 0, x_), product(values_.at("0.3.weight"), x));
}

TEST_F(MedusaTest, CountsTheHeadsWhereTheConfigurationDoesNotSay) {
  EXPECT_EQ(heads({{"model_type", "medusa"}}, tensors(3, 1)).count(), 3);
  json vllm = vllm_config(1);
  vllm.erase("num_heads");
  EXPECT_EQ(heads(vllm, vllm_tensors(2)).count(), 2);
}

TEST_F(MedusaTest, ComputesVllmsLayoutWithAndWithoutBiases) {
  for (const bool bias : {false, true}) {
    const std::string prefix = bias ? "medusa_heads." : "";
    Tensors all = vllm_tensors(2, prefix);
    for (int h = 0; bias && h < 2; ++h) all.push_back({fmt::format("{}blocks.{}.layers.0.bias", prefix, h), {kHidden}});
    const MedusaHeads made = heads(vllm_config(2, {{"medusa_fc_bias", bias}}), all);
    EXPECT_FALSE(made.one_output());
    for (int h = 0; h < 2; ++h) {
      const auto x = layer(x_, fmt::format("{}blocks.{}.layers.0.", prefix, h));
      expect_close(run(made, h, x_), product(values_.at(fmt::format("{}lm_heads.{}.weight", prefix, h)), x));
    }
  }
}

TEST_F(MedusaTest, SharesOneOutputInTheFileOrTheTargets) {
  for (const char* output : {"lm_head.weight", "lm_heads.0.weight", ""}) {
    Tensors all{{"blocks.0.layers.0.weight", {kHidden, kHidden}}, {"blocks.1.layers.0.weight", {kHidden, kHidden}}};
    if (*output) all.push_back({output, {kVocab, kHidden}});
    const MedusaHeads made = heads(vllm_config(2, {{"original_lm_head", true}}), all);
    EXPECT_TRUE(made.one_output());
    const auto x = layer(x_, "blocks.1.layers.0.");
    expect_close(run(made, 1, x_), product(*output ? values_.at(output) : target_.weight, x));
  }
}

TEST_F(MedusaTest, NumbersTheTokensOfACutVocabularyByItsMap) {
  const json asked = vllm_config(1, {{"truncated_vocab_size", 5}});
  const Ids ids{2, 3, 5, 7, 39};
  Tensors all = vllm_tensors(1, "", 5);
  all.push_back({"token_map", {5}});
  const MedusaHeads made = heads(asked, all, ids);
  EXPECT_EQ(made.vocab(), 5);
  const auto map = made.vocabulary();
  EXPECT_EQ(Ids(map.data, map.data + 5), ids);
  // Outputs that are whole need no map.
  all[1].shape[0] = kVocab;
  EXPECT_EQ(heads(asked, all, ids).vocabulary().data, nullptr);
}

TEST_F(MedusaTest, RefusesHeadsOfAnotherModelAndNamesBothSides) {
  const std::string other = ": these heads were made for another model";
  Tensors wide = tensors(1, 1);
  wide[0].shape = {48, 48}, wide[1].shape = {48}, wide[2].shape = {kVocab, 48};
  EXPECT_EQ(refusal(config(1, 1), wide), "tensor 0.0.linear.weight: width 48, but the target's hidden size is 32" + other);
  Tensors words = tensors(1, 1);
  words[2].shape[0] = 64;
  EXPECT_EQ(refusal(config(1, 1), words), "tensor 0.1.weight: 64 rows, but the vocabulary has 40" + other);
  for (const auto& [key, what] : {std::pair("hidden_size", "hidden size is 32"), {"vocab_size", "vocabulary is 40"}})
    expect_part(refusal(vllm_config(1, {{key, 48}}), vllm_tensors(1)), fmt::format("48, but the target's {}{}", what, other));
}

TEST_F(MedusaTest, RefusesFilesThatLackOrAddTensors) {
  Tensors all = tensors(2, 1);
  expect_part(refusal(config(3, 1), all), "2.0.linear.weight: missing");
  expect_part(refusal(config(1, 1), all), "1.0.linear.weight, 1.0.linear.bias, 1.1.weight are not part of");
  expect_part(refusal(config(2, 2), all), "0.2.weight: missing");
  all.push_back({"0.1.bias", {kVocab}});
  expect_part(refusal(config(2, 1), all), "tensor 0.1.bias is not part of");

  expect_part(refusal(vllm_config(2), vllm_tensors(1)), "blocks.1.layers.0.weight: missing");
  expect_part(refusal(vllm_config(2, {{"medusa_fc_bias", true}}), vllm_tensors(2)), "blocks.0.layers.0.bias: missing");
  expect_part(refusal(config(33, 1), tensors(1, 1)), "medusa_num_heads");
}

TEST_F(MedusaTest, RefusesMapsThatAreNone) {
  const json asked = vllm_config(1, {{"truncated_vocab_size", 4}});
  Tensors all = vllm_tensors(1, "", 4);
  expect_part(refusal(asked, all), "token_map: missing");
  all.push_back({"token_map", {4}});
  for (const auto& [map, entry] : {std::pair(Ids{1, 2, 2, 3}, "2 is 2"), {{1, 2, 3, 40}, "3 is 40"}, {{-1, 2, 3, 4}, "0 is -1"}})
    expect_part(refusal(asked, all, map), fmt::format("entry {}: ids must ascend and lie below the target's 40", entry));
  all.back().shape = {3};
  expect_part(refusal(asked, all, {1, 2, 3}), "3 entries for heads over 4 tokens");
}

// The proposer over three heads, driven as the engine does.
class MedusaDrafts : public MedusaTest {
 protected:
  void SetUp() override {
    put_heads(config(3, 1), tensors(3, 1));
    medusa_ = good(Register<Proposer>::find("medusa")->make(setup()));
  }
  // Rows of hidden states, of which those in `path` are final: [first, committed_len).
  void follow(const Sequence& sequence, int64_t first, Floats& hidden, const Tokens& path) {
    const TargetRows rows{
        .sequence = &sequence,
        .first_position = first,
        .first_row = 1,
        .count = std::ssize(path),
        .path = path,
        .hidden = view(hidden, std::ssize(hidden) / kHidden, kHidden),
    };
    medusa_->follow({&rows, 1});
  }
  static SamplingParams unfiltered(float temperature) { return {.temperature = temperature, .top_k = 0, .top_p = 1, .min_p = 0}; }
  // Two tokens of which the first is committed, sampled at 1, and last_, the hidden state that heads read.
  Sequence followed(int slot, float temperature = 1, NoiseKey noise = {}) {
    Sequence sequence = sequence_of({5, 6}, slot);
    sequence.noise = noise;
    sequence.sampling = unfiltered(temperature);
    auto hidden = tiny::values(2 * kHidden, 8);
    last_.assign(hidden.begin() + kHidden, hidden.end());
    medusa_->open(sequence);
    follow(sequence, 0, hidden, {0});
    return sequence;
  }
  Floats logits(int head, const Floats& x) {
    return product(values_.at(fmt::format("{}.1.weight", head)), layer(x, fmt::format("{}.0.linear.", head)));
  }
  // The `count` choices of the target's sampler at a position, the best first.
  Tokens ranked(const Sequence& sequence, Floats of, int32_t position, int count, bool noise = true) {
    Tokens out(count), token(1);
    backend_->sample({
        .logits = view(of, 1, kVocab),
        .params = noise ? sequence.sampling : unfiltered(0),
        .key = sequence.noise,
        .positions = View<const int32_t, 1>(&position, 1),
        .tokens = view(token, 1),
        .ranked = view(out, 1, count),
    });
    return out;
  }
  DraftTree& propose(const Sequence& sequence, DraftLimits limits) {
    const DraftTask task{.sequence = &sequence, .limits = limits, .tree = &out_.tree};
    medusa_->propose({&task, 1});
    return out_.tree;
  }

  std::unique_ptr<Proposer> medusa_;
  Floats last_;
  Tree out_;
};

TEST_F(MedusaDrafts, GuessFromTheLastCommittedRowWithTheNoiseOfThePositionsBehindThePendingToken) {
  Sequence sequence = sequence_of({5, 6, 7, 8, 9}, 2);  // committed 4, pending at position 4
  sequence.noise = {.seed = 77};
  sequence.sampling = unfiltered(1);
  medusa_->open(sequence);
  EXPECT_EQ(propose(sequence, {.max_tokens = 3}).size, 0) << "nothing was seen";
  // Rows 1, 2 and 5 of a pass are positions 1, 2 and 3: row 1 is the first of the sequence, the path counts from there.
  auto hidden = tiny::values(7 * kHidden, 31);
  follow(sequence, 1, hidden, {0, 1, 4});
  const Floats last(hidden.begin() + 5 * kHidden, hidden.begin() + 6 * kHidden);
  const DraftTree& tree = propose(sequence, {.max_tokens = 8});
  EXPECT_EQ(tree.law, DraftLaw::Noise);
  ASSERT_EQ(tree.size, 3) << "as deep as there are heads";
  for (int h = 0; h < 3; ++h) {
    EXPECT_EQ(tree.parents[h], h - 1);
    EXPECT_EQ(tree.tokens(h), ranked(sequence, logits(h, last), 5 + h, 1)[0]) << h;
  }
  // A round later that row is not the last one any more.
  sequence.tokens.push_back(3), ++sequence.committed_len;
  EXPECT_EQ(propose(sequence, {.max_tokens = 3}).size, 0);
  // Nor is it anything to who gets the slot next.
  --sequence.committed_len, sequence.tokens.pop_back();
  EXPECT_EQ(propose(sequence, {.max_tokens = 2}).size, 2);
  medusa_->close(2);
  medusa_->open(sequence);
  EXPECT_EQ(propose(sequence, {.max_tokens = 3}).size, 0);
}

TEST_F(MedusaDrafts, ArePointsWithoutAnyNoiseWhereTheRuleAsksForQ) {
  for (const uint64_t seed : {1, 2, 3}) {
    const Sequence sequence = followed(0, 2, {.seed = seed});
    for (const bool branch : {false, true}) {
      const DraftTree& tree = propose(sequence, {.max_tokens = 9, .want_q = true, .may_branch = branch, .tree_top_k = 4});
      EXPECT_EQ(tree.law, DraftLaw::Point);
      EXPECT_EQ(tree.size, branch ? 9 : 3);
      const auto best = ranked(sequence, logits(0, last_), 0, 4, false);
      for (int node = 0; node < tree.size; ++node) {
        if (tree.parents[node] >= 0) continue;
        EXPECT_NE(std::ranges::find(best, tree.tokens(node)), best.end()) << node;
      }
      EXPECT_EQ(tree.tokens(0), best[0]);
    }
    medusa_->close(0);
  }
}

TEST_F(MedusaDrafts, PayForWhatTheHeadsBeforeSaid) {
  Sequence sequence = followed(1);
  LogitRules rules{.presence = 1e6f, .allowed = {1, 2, 3}};
  sequence.logit_state = std::make_unique<LogitState>(rules, kVocab);
  sequence.logit_state->reset(sequence.tokens.data(), 2);
  const DraftTree& tree = propose(sequence, {.max_tokens = 3});
  EXPECT_EQ(std::set(&tree.tokens(0), &tree.tokens(0) + tree.size).size(), 3u);
}

TEST_F(MedusaDrafts, FillTheRequestsShapeWithTheSameCandidatesBehindEveryParent) {
  const Sequence sequence = followed(1);
  const std::vector<Ints> paths{{0}, {1}, {0, 0}, {0, 2}, {1, 0}, {1, 2}, {1, 2, 1}};
  const StaticTree shape = StaticTree::make(paths, 16).value();
  const auto first = ranked(sequence, logits(0, last_), 2, 3), second = ranked(sequence, logits(1, last_), 3, 3),
             third = ranked(sequence, logits(2, last_), 4, 3);
  const Tokens tokens{first[0], first[1], second[0], second[2], second[0], second[2], third[1]};
  const Tokens parents{-1, -1, 0, 0, 1, 1, 5};
  for (int granted = 1; granted <= 8; ++granted) {
    const DraftTree& tree = propose(sequence, {.max_tokens = granted, .may_branch = true, .shape = &shape});
    ASSERT_EQ(tree.size, std::min(granted, 7));
    // A path is no longer than there are tokens granted.
    for (int node = 0; node < tree.size; ++node) {
      EXPECT_EQ(tree.tokens(node), tokens[node]);
      EXPECT_EQ(tree.parents[node], parents[node]);
    }
  }
  const DraftTree& shallow = propose(sequence, {.max_tokens = 8, .max_depth = 2, .may_branch = true, .shape = &shape});
  EXPECT_EQ(shallow.size, 6);
  EXPECT_EQ(propose(sequence, {.max_tokens = 8, .stop_below = 0.3f}).size, 2) << "what makes the rest unlikely stays";
}

// The tree that grew has nodes of ranks that this request does not want, and nodes behind those.
TEST_F(MedusaDrafts, LeaveOutWhatStandsBehindANodeThatIsLeftOut) {
  const Sequence sequence = followed(0);
  const DraftTree& tree = propose(sequence, {.max_tokens = 16, .may_branch = true, .tree_top_k = 2});
  EXPECT_GT(tree.size, 6);
  EXPECT_LT(tree.size, 16);
  Ints depths;
  for (int node = 0; node < tree.size; ++node) {
    const int parent = tree.parents[node];
    ASSERT_GE(parent, -1);
    ASSERT_LT(parent, node);
    depths.push_back(parent < 0 ? 0 : depths[parent] + 1);
    const auto best = ranked(sequence, logits(depths.back(), last_), 2 + depths.back(), 2);
    EXPECT_TRUE(tree.tokens(node) == best[0] || tree.tokens(node) == best[1]) << node;
  }
}

TEST_F(MedusaDrafts, GrowTreesTowardsTheRanksThatWereRight) {
  const Sequence sequence = followed(0);
  const auto first = ranked(sequence, logits(0, last_), 2, 3);
  const DraftLimits limits{.max_tokens = 3, .may_branch = true, .tree_top_k = 3};
  const auto roots = [&](const DraftTree& tree) {
    Tokens out;
    for (int node = 0; node < tree.size; ++node)
      if (tree.parents[node] < 0) out.push_back(tree.tokens(node));
    return out;
  };
  const auto observe = [&](int32_t token) {
    Verdict verdict;
    verdict.path = {0}, verdict.tokens = {token}, verdict.next = -7;
    medusa_->observe(sequence, verdict);
  };
  EXPECT_EQ(roots(propose(sequence, limits))[0], first[0]);
  for (int round = 0; round < 96; ++round) {  // the third is what comes, and nothing behind it is ever right
    propose(sequence, limits);
    observe(first[2]);
  }
  EXPECT_EQ(roots(propose(sequence, limits))[0], first[2]);
  EXPECT_GT(roots(propose(sequence, limits)).size(), 1u);
  for (int round = 0; round < 400; ++round) observe(first[0]);  // of drafts that are not its own
  EXPECT_EQ(roots(propose(sequence, limits))[0], first[2]);
  EXPECT_EQ(roots(propose(sequence, {.max_tokens = 3, .want_q = true, .may_branch = true, .tree_top_k = 3}))[0],
      ranked(sequence, logits(0, last_), 0, 1, false)[0])
      << "guesses without noise are right by themselves";
}

}
}
