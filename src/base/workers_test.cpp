#include "base/workers.h"

#include <gtest/gtest.h>

namespace hunch {
namespace {

TEST(Workers, RunEveryItemOnceBeforeTheLoopEnds) {
  for (const int count : {1, 2, 5}) {
    Workers workers(count);
    for (int64_t items = 0; items < 300; ++items) {
      std::vector<int> done(items, 0);
      workers.run(
          items, [&](int64_t i) { ++done[i]; }, 1 + items % 9);
      for (const int times : done) ASSERT_EQ(times, 1);
    }
  }
}

TEST(Workers, FinishWhatWasStartedMeanwhile) {
  for (const int count : {1, 3}) {
    Workers workers(count);
    workers.finish();
    for (int64_t items = 0; items < 300; ++items) {
      std::vector<int> done(items, 0);
      workers.start(
          items, [&](int64_t i) { ++done[i]; }, count);
      if (items % 2) workers.finish();  // else the next loop does, but for the last
      if (items % 2 == 0) workers.run(items, [&](int64_t i) { ++done[i]; });
      for (const int times : done) ASSERT_EQ(times, items % 2 ? 1 : 2);
    }
  }
}

}
}
