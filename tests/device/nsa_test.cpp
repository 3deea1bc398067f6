// The shipped model with natively trained sparse attention on a device, whose kernels have forms for its heads and blocks. Its
// streams are plain decoding's under every way to draft, alone and in a crowd, its numbers near the CPU's.
#include "near.h"

namespace hunch {
namespace {

using namespace test;

class DeviceNsa : public testing::Test {
 protected:
  void SetUp() override {
    bool runs = false;
    if (const auto* cuda = Register<Backend>::find("cuda"))
      if (auto backend = cuda->make({}); backend.ok()) runs = (*backend)->has_nsa();
    if (!runs) GTEST_SKIP() << "no device that runs such models";
  }
  static EngineOptions options(const std::string& device = "cuda") {
    const auto model = tree_path() + "/models/wren-nsa-8m";
    return {.model = model + ".gguf",
        .device = device,
        .kv_dtype = "bf16",
        .context_len = 2048,
        .drafters = {{.path = model + "-eagle3.gguf"}}};
  }
};

struct Way {
  const char* proposer;
  int chain, beside;
};
void set_method(Request& request, const Way& way) {
  request.speculation = {};
  guess(request, way.proposer, way.chain, way.beside);
}
constexpr Way kWays[] = {{"ngram", 5, 0}, {"suffix", 3, 6}, {"eagle3", 4, 0}, {"eagle3", 4, 12}, {"auto", 4, 7}};

TEST_F(DeviceNsa, StreamsEqualPlainDecodingForEveryMethod) {
  int turn = 0;
  Tally kept;
  for (const int chunk : {512, 57}) {
    auto with = options();
    with.chunk_len = chunk;
    auto engine = load(with);
    auto request = ask(copying_prompt(engine->tokenizer(), 900 + 37 * turn, 3), 96, turn % 2 ? 0.8 : 0.0);
    const auto plain = generate_plain(*engine, request);
    for (const Way& way : kWays) {
      set_method(request, way);
      const auto run =
          generate_same(*engine, request, plain, fmt::format("{}, {} beside a chain of {}", way.proposer, way.beside, way.chain));
      kept.add(run);
    }
    ++turn;
  }
  kept.expect_kept_and_dropped("", 100);
}

TEST_F(DeviceNsa, ACrowdWithFarTooFewPagesGivesThePlainOutputs) {
  auto roomy = options();
  roomy.max_num_seqs = 1, roomy.prefix_caching = false;
  auto alone = load(roomy);
  auto tight = options();
  tight.max_num_seqs = 5, tight.chunk_len = 77, tight.max_num_batched_tokens = 200;
  tight.kv_memory_bytes = bytes_of_pages(*alone, 40);
  auto crowded = load(tight);
  Together together(*alone);
  for (int i = 0; i < 10; ++i) {
    auto asked = ask(copying_prompt(alone->tokenizer(), 500 + 60 * (i % 4), i % 4), 160);
    asked.sampling.temperature = i % 3 ? 0.0 : 0.8, asked.priority = i % 3;
    const Way& way = kWays[i % std::size(kWays)];
    set_method(together.add(asked), way);
  }
  // All at once, or a fast device is done with one before the next comes.
  together.expect_plain_outputs(*crowded, "");
  EXPECT_GT(crowded->stats().preemptions, 0);
}

// Choices that nothing shares are those of class strict; a choice that layers reuse is the row's own, whatever is drafted.
TEST_F(DeviceNsa, PrecisionClassesReadWhatTheySay) {
  auto engine = load(options());
  auto request = ask(copying_prompt(engine->tokenizer(), 1100, 9), 96, 0);
  const auto plain = generate_plain(*engine, request);
  const auto run_class = [&](const Way& way, const char* name, const char* layers, int group_rows) {
    set_method(request, way);
    request.speculation.precision_class = name;
    request.speculation.reuse_layers = layers, request.speculation.group_rows = group_rows;
    return generate(*engine, request);
  };
  Ints reusing;
  for (const Way& way : kWays) {
    if (std::string_view(way.proposer) == "auto") continue;
    const auto what = fmt::format("{} {}", way.proposer, way.beside);
    EXPECT_EQ(run_class(way, "approx-reuse", "none", 1).tokens, plain.tokens) << what;
    const auto reuse = run_class(way, "reuse", "1,2,4,5", 1);
    EXPECT_GT(reuse.approximation.reused_choices, reuse.approximation.own_choices) << what;
    EXPECT_FALSE(reuse.lossless);
    if (reusing.empty()) reusing = reuse.tokens;
    EXPECT_EQ(reuse.tokens, reusing) << what;
    const auto shared = run_class(way, "approx-reuse", "1,2,4,5", 16);
    EXPECT_EQ(shared.tokens.size(), plain.tokens.size()) << what;
    EXPECT_GT(shared.approximation.shared_choices, 0) << what;
  }
}

TEST_F(DeviceNsa, LogProbabilitiesAreNearTheProcessors) {
  std::vector<std::vector<float>> found;
  for (const char* device : {"cpu", "cuda"}) {
    auto engine = load(options(device));
    found.push_back(prompt_logprobs(*engine, copying_prompt(engine->tokenizer(), 1200, 5)));
  }
  ASSERT_GT(found[0].size(), 1000u);
  // Rounding may send a row to another block, which moves it by a step.
  expect_near(found[0], found[1], 2.0, 0.03, "wren-nsa-8m");
}

// Those of `late` hold 4,096 tokens of such a model.
TEST(LateNsa, ContextsThatADeviceCannotReadAreRefused) {
  EngineOptions options{.model = tree_path() + "/models/wren-nsa-8m.gguf", .device = "late", .context_len = 4097};
  const auto refused = Engine::load(options);
  EXPECT_EQ(error_of(refused),
      "context of 4097 tokens: late reads at most 4096 of a nsa model like this; lower -c, or use --device cpu");
  options.context_len = 0;  // as much as there is
  EXPECT_EQ(load(options)->context_len(), 4096);
}

}
}
