// Row invariance of whole passes (ARCHITECTURE.md, decision 2): a prompt cut into any chunks, and rounds of any length, leave the
// same K and V and the same next tokens, bit for bit. Entries are compared as stored.
#include "equality.h"

namespace hunch {
namespace {

using namespace test;

struct State {
  Ints tokens;
  std::vector<float> kv;
};

State run(const EngineOptions& options, const Request& request, size_t until) {
  auto engine = load(options);
  auto step = make_step(*engine, request);
  decode_to(*step, int64_t(until));
  State state;
  state.tokens.assign(step->sequence().tokens.begin(), step->sequence().tokens.begin() + int64_t(until));
  state.kv = kv_of(*engine, *step, int64_t(until) - 1);
  return state;
}

struct Place {
  std::string model, device, isa;
};

std::vector<Place> places() {
  std::vector<Place> out;
  for (const std::string& model : tiny_models()) out.push_back({model, "reference", ""});
  for (const std::string& isa : available_isas())
    for (const char* model : {"qwen3-untied", "qwen2-window", "llama-linear", "qwen3-moe", "llama-q4_k_m.gguf", "qwen3-q4_0.gguf",
             "qwen3-q8_0.gguf", "gpt-oss", "deepseek-v3", "deepseek2-q8_0.gguf"})
      out.push_back({model, "cpu", isa});
  return out;
}

TEST(RowInvariance, APromptInAnyChunksLeavesTheSameEntriesAndPendingToken) {
  for (const Place& place : places()) {
    EngineOptions options{.model = tiny_path(place.model), .device = place.device, .isa = place.isa, .context_len = 256};
    const auto request = ask(random_prompt(150, 256, 9), 20);
    options.chunk_len = 512;
    const State whole = run(options, request, 151);
    for (const int chunk : {2, 3, 7, 64, 149}) {
      options.chunk_len = chunk;
      options.threads = 1 + chunk % 2;
      const State state = run(options, request, 151);
      EXPECT_EQ(state.tokens, whole.tokens) << place.model << " " << place.isa << " chunk " << chunk;
      EXPECT_TRUE(same_bits(state.kv, whole.kv)) << place.model << " " << place.device << " " << place.isa << " chunk " << chunk;
    }
  }
}

TEST(RowInvariance, RoundsLeaveTheEntriesThatPlainDecodingLeaves) {
  for (const Place& place : places()) {
    const EngineOptions options{.model = tiny_path(place.model), .device = place.device, .isa = place.isa, .context_len = 256};
    auto request = ask(random_prompt(140, 256, 9), 60);
    const State plain = run(options, request, 180);
    request.speculation.proposer = "self";
    request.speculation.ratio = 0.03;
    for (const int gamma : {1, 4, 15}) {
      request.speculation.num_tokens = gamma;
      const State speculated = run(options, request, 180);
      EXPECT_EQ(speculated.tokens, plain.tokens) << place.model << " " << place.isa;
      EXPECT_TRUE(same_bits(speculated.kv, plain.kv))
          << place.model << " " << place.device << " " << place.isa << " gamma " << gamma;
    }
  }
}

TEST(RowInvariance, HoldsForTheShippedModelAtFourThousandTokens) {
  EngineOptions options{.model = wren_path(), .threads = 2, .context_len = 4608};
  auto engine = load(options);
  auto request = ask(copying_prompt(engine->tokenizer(), 4096, 6), 40);
  const size_t until = request.prompt.size() + 30;
  engine.reset();
  const State whole = run(options, request, until);
  options.chunk_len = 100, options.threads = 1;
  request.speculation.proposer = "self";
  request.speculation.ratio = 0.01;
  const State other = run(options, request, until);
  EXPECT_EQ(other.tokens, whole.tokens);
  EXPECT_TRUE(same_bits(other.kv, whole.kv));
}

}
}
