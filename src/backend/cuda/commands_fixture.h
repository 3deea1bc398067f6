// For tests with a list of commands of their own; skipped without a device.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/cuda/device_test.h"

namespace hunch::test {

template <class Base = testing::Test>
class CommandsTest : public Base {
 protected:
  void SetUp() override {
    HUNCH_NEEDS_DEVICE();
    commands = Commands::make().value();
  }
  std::unique_ptr<Commands> commands;
};

class HopperTest : public CommandsTest<> {
  void SetUp() override {
    HUNCH_NEEDS_HOPPER();
    CommandsTest::SetUp();
  }
};

}
