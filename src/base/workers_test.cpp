#include "base/workers.h"

#include <gtest/gtest.h>

namespace hunch {
namespace {

TEST(Workers, RunEveryItemOnceBeforeTheLoopEnds) {
  for (const int count : {1, 2, 5}) {
    Workers workers(count);
    for (int64_t items = 0; items < 300; ++items) {
      std::vector<int> done(size_t(items), 0);
      workers.run(items, [&](int64_t i) { ++done[size_t(i)]; });
      for (const int times : done) ASSERT_EQ(times, 1);
    }
  }
}

}  // namespace
}  // namespace hunch
