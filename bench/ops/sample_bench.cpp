// Sampling of one row by vocabulary and parameters, with and without probabilities and rules, and log-probabilities: best time in
// microseconds. Logits are random with a spread of 3.
//   sample_bench [threads] [isa]

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "backend/backend.h"

namespace hunch {
namespace {

constexpr int64_t kVocabularies[] = {4096, 16384, 32768, 151936};
constexpr int kRuns = 300;
constexpr int64_t kPrompt = 4000, kOutput = 500;  // tokens behind a row with penalties

struct Bench {
  Backend& backend;
  std::vector<float> logits, probs;
  std::vector<int32_t> history;
  int32_t ranked[kMostRanked];
  float shares[kMostRanked];
  int64_t vocab = 0;

  void use(int64_t size) {
    vocab = size;
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 3);
    logits.resize(size_t(size)), probs.resize(size_t(size)), history.clear();
    for (float& x : logits) x = normal(random);
    for (int64_t i = 0; i < kPrompt + kOutput; ++i) history.push_back(int32_t(random() % uint64_t(size)));
  }
  static double best_us(const std::function<void(int32_t)>& body) {
    double best = 1e30;
    for (int32_t i = 0; i < kRuns; ++i) {
      const auto start = std::chrono::steady_clock::now();
      body(i);
      best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  }
  double sample(const SamplingParams& params, bool want_probs, const LogitRules& rules, int64_t k = 0) {
    LogitState state(rules, vocab);
    state.reset(history.data(), kPrompt);
    for (int64_t i = kPrompt; i < kPrompt + kOutput; ++i) state.append(history[size_t(i)]);
    return best_us([&](int32_t position) {
      int32_t token = 0;
      SampleArgs args;
      args.logits = View<const float, 2>(logits.data(), 1, vocab);
      args.params = params;
      args.key = {7, 0};
      args.positions = View<const int32_t, 1>(&position, 1);
      args.tokens = View<int32_t, 1>(&token, 1);
      if (want_probs) args.probs = View<float, 2>(probs.data(), 1, vocab);
      if (rules.any()) args.state = &state;
      if (k > 0) args.ranked = View<int32_t, 2>(ranked, 1, k), args.shares = View<float, 2>(shares, 1, k);
      backend.sample(args);
    });
  }
  double log_probs(int count) {
    std::vector<int32_t> top_ids(static_cast<size_t>(count));
    std::vector<float> top_values(static_cast<size_t>(count));
    return best_us([&](int32_t id) {
      float value = 0;
      backend.log_probs({View<const float, 2>(logits.data(), 1, vocab), View<const int32_t, 1>(&id, 1), View<float, 1>(&value, 1),
                         count, View<int32_t, 2>(top_ids.data(), 1, count), View<float, 2>(top_values.data(), 1, count)});
    });
  }
};

void line(const char* name, Bench& bench, const std::function<double()>& measure) {
  fmt::print("  {:32}", name);
  for (const int64_t vocab : kVocabularies) {
    bench.use(vocab);
    fmt::print(" {:8.1f}", measure());
  }
  fmt::print("\n");
}

int run(int argc, char** argv) {
  Backend::Setup setup;
  for (int i = 1; i < argc; ++i) {
    if (std::isdigit(static_cast<unsigned char>(argv[i][0]))) setup.threads = std::atoi(argv[i]);
    else setup.isa = argv[i];
  }
  auto backend = Register<Backend>::find("cpu")->make(setup);
  if (!backend) {
    fmt::print(stderr, "sample_bench: {}\n", backend.error().message);
    return 1;
  }
  Bench bench{**backend};
  fmt::print("{}; best of {}, microseconds a row\n  {:32}", (*backend)->description(), kRuns, "vocabulary");
  for (const int64_t vocab : kVocabularies) fmt::print(" {:8}", vocab);
  fmt::print("\n");

  const std::pair<const char*, SamplingParams> sets[] = {
      {"greedy", {0, 0, 1, 0}},
      {"defaults", {}},
      {"top-k 40", {1, 40, 1, 0}},
      {"top-k 1000", {1, 1000, 1, 0}},
      {"temperature 1", {1, 0, 1, 0}},
      {"temperature 0.7, top-p 0.9", {0.7f, 0, 0.9f, 0}},
      {"temperature 1, top-p 0.95", {1, 0, 0.95f, 0}},
      {"temperature 1, min-p 0.05", {1, 0, 1, 0.05f}},
  };
  for (const auto& [name, params] : sets) {
    line(name, bench, [&, &params = params] { return bench.sample(params, false, {}); });
    line("  with probabilities", bench, [&, &params = params] { return bench.sample(params, true, {}); });
  }
  line("greedy, the best 10", bench, [&] { return bench.sample({0, 0, 1, 0}, false, {}, 10); });
  line("temperature 1, the best 10", bench, [&] { return bench.sample({1, 0, 1, 0}, false, {}, 10); });
  const std::pair<const char*, LogitRules> rules[] = {
      {"defaults, one bias", {.bias = {{1, 1.0f}}}},
      {"defaults, output penalties", {.presence = 1, .frequency = 1}},
      {"defaults, all penalties", {.repetition = 1.1f, .presence = 1, .frequency = 1}},
      {"defaults, 100 allowed", {.allowed = std::vector<int32_t>(100, 5)}},
      {"defaults, 1000 bad words", {.bad_words = std::vector<std::vector<int32_t>>(1000, {1, 2, 3})}}};
  for (const auto& [name, rule] : rules) line(name, bench, [&, &rule = rule] { return bench.sample({}, false, rule); });
  line("log-probability of a token", bench, [&] { return bench.log_probs(0); });
  line("  and of the best 20", bench, [&] { return bench.log_probs(20); });
  return 0;
}

}  // namespace
}  // namespace hunch

int main(int argc, char** argv) { return hunch::run(argc, argv); }
