// What the planner promises whatever it estimates: limits, budgets, selections that exist, decisions without a clock.
#include "engine/planner.h"

#include <gtest/gtest.h>

#include "engine/mask_costs.h"
#include "engine/planner_testing.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kSelf = 0, kNgram = 1;

const CostTable& known_table() {  // eight rows for the price of one, draft steps a tenth of it
  static const CostTable known = [] {
    CostTable table(small_priors());
    for (int i = 0; i < 30; ++i)
      for (int batch : {1, 2, 4, 8})
        for (const double rows : kRows) {
          table.verify.record({rows * batch, batch, 20000.0 * batch}, 1 + batch * 3.5 * (1 + 0.02 * rows));
          table.drafts[0].step.record({double(batch), batch, 600.0 * batch}, 0.2 + 0.1 * batch);
          table.drafts[0].learn.record({double(batch), batch, 20000.0 * batch}, 0.3 * batch);
        }
    return table;
  }();
  return known;
}
PlannerOptions options(int slots = 1) {
  return {.arms = {self_arm(), {.name = "ngram", .prior_acceptance = 0.6}}, .max_slots = slots};
}
RequestView view(int slot = 0) { return {.slot = slot, .context_len = 20000, .prepared = kSelf}; }

TEST(Planner, DraftsWhereItPaysAndLearnsForTheNextRound) {
  Planner planner(known_table(), options());
  const Decision d = planner.decide(view());
  EXPECT_EQ(d.arm, kSelf);
  EXPECT_GE(d.gamma, 3);
  EXPECT_EQ(d.learn, kSelf);
  EXPECT_GT(d.stop_below, 0);
  EXPECT_LT(d.stop_below, 0.5);
}

TEST(Planner, LeavesGuessesWhoseMasksTakeMoreThanTheyBring) {
  RequestView v = view();
  v.arms = 1 << kNgram, v.found[kNgram] = {8, 7};
  MaskCosts masks;
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(masks.record(5, 4, 2, 0, true), 4);
    EXPECT_EQ(masks.record(5 + 8 * 0.5, 4, 2, 8, true), 7);
  }
  EXPECT_NEAR(masks.guess_ms(true), 0.5, 0.01);
  EXPECT_EQ(masks.guess_ms(false), 0);
  EXPECT_EQ(masks.record(3, 4, 2, 0, true), 3);
  int last = 9;
  for (const double times : {0, 4, 16}) {
    Planner planner(known_table(), options());
    v.guess_ms = times * masks.guess_ms(true);
    const int guesses = planner.decide(v).gamma;
    EXPECT_LT(guesses, last);
    last = guesses;
  }
  EXPECT_EQ(last, 0);
}

TEST(Planner, LearnsFirstWhereNothingIsPrepared) {
  Planner planner(known_table(), options());
  RequestView unprepared = view();
  unprepared.prepared = -1;
  const Decision d = planner.decide(unprepared);
  EXPECT_EQ(d.arm, kPlain);
  EXPECT_EQ(d.gamma, 0);
  EXPECT_EQ(d.learn, kSelf);
}

TEST(Planner, ObeysRoomArmsAndWhatWasFound) {
  Planner planner(known_table(), options());
  for (int room = 0; room <= 16; ++room)
    for (uint32_t arms = 0; arms < 4; ++arms)
      for (int found = 0; found <= 16; found += 4) {
        planner.open(0);
        RequestView v = view();
        v.room = room, v.arms = arms;
        v.found[kNgram] = {found, 7};
        const Decision d = one_round(planner, v, all);
        EXPECT_LE(d.gamma, room);
        EXPECT_EQ(d.arm == kPlain, d.gamma == 0);
        if (d.arm != kPlain) { EXPECT_TRUE(arms >> d.arm & 1); }
        if (d.learn >= 0) { EXPECT_TRUE(arms >> d.learn & 1); }
        if (d.arm == kNgram) { EXPECT_LE(d.gamma, found); }
      }
}

TEST(Planner, KeepsToTheBudgetOfRowsAndDropsDraftsFirst) {
  for (int budget = 8; budget <= 60; ++budget) {
    Planner planner(known_table(), options(8));
    int rows = 0;
    for (const Decision& d : decide_batch(planner, 8, budget, [](int slot) { return view(slot); })) {
      rows += 1 + d.gamma;
      EXPECT_EQ(d.arm == kPlain, d.gamma == 0);
    }
    EXPECT_LE(rows, budget);
    EXPECT_GE(rows, budget <= 16 ? budget : 16) << "what is allowed and pays is used";
  }
}

TEST(Planner, DecidesTheSameFromTheSamePast) {
  std::array<std::vector<int>, 2> streams;
  for (auto& stream : streams) {
    Planner planner(known_table(), options());
    for (int round = 0; round < 300; ++round) {
      RequestView v = view();
      if (round % 3 == 0) v.found[kNgram] = {6, round % 8};
      const Decision d = one_round(planner, v, [&](const Decision& made) { return round * 7 % (made.gamma + 1); });
      stream.push_back(d.arm * 100 + d.gamma);
    }
  }
  EXPECT_EQ(streams[0], streams[1]);
}

// Nothing but what was seen decides: losses are free.
TEST(Planner, StopsDraftingWhenNothingIsKeptProbesEverMoreRarelyAndStartsAgain) {
  PlannerOptions patient = options();
  patient.loss_free = patient.explore_free = 1e6;
  Planner planner(known_table(), patient);
  for (const int good_rounds : {100, 2100}) {
    int drafted = 0, probes = 0;
    for (int round = 0; round < good_rounds; ++round) drafted = one_round(planner, view(), all).gamma;
    EXPECT_GT(drafted, 5);
    for (int round = 0, since = 0; round < 9000; ++round, ++since) {
      const Decision d = one_round(planner, view(), none);
      drafted += d.gamma;
      if (d.probe) { EXPECT_NEAR(since, std::min(16 << probes++, 2048), 2); }
      if (d.gamma > 0) since = 0;
    }
    EXPECT_LT(drafted, 260);
    EXPECT_GE(probes, 8);
  }
}

TEST(Planner, ANewRequestStartsFromWhatEarlierOnesSaw) {
  Planner planner(known_table(), options());
  for (int request = 0; request < 12; ++request) {
    planner.open(0);
    RequestView v = view();
    for (int round = 0; round < 60; ++round) v.prepared = one_round(planner, v, none).learn;
  }
  planner.open(0);
  EXPECT_EQ(planner.decide(view()).arm, kPlain);
  EXPECT_LT(planner.acceptance(kSelf, 20000)[0], 0.4);
  EXPECT_GT(Planner(known_table(), options()).acceptance(kSelf, 20000)[0], 0.8);
}

TEST(Planner, LooksUpByMatchQuality) {
  Planner planner(known_table(), options());
  RequestView v = view();
  v.arms = 1u << kNgram;
  for (int round = 0; round < 400; ++round) {
    const int quality = round % 2 ? 7 : 0;
    v.found[kNgram] = {8, quality};
    one_round(planner, v, quality == 7 ? all : none);
  }
  EXPECT_GT(planner.acceptance(kNgram, 20000, 7)[0], planner.acceptance(kNgram, 20000, 0)[0] + 0.3);
  v.found[kNgram] = {8, 7};
  const int good = one_round(planner, v, all).gamma;
  v.found[kNgram] = {8, 0};
  EXPECT_LT(planner.decide(v).gamma, good);
}

TEST(Planner, LookupsThatFailCostNoMoreThanMayBeLost) {
  CostTable table;
  for (int i = 0; i < 30 * 17; ++i) table.verify.record({double(1 + i % 17), 1, 20000}, 4 + i % 17);
  PlannerOptions lookups{.arms = {{.name = "ngram"}}};
  Planner planner(table, lookups);
  planner.seed(0, 20000, std::vector<double>(16, 0.97), 1000, 7);
  RequestView v{.context_len = 20000};
  v.found[0] = {16, 7};
  double lost = 0;
  for (int round = 0; round < 100; ++round) {
    lost += one_round(planner, v, none).gamma / 4.0;
    EXPECT_LE(lost, 1.1 * (lookups.loss_free + lookups.loss_share * round)) << round;
  }
  EXPECT_GT(lost, 1);
}

// Copied text: drafts of a network would be kept as well, but a probe of them takes longer and brings less than what was found.
TEST(Planner, DoesNotGiveUpALookupThatFoundMuchToTryOtherArms) {
  CostTable table({.weight_bytes = 35e6, .drafts = {{"q4_0@0.03", 19e6}, {"network", 4e6}}});
  for (int i = 0; i < 30; ++i) {
    for (double rows : {1.0, 2.0, 4.0, 8.0, 16.0, 25.0}) table.verify.record({rows, 1, 20000}, 0.34 + 0.007 * rows);
    table.drafts[0].step.record({1, 1, 600}, 0.5), table.drafts[0].learn.record({1, 1, 20000}, 0.05);
    for (double rows : {1.0, 6.0}) table.drafts[1].step.record({rows, 1, 20000}, 0.09);
  }
  PlannerOptions with_network = options();
  Arm network{.name = "network", .passes = true, .ready = true, .draft_kind = 1, .prior_acceptance = 0.6};
  with_network.arms.push_back(network);
  network.name = "network tree", network.width = 6, network.max_gamma = 8, network.prior_acceptance = 0.75;
  with_network.arms.push_back(network);
  Planner planner(table, with_network);
  const double chain[] = {0.6, 0.6, 0.6, 0.6}, tree[] = {0.75, 0.75, 0.75, 0.75};
  planner.seed(2, 20000, chain, 400), planner.seed(3, 20000, tree, 400);
  int others = 0;
  for (int round = 0; round < 60; ++round) {
    RequestView v = view();
    v.found[kNgram] = {12, 7};
    others += one_round(planner, v, all).arm != kNgram && round >= 5;
  }
  EXPECT_LE(others, 3);
  // Nor is the next request's time filled with them before its own matches come.
  Planner first(table, with_network);
  first.seed(2, 20000, chain, 400), first.seed(3, 20000, tree, 400);
  EXPECT_GE(first.decide(view()).arm, 2);
  planner.open(0);
  EXPECT_EQ(planner.decide(view()).arm, kPlain);
}

// A probe may make as much as plain decoding, and delay matches that make three times that.
TEST(Planner, DoesNotProbeBetweenMatchesWhatMakesLess) {
  CostTable table(small_priors());
  for (int i = 0; i < 30; ++i) {
    for (const double rows : kRows) table.verify.record({rows, 1, 20000}, 0.3 + 0.01 * rows);
    table.drafts[0].step.record({1, 1, 600}, 0.26), table.drafts[0].learn.record({1, 1, 20000}, 0.01);
  }
  Planner planner(table, options());
  int self = 0;
  for (int round = 0; round < 200; ++round) {
    RequestView v = view();
    if (round % 4 < 2) v.found[kNgram] = {8, 7};
    one_round(planner, v, [&](const Decision& d) {
      self += d.arm == kSelf;
      return d.arm == kSelf && self % 3 == 0 ? 1 : d.gamma;
    });
  }
  EXPECT_LE(self, 1);
}

TEST(Planner, WhoInsistsGuessesInEveryRoundAndAsMuchAsPays) {
  for (const bool good : {false, true}) {
    Planner planner(known_table(), options(2));
    std::array<RequestView, 2> views{view(0), view(1)};
    views[0].arms = 1u << kSelf, views[0].insists = true;
    views[1].arms = 0;
    int last = 0;
    for (int round = 0; round < 200; ++round) {
      std::array<Decision, 2> out;
      planner.decide(views, out);
      ASSERT_EQ(out[0].arm, kSelf);
      ASSERT_GE(last = out[0].gamma, 1);
      EXPECT_EQ(out[0].learn, kSelf);
      EXPECT_EQ(out[1].arm, kPlain);
      planner.record({.slot = 0, .drafted = last, .accepted = good ? last : 0});
      planner.record({.slot = 1});
    }
    EXPECT_TRUE(good ? last >= 8 : last == 1) << last;
    views[0].prepared = -1;
    EXPECT_EQ(planner.decide(views[0]).learn, kSelf) << "there is nothing to guess by";
  }
}

// Guesses are all kept, and the first rows are dear: what failing might cost is the only limit.
TEST(Planner, PastGainsExcuseSoMuchAndNoMore) {
  CostTable table;
  for (int i = 0; i < 1320; ++i) table.verify.record({2.0 + i % 33, 2, 40000}, 10 + 4.5 * std::min(i % 33, 6));
  Planner planner(table, {.arms = {{.name = "ngram"}}, .max_slots = 2, .loss_free = 1, .loss_share = 0});
  planner.seed(0, 20000, std::vector(16, 0.995), 1000, 7);
  int most = 0;
  for (int round = 0; round < 300; ++round) {
    const auto made = decide_batch(planner, 2, 0, [](int slot) {
      return RequestView{.slot = slot, .context_len = 20000, .found = {Found{16, 7}}};
    });
    record_batch(planner, made, [&](int, const Decision& d) { return most = std::max(most, d.gamma), d.gamma; });
  }
  EXPECT_EQ(most, 14);
}

TEST(Planner, AProfileIsAPrior) {
  Planner planner(known_table(), options());
  const double never[] = {0.1, 0.1};
  EXPECT_GT(planner.acceptance(kSelf, 20000)[0], 0.2);
  planner.seed(kSelf, 20000, never, 200);
  EXPECT_LT(planner.acceptance(kSelf, 20000)[0], 0.2);
  EXPECT_EQ(planner.decide(view()).arm, kPlain);
}

}
}
