#include "backend/cuda/spare_memory.h"

#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using SpareMemory = test::CommandsTest<>;

TEST_F(SpareMemory, KeepsSmallPinnedPiecesForTheNext) {
  Buffer a = pinned_memory(192), b = pinned_memory(192);
  ASSERT_NE(a.data(), b.data());
  void* const given_back = b.data();
  b = {};
  const Buffer other = pinned_memory(256), again = pinned_memory(192);
  EXPECT_NE(other.data(), given_back);
  EXPECT_EQ(again.data(), given_back);
}

}
}
