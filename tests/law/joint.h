// Joint: what the law tests share. Three tokens drawn many times through the production loop (proposer, rule, keyed noise,
// sampler, commit), and Pearson's chi-square against their exact joint distribution. The chain is of first order and differs by
// position; the drafter is far from the target (three of four drafts are kept): a near one hides faults.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "../conformance/runs.h"
#include "engine/toy_parts.h"

namespace hunch::law {

inline constexpr int kVocab = 5, kCells = kVocab * kVocab * kVocab, kFirst = 2;  // the joint is that of positions 2, 3 and 4
inline constexpr int kSamples = 200000, kPositions = 16;

// Probabilities [position][token before][token]: Dirichlet(0.9) with a floor of 0.01, from keyed noise.
struct Rows {
  std::array<std::array<std::array<double, kVocab>, kVocab>, kPositions> p;
};

inline Rows random_rows(uint64_t seed) {
  Rows rows;
  for (int position = 0; position < kPositions; ++position)
    for (int before = 0; before < kVocab; ++before) {
      auto& row = rows.p[position][before];
      double total = 0;
      for (int token = 0; token < kVocab; ++token) {
        const double u = uniform({.seed = seed}, NoiseStream::Target, uint32_t(position), uint32_t(before * kVocab + token));
        total += row[token] = std::pow(-std::log(u), 1.3);  // heavier than exponential, as a Dirichlet below 1
      }
      for (double& x : row) x = 0.01 + 0.95 * x / total;
    }
  return rows;
}

// Far, but not foreign: a mixture of the target with another law.
inline Rows far_from(const Rows& target, uint64_t seed) {
  Rows rows = random_rows(seed);
  for (size_t i = 0; i < kPositions; ++i)
    for (size_t j = 0; j < kVocab; ++j)
      for (size_t k = 0; k < kVocab; ++k) rows.p[i][j][k] = 0.4 * target.p[i][j][k] + 0.6 * rows.p[i][j][k];
  return rows;
}

inline toy::Table table_of(const Rows& rows) {
  return [rows](int64_t position, int32_t token, float* logits) {
    for (int i = 0; i < kVocab; ++i)
      logits[i] = position == 0 ? (i == 0 ? 0.f : -100.f) : float(std::log(rows.p[position][token][i]));
  };
}

// A target, and a drafter far from it.
inline toy::Tables far_tables() {
  const Rows target = random_rows(1);
  return {kVocab, table_of(target), table_of(far_from(target, 2))};
}

// The drafter has seen the rejected rows of the round before, as a selection has: they are likelier.
inline toy::Tables learning_tables() {
  auto seen = std::make_shared<std::array<int, kPositions>>();
  toy::Tables made = far_tables();
  made.on_verify = [seen](int64_t position, int32_t token) {
    if (position == 0) seen->fill(-1);
    (*seen)[position] = token;
  };
  made.drafter = [seen, plain = made.drafter](int64_t position, int32_t token, float* logits) {
    plain(position, token, logits);
    const int before = position + 1 < kPositions ? (*seen)[size_t(position) + 1] : -1;
    if (before >= 0) logits[before] += 2;
  };
  return made;
}

struct Sampling {
  const char* name;
  double temperature = 1, top_p = 1, min_p = 0;
  int top_k = 0;
};
inline constexpr Sampling kSamplings[] = {
    {"T 0.7", 0.7}, {"T 1", 1}, {"top-k 3", 1, 1, 0, 3}, {"top-p 0.8", 1, 0.8}, {"min-p 0.2", 1, 1, 0.2}};

// The processed law in double precision, written from the contract: T, min-p, top-k, top-p.
inline std::array<double, kVocab> processed(std::array<double, kVocab> p, const Sampling& s) {
  for (double& x : p) x = std::pow(x, 1 / s.temperature);
  const double best = std::ranges::max(p);
  for (double& x : p) x = x < s.min_p * best ? 0 : x;
  std::array<int, kVocab> order;
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int a, int b) { return p[a] > p[b]; });
  if (s.top_k > 0)
    for (int i = s.top_k; i < kVocab; ++i) p[order[i]] = 0;
  const double all = std::accumulate(p.begin(), p.end(), 0.0);
  double mass = 0;
  for (const int i : order) {
    if (mass >= s.top_p * all) p[i] = 0;
    mass += p[i];
  }
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
  return p;
}

inline std::array<double, kCells> exact_joint(const Rows& target, const Sampling& s) {
  std::array<double, kCells> joint{};
  const auto a = processed(target.p[1][0], s);
  for (int x = 0; x < kVocab; ++x) {
    const auto b = processed(target.p[2][x], s);
    for (int y = 0; y < kVocab; ++y) {
      const auto c = processed(target.p[3][y], s);
      for (int z = 0; z < kVocab; ++z) joint[(x * kVocab + y) * kVocab + z] = a[x] * b[y] * c[z];
    }
  }
  return joint;
}

struct Outcome {
  std::array<int64_t, kCells> counts{};
  int64_t drafted = 0, accepted = 0;
  int64_t beside = 0;  // drafts that were second or later at their depth
};

inline Request toy_request(int gamma, const char* rule, const Sampling& s) {
  Request request = toy::request({0}, gamma, rule);
  request.sampling.temperature = s.temperature, request.sampling.top_p = s.top_p;
  request.sampling.min_p = s.min_p, request.sampling.top_k = s.top_k;
  return request;
}

// Look-ups that find something in five tokens.
inline const ProposerOptions kEager{.ngram_min = 1, .ngram_max = 2, .suffix_cached_requests = 20, .suffix_factor = 3};

using Change = std::function<void(RequestPlan&)>;  // of what no request can ask for

// Three tokens after the first (a certain one) for keys [first, last).
inline Outcome sample_joint(EngineParts& parts, const Request& request, int first, int last, const Change& change = {}) {
  Outcome run;
  auto plan = plan_request(request, {}, 64).value();
  if (change) change(plan);
  for (int key = first; key < last; ++key) {
    plan.noise = {.seed = uint64_t(key) * 0x9E3779B97F4A7C15u + 12345};
    plan.proposing = kEager;
    if (request.speculation.tree_top_k > 0) plan.proposing.tree_top_k = request.speculation.tree_top_k;
    auto step = Solo::make(parts, plan, request).value();
    test::decode_to(*step, kFirst + 3);
    const int32_t* t = &step->sequence().tokens[kFirst];
    ++run.counts[(t[0] * kVocab + t[1]) * kVocab + t[2]];
    const Generation& stats = step->stats();
    run.drafted += stats.drafted, run.accepted += stats.accepted;
    run.beside += std::accumulate(stats.drafted_by_position.begin(), stats.drafted_by_position.end(), stats.drafted,
        [](int64_t left, int64_t at) { return left - at; });
  }
  return run;
}

// `make_tables` is called once per thread: tables may have state.
inline Outcome sample_joint(
    const std::function<toy::Tables()>& make_tables, const char* device, const Request& request, const Change& change = {}) {
  Outcome halves[2];
  std::vector<std::thread> threads;
  for (int half = 0; half < 2; ++half)
    threads.emplace_back([&, half] {
      auto parts = toy::make_parts(make_tables(), device, kPositions);
      halves[half] = sample_joint(*parts, request, half * kSamples / 2, (half + 1) * kSamples / 2, change);
    });
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < kCells; ++i) halves[0].counts[i] += halves[1].counts[i];
  halves[0].drafted += halves[1].drafted, halves[0].accepted += halves[1].accepted, halves[0].beside += halves[1].beside;
  return halves[0];
}

// Pearson's chi-square with cells of expectation below 5 pooled; the limit by Wilson and Hilferty's approximation.
class ChiSquare {
 public:
  void add(double wanted, double got) {
    if (wanted < 5) rare_wanted_ += wanted, rare_got_ += got;
    else add_cell(wanted, got);
  }
  void expect_small() {
    if (rare_wanted_ > 0) add_cell(rare_wanted_, rare_got_);
    const double df = cells_ - 1, z = 3.719, a = 2 / (9 * df);  // alpha = 1e-4
    EXPECT_LT(sum_, df * std::pow(1 - a + z * std::sqrt(a), 3)) << df << " degrees of freedom";
  }

 private:
  void add_cell(double wanted, double got) { sum_ += (got - wanted) * (got - wanted) / wanted, ++cells_; }
  double sum_ = 0, rare_wanted_ = 0, rare_got_ = 0;
  int cells_ = 0;
};
inline void expect_law(const Outcome& run, const std::array<double, kCells>& joint) {
  ChiSquare statistic;
  for (size_t i = 0; i < kCells; ++i)
    if (joint[i] > 0) statistic.add(joint[i] * kSamples, double(run.counts[i]));
    else EXPECT_EQ(run.counts[i], 0) << "outside the support: cell " << i;
  statistic.expect_small();
}

}
