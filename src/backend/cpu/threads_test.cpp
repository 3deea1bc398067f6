// The pool of threads; the choice of kernels.
#include "backend/cpu/threads.h"

#include <gtest/gtest.h>

#include <chrono>

#include "backend/cpu/cpu_backend.h"

namespace hunch {
namespace {

TEST(Threads, RunsEveryItemOnceAndSeesAllResults) {
  for (int count : {1, 2, 3, 7}) {
    Threads threads(count);
    for (int round = 0; round < 300; ++round) {
      const int64_t n = round % 50;
      std::vector<int> hits(n, 0);  // unsynchronised on purpose: run() orders the writes
      threads.run(n, [&](int64_t item, int worker) {
        EXPECT_TRUE(worker >= 0 && worker < count);
        hits[item] += 1 + round;
      });
      for (int hit : hits) ASSERT_EQ(hit, 1 + round);
    }
  }
}

TEST(Threads, WakesAfterSleeping) {
  Threads threads(3);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int64_t> sum{0};
    threads.run(100, [&](int64_t item, int) { sum += item; });
    EXPECT_EQ(sum.load(), 4950);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // longer than idle threads spin
  }
}

TEST(Threads, GivesEachWorkerMemoryOfItsOwn) {
  Threads threads(3);
  threads.reserve(3 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(threads.scratch(0)) % 64, 0u);
  std::byte* const first = threads.scratch(1);
  threads.reserve(1 << 20);
  EXPECT_EQ(threads.scratch(1), first);  // never shrinks or moves without need
  threads.run(300, [&](int64_t item, int worker) {
    int64_t* p = reinterpret_cast<int64_t*>(threads.scratch(worker));
    for (int i = 0; i < 100; ++i) p[i] = item;
    for (int i = 0; i < 100; ++i) ASSERT_EQ(p[i], item);
  });
}

TEST(Threads, KnowsHowManyCoresItMayUse) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), int(std::thread::hardware_concurrency()));
}

TEST(CpuBackend, RefusesAnInstructionSetItCannotRun) {
  const auto unknown = CpuBackend::make({1, "avx9"});
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("avx512_bf16"), std::string::npos);
  EXPECT_FALSE(CpuBackend::make({-1, ""}).ok());
}

TEST(CpuBackend, IsRegisteredAndTakesTheBestInstructionSet) {
  const auto* part = Register<Backend>::find("cpu");
  ASSERT_NE(part, nullptr);
  const auto backend = part->make({2, ""});
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ(backend.value()->threads(), 2);
  EXPECT_NE(backend.value()->description().find(available_isas().back()), std::string::npos);
}

}
}
