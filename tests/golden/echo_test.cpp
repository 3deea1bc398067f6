// Learned drafters whose guesses are mostly right, and not always (models/tiny/README.md, `echo`): what follows kept and dropped
// guesses, chains and trees, leaves the stream of plain decoding as it is, and a drafter's own cache in step with it.

#include "../conformance/runs.h"

namespace hunch {
namespace {

using namespace test;

class EchoDrafters : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, EchoDrafters, testing::Values("echo", "echo-eagle1", "echo-eagle3", "echo-medusa"), param_name);

std::unique_ptr<Engine> load_echo(const char* drafter) {
  EngineOptions options{.model = tiny_path("echo"), .device = "cpu", .threads = 2, .kv_dtype = "f32"};
  options.drafters.push_back({.path = tiny_path(drafter)});
  return load(options);
}

TEST_P(EchoDrafters, KeepPlainStreamsWhileGuessesAreKeptAndDropped) {
  const auto engine = load_echo(GetParam());
  int64_t kept = 0, dropped = 0;
  for (const double temperature : {0.0, 0.5})
    for (const int beside : {0, 6})
      for (const uint64_t seed : {1, 2}) {
        auto asked = ask(random_prompt(30, 250, seed), 80);
        asked.sampling.temperature = temperature;
        const auto plain = plain_stream(*engine, asked);
        guess(asked, engine->parts().learned.at(0).name, 4, beside);
        const auto drafted = generate(*engine, asked);
        EXPECT_EQ(drafted.tokens, plain) << "temperature " << temperature << ", " << beside << " tokens beside the chain";
        kept += drafted.accepted;
        dropped += drafted.drafted - drafted.accepted;
      }
  EXPECT_GT(kept, 100);
  EXPECT_GT(dropped, 100);
}

// What is drafted, by the number of tokens behind the pending one: each node's token and parent.
using Drafts = std::map<int64_t, std::vector<std::pair<int32_t, int>>>;
Drafts drafts_of(Engine& engine, const Request& asked, int rounds) {
  Drafts out;
  const auto run = make_step(engine, asked);
  run->hot_loop().after_drafts = [&](Running& who) {
    auto& nodes = out[who.sequence.committed_len];
    for (int i = 0; i < who.tree().size; ++i) nodes.emplace_back(who.tree().tokens(i), who.tree().parents[i]);
  };
  HUNCH_CHECK(run->prefill(nullptr).ok());
  for (int i = 0; i < rounds; ++i) HUNCH_CHECK(run->round().ok());
  return out;
}

// A drafter whose cache fell out of step with the sequence would still change nothing, and be right less often.
TEST_P(EchoDrafters, GuessInTheMiddleOfDecodingAsTheyDoBehindAPrompt) {
  const auto engine = load_echo(GetParam());
  for (const int beside : {0, 6}) {
    if (beside > 0 && std::string(GetParam()) == "echo-medusa") continue;  // the shape of its trees follows what was kept
    auto asked = ask(random_prompt(30, 250, 3), 60);
    const auto plain = plain_stream(*engine, asked);
    guess(asked, engine->parts().learned.at(0).name, 3, beside);
    for (const auto& [committed, nodes] : drafts_of(*engine, asked, 12)) {
      Request from = asked;
      from.prompt.insert(from.prompt.end(), plain.begin(), plain.begin() + (committed - 30));
      EXPECT_EQ(drafts_of(*engine, from, 1).at(committed), nodes) << "behind " << committed << " tokens, " << beside << " beside";
    }
  }
}

}
}
