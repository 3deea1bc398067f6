// Under rule match the stream with speculation is the stream without, bit for bit: every family and policy, ratios from 1 % to
// 100 %, drafts of 1 to 15, greedy and sampled, on the reference and every instruction set of this machine. Prompts are longer
// than a page and a budget: every round makes a selection.
#include "equality.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kPromptLen = 170, kNewTokens = 80;

class TinyModel : public testing::TestWithParam<std::string> {
 protected:
  const int number = int(std::ranges::find(tiny_models(), GetParam()) - tiny_models().begin());
};
INSTANTIATE_TEST_SUITE_P(Families, TinyModel, testing::ValuesIn(tiny_models()), param_name);

// Over every policy and ratio; gammas and samplings take turns.
void expect_equality(Engine& engine, const std::vector<int>& ratios, int turn) {
  const ModelShape& shape = shape_of(engine);
  bool selects = false;  // windowed layers are never selected from: where all have one, drafts read what the target reads
  for (int layer = 0; layer < shape.layers; ++layer) selects = selects || shape.window_of(layer) == 0;
  Equality equality(engine);
  const auto prompt = random_prompt(kPromptLen, 256, 4);
  for (const auto& policy : Register<SparsePolicy>::all())
    for (const int ratio : ratios) {
      const bool reads_all = !selects || policy.name == "full" || kRatios[ratio] == 1;
      if (policy.name == "full" && ratio != ratios.front()) continue;  // has no ratio
      equality.reset();
      auto request = self_drafting(prompt, kNewTokens, kRatios[ratio], kGammas[(turn + 1) % 5], policy.name);
      request.speculation.min_tokens = 12;  // random weights let few drafts through: leave them some entries
      equality.expect_plain_stream(
          request, turn, fmt::format("{} {} gamma {}", policy.name, kRatios[ratio], request.speculation.num_tokens));
      ++turn;
      EXPECT_GE(equality.accepted, 1) << policy.name << " " << kRatios[ratio];
      // A draft that reads everything has the target's own bits, so under shared noise nothing can be rejected.
      EXPECT_EQ(equality.rejected() > 0, !reads_all) << policy.name << " " << kRatios[ratio];
    }
}

TEST_P(TinyModel, StreamsEqualPlainDecodingOnTheReferenceBackend) {
  auto engine = load({
      .model = tiny_path(GetParam()),
      .device = "reference",
      .kv_dtype = kKvTypes[number % 6],
      .context_len = 256,
      .chunk_len = number % 2 ? 64 : 7,
  });
  expect_equality(*engine, {0, 1, 2, 3, 4}, number);
}

TEST_P(TinyModel, StreamsEqualPlainDecodingOnEveryInstructionSet) {
  static constexpr int kChunks[] = {7, 64, 512};
  int turn = number;
  for (const std::string& isa : available_isas()) {
    if (++turn % 2) continue;  // every second level, another half for the next model
    SCOPED_TRACE(isa);
    auto engine = load({
        .model = tiny_path(GetParam()),
        .device = "cpu",
        .isa = isa,
        .threads = 1 + turn / 4 % 2,
        .kv_dtype = kKvTypes[turn / 2 % 6],
        .context_len = 256,
        .chunk_len = kChunks[(turn / 3 + turn) % 3],
    });
    expect_equality(*engine, {turn / 2 % 3}, turn);
  }
}

class GgufModel : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Encodings, GgufModel, testing::ValuesIn(gguf_models()), param_name);

TEST_P(GgufModel, StreamsEqualPlainDecodingForEveryEncoding) {
  int turn = 0;
  for (const std::string& isa : available_isas()) {
    SCOPED_TRACE(isa);
    auto engine = load({.model = tiny_path(GetParam()), .device = "cpu", .isa = isa, .threads = 2, .context_len = 256});
    Equality equality(*engine);
    auto request = self_drafting(random_prompt(kPromptLen, 256, 4), kNewTokens, 0.3, 2 + turn % 6);
    equality.expect_plain_stream(request, turn++, GetParam());
    equality.expect_kept_and_dropped();
  }
}

}
}
