// Models with natively trained sparse attention: every method that works gives plain decoding's stream bit for bit, alone, in
// trees of any shape, in any chunks, and in a crowd with far too few pages; what does not work is refused by name.

#include "methods.h"

namespace hunch {
namespace {

using namespace test;

constexpr Method kNsaMethods[] = {{"auto"}, {"ngram"}, {"suffix"}, {"suffix", 6}, {"ngram", 5}, {"auto", 7}};

struct Place {
  std::string device, isa;
};
std::vector<Place> places() {
  std::vector<Place> out{{"reference", ""}};
  for (const std::string& isa : available_isas()) out.push_back({"cpu", isa});
  return out;
}

class Nsa : public testing::TestWithParam<std::string> {
 protected:
  // Threads and types of K and V (such models take the first three) change with `turn`.
  static EngineOptions options_at(const Place& place, int turn) {
    EngineOptions out{.model = tiny_path(GetParam()), .device = place.device, .isa = place.isa, .threads = 1 + turn % 2};
    out.kv_dtype = kKvTypes[turn % 3];
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Models, Nsa, testing::ValuesIn(nsa_models()), param_name);

TEST_P(Nsa, EveryMethodGivesThePlainStream) {
  int turn = 0;
  Tally kept;
  for (const Place& place : places()) {
    const char* kv = kKvTypes[turn % 3];
    auto options = options_at(place, turn);
    options.context_len = 256;
    auto engine = load(options);
    auto request = ask(phrases(150, 40, 1), 60, turn % 2 ? 0.8 : 0.0);
    const auto plain = generate_plain(*engine, request);
    for (const Method& method : kNsaMethods) {
      set_method(request, method, 1 + turn++ % 6);
      const auto run =
          generate_same(*engine, request, plain, fmt::format("{} {} {} {}", place.device, place.isa, kv, name_of(method)));
      kept.add(run);
    }
  }
  kept.expect_kept_and_dropped("", 10);
}

// Compressed rows that rejected and accepted nodes own must outlive the round only as a chain would leave them.
TEST_P(Nsa, TreesOfAnyShapeLeaveThePlainStreamAndItsEntries) {
  int turn = 0;
  TreeCounts counts;
  for (const Place& place : places()) {
    auto options = options_at(place, turn);
    options.context_len = 512, options.max_draft = 64;
    auto engine = load(options);
    auto request = ask(random_prompt(120 + 13 * (turn % 3), 256, 3), 300, turn % 2 ? 0.8 : 0.0);
    expect_entries_of_a_chain(*engine, request, 64, 220, turn, fmt::format("{} {}", place.device, place.isa), counts);
    ++turn;
  }
  EXPECT_GT(counts.kept, 50);
  EXPECT_GT(counts.moved, 30);
}

TEST_P(Nsa, APromptInAnyChunksLeavesTheSameEntriesAndTokens) {
  for (const Place& place : places()) {
    EngineOptions options{
        .model = tiny_path(GetParam()), .device = place.device, .isa = place.isa, .context_len = 256, .chunk_len = 512};
    Ints tokens;
    std::vector<float> kv;
    for (const int chunk : {512, 2, 7, 64, 149}) {
      options.chunk_len = chunk, options.threads = 1 + chunk % 2;
      auto engine = load(options);
      auto step = make_step(*engine, ask(random_prompt(150, 256, 9), 40));
      decode_to(*step, 180);
      const auto now = kv_of(*engine, *step, 179);
      if (kv.empty()) tokens = step->sequence().tokens, kv = now;
      EXPECT_EQ(step->sequence().tokens, tokens) << place.isa << " chunk " << chunk;
      EXPECT_TRUE(same_bits(now, kv)) << place.isa << " chunk " << chunk;
    }
  }
}

// Slots change hands, pages are shared and preempted: no other sequence's compressed rows may be taken for one's own.
TEST_P(Nsa, ACrowdWithFarTooFewPagesGivesThePlainOutputs) {
  int turn = 0;
  for (const char* device : kHosts)
    for (const bool caching : {true, false}) {
      expect_plain_outputs_in_a_crowd(GetParam(), device, kKvTypes[turn % 3], caching, turn, kNsaMethods);
      ++turn;
    }
}

// Learned drafters of another model guess for this one: seldom right, never wrong.
TEST(NsaDrafters, GiveThePlainStream) {
  for (const char* folder : {"eagle3", "medusa", "draft-llama"}) {
    auto engine =
        load({.model = tiny_path("nsa-fla"), .threads = 2, .context_len = 256, .drafters = {{.path = tiny_path(folder)}}});
    auto request = ask(phrases(90, 30, 1), 60);
    request.sampling.allowed_token_ids = {3, 17, 40, 41, 99, 130, 200, 251};
    const auto plain = generate_plain(*engine, request);
    int64_t accepted = 0;
    for (const int beside : {0, 9}) {
      guess(request, engine->parts().learned.at(0).name, 3, beside);
      const auto run = generate_same(*engine, request, plain, folder);
      EXPECT_GT(run.drafted, 0) << folder;
      accepted += run.accepted;
    }
    EXPECT_GT(accepted, 0) << folder;
  }
}

// The model that ships and its own head: chains and trees that are often right.
TEST(NsaDrafters, OfTheShippedModelGiveThePlainStream) {
  const auto model = tree_path() + "/models/wren-nsa-8m";
  auto engine =
      load({.model = model + ".gguf", .threads = 2, .context_len = 2048, .drafters = {{.path = model + "-eagle3.gguf"}}});
  auto request = ask(copying_prompt(engine->tokenizer(), 900, 3), 96);
  const auto plain = generate_plain(*engine, request);
  for (const int beside : {0, 12}) {
    guess(request, "eagle3", 4, beside);
    const auto run = generate_same(*engine, request, plain, fmt::format("eagle3, {} beside the chain", beside));
    EXPECT_GT(run.accepted, 20);
  }
  request.speculation = {};
  generate_same(*engine, request, plain, "auto");
}

TEST(NsaRefusals, SayWhatToDoInstead) {
  const EngineOptions options{.model = tiny_path("nsa-std"), .context_len = 256};
  auto engine = load(options);
  for (const char* method : {"self", "cascade"}) {
    auto request = ask(random_prompt(20, 256, 1), 8);
    guess(request, method, 0);
    expect_error(engine->generate(request), "use suffix, ngram or a loaded drafter");
  }
  for (const char* kv : {"q8_0", "fp8", "i16"}) {
    EngineOptions with = options;
    with.kv_dtype = kv;
    expect_error(Engine::load(with), "choose one of these by --kv-type");
  }
  EngineOptions drafting{.model = tiny_path("qwen3-untied"), .context_len = 256};
  drafting.drafters = {{.method = "draft_model", .path = tiny_path("nsa-std")}};
  expect_error(Engine::load(drafting), "sparse attention cannot draft");
}

}
}
