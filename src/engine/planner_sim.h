// Simulations: a planner over a synthetic text on a synthetic machine whose times look like measured ones, and the best fixed
// choices to compare it with. Times are sums, chances come from a seeded generator: nothing depends on a clock. For tests.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/planner.h"

namespace hunch::sim {

inline constexpr int kSelf = 0, kNgram = 1, kFoundLength = 10, kTokens = 512;

struct Rng {
  uint64_t state;
  double uniform() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return double(state >> 11) * 0x1p-53;
  }
  // About normal.
  double normal() {
    double sum = -2;
    for (int i = 0; i < 4; ++i) sum += uniform();
    return sum * 1.7320508;
  }
};

// Milliseconds, as on a two-core machine with a small model: weights half a millisecond, 0.17 a thousand entries of cache, eight
// rows 1.6 times one where the cache dominates.
struct Machine {
  double slope = 1;  // of the cost of rows: 0 where they hide behind memory, 1 measured, 2 for a slow processor
  static double rows_factor(double rows) {
    constexpr double kAt[] = {1, 2, 4, 8, 12, 17, 64}, kFactor[] = {1, 1.03, 1.06, 1.63, 1.81, 2.4, 9};
    for (int i = 0; i < 6; ++i)
      if (rows <= kAt[i + 1]) return kFactor[i] + (rows - kAt[i]) / (kAt[i + 1] - kAt[i]) * (kFactor[i + 1] - kFactor[i]);
    return 9;
  }
  double verify(const std::vector<int>& rows, double context) const {
    double total = 0, cache = 0;
    for (int r : rows) total += r, cache += context * 1.7e-4 * (1 + slope * (rows_factor(r) - 1));
    return 0.5 * std::max(1.0, total / 10) + 0.01 * rows.size() + cache;
  }
  double step(int sequences, double context) const { return 0.17 + sequences * (0.025 + 6.5e-6 * context); }
  // Of a drafter's own network: a layer and a head, over a cache of its own.
  double net_step(int sequences, int rows, double context) const {
    return 0.08 + 0.012 * rows * (0.3 + slope) + sequences * 2e-6 * context;
  }
  double learn(int sequences, double context) const { return sequences * (0.03 + 4.6e-5 * context); }
};

// A text: chances of acceptance given that all before were accepted, by arm, position in the chain and tokens made so far; and
// how often an n-gram matches.
struct Text {
  const char* name;
  std::function<double(int arm, int position, int64_t token)> acceptance;
  std::function<double(int64_t token)> matches;
};

struct Setup {
  Machine machine;
  Text text;
  double context = 0;
  int batch = 1;
  uint64_t seed = 1;
};

struct Fixed {
  int arm = kPlain, gamma = 0;
};

// Milliseconds a token (of all sequences) of a run of kTokens tokens each: under a planner, or with a fixed choice. Arms: self, a
// look-up, then those of drafters with networks of their own.
inline double run(const Setup& setup, const std::vector<Arm>& arms, Planner* planner, CostTable* table, Fixed fixed = {}) {
  const auto width = [&](int arm) { return arm < 0 ? 0 : arms[arm].width; };
  const size_t batch = setup.batch;
  std::vector<Rng> chances;
  for (size_t i = 0; i < batch; ++i) chances.push_back({setup.seed * 7919 + i});
  Rng noise{setup.seed + 99};
  std::vector<int64_t> tokens(batch, 0);
  std::vector<int> prepared(batch, kSelf), rows(batch);
  std::vector<RequestView> views(batch);
  std::vector<Decision> decisions(batch);
  if (planner)
    for (size_t i = 0; i < batch; ++i) planner->open(int(i));
  const auto jitter = [&](double deviation) { return planner ? std::exp(deviation * noise.normal()) : 1.0; };
  double ms = 0;
  int64_t made = 0;
  while (made < kTokens * setup.batch) {
    const double context = setup.context + double(made) / setup.batch;
    for (size_t i = 0; i < batch; ++i) {
      views[i] = {.slot = int(i), .context_len = int64_t(context), .prepared = prepared[i]};
      if (chances[i].uniform() < setup.text.matches(tokens[i])) views[i].found[kNgram] = {kFoundLength, 3};
      if (!planner) {
        const bool here = fixed.arm >= 0 && (fixed.arm != kNgram || views[i].found[kNgram].length > 0);
        decisions[i] =
            here ? Decision{.arm = fixed.arm, .gamma = fixed.gamma, .learn = fixed.arm == kSelf ? kSelf : -1} : Decision{};
      }
    }
    if (planner) planner->decide(views, decisions);
    int learning = 0;
    for (size_t i = 0; i < batch; ++i) {
      const Decision& d = decisions[i];
      EXPECT_TRUE(d.arm != kSelf || prepared[i] == kSelf);
      EXPECT_LE(d.gamma, d.arm == kNgram ? kFoundLength : kMaxPlannedDraft);
      EXPECT_EQ(d.gamma == 0, d.arm == kPlain);
      rows[i] = 1 + d.gamma * width(d.arm);
      learning += d.learn == kSelf;
      prepared[i] = d.learn;
    }
    const double verify = setup.machine.verify(rows, context) * jitter(0.04);
    const double learn = learning ? setup.machine.learn(learning, context) * jitter(0.05) : 0;
    ms += verify + learn;
    for (size_t a = 0; a < arms.size(); ++a)
      for (int g = 1; arms[a].passes && g <= kMaxPlannedDraft; ++g) {
        int sequences = 0;
        for (const Decision& d : decisions) sequences += d.arm == int(a) && d.gamma >= g;
        if (sequences == 0) break;
        const int step_rows = sequences * arms[a].width;
        const double step = jitter(0.05) *
            (arms[a].ready ? setup.machine.net_step(sequences, step_rows, context) : setup.machine.step(sequences, context));
        ms += step;
        if (table)
          table->drafts[arms[a].draft_kind].step.record(
              {double(step_rows), sequences, arms[a].ratio * context * sequences}, step);
      }
    if (table) {
      double all = 0;
      for (int r : rows) all += r;
      table->verify.record({all, setup.batch, context * setup.batch}, verify);
      if (learning) table->drafts[0].learn.record({double(learning), learning, context * learning}, learn);
    }
    for (size_t i = 0; i < batch; ++i) {
      int accepted = 0;
      const Decision& d = decisions[i];
      while (accepted < d.gamma && chances[i].uniform() < setup.text.acceptance(d.arm, accepted, tokens[i])) ++accepted;
      tokens[i] += accepted + 1, made += accepted + 1;
      if (planner) planner->record({.slot = int(i), .drafted = d.gamma, .accepted = accepted});
    }
  }
  return ms / made;
}

// Means over seeds, milliseconds a token. Cold: an empty table and no counts. Warm: after one other run of the same kind.
struct Cell {
  double cold = 0, warm = 0, plain = 0, best = 0;
  Fixed choice;  // the best fixed one of `gammas`
  double regret(double planned) const { return planned / best - 1; }
};
inline Cell measure(
    Setup setup, const CostPriors& priors, const std::vector<Arm>& arms, const std::vector<int>& gammas, int seeds) {
  const auto mean = [&](const std::function<double()>& once) {
    double sum = 0;
    for (int seed = 1; seed <= seeds; ++seed) setup.seed = seed, sum += once();
    return sum / seeds;
  };
  const auto planned = [&](bool warm) {
    return mean([&] {
      CostTable table(priors);
      Planner planner(table, {.arms = arms, .max_slots = setup.batch});
      Setup first = setup;
      first.seed += 100;
      if (warm) run(first, arms, &planner, &table);
      return run(setup, arms, &planner, &table);
    });
  };
  Cell cell{.cold = planned(false), .warm = planned(true)};
  cell.best = cell.plain = mean([&] { return run(setup, arms, nullptr, nullptr); });
  for (int arm = 0; arm < int(arms.size()); ++arm)
    for (int gamma : gammas) {
      if (gamma > (arm == kNgram ? kFoundLength : arms[arm].max_gamma)) continue;
      const double ms = mean([&] { return run(setup, arms, nullptr, nullptr, {arm, gamma}); });
      if (ms < cell.best) cell.best = ms, cell.choice = {arm, gamma};
    }
  return cell;
}
inline std::string description(const Setup& setup, const Cell& cell) {
  return fmt::format("{}, context {}, batch {}, slope {}; best fixed: arm {} gamma {}, {} times plain", setup.text.name,
      setup.context, setup.batch, setup.machine.slope, cell.choice.arm, cell.choice.gamma, cell.plain / cell.best);
}
inline std::string test_name(const Text& text) {
  std::string name = text.name;
  std::ranges::replace(name, ' ', '_');
  return name;
}

}
