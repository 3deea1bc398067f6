// Soak: clients that want everything at once from engines that have too little. Random lengths, settings, drafters, rules, slow
// consumers, cancellations and streams destroyed at any point; every finished stream under rule match is compared with the
// request alone, without speculation, on an engine of its own, of which an ended one said the beginning. HUNCH_SOAK_SECONDS: how
// long, both tests together (default 10; 3600 is the hour before a release). HUNCH_SOAK_SEED: which run.
#include <unistd.h>

#include <fstream>
#include <random>

#include "base/clock.h"
#include "checkpoint/drafter_method.h"
#include "engine/test_engines.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kClients = 6;

double environment(const char* name, double otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? std::atof(value) : otherwise;
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

struct Fate {  // of one request, as its client plans it
  Request request;
  enum class Way { Take, Wait, Cancel, Destroy } way = Way::Take;
  int64_t after = 0;  // tokens, for Cancel and Destroy
  int pause_ms = 0;   // of a slow consumer, now and then
};
using enum Fate::Way;

class Soak {
 public:
  struct Tallies {
    int64_t finished = 0, compared = 0, ended = 0, refused = 0, tokens = 0, longest = 0;
  };

  Soak(EngineOptions small, EngineOptions alone, uint32_t seed) : dice_(seed) {
    small.keep_costs = alone.keep_costs = false;
    engine_ = load(small);
    alone.max_num_seqs = 1, alone.prefix_caching = false;
    alone_ = load(alone);
    vocab_ = int(shape_of(*engine_).vocab_size);
    most_ = std::min(engine_->context_len(), alone_->context_len());
    // Beginnings that requests share, for the prefix cache and the lookups to find.
    for (int i = 0; i < 4; ++i) beginnings_.push_back(random_prompt(int(most_), vocab_, seed + uint32_t(i)));
    for (auto& tokens : beginnings_)  // phrases that come back
      for (size_t at = 60; at + 30 < tokens.size(); at += 90) std::copy_n(tokens.begin(), 30, tokens.begin() + at);
  }

  // A round of `seconds`: clients come, ask, and all go. The settings of speculation change from round to round.
  void round(double seconds) {
    draw_settings();
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    std::vector<std::thread> clients;
    for (int i = 0; i < kClients; ++i)
      clients.emplace_back([&, seed = uint32_t(dice_())] {
        std::mt19937 dice(seed);
        while (Clock::now() < end && !testing::Test::HasFailure()) client(dice);
      });
    for (auto& client : clients) client.join();
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.kv_pages_used, 0) << "a page leaked";
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.waiting, 0);
  }
  const Tallies& tallies() const { return tallies_; }
  EngineStats stats() const { return engine_->stats(); }

 private:
  template <class T>
  static const T& one_of(const std::vector<T>& list, std::mt19937& dice) {
    return list[dice() % list.size()];
  }

  // Few enough that the engine holds them all at once, from all registered parts.
  void draw_settings() {
    settings_.clear();
    std::vector<std::string> proposers{"auto"}, policies;
    for (const auto& part : Register<Proposer>::all())
      if (!is_drafter_method(part.name) || engine_->parts().learned_named(std::string(part.name)))
        proposers.emplace_back(part.name);
    for (const auto& part : Register<SparsePolicy>::all()) policies.emplace_back(part.name);
    for (int i = 0; i < 5; ++i) {
      SpeculationOptions o;
      o.proposer = one_of(proposers, dice_);
      o.policy = one_of(policies, dice_);
      o.ratio = std::vector<double>{0.01, 0.07, 0.3, 1.0}[dice_() % 4];
      o.min_tokens = 1 + int(dice_() % 40);
      o.draft_weights = dice_() % 2 ? "target" : "auto";
      settings_.push_back(o);
    }
  }

  Fate draw(std::mt19937& dice) {
    Fate fate;
    Request& r = fate.request;
    // Most are short, some reach the end of the context: lengths are drawn evenly over their magnitudes.
    const auto magnitude = [&](int64_t most) {
      return std::clamp<int64_t>(int64_t(std::exp(std::log(double(most)) * double(dice() % 1000) / 999)), 1, most);
    };
    const auto token = [&] { return int32_t(dice() % unsigned(vocab_)); };
    const int64_t len = magnitude(most_ - 2);
    const auto& beginning = one_of(beginnings_, dice);
    r.prompt.assign(beginning.begin(), beginning.begin() + len);
    if (dice() % 3 == 0)
      for (size_t i = r.prompt.size() / 2; i < r.prompt.size(); ++i) r.prompt[i] = token();
    r.max_tokens = magnitude(std::min<int64_t>(most_ - len, 400));
    r.ignore_eos = dice() % 2 == 0;
    if (dice() % 4 == 0) r.stop_ids = {token()};
    r.priority = int(dice() % 3);
    r.cache_prompt = dice() % 4 != 0;
    r.sample_index = dice() % 3;
    SamplingOptions& s = r.sampling;
    s.temperature = std::vector<double>{0, 0.7, 1.0, 1.4}[dice() % 4];
    s.top_k = std::vector<int>{0, 1, 40}[dice() % 3];
    s.top_p = dice() % 2 ? 1.0 : 0.9;
    s.min_p = dice() % 2 ? 0.0 : 0.05;
    s.seed = dice() % 50;
    if (dice() % 4 == 0) s.presence_penalty = 0.7, s.frequency_penalty = -0.2;
    if (dice() % 5 == 0) s.repetition_penalty = 1.2;
    if (dice() % 6 == 0) s.logit_bias = {{token(), 3.0f}, {token(), -100.0f}};
    if (dice() % 8 == 0) s.bad_words = {{token(), token()}};
    if (dice() % 6 == 0) s.min_tokens = int64_t(dice() % 20);
    if (dice() % 6 == 0) s.logprobs = int(dice() % 4);
    r.speculation = one_of(settings_, dice);
    r.speculation.num_tokens = 1 + int(dice() % 15);
    r.speculation.rule = dice() % 4 ? "match" : "ratio";
    fate.way = std::vector<Fate::Way>{Take, Take, Wait, Cancel, Destroy}[dice() % 5];
    fate.after = int64_t(dice() % 3) == 0 ? 0 : magnitude(r.max_tokens);
    fate.pause_ms = dice() % 6 == 0 ? 1 + int(dice() % 60) : 0;
    return fate;
  }

  void client(std::mt19937& dice) {
    const Fate fate = draw(dice);
    auto submitted = engine_->submit(fate.request);
    if (!submitted.ok()) {
      // The one thing that random numbers may ask for in vain.
      if (submitted.error().message.find("waiting") == std::string::npos) {
        ADD_FAILURE() << describe(fate.request) << ": " << submitted.error().message;
        return;
      }
      const std::lock_guard lock(mutex_);
      ++tallies_.refused;
      return;
    }
    const auto stream = std::move(*submitted);
    Ints taken;
    const bool ends_early = fate.way == Cancel || fate.way == Destroy;
    if (fate.pause_ms) std::this_thread::sleep_for(std::chrono::milliseconds(fate.pause_ms));
    while (fate.way != Wait && !(ends_early && std::ssize(taken) >= fate.after)) {
      const auto event = stream->next();
      if (!event) break;
      EXPECT_EQ(event->index, std::ssize(taken));
      taken.push_back(event->id);
      if (fate.pause_ms && dice() % 32 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(fate.pause_ms));
    }
    if (fate.way == Destroy) return compare(fate.request, taken, false);
    if (fate.way == Cancel) stream->cancel();
    auto outcome = stream->result();
    if (!outcome.ok()) {
      ADD_FAILURE() << describe(fate.request) << ": " << outcome.error().message;
      return;
    }
    EXPECT_TRUE(std::equal(taken.begin(), taken.end(), outcome->tokens.begin())) << "what was taken is what came of it";
    if (fate.request.sampling.logprobs >= 0) { EXPECT_EQ(outcome->logprobs.size(), outcome->tokens.size()); }
    compare(fate.request, outcome->tokens, outcome->finish != FinishReason::Interrupted);
  }

  void compare(Request request, const Ints& tokens, bool whole) {
    {
      const std::lock_guard lock(mutex_);
      ++(whole ? tallies_.finished : tallies_.ended);
      tallies_.tokens += std::ssize(tokens);
      tallies_.longest = std::max(tallies_.longest, int64_t(request.prompt.size() + tokens.size()));
    }
    if (request.speculation.rule != "match" || tokens.empty()) return;
    const auto what = describe(request);
    const Request guessed = request;
    request.speculation.proposer = "none";
    if (!whole) request.max_tokens = std::ssize(tokens);
    auto alone = alone_->generate(request);
    ASSERT_TRUE(alone.ok()) << what << alone.error().message;
    EXPECT_EQ(tokens, alone->tokens) << what << (whole ? same_alone(guessed, alone->tokens) : "");
    const std::lock_guard lock(mutex_);
    ++tallies_.compared;
  }

  // Whose fault it is: of drafting, or of company.
  std::string same_alone(const Request& guessed, const Ints& plain) {
    auto again = alone_->generate(guessed);
    return again.ok() && again->tokens == plain ? "; equal when it drafts alone" : "; differs when it drafts alone too";
  }

  static std::string describe(const Request& r) {
    const SpeculationOptions& o = r.speculation;
    const SamplingOptions& s = r.sampling;
    return fmt::format(
        "prompt {}, up to {}, T {}, top-k {}, top-p {}, min-p {}, seed {}, sample {}, penalties {} {} {}, {} biases, {} bad "
        "words, at "
        "least {}, logprobs {}, {} stop ids, eos ignored {}; {} {} ratio {} of at least {}, gamma {}, rule {}, weights {}, "
        "cached {} ",
        r.prompt.size(), r.max_tokens, *s.temperature, *s.top_k, *s.top_p, *s.min_p, *s.seed, r.sample_index, s.presence_penalty,
        s.frequency_penalty, s.repetition_penalty, s.logit_bias.size(), s.bad_words.size(), s.min_tokens, s.logprobs,
        r.stop_ids.size(), r.ignore_eos, o.proposer, o.policy, o.ratio, o.min_tokens, o.num_tokens, o.rule, o.draft_weights,
        r.cache_prompt);
  }

  std::mt19937 dice_;
  std::unique_ptr<Engine> engine_, alone_;
  int vocab_ = 0;
  int64_t most_ = 0;
  std::vector<Ints> beginnings_;
  std::vector<SpeculationOptions> settings_;
  std::mutex mutex_;  // guards what follows
  Tallies tallies_;
};

// Rounds until `seconds` are over; memory may grow while caches fill, in the first half, and no more after that.
void soak(Soak& work, double seconds, int64_t growth_bytes) {
  const int rounds = std::clamp(int(seconds / 2), 2, 400);
  int64_t settled = 0;
  for (int i = 0; i < rounds && !testing::Test::HasFailure(); ++i) {
    work.round(seconds / rounds);
    if (i == rounds / 2) settled = resident_bytes();
  }
  if (rounds >= 20) { EXPECT_LT(resident_bytes(), settled + growth_bytes) << "memory grows"; }
  const auto& t = work.tallies();
  const EngineStats stats = work.stats();
  fmt::print(
      "{} finished, {} ended early, {} compared, {} refused; {} tokens, longest {}; {} preempted, {:.0f} % of prompts reused, "
      "{:.2f} tokens a round, {:.0f} MiB resident\n",
      t.finished, t.ended, t.compared, t.refused, t.tokens, t.longest, stats.preemptions, 100 * stats.prefix_hit_rate(),
      1 + double(stats.accepted) / std::max<int64_t>(1, stats.rounds), double(resident_bytes()) / (1 << 20));
  EXPECT_GT(t.compared, 0);
}

TEST(Soak, TinyModelsInPoolsThatAreTooSmall) {
  const double seconds = environment("HUNCH_SOAK_SECONDS", 10) / 2;
  const auto seed = uint32_t(environment("HUNCH_SOAK_SEED", 1));
  const std::vector<std::string> models{"echo", "llama", "qwen3-q8_0.gguf", "qwen2-window"};
  const size_t count = seconds < 15 ? 1 : models.size();
  for (size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(models[i]);
    EngineOptions alone{.model = tiny_path(models[i]), .threads = 1, .context_len = 1500};
    EngineOptions small = alone;
    if (models[i] == "echo")  // learned drafters that are mostly right
      for (const char* name : {"echo", "echo-eagle1", "echo-eagle3", "echo-medusa"})
        small.drafters.push_back({.path = tiny_path(name)});
    const auto probe = load(small);
    const int64_t pages = 20 + int64_t(i) * 7;  // one long request, or a few short ones
    small.context_len = std::min(alone.context_len, pages * kPageLen);
    small.kv_memory_bytes = pages * probe->parts().page_bytes();
    small.max_num_seqs = 4, small.chunk_len = 128, small.max_waiting = 1;
    Soak work(small, alone, seed + uint32_t(i));
    soak(work, seconds / double(count), 32 << 20);
  }
}

TEST(Soak, TheShippedModelInSixtyFourMebibytes) {
  const double seconds = environment("HUNCH_SOAK_SECONDS", 10) / 2;
  Soak work({.model = wren_path(), .kv_memory_bytes = 64 << 20, .max_num_seqs = 4, .max_num_batched_tokens = 256},
      {.model = wren_path()}, uint32_t(environment("HUNCH_SOAK_SEED", 1)));
  soak(work, seconds, 192 << 20);  // copies of weights and selections for each of the settings that are alive
}

}
}
