// The scheduler alone, with requests that need no model: what it deals is checked after every step, under random events.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace hunch {
namespace {

struct Seat final : Scheduled {
  explicit Seat(int64_t prompt, int64_t output, int gamma = 0) : output(output), gamma(gamma) {
    sequence.tokens.resize(prompt);
    std::iota(sequence.tokens.begin(), sequence.tokens.end(), 0);
    sequence.prompt_len = prefill_target = prompt;
    sequence.max_len = prompt + output;
    sequence.pages = PageTable(4096);
  }
  void seated() override {
    ++times_seated;
    EXPECT_EQ(sequence.committed_len, sequence.pages.capacity()) << "it starts with what the cache had, and trusts nothing else";
  }
  void unseated() override { ++times_unseated; }
  bool done() const { return sequence.len() >= sequence.max_len; }
  void turn(int64_t at, int32_t where) {  // another text from there on
    for (int64_t i = at; i < sequence.len(); ++i) sequence.tokens[i] += 1000 * where;
  }

  int64_t output;
  int gamma;
  int times_seated = 0, times_unseated = 0;
};

// Runs plans the way the step does, with drafts accepted by chance.
class Machine {
 public:
  Machine(const SchedulerLimits& limits, int64_t pages, bool cached = true, uint32_t seed = 1)
      : limits(limits), pool(pages), dice(seed) {
    if (cached) cache.emplace(pool);
    scheduler.emplace(limits, pool, cached ? &*cache : nullptr);
  }
  Seat& add(int64_t prompt, int64_t output, int gamma = 0, int priority = 0) {
    seats.push_back(std::make_unique<Seat>(prompt, output, gamma));
    seats.back()->priority = priority;
    scheduler->add(*seats.back());
    return *seats.back();
  }
  const StepPlan& step() {
    for (const auto& seat : seats)
      seat->want_drafts = int(std::clamp<int64_t>(seat->sequence.max_len - seat->sequence.len() - 1, 0, seat->gamma));
    const StepPlan& plan = scheduler->next();
    check(plan);
    for (const auto& decode : plan.decodes) {
      Sequence& s = decode.who->sequence;
      const int kept = decode.drafts ? int(dice() % unsigned(decode.drafts + 1)) : 0;
      for (int i = 0; i <= kept; ++i) s.tokens.push_back(int32_t(s.len()));
      s.committed_len += kept + 1;
      scheduler->committed(*decode.who);
    }
    for (const auto& chunk : plan.chunks) {
      Sequence& s = chunk.who->sequence;
      s.committed_len += chunk.rows;
      if (chunk.last && s.len() == s.committed_len) s.tokens.push_back(int32_t(s.len()));
      scheduler->committed(*chunk.who);
    }
    for (auto& seat : seats) {
      if (!seat->done()) continue;
      finished.push_back(seat->arrival);
      scheduler->remove(*seat);
      seat.reset();
    }
    std::erase(seats, nullptr);
    return plan;
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  void check(const StepPlan& plan) {
    int64_t rows = 0, verify = 0;
    for (const auto& decode : plan.decodes) {
      const Sequence& s = decode.who->sequence;
      EXPECT_TRUE(decode.who->seated_now);
      EXPECT_EQ(s.committed_len, s.len() - 1);
      EXPECT_LE(decode.drafts, decode.who->want_drafts);
      EXPECT_GE(s.pages.capacity(), s.committed_len + 1 + decode.drafts);
      EXPECT_LE(s.len() + decode.drafts + 1, s.max_len);
      rows += 1 + decode.drafts, verify += 1 + decode.drafts;
    }
    for (const auto& chunk : plan.chunks) {
      const Sequence& s = chunk.who->sequence;
      EXPECT_GT(chunk.rows, 0);
      EXPECT_LE(chunk.rows, plan.decodes.empty() ? std::max(limits.chunk_len, limits.alone_rows) : limits.chunk_len);
      EXPECT_GE(s.pages.capacity(), s.committed_len + chunk.rows);
      const int64_t left = chunk.who->prefill_target - s.committed_len - chunk.rows;
      const int together = std::clamp(chunk.who->selecting_rows, limits.selecting_rows, limits.most_selecting());
      EXPECT_TRUE(left == 0 || left >= together) << "the selecting rows stay in one chunk";
      EXPECT_EQ(chunk.last, left == 0);
      rows += chunk.rows;
    }
    EXPECT_LE(rows, plan.decodes.empty() ? limits.most_rows() : limits.rows);
    EXPECT_LE(verify, limits.verify_rows);
    EXPECT_LE(scheduler->num_running(), limits.max_seqs);
    EXPECT_TRUE(!plan.empty() || std::ranges::all_of(scheduler->running(), [](const Scheduled* who) { return who->paused; }));
    // Every slot once; pages that two sequences hold are whole and committed.
    std::vector<int> slots(limits.max_seqs, 0);
    for (const Scheduled* who : scheduler->running()) EXPECT_EQ(++slots[who->sequence.slot], 1);
    for (const Scheduled* who : scheduler->running())
      for (int64_t page = 0; page < who->sequence.pages.num_pages(); ++page)
        if (pool.holders(who->sequence.pages.page_of(page * kPageLen)) > 1) {
          EXPECT_LE((page + 1) * kPageLen, who->sequence.committed_len);
        }
  }
  const SchedulerStats& stats() const { return scheduler->stats(); }
  void run_dry(int most = 100000) {
    for (int i = 0; i < most && !seats.empty(); ++i) step();
    EXPECT_TRUE(seats.empty()) << "somebody starved";
    EXPECT_EQ(pool.num_free(), pool.num_pages()) << "a page leaked";
  }

  SchedulerLimits limits;
  PagePool pool;
  std::optional<PrefixCache> cache;
  std::optional<Scheduler> scheduler;
  std::vector<std::unique_ptr<Seat>> seats;
  std::vector<int64_t> finished;
  std::mt19937 dice;
};

constexpr SchedulerLimits small(int seqs = 4) { return {.max_seqs = seqs, .rows = 64, .verify_rows = 24, .chunk_len = 48}; }
constexpr SchedulerLimits large(int seqs = 4) { return {.max_seqs = seqs, .rows = 512, .verify_rows = 24, .chunk_len = 512}; }
constexpr SchedulerLimits few(int seqs) { return {.max_seqs = seqs, .rows = 256, .verify_rows = 40, .chunk_len = 128}; }

TEST(Scheduler, RunsPromptsInChunksBesideThoseThatDecode) {
  Machine machine(small(), 100);
  machine.add(10, 50);
  machine.step();
  machine.add(200, 4);
  bool beside = false;
  for (int i = 0; i < 8; ++i) {
    const StepPlan& plan = machine.step();
    beside = beside || (plan.decodes.size() == 1 && plan.chunks.size() == 1);
  }
  EXPECT_TRUE(beside);
  machine.run_dry();
}

TEST(Scheduler, ChunksAreLongerWhereNobodyDecodes) {
  SchedulerLimits limits = small();
  limits.alone_rows = 150;
  Machine machine(limits, 100, false);
  machine.add(200, 9), machine.add(150, 4);
  EXPECT_EQ(machine.step().chunks[0].rows, 150);
  EXPECT_EQ(machine.step().chunks.size(), 2u);  // the first prompt's end and a part of the second
  EXPECT_EQ(machine.step().chunks[0].rows, 48);
  machine.run_dry();
  limits.alone_reads = 151 * 150;  // behind 151 entries as many rows as anybody has
  Machine scarce(limits, 100, false);
  scarce.add(500, 9), scarce.add(500, 9);
  EXPECT_EQ(scarce.step().chunks[0].rows, 150);
  const StepPlan& plan = scarce.step();
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].rows, 151 * 150 / 301);
  scarce.run_dry();
}

TEST(Scheduler, DealsDraftsEvenlyAndNeverTakesARowFromOthers) {
  Machine machine(small(), 100, false);
  for (int i = 0; i < 4; ++i) machine.add(8, 200, 15);
  machine.steps(4);
  const StepPlan& plan = machine.step();
  ASSERT_EQ(plan.decodes.size(), 4u);
  for (const auto& decode : plan.decodes) EXPECT_EQ(decode.drafts, 5);  // (24 - 4) / 4
}

TEST(Scheduler, DropsDraftsBeforeItPreempts) {
  // Two requests fill all pages but for the last rows: drafts would need a page more.
  Machine machine(few(2), 2, false);
  machine.add(60, 4, 16);
  machine.add(60, 4, 16);
  machine.run_dry();
  EXPECT_EQ(machine.stats().preemptions, 0);
}

TEST(Scheduler, PreemptsTheLastAndResumesIt) {
  Machine machine(few(3), 6, false);
  Seat& first = machine.add(64, 200);
  Seat& last = machine.add(64, 200);
  const int64_t first_arrival = first.arrival;
  machine.steps(150);
  EXPECT_EQ(first.times_seated, 1);
  EXPECT_GT(last.times_unseated, 0);
  machine.run_dry();
  EXPECT_GT(machine.stats().preemptions, 0);
  EXPECT_EQ(machine.finished.front(), first_arrival);
}

TEST(Scheduler, PriorityGoesFirstAndNobodyWaitsForEver) {
  Machine machine(small(1), 100);
  machine.add(8, 5);  // runs
  machine.step();
  const int64_t low = machine.add(8, 5, 0, 3).arrival;
  const int64_t high = machine.add(8, 5, 0, -3).arrival;
  machine.steps(30);
  ASSERT_EQ(machine.finished.size(), 3u);
  EXPECT_EQ(machine.finished[1], high);
  EXPECT_EQ(machine.finished[2], low);
  // A stream of better requests that never ends.
  const int64_t starving = machine.add(8, 1, 0, 3).arrival;
  int steps = 0;
  while (machine.finished.back() != starving && ++steps < 20000) {
    if (machine.seats.size() < 4) machine.add(8, 3, 0, 0);
    machine.step();
  }
  EXPECT_LT(steps, 20000);
}

TEST(Scheduler, SharesTheBeginningThatOthersComputed) {
  Machine machine(large(), 100);
  for (int i = 0; i < 3; ++i) machine.add(300, 20);
  machine.step();
  EXPECT_EQ(machine.scheduler->num_running(), 1) << "the others wait for what the first computes";
  machine.step();
  EXPECT_EQ(machine.scheduler->num_running(), 3);
  EXPECT_EQ(machine.stats().prefix_found, 2 * 256);
  machine.run_dry();
  for (int i = 0; i < 3; ++i) {
    Seat& seat = machine.add(300, 20);
    seat.turn(0, 10), seat.turn(200, i);
  }
  machine.step();
  EXPECT_EQ(machine.scheduler->num_running(), 1) << "they end otherwise";
  machine.step();
  EXPECT_EQ(machine.stats().prefix_found, 2 * 256 + 2 * 192);
  machine.run_dry();
}

TEST(Scheduler, NobodyTakesTheSeatOfOneOfBetterRankThatWasPreempted) {
  Machine machine(large(3), 10, false);
  machine.add(250, 100, 0, -5);
  const Seat& preempted = machine.add(300, 200, 0, -4);
  const Seat& worse = machine.add(100, 4, 0, 9);
  while (preempted.times_unseated == 0) machine.step();
  EXPECT_FALSE(worse.seated_now);
  machine.run_dry();
}

TEST(Scheduler, WhoIsPausedKeepsNeitherSeatNorPagesFromOthers) {
  // One seat, then pages for one.
  for (const auto& [seqs, pages] : {std::pair(1, 100), {4, 5}}) {
    Machine machine(few(seqs), pages, false);
    Seat& slow = machine.add(150, 100);
    machine.steps(5);
    slow.paused = true;
    machine.steps(3);
    EXPECT_TRUE(slow.seated_now) << "nobody else wants it";
    const int64_t other = machine.add(200, 20, 0, 5).arrival;  // of worse rank
    machine.steps(60);
    EXPECT_EQ(machine.finished, std::vector<int64_t>{other});
    EXPECT_FALSE(slow.seated_now);
    slow.paused = false;
    machine.run_dry();
  }
}

TEST(Scheduler, NobodyWaitsForPagesThatWillNotBeShared) {
  for (const int why : {0, 1, 2}) {
    Machine machine({.max_seqs = 4, .rows = 512, .verify_rows = 24, .chunk_len = 128}, 100);
    Seat& first = machine.add(300, 20);
    machine.step();
    Seat& second = machine.add(300, 20);
    if (why == 0) second.sequence.cache_salt = "b";
    first.use_cache = why != 1, first.paused = why == 2;
    machine.step();
    EXPECT_EQ(machine.scheduler->num_running(), 2) << why;
    first.paused = false;
    machine.run_dry();
  }
}

TEST(Scheduler, DraftsLeaveHalfOfAStepToPromptsAndTakeAllWhereThereAreNone) {
  Machine machine({.max_seqs = 2, .rows = 64, .verify_rows = 60, .chunk_len = 64}, 100, false);
  machine.add(8, 500, 50);
  machine.step();
  EXPECT_EQ(machine.step().decodes[0].drafts, 50);
  machine.add(200, 4);
  const StepPlan& plan = machine.step();
  EXPECT_EQ(plan.decodes[0].drafts, 31);
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].rows, 32);
  EXPECT_EQ(machine.stats().drafts_dropped, 50 - 31);
  EXPECT_EQ(machine.stats().prefix_asked, 0) << "there is no cache";
}

TEST(Scheduler, WaitsForThePageOfTheFirstTokenToo) {
  Machine machine(few(2), 3, false);
  machine.add(100, 20), machine.add(64, 20);
  machine.run_dry();
  EXPECT_EQ(machine.stats().preemptions, 0);
}

TEST(Scheduler, WhatAPreemptedRequestFindsOfItsOwnWasNotFoundAtFirst) {
  Machine machine(few(2), 6);
  machine.add(64, 200);
  Seat& last = machine.add(100, 200);
  last.turn(0, 1);
  while (last.times_seated < 2) machine.step();
  EXPECT_GT(machine.stats().prefix_found, 0);
  EXPECT_EQ(last.found, 0);
}

TEST(Scheduler, TheWorstOfThosePausedLeaves) {
  Machine machine(few(2), 100, false);
  Seat &better = machine.add(8, 50, 0, -1), &worse = machine.add(8, 50);
  machine.step();
  better.paused = worse.paused = true;
  machine.add(8, 5);
  machine.step();
  EXPECT_TRUE(better.seated_now && !worse.seated_now);
}

TEST(Scheduler, HoldsItsInvariantsUnderRandomEvents) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 dice(seed);
    const int seqs = 1 + int(dice() % 6);
    const int64_t rows = seqs + 4 + int64_t(dice() % 100);
    Machine machine({.max_seqs = seqs,
                        .rows = rows,
                        .verify_rows = std::min<int64_t>(rows, seqs + dice() % 40),
                        .chunk_len = 2 + int64_t(dice() % 80),
                        .alone_rows = int64_t(dice() % 2 * (dice() % 200))},
        6 + int64_t(dice() % 12), seed % 3 != 0, seed);
    for (int event = 0; event < 400; ++event) {
      const unsigned what = dice() % 10;
      if (what < 2 && machine.seats.size() < 12) {
        Seat& seat = machine.add(1 + int64_t(dice() % 200), 1 + int64_t(dice() % 150), int(dice() % 20), int(dice() % 3));
        seat.selecting_rows = int(dice() % 40);
        seat.turn(int64_t(dice() % 200), int32_t(dice() % 3));
      } else if (what == 2 && !machine.seats.empty()) {  // aborted, wherever it is
        const size_t index = dice() % machine.seats.size();
        machine.scheduler->remove(*machine.seats[index]);
        machine.seats.erase(machine.seats.begin() + index);
      } else if (what == 3 && !machine.seats.empty()) {
        machine.seats[dice() % machine.seats.size()]->paused ^= true;
      } else {
        machine.step();
      }
    }
    for (const auto& seat : machine.seats) seat->paused = false;
    machine.run_dry();
  }
}

}
}
