// What holds on the CPU holds on a device: streams with speculation are plain decoding's, bit for bit, for every way to draft,
// every policy, in a crowd and under every rule of logits; rows do not depend on their company; numbers are near the reference's.
// On `cuda` where there is a GPU, and everywhere on `late`, which keeps a device's contract.

#include "../conformance/equality.h"
#include "engine/round_bench.h"
#include "near.h"

namespace hunch {
namespace {

using namespace test;

class Device : public OnDevice {
 protected:
  // Plain loops are too slow for the shipped model.
  bool slow() const { return device_ == "late"; }
  EngineOptions tiny(const std::string& model) const {
    return {.model = tiny_path(model), .device = device_, .context_len = 256};
  }
};
// The model that says what it read, and one of its drafters.
EngineOptions echo_with(const std::string& drafter, const std::string& device) {
  return {.model = tiny_path("echo"), .device = device, .context_len = 256, .drafters = {{.path = tiny_path(drafter)}}};
}

constexpr const char* kEchoing[] = {"echo", "echo-eagle1", "echo-eagle3", "echo-medusa"};
INSTANTIATE_TEST_SUITE_P(On, Device, testing::Values("cuda", "late"), param_name);

const char* const kEncoded[] = {
    "llama-llama3-f16.gguf", "llama-q4_k_m.gguf", "qwen3-q8_0.gguf", "qwen2-yarn-q4_0.gguf", "gpt-oss-mxfp4.gguf"};

TEST_P(Device, StreamsEqualPlainDecodingForEveryPolicy) {
  int turn = 0;
  for (const char* model : {"qwen3-tied", "qwen2-window", "llama-llama3", "mistral", "gpt-oss"}) {
    auto options = tiny(model);
    options.kv_dtype = turn % 2 ? "f16" : "bf16";
    options.chunk_len = turn % 3 ? 64 : 7;
    auto engine = load(options);
    Equality equality(*engine);
    for (const auto& policy : Register<SparsePolicy>::all())
      for (const double ratio : {0.07, 0.3}) {
        auto request = self_drafting(random_prompt(170, 256, 4), 60, ratio, kGammas[turn % 5], policy.name);
        request.speculation.min_tokens = 12;
        equality.expect_plain_stream(request, turn++, fmt::format("{} {} {}", model, policy.name, ratio));
      }
    EXPECT_GE(equality.accepted, 1) << model;
    // Where every layer has a window nothing is selected: drafts read what the target reads.
    EXPECT_GE(equality.rejected(), std::string(model) == "mistral" ? 0 : 1) << model;
  }
}

// Other threads (MaskWorkers) fill masks while guesses come and go.
TEST_P(Device, StructuredOutputIsThatOfPlainDecodingAloneAndInACrowd) {
  if (!grammars_available()) GTEST_SKIP() << "built without xgrammar";
  auto options = tiny("qwen3-tied");
  options.max_num_seqs = 5;
  auto engine = load(options);
  Together together(*engine);
  int64_t accepted = 0;
  for (int i = 0; i < 12; ++i) {
    auto request = ask(random_prompt(40 + 9 * i, 256, i), 10 + 9 * (i % 5), i % 3 ? 0.9 : 0.0);
    request.structured = {.kind = StructuredOutput::Kind::Regex, .text = "([a-f]{2,4}(x|yz)){2,8}"};
    if (i % 5 == 0) request.structured = {.kind = StructuredOutput::Kind::JsonObject};
    const auto plain = generate(*engine, request);
    for (const char* proposer : {"suffix", "auto", "self"}) {
      guess(request, proposer, 4, i % 2 ? 6 : 0);
      request.speculation.ratio = 0.3;
      accepted += generate_same(*engine, request, plain, fmt::format("{} {}", proposer, i)).accepted;
      together.add(request);
    }
  }
  EXPECT_GT(accepted, 20);
  together.expect_plain_outputs(*engine, "");
}

// What sequences ask for in a layer goes together: more of them start no more.
TEST_P(Device, RoundsOfManySequencesRunTheKernelsOfOne) {
  const auto kernels = [&](int batch) {
    auto options = tiny("qwen3-tied");
    options.max_num_seqs = batch;
    const auto engine = load(options);
    Request request;
    request.speculation.proposer = "self", request.speculation.min_tokens = 12, request.speculation.ratio = 0.3;
    const auto bench = good(
        RoundBench::make(engine->parts(), request, {.batch = batch, .gamma = 3, .rounds = 2, .depth = 150, .acceptance = {0.8}}));
    return int64_t(good(bench->run(3, 2)).per_round.kernels);
  };
  const int64_t one = kernels(1), eight = kernels(8);
  EXPECT_GT(one, 0);
  const int own = std::getenv("HUNCH_CUDA_PLAIN") ? 6 : 4;
  EXPECT_LE(eight, one + own * 7) << "a sequence has a few of its own in a round, none in a layer";
}

// Types that the tensor cores have no form for.
TEST_P(Device, StreamsEqualPlainDecodingForCachesOfEightBits) {
  int turn = 0;
  for (const char* kv : {"q8_0", "fp8"}) {
    auto options = tiny(turn % 2 ? "qwen2-window" : "qwen3-tied");
    options.kv_dtype = kv;
    auto engine = load(options);
    Equality equality(*engine);
    for (const char* policy : {"vegas", "quest", "streamingllm"})
      for (const int beside : {0, 6}) {
        auto request = self_drafting(random_prompt(170, 256, 4), 60, 0.3, kGammas[turn % 5], policy);
        request.speculation.min_tokens = 12;
        request.speculation.tree_tokens = beside;
        equality.expect_plain_stream(request, turn++, fmt::format("{} {} beside {}", kv, policy, beside));
      }
    ++turn;
    equality.expect_kept_and_dropped(kv);
  }
  auto options = tiny("qwen3-tied");
  options.kv_dtype = "i16";
  expect_error(Engine::load(options), "KV type i16 is for the CPU: use bf16");
}

TEST_P(Device, StreamsEqualPlainDecodingForEveryEncoding) {
  int turn = 0;
  for (const char* model : kEncoded) {
    auto engine = load(tiny(model));
    Equality equality(*engine);
    for (const char* weights : {"target", "q8_0"}) {
      auto request = self_drafting(random_prompt(170, 256, 4), 60, 0.3, 2 + turn % 6);
      request.speculation.draft_weights = weights;
      equality.expect_plain_stream(request, turn++, fmt::format("{} drafts {}", model, weights));
    }
    EXPECT_GE(equality.accepted, 1) << model;
  }
}

// Blocks read in place, channels and experts left out: in drafts the stream stays, in checks it is lossy and says so.
const SparseVerification kLeftOut[] = {{.ratio = 0.2, .dense_len = 32, .block = 8},
    {.ratio = 0.2, .dense_len = 32, .block = 5, .group = "max"}, {.ratio = 1, .channel_threshold = 0.05},
    {.ratio = 0.3, .dense_len = 0, .block = 16, .channel_threshold = 0.02},
    {.ratio = 1, .skip_experts = 1, .expert_mode = "tail_mass", .expert_mass = 0.99},
    {.skip_experts = 1, .expert_mode = "union_aware", .expert_mass = 0.99, .expert_renorm = true}};
bool goes_with(Engine& engine, const SparseVerification& how) {
  const bool experts = shape_of(engine).num_experts > 0;
  return how.skip_experts > 0 ? experts : how.channel_threshold == 0 || !experts;
}

TEST_P(Device, ThinnedDraftsLeaveTheStreamAsItIs) {
  int turn = 0;
  for (const char* model : {"qwen3-tied", "qwen2-window", "gpt-oss"}) {
    auto engine = load(tiny(model));
    Equality equality(*engine);
    for (const SparseVerification& how : kLeftOut)
      for (const char* proposer : {"self", "staged"}) {
        if (!goes_with(*engine, how)) continue;
        auto request = ask(phrases(170, 40, 4), 60);
        guess(request, proposer, kGammas[turn % 5]);
        set_sampling(request, turn++);
        const auto plain = plain_stream(*engine, request);
        request.speculation.sparse = how;
        request.speculation.sparse.drafts = true;
        const auto run = generate(*engine, request);
        EXPECT_EQ(run.tokens, plain) << model << " " << proposer << " " << turn;
        EXPECT_TRUE(run.lossless);
        EXPECT_GT(run.thinned.passes, 0);
        EXPECT_LE(run.thinned.entries_read, run.thinned.entries / 2);
        EXPECT_EQ(run.thinned.channels_skipped > 0, how.channel_threshold > 0);
        EXPECT_EQ(run.thinned.experts_skipped > 0, how.skip_experts > 0);
        equality.add(run);
      }
    equality.expect_kept_and_dropped(model);
  }
}

TEST_P(Device, SparseChecksAreLossyAndKeepToThemselves) {
  int turn = 0;
  for (const char* model : {"qwen3-tied", "qwen2-window", "gpt-oss"}) {
    auto engine = load(tiny(model));
    auto reference = tiny_engine(model, "reference");
    for (const SparseVerification& how : kLeftOut) {
      if (!goes_with(*engine, how)) continue;
      auto exact = ask(phrases(170, 40, 4), 40);
      exact.speculation.proposer = turn++ % 2 ? "ngram" : "none";
      const auto plain = plain_stream(*engine, exact);
      Request lossy = exact;
      lossy.speculation.sparse = {.on = true, .ratio = 1};
      EXPECT_EQ(generate(*engine, lossy).tokens, plain);
      lossy.speculation.sparse = how, lossy.speculation.sparse.on = true;
      const auto alone = generate(*engine, lossy);
      const Approximation& a = alone.approximation;
      EXPECT_EQ(alone.lossless, a.passes == 0);
      EXPECT_EQ(a.passes > 0, a.entries_read + a.channels_skipped + a.experts_skipped > 0);
      EXPECT_GT(a.passes + int(how.channel_threshold > 0), 0);
      EXPECT_LE(a.entries_read, a.entries / 2);
      if (slow()) { EXPECT_EQ(alone.tokens, generate(*reference, lossy).tokens) << model << " " << turn; }
      auto first = engine->submit(lossy), second = engine->submit(exact);
      ASSERT_TRUE(first.ok() && second.ok());
      EXPECT_EQ((*second)->result()->tokens, plain) << "beside a lossy one";
      EXPECT_EQ((*first)->result()->tokens, alone.tokens);
    }
  }
}

TEST_P(Device, EveryMethodGivesThePlainOutputUnderEveryKindOfRequest) {
  int turn = 0;
  for (const char* model : {"qwen3-tied", "llama-q4_k_m.gguf"}) {
    auto engine = load(tiny(model));
    for (int kind = 0; kind < kNumKinds; ++kind) {
      Request request = request_of_kind(*engine, kind, phrases(160, 40, kind), 50);
      const auto plain = generate_plain(*engine, request);
      for (const auto& method : kMethods) {
        set_method(request, method, 1 + turn++ % 6);
        generate_same(*engine, request, plain, fmt::format("{} kind {} {}", model, kind, name_of(method)));
      }
    }
  }
}

TEST_P(Device, ACrowdInTooFewPagesGetsTheOutputsOfRequestsAlone) {
  for (const bool caching : {false, true}) {
    auto options = tiny("qwen3-untied");
    auto alone = load(options);
    options.max_num_seqs = 6, options.prefix_caching = caching;
    options.chunk_len = 40, options.max_num_batched_tokens = 90;
    options.kv_memory_bytes = bytes_of_pages(*alone, 7);
    auto crowded = load(options);
    Together together(*alone);
    for (int i = 0; i < 12; ++i)
      set_method(together.add(request_of_kind(*alone, i, phrases(100 + 5 * i, 40, i), 40)), kMethods[i % kNumMethods], 1 + i % 5);
    together.expect_plain_outputs(*crowded, fmt::format("cache {}", caching));
  }
}

// What a step gave is said beside the next one's work: in order, once each, by whom it is, up to the end or a cancellation.
TEST_P(Device, ConsumersGetEveryTokenOnceAndByWhom) {
  auto options = tiny("qwen3-tied");
  options.max_num_seqs = 3;
  auto engine = load(options);
  std::vector<Request> requests(3, self_drafting(phrases(140, 40, 1), 20, 0.3, 3, "streamingllm"));
  requests[0].speculation.proposer = "suffix", requests[1].speculation.verify = false, requests[2].max_tokens = 100;
  requests[2].speculation.proposer = "none";  // a token a step
  std::vector<Ints> wanted;
  for (const Request& request : requests) wanted.push_back(generate(*engine, request).tokens);
  Streams streams;
  for (const Request& request : requests) streams.push_back(good(engine->submit(request)));
  for (const size_t i : {2, 1, 0}) {
    Ints said;
    int64_t guessed = 0;
    while (const auto event = streams[i]->next()) {
      said.push_back(event->id), guessed += event->from == TokenEvent::From::Draft;
      if (i == 2 && said.size() == 9) streams[i]->cancel();
    }
    const auto generation = good(streams[i]->result());
    EXPECT_EQ(said, generation.tokens) << i;
    if (i == 2) wanted[i].resize(generation.steps + 1);
    EXPECT_EQ(said, wanted[i]) << i;
    EXPECT_TRUE(i != 0 || guessed == generation.accepted) << guessed;
  }
  EXPECT_EQ(engine->stats().generated_tokens, 4 * 20 + 100 + std::ssize(wanted[2]));
}

TEST_P(Device, TheShippedModelStreamsEqualPlainDecoding) {
  if (slow()) GTEST_SKIP() << "plain loops";
  auto engine = load({.model = wren_path(), .device = device_, .context_len = 8704});
  Equality equality(*engine);
  const auto prompt = copying_prompt(engine->tokenizer(), 8192, 1);
  int turn = 0;
  for (const double ratio : {0.03, 0.07})
    for (const int gamma : {1, 4, 7, 15}) {
      auto request = self_drafting(prompt, 96, ratio, gamma);
      equality.expect_plain_stream(request, turn++, fmt::format("ratio {} gamma {}", ratio, gamma));
    }
  equality.expect_mostly_kept();
}

// Real widths go where tiny models never do: products of many rows, a chunk's attention, lists that start early. Bit for bit, in
// any chunks, plain and drafted.
TEST_P(Device, RealWidthsStreamAlikeInAnyChunksPlainAndDrafted) {
  if (slow()) GTEST_SKIP() << "plain loops";
  for (const char* type : {"bf16", "q4_0"}) {
    Generation first;
    int64_t accepted = 0;
    for (const int chunk : {4096, 2048, 300}) {
      auto engine =
          load({.model = "llama-3.2-1b", .random_weights = type, .device = device_, .context_len = 5200, .chunk_len = chunk});
      for (const char* proposer : {"none", "self"}) {
        auto request = self_drafting(random_prompt(5000, 128256, 4), 40, 0.07, 7);
        request.sampling.temperature = 0.8, request.sampling.seed = 3;
        request.sampling.logprobs = 0;
        const auto run = generate_by(proposer, *engine, request);
        accepted += run.accepted;
        if (first.tokens.empty()) first = run;
        SCOPED_TRACE(fmt::format("{} {} chunk {}", type, proposer, chunk));
        EXPECT_EQ(run.tokens, first.tokens);
        EXPECT_EQ(run.logprobs, first.logprobs);
      }
    }
    EXPECT_EQ(first.logprobs.size(), 40u);
    EXPECT_GE(accepted, 1) << type;
  }
}

TEST_P(Device, APromptInAnyChunksGivesTheSameStream) {
  for (const char* model : {"qwen3-untied", "llama-linear", "qwen2-window", "qwen3-q8_0.gguf", "gpt-oss-mxfp4.gguf"}) {
    Ints whole;
    for (const int chunk : {512, 2, 3, 7, 64, 149}) {
      auto options = tiny(model);
      options.chunk_len = chunk;
      auto engine = load(options);
      auto request = ask(random_prompt(150, 256, 9), 40, 0.8);
      request.sampling.seed = 3;
      const auto stream = plain_stream(*engine, request);
      if (whole.empty()) whole = stream;
      EXPECT_EQ(stream, whole) << model << " chunk " << chunk;
    }
  }
}

// Of a prompt's tokens, against the plain loops in fp32. Activations are rounded to bf16 for the tensor cores: 8 bits, which
// layers of tiny random models leave at a few hundredths of a nat.
TEST_P(Device, LogProbabilitiesAreNearTheReferences) {
  struct Case {
    std::string model;
    double most, mean;
  };
  std::vector<Case> cases;
  if (!slow()) cases.push_back({wren_path(), 0.2, 0.04});
  // Rounding may send a row to another expert, which moves it by a step.
  auto backend = good(Register<Backend>::find(device_)->make({}));
  for (const std::string& model : tiny_models()) {
    const auto checkpoint = good(Checkpoint::open(tiny_path(model)));
    const bool experts = checkpoint->shape().num_experts > 0;
    if (backend->lacks(*checkpoint).empty()) cases.push_back({tiny_path(model), experts ? 3.0 : 0.4, 0.05});
  }
  for (const std::string model : kEncoded) cases.push_back({tiny_path(model), model.starts_with("gpt-oss") ? 3.0 : 0.4, 0.05});
  for (const Case& c : cases) {
    std::vector<std::vector<float>> found;
    for (const std::string& device : {std::string("reference"), device_}) {
      EngineOptions options{.model = c.model, .device = device, .context_len = 256};
      options.chunk_len = found.empty() ? 512 : 64;
      found.push_back(prompt_logprobs(*load(options), random_prompt(150, 256, 8)));
    }
    ASSERT_GT(found[0].size(), 100u);
    expect_near(found[0], found[1], c.most, c.mean, c.model.substr(c.model.rfind('/') + 1));
  }
}

// Chains that run blind and selections read in place are those of the host's loop over compact copies: the same tokens and
// guesses kept, under both rules. So the law suite's proof holds for a device's drafts.
TEST(LateDevice, MakesTheRoundsOfTheReference) {
  int turn = 0;
  for (const char* model : {"qwen3-tied", "llama"})
    for (const char* rule : {"match", "ratio"})
      for (const char* policy : {"vegas", "last_accepted", "streamingllm", "quest", "sparsespec", "snapkv", "random", "full"}) {
        std::vector<Generation> runs;
        for (const char* device : {"reference", "late"}) {
          auto engine = tiny_engine(model, device);
          auto request = ask(random_prompt(170, 256, 4), 50, 0.8);
          request.sampling.seed = 11u + unsigned(turn);
          if (turn % 3 == 0) request.sampling.presence_penalty = -2, request.sampling.repetition_penalty = 0.8;
          SpeculationOptions& o = request.speculation;
          guess(request, "self", 1 + turn % 6, turn % 4 == 3 ? 5 : 0);
          o.rule = rule, o.policy = policy, o.ratio = 0.3, o.min_tokens = 12;
          o.sparse = {.drafts = turn % 5 == 4, .ratio = 0.2, .dense_len = 9, .block = 8};
          o.verify = turn % 16 != 10;  // streamingllm
          if (!o.verify) {
            const auto said = generate(*engine, request).tokens;
            request.sampling.bad_words = {{said[3], said[4]}, {said[8], said[9]}};
          }
          runs.push_back(generate(*engine, request));
        }
        ++turn;
        const auto what = fmt::format("{} {} {}", model, rule, policy);
        expect_same_rounds(runs, what);
        EXPECT_EQ(runs[1].drafted > 0, runs[1].lossless) << what;
      }
}

// Of who names no rule and no seed.
TEST(LateDevice, DecidesTreesByMatch) {
  for (const char* device : {"reference", "late"}) {
    auto engine = load(echo_with("echo-eagle3", device));
    const auto rule_of = [&](const char* proposer, int beside, const char* asked = "") {
      auto request = ask(random_prompt(40, 250, 4), 30, 0.5);
      request.sampling.seed.reset();
      SpeculationOptions& o = request.speculation;
      o.proposer = proposer, o.tree_tokens = beside, o.rule = asked;
      const auto run = generate(*engine, request);
      request.sampling.seed = run.seed;
      if (run.rule == "match") { EXPECT_EQ(run.tokens, plain_stream(*engine, request)); }
      return run.rule;
    };
    const char* trees = device == std::string("late") ? "match" : "ratio";
    EXPECT_EQ(rule_of("eagle3", 5), trees);
    EXPECT_EQ(rule_of("auto", 0), trees);
    EXPECT_EQ(rule_of("eagle3", 0), "ratio");
    EXPECT_EQ(rule_of("eagle3", 5, "ratio"), "ratio");
  }
}

// Learned drafters: blind chains and trees; drafters that are mostly right, so that their caches go through every turn.
TEST_P(Device, StreamsEqualPlainDecodingForLearnedDrafters) {
  int turn = 0;
  for (const char* name : kEchoing)
    for (const char* kv : {"bf16", "f32", "fp8"}) {
      auto options = echo_with(name, device_);
      options.kv_dtype = kv;
      auto engine = load(options);
      Tally kept;
      for (const int beside : {0, 6})
        for (const double temperature : {0.0, 0.5}) {
          const int prompt = 30 + 70 * (turn++ % 3);
          auto asked = ask(random_prompt(prompt, 250, turn), 60, temperature);
          const auto plain = plain_stream(*engine, asked);
          guess(asked, engine->parts().learned.at(0).name, 1 + turn % 5, beside);
          const auto run = generate(*engine, asked);
          EXPECT_EQ(run.tokens, plain) << name << " " << kv << " T " << temperature << " beside " << beside;
          kept.add(run);
        }
      EXPECT_GT(kept.accepted, 20) << name;
      EXPECT_GT(kept.drafted - kept.accepted, 10) << name;
    }
}

TEST_P(Device, RulesThatReadGuessesWaitOnceARound) {
  for (const std::string name : {"self", "echo", "echo-eagle3", "echo-medusa"}) {
    auto options = name == "self" ? tiny("echo") : echo_with(name, device_);
    options.max_num_seqs = 6;
    auto engine = load(options);
    Together together(*engine);
    for (int i = 0; i < 6; ++i) {
      auto wanted = ask(random_prompt(60, 250, i), 60, i % 2 ? 0.5 : 0.0);
      const auto said = plain_stream(*engine, wanted);
      if (i < 5) wanted.sampling.bad_words = {{said[20], said[21]}};
      if (i > 3) wanted.sampling.presence_penalty = 0.1;
      Request& asked = together.add(wanted);
      if (name == "self") guess(asked, name, 5);
      else guess(asked, engine->parts().learned.at(0).name, 5, i > 1 ? 6 : 0);
      const uint64_t before = engine->parts().backend->counters().waits;
      const auto run = generate(*engine, asked);
      EXPECT_GT(run.accepted, 2) << name << " " << i;
      if (i < 4) { EXPECT_LE(engine->parts().backend->counters().waits - before, uint64_t(2 * run.steps + 4)) << name << i; }
    }
    together.expect_plain_outputs(*engine, name);
  }
}

// Method auto chooses among lookups, self and what is loaded, trees and chains, several requests at once.
TEST_P(Device, StreamsEqualPlainDecodingWhereAutoHasALearnedDrafter) {
  for (const char* name : {"echo", "echo-eagle3", "echo-medusa"}) {
    auto options = echo_with(name, device_);
    options.max_num_seqs = 3;
    auto engine = load(options);
    Together together(*engine);
    for (int i = 0; i < 6; ++i) {
      auto asked = ask(random_prompt(30 + 20 * i, 250, i), 80, i % 2 ? 0.5 : 0.0);
      together.add(asked).speculation.proposer = "auto";
    }
    int64_t drafted = 0;
    for (const Generation& run : together.expect_plain_outputs(*engine, name)) drafted += run.drafted;
    EXPECT_GT(drafted, 50) << name;
  }
}

TEST(LateDevice, MakesTheDraftsOfTheReferenceWithLearnedDrafters) {
  int turn = 0;
  for (const char* name : kEchoing)
    for (const char* rule : {"match", "ratio"})
      for (const int beside : {0, 5}) {
        std::vector<Generation> runs;
        for (const char* device : {"reference", "late"}) {
          auto options = echo_with(name, device);
          options.chunk_len = runs.empty() ? 512 : 40;
          auto engine = load(options);
          auto request = ask(random_prompt(100, 250, 4), 60, 0.5);
          request.sampling.seed = 11u + unsigned(turn);
          if (turn % 3 == 0) request.sampling.presence_penalty = -2, request.sampling.temperature = 2;
          guess(request, engine->parts().learned.at(0).name, 2 + turn % 4, beside);
          request.speculation.rule = rule;
          runs.push_back(generate(*engine, request));
        }
        ++turn;
        const auto what = fmt::format("{} {} {}", name, rule, beside);
        expect_same_rounds(runs, what);
        EXPECT_GT(runs[1].accepted, 0) << what;
      }
}

}
}
