// For tests with a list of commands of their own; skipped without a device.
#pragma once

#include <memory>

#include "backend/cuda/commands.h"
#include "backend/cuda/device_test.h"

namespace hunch::test {

template <class Base = testing::Test>
class CommandsTest : public Base {
 protected:
  void SetUp() override {
    HUNCH_NEEDS_DEVICE();
    auto made = Commands::make();
    ASSERT_TRUE(made.ok());
    commands = std::move(*made);
  }
  std::unique_ptr<Commands> commands;
};

}
