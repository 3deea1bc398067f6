// For tests with a list of commands of their own, mostly against the reference; skipped without a device.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/cuda/device_test.h"
#include "backend/reference/reference_backend.h"
#include "backend/test_inputs.h"

namespace hunch::test {

template <class Base = testing::Test>
class CommandsTest : public Base {
 protected:
  void SetUp() override {
    HUNCH_NEEDS_DEVICE();
    commands = Commands::make().value();
  }
  void finish() { ASSERT_TRUE(commands->wait().ok()); }
  std::unique_ptr<Commands> commands;
  ReferenceBackend reference;
};

class HopperTest : public CommandsTest<> {
  void SetUp() override {
    HUNCH_NEEDS_HOPPER();
    CommandsTest::SetUp();
  }
};

}
