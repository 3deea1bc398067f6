#include "base/machine.h"

#include "base/test_folder.h"

namespace hunch {
namespace {

class Machine : public test::FolderTest {};

TEST_F(Machine, ALimitOfTheControlGroupIsFoundInBothVersionsAndTheLeastCounts) {
  EXPECT_EQ(cgroup_memory_limit(folder_), 0);
  put("memory.max", "max\n");
  EXPECT_EQ(cgroup_memory_limit(folder_), 0);
  put("memory.max", "8589934592\n");
  EXPECT_EQ(cgroup_memory_limit(folder_), int64_t(8) << 30);
  put("memory.high", "4294967296\n");
  EXPECT_EQ(cgroup_memory_limit(folder_), int64_t(4) << 30);
  put("memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(cgroup_memory_limit(folder_), int64_t(1) << 30);
}

TEST_F(Machine, AFactIsFoundByItsWholeName) {
  put("facts", "model\t\t: 143\nmodel name\t: A fast one\nflags : \n");
  const auto file = at("facts");
  EXPECT_EQ(machine_fact(file, "model name"), "A fast one");
  EXPECT_EQ(machine_fact(file, "model"), "143");
  EXPECT_EQ(machine_fact(file, "flags"), "");
  EXPECT_EQ(machine_fact(file, "none"), "");
  EXPECT_EQ(machine_fact(at("absent"), "model"), "");
}

TEST(MachineHere, HasMemory) {
  EXPECT_GT(usable_memory_bytes(), int64_t(1) << 28);
  EXPECT_LE(free_memory_bytes(), usable_memory_bytes());
}

}
}
