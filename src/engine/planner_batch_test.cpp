// The planner of a batch on a device: the first guess makes the pass a dearer one, further rows cost next to nothing.
#include <gtest/gtest.h>

#include "engine/planner_testing.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kSelf = 0, kLookup = 1, kBatch = 8;
constexpr double kSure[] = {0.98, 0.98, 0.98, 0.98, 0.98, 0.98, 0.98};

CostTable known_table(double first_guess_ms, double row_ms, double step_ms, double learn_ms = 0.05) {
  CostTable table(small_priors());
  for (int i = 0; i < 60; ++i) {
    for (const double rows : kRows)
      table.verify.record(
          {rows * kBatch, kBatch, 20000.0 * kBatch}, 2 + (rows > 1 ? first_guess_ms : 0) + row_ms * (rows - 1) * kBatch);
    for (int n = 1; n <= kBatch; ++n) {
      table.drafts[0].step.record({double(n), n, 600.0 * n}, step_ms);
      table.drafts[0].learn.record({double(n), n, 20000.0 * n}, learn_ms);
    }
  }
  return table;
}
PlannerOptions options() { return {.arms = {self_arm(), {.name = "suffix", .prior_acceptance = 0.6}}, .max_slots = kBatch}; }
RequestView looking_up(int slot, int length) {
  RequestView view{.slot = slot, .context_len = 20000, .arms = 1u << kLookup};
  view.found[kLookup] = {length, 3};
  return view;
}
int guessing(std::span<const Decision> decisions) {
  return int(std::ranges::count_if(decisions, [](const Decision& d) { return d.arm != kPlain; }));
}

TEST(PlannerOfABatch, GuessesTogetherWhereNobodysGuessesAreWorthAPassOfAnotherKind) {
  const CostTable table = known_table(2.2, 0.002, 0.2);
  Planner planner(table, options());
  const double middling[] = {0.6, 0.6, 0.6};
  planner.seed(kLookup, 0, middling, 200, 3);
  EXPECT_EQ(guessing(decide_batch(planner, kBatch, 64, [](int slot) { return looking_up(slot, 3); })), kBatch);
  EXPECT_EQ(guessing(decide_batch(planner, kBatch, 64, [](int slot) { return looking_up(slot, slot == 0 ? 3 : 0); })), 0)
      << "one alone is not worth it";
}

TEST(PlannerOfABatch, TakesFromWhoHasMostWhereThereIsNoRoom) {
  const CostTable table = known_table(0.2, 0.002, 0.35);
  Planner planner(table, options());
  planner.seed(kLookup, 0, kSure, 400, 3);
  const auto decisions = decide_batch(planner, kBatch, kBatch + 10, [](int slot) { return looking_up(slot, slot == 5 ? 7 : 1); });
  for (int slot = 0; slot < kBatch; ++slot) EXPECT_EQ(decisions[slot].gamma, slot == 5 ? 3 : 1) << slot;
}

// Prices and steady choices are kept for a few steps: what lookups then find is guessed all the same.
TEST(PlannerOfABatch, GuessesWhatIsFoundBetweenPrices) {
  const CostTable table = known_table(0.2, 0.002, 0.35);
  auto widest = options();
  widest.widest_counts = true;
  Planner planner(table, widest);
  planner.seed(kLookup, 0, kSure, 400, 3);
  for (const int length : {0, 7, 2})
    EXPECT_EQ(
        guessing(decide_batch(planner, kBatch, 90, [&](int slot) { return looking_up(slot, length); })), length ? kBatch : 0);
}

// What rounds of guesses took is what all of them took together, or time looks dear and the next round is a plain one.
TEST(PlannerOfABatch, DoesNotSwingBetweenAllAndNothing) {
  const CostTable table = known_table(1.5, 0.002, 0.2);
  Planner planner(table, options());
  int plain = 0;
  for (int round = 0; round < 100; ++round) {
    const auto decisions = decide_batch(planner, kBatch, 64, [&](int slot) { return looking_up(slot, 1 + (slot + round) % 8); });
    plain += round >= 10 && guessing(decisions) < kBatch / 2;
    record_batch(planner, decisions, [&](int slot, const Decision& d) { return std::min(d.gamma, 1 + (slot + 3 * round) % 5); });
  }
  EXPECT_LE(plain, 3);
}

// Half of the requests make eight tokens a round by lookups; the others' drafts, of the model itself, would delay those.
TEST(PlannerOfABatch, LetsWhoHasNoLookupsDraftBesideThoseWhoDo) {
  const CostTable table = known_table(0.2, 0.002, 0.35);
  Planner planner(table, options());
  const double good[] = {0.8, 0.8, 0.8, 0.8};
  planner.seed(kSelf, 20000, good, 400);
  planner.seed(kLookup, 0, kSure, 400, 3);
  int drafting = 0;
  std::vector<int> prepared(kBatch, kSelf);
  for (int round = 0; round < 60; ++round) {
    const auto decisions = decide_batch(planner, kBatch, 64, [&](int slot) {
      RequestView view{.slot = slot, .context_len = 20000, .arms = slot % 2 ? 1u << kSelf : 1u << kLookup};
      view.prepared = prepared[slot];
      if (slot % 2 == 0) view.found[kLookup] = {7, 3};
      return view;
    });
    record_batch(planner, decisions, [&](int slot, const Decision& d) {
      prepared[slot] = d.learn;
      drafting += round >= 10 && d.arm == kSelf;
      return d.arm == kSelf ? std::min(d.gamma, (slot + round) % 5) : d.gamma;
    });
  }
  EXPECT_GT(drafting, 100);
}

// Guesses are worth their rows in the mean: who was unlucky goes on.
TEST(PlannerOfABatch, LetsWhoHasLostGoOnWhileTheBatchGains) {
  const CostTable table = known_table(0.8, 0.01, 0.2);
  for (const bool others_gain : {true, false}) {
    Planner planner(table, options());
    const double middling[] = {0.5, 0.5, 0.5, 0.5};
    planner.seed(kLookup, 0, middling, 1000, 3);
    int late = 0;
    for (int round = 0; round < 40; ++round) {
      const auto decisions = decide_batch(planner, kBatch, 64, [](int slot) { return looking_up(slot, 4); });
      late += round >= 20 && decisions[0].gamma > 0;
      record_batch(planner, decisions, [&](int slot, const Decision& d) { return slot > 0 && others_gain ? d.gamma : 0; });
    }
    EXPECT_EQ(late > 5, others_gain) << late;
  }
}

// Look-ups that are found now and then, beside drafts of the model itself, which want to be learned for in those rounds too.
TEST(PlannerOfABatch, DoesNotStopLookupsForWhatIsLearnedInTheirRounds) {
  const CostTable table = known_table(0.2, 0.002, 0.9, 0.6);
  Planner planner(table, options());
  const double good[] = {0.9, 0.9, 0.9, 0.9, 0.9}, fair[] = {0.8, 0.8, 0.8, 0.8};
  planner.seed(kSelf, 20000, good, 400);
  planner.seed(kLookup, 0, fair, 400, 3);
  int late = 0;
  std::vector<int> prepared(kBatch, kSelf);
  for (int round = 0; round < 80; ++round) {
    const bool found = round % 2;
    const auto decisions = decide_batch(planner, kBatch, 128, [&](int slot) {
      RequestView view = looking_up(slot, found ? 4 : 0);
      view.arms |= 1u << kSelf, view.prepared = prepared[slot];
      return view;
    });
    record_batch(planner, decisions, [&](int slot, const Decision& d) {
      prepared[slot] = d.learn;
      late += round >= 60 && d.arm == kLookup;
      return d.arm == kSelf ? d.gamma : std::min(d.gamma, (slot + round / 2) % 3);
    });
  }
  EXPECT_GT(late, 40);
}

// Kernels that take what the longest guess of all asks for: one request's long guess must be worth it for everybody.
TEST(PlannerOfABatch, KeepsTheLongestGuessToWhatAllPayForIt) {
  for (const double wider_ms : {0.05, 3.0}) {
    CostTable table;
    for (int i = 0; i < 60; ++i)
      for (const double rows : kRows)
        for (double widest = rows; widest <= 16; widest *= 2)
          table.verify.record({rows * kBatch, kBatch, 20000.0 * kBatch, widest}, 2 + (widest > 8 ? wider_ms : 0) + 0.002 * rows);
    PlannerOptions of_device{
        .arms = {{.name = "none", .passes = true, .draft_kind = 0}, {.name = "suffix"}}, .max_slots = kBatch};
    of_device.widest_counts = true;
    table.drafts = CostTable({.drafts = {{"none", 1e6}}}).drafts;
    Planner planner(table, of_device);
    std::array<double, kMaxPlannedDraft> sure;
    sure.fill(0.98);
    planner.seed(kLookup, 0, sure, 400, 3);
    const auto decisions = decide_batch(planner, kBatch, 256, [](int slot) { return looking_up(slot, slot == 0 ? 15 : 3); });
    EXPECT_EQ(decisions[0].gamma > 7, wider_ms < 1) << decisions[0].gamma;
    EXPECT_EQ(guessing(decisions), kBatch);
  }
}

// Steady choices are kept for some steps, in which a request may end.
TEST(PlannerOfABatch, KeepsWithinTheRoomOfEveryRequestInEveryStep) {
  const CostTable table = known_table(0.1, 0.001, 0.05);
  PlannerOptions self = options();
  self.arms.pop_back();
  Planner planner(table, self);
  int guesses = 0;
  for (int step = 0; step < 200; ++step) {
    const int room = step % 3 == 0 ? 16 : step % 3;
    const auto decisions = decide_batch(planner, kBatch, 1024,
        [&](int slot) { return RequestView{.slot = slot, .context_len = 20000, .room = room, .prepared = kSelf}; });
    for (const Decision& d : decisions) {
      guesses += d.gamma;
      EXPECT_LE(d.gamma, room);
    }
    record_batch(planner, decisions, [](int, const Decision& d) { return d.gamma; });
  }
  EXPECT_GT(guesses, 200 * kBatch);
}

// What passes of many rows took says nothing of those in which few have a guess, which are another kind again.
TEST(PlannerOfABatch, DoesNotTakeGuessesToBeFreeWhereLongOnesWereCheap) {
  constexpr int kSlots = 64, kLength = 128;
  CostTable table({.weight_bytes = 16e9, .kv_bytes_per_token = 147e3, .bytes_per_second = 4.5e12, .device_layers = 36});
  Planner planner(table, {.arms = {{.name = "suffix", .prior_acceptance = 0.6}}, .max_slots = kSlots, .widest_counts = true});
  int tried = 0, guesses = 0;
  for (int text = 0; text < 8; ++text) {
    const bool loops = text == 3 || text == 4;
    guesses = 0;
    for (int slot = 0; slot < kSlots; ++slot) planner.open(slot);
    for (int64_t made = 0; made < kSlots * kLength;) {
      const int64_t context = 200 + made / kSlots;
      const auto decisions = decide_batch(planner, kSlots, 1024, [&](int slot) {
        RequestView view{.slot = slot, .context_len = context, .arms = 1};
        view.found[0] = loops ? Found{12, 4} : Found{1, 0};
        return view;
      });
      double rows = kSlots, widest = 1;
      for (const Decision& d : decisions) rows += d.gamma, widest = std::max(widest, 1.0 + d.gamma);
      table.verify.record({rows, kSlots, double(kSlots * context), widest},
          5.9 + 0.01 * (rows - kSlots) + (rows > kSlots + 1 ? 0.43 : 0) + (rows > 96 ? 0.3 : 0));
      record_batch(planner, decisions, [&](int, const Decision& d) {
        const int kept = loops ? d.gamma : d.gamma > 0 && ++tried % 40 == 0;
        made += 1 + kept, guesses += d.gamma;
        return kept;
      });
    }
    EXPECT_TRUE(!loops || guesses > kSlots * kLength / 2) << guesses;
  }
  EXPECT_LT(guesses, 2 * kLength);
}

}
}
