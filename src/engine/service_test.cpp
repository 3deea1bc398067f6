// Many callers of one engine: threads, slow consumers, cancellation anywhere, refusals, order, and what is left when all streams
// are gone. A gate in the progress callback holds the engine inside a prefill.
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>

#include "engine/channel.h"
#include "engine/test_engines.h"

namespace hunch {
namespace {

using namespace test;

EngineOptions tiny(int seqs, int64_t context_len = 1024) {
  return {.model = tiny_path("llama"), .threads = 1, .context_len = context_len, .max_num_seqs = seqs, .keep_costs = false};
}

Request ask(uint64_t seed, int64_t max_tokens, int prompt_len = 40) {
  auto request = test::ask(random_prompt(prompt_len, 256, seed), max_tokens, 1.0);
  request.sampling.seed = seed;
  return request;
}

// For eight requests, with pages for one.
std::unique_ptr<Engine> crowded() {
  auto options = tiny(8, 0);
  const auto one = load(tiny(1));
  options.kv_memory_bytes = 8 * one->parts().backend->kv_page_bytes(one->parts().geometry);
  return load(options);
}

std::unique_ptr<TokenStream> submit(Engine& engine, const Request& request) { return good(engine.submit(request)); }

Ints tokens_of(TokenStream& stream) { return good(stream.result()).tokens; }

Generation interrupted(TokenStream& stream) {
  Generation outcome = good(stream.result());
  EXPECT_EQ(outcome.finish, FinishReason::Interrupted);
  return outcome;
}

// Stops the engine's thread in its first prefill report until opened.
class Gate {
 public:
  Progress callback() {
    return [this](std::string_view what, int64_t, int64_t) {
      if (what != "prefill") return;
      std::unique_lock lock(mutex_);
      reached_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
    };
  }
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false, open_ = false;
};

TEST(Service, ManyThreadsSubmitAndEveryStreamIsThatOfTheRequestAlone) {
  auto engine = load(tiny(4));
  constexpr int kThreads = 4, kEach = 5;
  std::vector<Ints> plain, got(kThreads * kEach);
  for (int i = 0; i < kThreads * kEach; ++i) plain.push_back(plain_stream(*engine, ask(i, 10 + i)));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = t * kEach; i < (t + 1) * kEach; ++i) {
        auto request = ask(i, 10 + i);
        if (i % 2) guess(request, "self", 1 + i % 5);
        // generate() and submit() side by side: whoever finds the engine idle drives it.
        if (i % 3 == 0) got[i] = generate(*engine, request).tokens;
        else got[i] = tokens_of(*submit(*engine, request));
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(got, plain);
  EXPECT_EQ(engine->stats().kv_pages_used, 0);
}

TEST(Service, TwoThreadsGenerateAtOnceWithoutAThreadOfTheEngines) {
  auto engine = load(tiny(2));
  const auto first = plain_stream(*engine, ask(1, 150)), second = plain_stream(*engine, ask(2, 90));
  Ints a, b;
  std::thread other([&] { a = generate(*engine, ask(1, 150)).tokens; });
  b = generate(*engine, ask(2, 90)).tokens;
  other.join();
  EXPECT_EQ(a, first);
  EXPECT_EQ(b, second);
}

TEST(Service, AConsumerThatTakesNothingPausesOnlyItselfAndLosesNothing) {
  auto engine = load(tiny(1));  // it even gives its seat away
  const auto long_one = ask(1, 700), short_one = ask(2, 30);
  const auto plain_long = plain_stream(*engine, long_one), plain_short = plain_stream(*engine, short_one);
  const int64_t before = engine->stats().passes;
  auto slow = submit(*engine, long_one);
  while (engine->stats().passes < before + int64_t(Channel::kCapacity)) std::this_thread::yield();
  auto fast = submit(*engine, short_one);
  EXPECT_EQ(tokens_of(*fast), plain_short);
  EXPECT_LT(engine->stats().passes, before + 700) << "nothing was taken, so it cannot have ended";
  EXPECT_FALSE(slow->finished());
  Ints taken;
  while (auto event = slow->next()) {
    EXPECT_EQ(event->index, std::ssize(taken));
    taken.push_back(event->id);
  }
  EXPECT_EQ(taken, plain_long);
}

// A consumer without a thread: it looks only when told, takes all there is, and looks again when told again.
TEST(Service, NewsComeOnceUntilTheStreamWasFoundEmptyAndAlwaysAtTheEnd) {
  auto engine = load(tiny(2));
  const auto request = ask(3, 120);
  const auto plain = plain_stream(*engine, request);
  std::mutex mutex;
  std::condition_variable told;
  int news = 0;
  const auto stream = good(engine->submit(request, [&] {
    const std::lock_guard lock(mutex);
    ++news;
    told.notify_all();
  }));
  Ints taken;
  for (int looked = 0; !stream->finished(); ++looked) {
    {
      std::unique_lock lock(mutex);
      told.wait(lock, [&] { return news > 0; });
      ASSERT_EQ(news, 1) << "told again before it looked";
      news = 0;
    }
    while (auto event = stream->next_within(0)) taken.push_back(event->id);
  }
  EXPECT_EQ(taken, plain);
  EXPECT_GE(stream->result()->milliseconds.queued, 0);
}

TEST(Service, ACancelledStreamTellsOfItsEndSoThatNobodyWaitsToDestroyIt) {
  auto engine = load(tiny(1));
  std::atomic<int> news = 0;
  const auto stream = good(engine->submit(ask(4, 900), [&] { ++news; }));
  while (news == 0) std::this_thread::yield();
  stream->cancel();
  while (!stream->finished())
    while (stream->next_within(0)) {}
  EXPECT_EQ(engine->stats().requests_aborted, 1);
}

TEST(Service, TheHeartbeatCountsLayersAndRestsWhenNothingRuns) {
  auto engine = load(tiny(1));
  EXPECT_FALSE(engine->heartbeat().busy);
  const uint64_t before = engine->heartbeat().beats;
  auto stream = submit(*engine, ask(5, 20));
  (void)stream->result();
  EXPECT_GE(engine->heartbeat().beats, before + 20);
  while (engine->heartbeat().busy) std::this_thread::yield();
  const uint64_t resting = engine->heartbeat().beats;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(engine->heartbeat().beats, resting);
}

TEST(Service, CancelEndsARequestThatWaits) {
  Gate gate;
  auto options = tiny(1);
  options.progress = gate.callback();
  auto engine = load(options);
  auto running = submit(*engine, ask(1, 20));
  gate.wait_until_reached();
  auto waiting = submit(*engine, ask(2, 20));
  waiting->cancel();
  gate.open();
  EXPECT_TRUE(interrupted(*waiting).tokens.empty());
  EXPECT_EQ(tokens_of(*running).size(), 20u);
  EXPECT_EQ(engine->stats().requests_aborted, 1);
}

TEST(Service, CancelEndsARequestInItsPrefill) {
  Gate gate;
  auto options = tiny(1);
  options.chunk_len = 16;
  options.progress = gate.callback();
  auto engine = load(options);
  auto stream = submit(*engine, ask(1, 20, 900));
  gate.wait_until_reached();
  stream->cancel();
  gate.open();
  EXPECT_TRUE(interrupted(*stream).tokens.empty());
  EXPECT_LT(engine->stats().passes, 900 / 16) << "the rest of the prompt was not run";
  EXPECT_EQ(engine->stats().kv_pages_used, 0);
}

TEST(Service, CancelKeepsTheTokensThatWereOut) {
  auto engine = load(tiny(2));
  const auto plain = plain_stream(*engine, ask(1, 900));
  auto stream = submit(*engine, ask(1, 900));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(stream->next().has_value());
  stream->cancel();
  const Ints out = interrupted(*stream).tokens;
  ASSERT_GE(out.size(), 5u);
  ASSERT_LT(out.size(), plain.size());
  EXPECT_TRUE(std::equal(out.begin(), out.end(), plain.begin()));
}

TEST(Service, RefusesMoreThanMayWaitAndTakesRequestsAgainLater) {
  auto options = tiny(1);
  options.max_waiting = 2;
  auto engine = load(options);
  Streams streams;
  for (int i = 0; i < 3; ++i) streams.push_back(submit(*engine, ask(i, 900)));  // none ends while nobody takes tokens
  expect_error(engine->submit(ask(9, 5)), "2 requests are waiting");
  EXPECT_EQ(engine->stats().requests_refused, 1);
  streams.clear();
  EXPECT_EQ(tokens_of(*submit(*engine, ask(9, 5))).size(), 5u);
}

TEST(Service, BetterPrioritiesOvertakeThoseThatWait) {
  Gate gate;
  auto options = tiny(1);
  std::vector<int64_t> prompts;  // in the order in which the engine ran them
  options.progress = [&, wait = gate.callback()](std::string_view what, int64_t done, int64_t total) {
    wait(what, done, total);
    if (what == "prefill") prompts.push_back(total);
  };
  auto engine = load(options);
  auto first = submit(*engine, ask(1, 2));
  gate.wait_until_reached();
  auto low = ask(2, 2, 41), high = ask(3, 2, 42);
  low.priority = 1, high.priority = -1;
  auto low_stream = submit(*engine, low), high_stream = submit(*engine, high);
  gate.open();
  EXPECT_TRUE(low_stream->result().ok());
  EXPECT_TRUE(high_stream->result().ok());
  EXPECT_EQ(prompts, (std::vector<int64_t>{40, 42, 41}));
}

TEST(Service, EveryAcceptedGuessNamesWhoMadeIt) {
  const auto engine = load(tiny(1));
  auto request = ask(5, 120);
  request.speculation.proposer = "ngram";
  const auto stream = submit(*engine, request);
  int64_t guessed = 0;
  while (const auto event = stream->next()) {
    EXPECT_EQ(event->drafter, event->from == TokenEvent::From::Draft ? "ngram" : "");
    guessed += event->from == TokenEvent::From::Draft;
  }
  EXPECT_EQ(guessed, good(stream->result()).accepted);
}

TEST(Service, SelfWithoutANumberGuessesInEveryRoundBesideAutoAndPlain) {
  const auto engine = load(tiny(3));
  auto self = ask(9, 200), automatic = ask(10, 200);
  const auto alone = tokens_of(*submit(*engine, self)), other = tokens_of(*submit(*engine, automatic));
  self.speculation = {.proposer = "self", .rule = "match"}, automatic.speculation.proposer = "auto";
  const auto a = submit(*engine, self), b = submit(*engine, automatic), c = submit(*engine, ask(11, 200));
  auto outcome = good(a->result());
  EXPECT_EQ(outcome.tokens, alone);
  EXPECT_EQ(tokens_of(*b), other);
  EXPECT_EQ(outcome.gamma, 16);
  EXPECT_GE(outcome.drafted_by_position[0], outcome.rounds - 1);
  EXPECT_EQ(tokens_of(*c).size(), 200u);
}

TEST(Service, PlainDecodingTakesWhatPlainDecodingTakes) {
  const auto engine = load(tiny(2));
  const auto a = submit(*engine, ask(6, 200)), b = submit(*engine, ask(7, 200));
  const auto first = good(a->result()), second = good(b->result());
  EXPECT_GT(first.plain_tokens, 100);  // the first passes find nothing measured
  EXPECT_LT(first.plain_tokens, 200);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.compared_tokens, first.plain_tokens + second.plain_tokens);
  EXPECT_GT(stats.compared_plain_ms, 0);
  EXPECT_GE(stats.pass_ms, stats.compared_ms - stats.draft_ms - stats.select_ms);
}

TEST(Service, CountsStepsTokensAndSelectionsAsTheyHappen) {
  const auto engine = load(tiny(2));
  auto request = ask(8, 350, 100);
  request.speculation.proposer = "self";
  request.speculation.ratio = 0.2;
  const auto stream = submit(*engine, request);
  // Nobody takes the tokens, so that it cannot end.
  while (engine->stats().generated_tokens < 5) std::this_thread::yield();
  EXPECT_GE(engine->stats().rounds, 1);
  EXPECT_EQ(engine->stats().requests_finished, 0);
  while (stream->next()) {}
  const Generation generation = good(stream->result());
  while (engine->heartbeat().busy) std::this_thread::yield();
  EXPECT_EQ(generation.ratio, 0.2);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.generated_tokens, 350);
  EXPECT_EQ(stats.step_tokens, 100 + 350);
  EXPECT_EQ(std::accumulate(stats.steps_by_tokens.begin(), stats.steps_by_tokens.end(), int64_t(0)), stats.passes);
  EXPECT_EQ(stats.steps_by_tokens[7], 1) << "the prompt and its token: more than 64, at most 128";
  EXPECT_EQ(std::tie(stats.rounds, stats.drafted, stats.accepted),
      std::tie(generation.rounds, generation.drafted, generation.accepted));
  EXPECT_NEAR(double(stats.entries_selected) / stats.entries_offered, 0.2, 0.02);
}

TEST(Service, CountsPlainStepsPromptsAndWhatWasWaited) {
  Gate gate;
  auto options = tiny(1);
  options.chunk_len = 64, options.progress = gate.callback();
  const auto engine = load(options);
  const auto stream = submit(*engine, ask(8, 5, 130));
  gate.wait_until_reached();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  gate.open();
  EXPECT_LT(good(stream->result()).milliseconds.queued, 50);
  EXPECT_EQ(engine->stats().prompt_tokens, 130);
  EXPECT_EQ(engine->stats().steps_by_tokens[0], 4);
}

// Of tokens and of their prompts, beside others and after a preemption, whatever the prefix cache has.
TEST(Service, LogprobsAreThoseOfTheRequestAlone) {
  const auto engine = crowded();
  const auto flat = [](const Generation& g) {
    std::vector<std::pair<int32_t, float>> out;
    const auto add = [&](const TokenLogprob& of) { out.emplace_back(of.id, of.logprob); };
    for (const float own : g.logprobs) out.emplace_back(-1, own);
    for (const auto& own : g.prompt_logprobs) add(own);
    for (const auto* tops : {&g.top, &g.prompt_top})
      for (const auto& top : *tops) std::ranges::for_each(top, add);
    return out;
  };
  std::vector<std::vector<std::pair<int32_t, float>>> alone, got;
  Streams streams;
  for (const bool together : {false, true})
    for (int i = 0; i < 8; ++i) {
      auto request = ask(i, 200, 70);
      request.sampling.logprobs = request.sampling.prompt_logprobs = i;
      streams.push_back(submit(*engine, request));
      if (!together) alone.push_back(flat(good(streams.back()->result())));
    }
  for (size_t i = 8; i < 16; ++i) got.push_back(flat(good(streams[i]->result())));
  EXPECT_EQ(got, alone);
  EXPECT_GT(engine->stats().preemptions, 0);
}

TEST(Service, PromptLogprobsAreNotSkippedForTheCache) {
  const auto engine = load(tiny(1));
  auto request = ask(8, 2, 130);
  (void)tokens_of(*submit(*engine, request));
  request.sampling.prompt_logprobs = 0;
  EXPECT_EQ(good(submit(*engine, request)->result()).reused_tokens, 0);
}

TEST(Service, StreamsMayGoInAnyOrderAtAnyMoment) {
  for (int round = 0; round < 6; ++round) {
    auto engine = load(tiny(3, 256));
    Streams streams;
    for (int i = 0; i < 8; ++i) streams.push_back(submit(*engine, ask(i, 100)));
    for (int taken = 0; taken < round * 7; ++taken) streams[taken % 8]->next_within(1);
    if (round % 2) std::ranges::reverse(streams);
    streams.clear();
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.kv_pages_used, 0);
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_EQ(stats.requests_finished + stats.requests_aborted, 8);
  }
}

TEST(Service, APoolThatHoldsOneRequestServesMany) {
  auto engine = crowded();
  std::vector<Ints> plain, got;
  Streams streams;
  for (int i = 0; i < 8; ++i) plain.push_back(plain_stream(*engine, ask(i, 200 + 20 * i)));
  for (int i = 0; i < 8; ++i) streams.push_back(submit(*engine, ask(i, 200 + 20 * i)));
  for (auto& stream : streams) got.push_back(tokens_of(*stream));
  EXPECT_EQ(got, plain);
  EXPECT_GT(engine->stats().preemptions, 0);
}

}
}
