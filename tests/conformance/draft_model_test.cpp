// A draft model never changes the output, and reads what the target reads: one that drafts for itself is always right, alone and
// in a crowd, behind others' prefixes and preemptions, under other numberings of its tokens.

#include "checkpoint/convert.h"
#include "methods.h"
#include "renumbered.h"

namespace hunch {
namespace {

using namespace test;
namespace fs = std::filesystem;

// The same model with matrices of 8 bits: often right, not always.
const std::string& coarser(const char* model) {
  static std::map<std::string, std::string> made;
  std::string& path = made[model];
  if (!path.empty()) return path;
  path = (fs::path(testing::TempDir()) / fmt::format("draft_model_{}_q8_0.gguf", model)).string();
  HUNCH_CHECK(quantise_checkpoint(tiny_path(model), path, DType::Q8_0).ok());
  return path;
}

void expect_plain_stream(Engine& engine, const Request& request, const Generation& run, const std::string& what) {
  EXPECT_TRUE(run.lossless) << what;
  EXPECT_EQ(run.tokens, plain_stream(engine, request)) << what;
}

// Whatever its cache lacked, or held of others, would cost acceptance.
void expect_all_kept(const Generation& run, const std::string& what) {
  EXPECT_GT(run.drafted, 0) << what;
  EXPECT_EQ(run.accepted, run.drafted) << what;
}

TEST(DraftModel, AModelThatDraftsForItselfIsAlwaysRight) {
  int turn = 0;
  for (const char* device : kHosts)
    for (const char* model : {"qwen3-tied", "qwen2-window", "llama-q4_k_m.gguf"}) {
      auto engine = load(with_draft_model(model, tiny_path(model), device));
      for (const double temperature : {0.0, 0.8})
        for (const char* rule : {"match", "ratio"}) {
          const int gamma = std::array{1, 3, 6, 9}[turn++ % 4];
          const auto what = fmt::format("{} {} T {} {} gamma {}", device, model, temperature, rule, gamma);
          const auto request = drafting(random_prompt(90 + turn, 256, turn), 60, gamma, temperature, rule);
          const auto run = generate(*engine, request);
          expect_all_kept(run, what);
          EXPECT_EQ(run.rounds, 59 / (gamma + 1) + (59 % (gamma + 1) > 1)) << what;
          if (temperature == 0 || rule[0] == 'm') expect_plain_stream(*engine, request, run, what);
        }
    }
}

// The second request begins with pages of the first, the third with pages that no drafter has seen, the fourth with what the
// third made good.
TEST(DraftModel, KnowsPagesThatItSawAndReadsThoseThatItDidNot) {
  for (const char* device : kHosts) {
    auto engine = load(with_draft_model("qwen3-tied", tiny_path("qwen3-tied"), device));
    const auto first = random_prompt(200, 256, 1), unseen = random_prompt(150, 256, 2);
    (void)plain_stream(*engine, drafting(unseen, 10, 1, 0));
    int number = 0;
    for (const auto& prompt : {first, first, unseen, unseen}) {
      const auto request = drafting(prompt, 40, 5, 0.8);
      const auto run = generate(*engine, request);
      const auto what = fmt::format("{} request {}", device, number++);
      EXPECT_EQ(run.reused_tokens > 0, number > 1) << what;
      expect_all_kept(run, what);
      expect_plain_stream(*engine, request, run, what);
    }
  }
}

// Rows that wait for their first draft are more than fit into a pass, and requests come and go.
TEST(DraftModel, IsAlwaysRightInACrowdWithFewRowsAndPages) {
  for (const bool caching : {false, true}) {
    auto options = with_draft_model("qwen3-tied", tiny_path("qwen3-tied"));
    options.max_num_seqs = 6, options.chunk_len = 30, options.max_num_batched_tokens = 40, options.prefix_caching = caching;
    auto roomy = load(options);
    options.kv_memory_bytes = 2 * bytes_of_pages(*roomy, 9);  // the draft model's are as many
    auto engine = load(options);
    ASSERT_EQ(engine->parts().pool->num_pages(), 9);
    std::vector<Request> requests;
    for (int i = 0; i < 12; ++i) {
      requests.push_back(drafting(phrases(64 + 9 * i, 70, i), 50, 1 + i % 7, i % 2 ? 0.8 : 0));
      requests.back().priority = i % 3;
    }
    const auto runs = generate_together(*engine, requests);
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto what = fmt::format("request {} cache {}", i, caching);
      expect_all_kept(runs[i], what);
      expect_plain_stream(*roomy, requests[i], runs[i], what);
    }
    EXPECT_GT(engine->stats().preemptions, 0);
    EXPECT_EQ(engine->stats().prefix_tokens_hit > 0, caching);
  }
}

TEST(DraftModel, GivesThePlainOutputUnderEveryKindOfRequest) {
  Tally kept;
  int64_t branched = 0;
  int turn = 0;
  for (const char* device : kHosts)
    for (const char* model : {"qwen3-tied", "qwen2-tied"}) {
      auto engine = load(with_draft_model(model, coarser(model), device));
      for (int kind = 0; kind < kNumKinds; ++kind, ++turn) {
        Request request = request_of_kind(*engine, kind, phrases(120, 40, kind), 50);
        const auto plain = generate_plain(*engine, request);
        guess(request, turn % 7 == 6 ? "auto" : "draft_model", 2 + turn % 5, turn % 3 == 2 ? 6 : 0);
        const auto run = generate_same(*engine, request, plain, fmt::format("{} {} kind {}", device, model, kind));
        kept.add(run);
        branched += run.drafted > 5 * run.rounds;
      }
    }
  kept.expect_kept_and_dropped("", kept.drafted / 4);
  EXPECT_GT(branched, 0);
}

TEST(DraftModel, IsRightUnderAnotherPaddingOrNumbering) {
  const auto turned = turned_ids();
  struct {
    const char *name, *mode;
    std::vector<int> ids;
    int columns;
  } const cases[] = {
      {"padded", "same", same_ids(), 272}, {"turned", "intersection", turned, 260}, {"both", "intersection", turned, 288}};
  for (const char* device : kHosts)
    for (const auto& c : cases) {
      const auto path = renumbered("qwen3-tied", c.name, c.ids, c.columns);
      auto engine = load(with_draft_model("qwen3-tied", path, device, c.mode));
      for (const double temperature : {0.0, 0.8})
        for (const char* rule : {"match", "ratio"}) {
          const auto what = fmt::format("{} {} T {} {}", device, c.name, temperature, rule);
          const auto request = drafting(random_prompt(100, 256, 5), 40, 4, temperature, rule);
          const auto run = generate(*engine, request);
          expect_all_kept(run, what);
          if (temperature == 0 || rule[0] == 'm') expect_plain_stream(*engine, request, run, what);
        }
    }
}

TEST(DraftModel, NeverGuessesWhatItCannotSay) {
  auto fewer = same_ids();
  for (int id = 0; id < 260; ++id) fewer[id] = id < 256 ? (id + 100) % 256 : id == 257 ? 256 : -1;
  const auto path = renumbered("qwen3-tied", "fewer", fewer, 264);
  auto engine = load(with_draft_model("qwen3-tied", path, "cpu", "intersection"));
  const std::string text = "to the tree, to the top, to the town";  // " t" is a token of the target's alone
  auto prompt = good(engine->tokenizer().encode(text));
  ASSERT_NE(std::ranges::find(prompt, 256), prompt.end());
  auto request = drafting(prompt, 60, 4, 0.8);
  request.sampling.logit_bias = {{256, 4.0f}};  // and is said often
  const auto run = make_step(*engine, request);
  int64_t guessed = 0, said = 0;
  run->hot_loop().after_drafts = [&](Running& who) {
    for (int node = 0; node < who.tree().size; ++node, ++guessed) {
      EXPECT_NE(who.tree().tokens(node), 256);
      EXPECT_LT(who.tree().tokens(node), 258);
    }
  };
  decode_to(*run, run->sequence().prompt_len + 50);
  for (int64_t i = run->sequence().prompt_len; i < run->sequence().len(); ++i) said += run->sequence().tokens[i] == 256;
  EXPECT_GT(guessed, 0);
  EXPECT_GT(said, 0);
  EXPECT_GT(run->stats().accepted, 0);
  expect_plain_stream(*engine, request, generate(*engine, request), "a token that the draft model lacks");
}

TEST(DraftModel, StopsWhereItsOwnContextEnds) {
  const auto path = renumbered("qwen3-tied", "short", same_ids(), 260, 100);
  auto engine = load(with_draft_model("qwen3-tied", path));
  for (const int prompt_len : {60, 150}) {
    const auto request = drafting(random_prompt(prompt_len, 256, 6), 60, 5, 0);
    const auto run = make_step(*engine, request);
    int64_t within = 0;
    run->hot_loop().after_drafts = [&](Running& who) {
      // The last draft is a guess only: nothing reads it.
      EXPECT_LE(who.tree().size, std::max<int64_t>(0, 100 - who.sequence.committed_len));
      within += who.tree().size;
    };
    decode_to(*run, prompt_len + 60);
    EXPECT_EQ(run->stats().accepted, run->stats().drafted);
    EXPECT_EQ(within > 0, prompt_len < 100);
    auto plain = plain_stream(*engine, request);
    EXPECT_TRUE(std::equal(plain.begin(), plain.end(), run->sequence().tokens.begin() + prompt_len));
  }
}

TEST(DraftModel, RefusesAnotherVocabularyUnlessTold) {
  auto turned = same_ids();
  std::swap(turned[65], turned[66]);
  const auto options = with_draft_model("qwen3-tied", renumbered("qwen3-tied", "swapped", turned, 260));
  const auto refused = Engine::load(options);
  for (const char* word : {"swapped", "token 65", "intersection"}) expect_error(refused, word);
}

}
}
