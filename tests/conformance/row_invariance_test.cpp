// Row invariance of whole passes (ARCHITECTURE.md, decision 2): a prompt in any chunks, and rounds of any length, leave the same
// K and V, compared as stored, and the same next tokens, bit for bit.
#include "equality.h"

namespace hunch {
namespace {

using namespace test;

State run(const EngineOptions& options, const Request& request, size_t until) {
  auto engine = load(options);
  auto step = make_step(*engine, request);
  decode_to(*step, int64_t(until));
  const Ints& tokens = step->sequence().tokens;
  return {{tokens.begin(), tokens.begin() + int64_t(until)}, kv_of(*engine, *step, int64_t(until) - 1)};
}

struct Place {
  std::string model, device, isa;
  std::string name() const { return model + " " + device + " " + isa; }
  EngineOptions options() const { return {.model = tiny_path(model), .device = device, .isa = isa, .context_len = 256}; }
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
    EngineOptions options = place.options();
    const auto request = ask(random_prompt(150, 256, 9), 20);
    options.chunk_len = 512;
    const State whole = run(options, request, 151);
    for (const int chunk : {2, 3, 7, 64, 149}) {
      options.chunk_len = chunk, options.threads = 1 + chunk % 2;
      expect_same_state(run(options, request, 151), whole, fmt::format("{} chunk {}", place.name(), chunk));
    }
  }
}

TEST(RowInvariance, RoundsLeaveTheEntriesThatPlainDecodingLeaves) {
  for (const Place& place : places()) {
    const auto prompt = random_prompt(140, 256, 9);
    const State plain = run(place.options(), ask(prompt, 60), 180);
    for (const int gamma : {1, 4, 15})
      expect_same_state(run(place.options(), self_drafting(prompt, 60, 0.03, gamma), 180), plain,
          fmt::format("{} gamma {}", place.name(), gamma));
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
  request.speculation.proposer = "self", request.speculation.ratio = 0.01;
  expect_same_state(run(options, request, until), whole, "chunks of 100, drafted");
}

}
}
