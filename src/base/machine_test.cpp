#include "base/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace hunch {
namespace {

namespace fs = std::filesystem;

class Machine : public testing::Test {
 protected:
  Machine() : root_(fs::path(testing::TempDir()) / ("machine_" + std::to_string(getpid()))) { fs::create_directories(root_); }
  ~Machine() override { fs::remove_all(root_); }
  void put(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  fs::path root_;
};

TEST_F(Machine, ALimitOfTheControlGroupIsFoundInBothVersionsAndTheLeastCounts) {
  EXPECT_EQ(cgroup_memory_limit(root_.string()), 0);
  put("memory.max", "max\n");
  EXPECT_EQ(cgroup_memory_limit(root_.string()), 0);
  put("memory.max", "8589934592\n");
  EXPECT_EQ(cgroup_memory_limit(root_.string()), int64_t(8) << 30);
  put("memory.high", "4294967296\n");
  EXPECT_EQ(cgroup_memory_limit(root_.string()), int64_t(4) << 30);
  put("memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(cgroup_memory_limit(root_.string()), int64_t(1) << 30);
}

TEST_F(Machine, AFactIsFoundByItsWholeName) {
  put("facts", "model\t\t: 143\nmodel name\t: A fast one\nflags : \n");
  const std::string file = (root_ / "facts").string();
  EXPECT_EQ(machine_fact(file, "model name"), "A fast one");
  EXPECT_EQ(machine_fact(file, "model"), "143");
  EXPECT_EQ(machine_fact(file, "flags"), "");
  EXPECT_EQ(machine_fact(file, "none"), "");
  EXPECT_EQ(machine_fact((root_ / "absent").string(), "model"), "");
}

TEST(MachineHere, HasMemory) {
  EXPECT_GT(usable_memory_bytes(), int64_t(1) << 28);
  EXPECT_LE(free_memory_bytes(), usable_memory_bytes());
}

}  // namespace
}  // namespace hunch
