// The list of commands: order, data, graphs in place of launches.
#include "backend/cuda/commands.h"

#include <numeric>

#include "backend/cuda/commands_fixture.h"
#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

using namespace test;

struct AddArgs {
  const float* a;
  const float* b;
  float* out;
  int n;
};
__global__ void add_kernel(const AddArgs* args) {
  wait_for_previous();
  let_next_start();
  const AddArgs x = *args;
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < x.n) x.out[i] = x.a[i] + x.b[i];
}

class CommandList : public CommandsTest<> {
 protected:
  void add(unsigned blocks, const float* a, const float* b, float* out, int n) {
    commands->launch(add_kernel, {.blocks = dim3(blocks), .threads = 128}, AddArgs{a, b, out, n});
  }
  const Commands::Counters& counters() const { return commands->counters(); }
  const float* data(const Floats& values) { return commands->data(std::span<const float>(values)); }
};

TEST_F(CommandList, RunInOrderAndSoonAsOneGraph) {
  constexpr int kN = 1000;
  DeviceArray<float> x(kN), y(kN);
  Floats one(kN), step(kN);
  constexpr int kRecordAt = Commands::kRecordAt, kRounds = kRecordAt + 4;
  for (int round = 0; round < kRounds; ++round) {
    std::iota(one.begin(), one.end(), float(round));
    std::ranges::fill(step, float(100 * round));
    const float *a = data(one), *b = data(step);
    EXPECT_EQ(a, data(one));  // the same values are copied once
    add(8, a, b, x.data(), kN);
    for (int i = 0; i < 3; ++i) {
      add(8, x.data(), b, y.data(), kN);
      add(8, y.data(), b, x.data(), kN);
    }
    one.assign(kN, -1), step.assign(kN, -1);  // copied already
    finish();
    const auto out = x.get();
    for (int i = 0; i < kN; ++i) ASSERT_EQ(out[i], float(i + round + 700 * round));
  }
  EXPECT_EQ(counters().kernels, 7u * kRounds);
  EXPECT_EQ(counters().launches, 7u * kRecordAt);
  EXPECT_EQ(counters().graph_launches, 4u);
  EXPECT_EQ(counters().waits, unsigned(kRounds));
}

// The same kernels over other grids: the graph's nodes are given them, and only those that change.
TEST_F(CommandList, AGraphTakesOtherGrids) {
  constexpr int kMost = 4096;
  DeviceArray<float> x(kMost), y(kMost);
  const Floats one(kMost, 1);
  const auto run = [&](int n) {
    const float* a = data(one);
    const unsigned blocks = unsigned(n + 127) / 128;
    add(32, a, a, y.data(), kMost);
    finish();
    a = data(one);
    add(32, a, a, x.data(), kMost);  // 2 everywhere
    add(blocks, x.data(), a, y.data(), n);
    add(32, y.data(), a, x.data(), kMost);
    finish();
    const auto out = x.get();
    for (int i = 0; i < kMost; ++i) ASSERT_EQ(out[i], i < n ? 4 : 3) << n;
  };
  for (int i = 0; i < Commands::kRecordAt; ++i) run(100);
  for (const int n : {1000, 4096, 129, 129, 1}) run(n);
  EXPECT_EQ(counters().launches, 4u * Commands::kRecordAt);
  EXPECT_EQ(counters().graph_launches, 10u);
  EXPECT_EQ(counters().refits, 4u);  // to 1000, 4096, 129 and 1
  for (int i = 0; i <= Commands::kOwnAt; ++i) run(100), run(1000);
  const uint64_t before = counters().refits;
  for (int i = 0; i < 5; ++i) run(100), run(1000);
  EXPECT_EQ(counters().refits, before);  // by now both have graphs of their own
}

TEST_F(CommandList, DataMayBeMoreThanTheListHasRoomFor) {
  constexpr int kN = 1'500'000;
  DeviceArray<float> x(kN);
  Floats one(kN), two(kN);
  for (const float round : {0.0f, 1.0f}) {
    std::iota(one.begin(), one.end(), round), std::iota(two.begin(), two.end(), 7.0f);
    const float *a = data(one), *b = data(two);
    EXPECT_EQ(b, data(two));
    add((kN + 127) / 128, a, b, x.data(), kN);
    two.assign(kN, -1);
    finish();
    const auto out = x.get();
    for (int i = 0; i < kN; ++i) ASSERT_EQ(out[i], float(i) + round + float(i) + 7);
  }
}

TEST_F(CommandList, InAHurryTheBeginningOfAListStartsAlone) {
  DeviceArray<float> x(Floats(128, 0));
  const Floats one(128, 1);
  uint64_t before = 0;
  for (const auto& [sequences, started] : {std::pair(64, 12 + 96), {256, 12 + 36}, {0, 0}}) {  // the rest waits for the wait
    if (sequences > 0) commands->hurry(sequences);
    for (int i = 0; i < 150; ++i) {
      commands->begin_op();
      const float* a = data(one);
      add(1, x.data(), a, x.data(), 128);
    }
    EXPECT_EQ(counters().launches, before + uint64_t(started));
    finish();
    before += 150;
  }
  for (const float sum : x.get()) ASSERT_EQ(sum, 450);
}

TEST_F(CommandList, ScratchGrowsWithoutHarmToKernelsInFlight) {
  const Floats values(256, 2);
  DeviceArray<float> out(256);
  for (const size_t bytes : {size_t(1) << 20, size_t(80) << 20, size_t(160) << 20}) {
    auto* scratch = static_cast<float*>(commands->workspace(bytes));
    const float* a = data(values);
    add(2, a, a, scratch, 256);
    add(2, scratch, a, out.data(), 256);
  }
  finish();
  for (const float x : out.get()) ASSERT_EQ(x, 6);
}

// The list that needs it is dropped, and every wait says why from then on: no later kernel may run without those of that list.
TEST_F(CommandList, FailureForWantOfScratchStays) {
  const Floats values(256, 2);
  DeviceArray<float> out(Floats(256, 7));
  EXPECT_TRUE(commands->affords(size_t(128) << 20));
  EXPECT_FALSE(commands->affords(size_t(1) << 50));
  EXPECT_NE(commands->workspace(size_t(1) << 50), nullptr);
  for (int i = 0; i < 3; ++i) {
    const float* a = data(values);
    add(2, a, a, out.data(), 256);
    const Status done = commands->wait();
    ASSERT_FALSE(done.ok());
    EXPECT_NE(done.error().message.find("MiB left for a step's scratch"), std::string::npos) << done.error().message;
  }
  for (const float x : out.get()) ASSERT_EQ(x, 7);
}

}
}
