// Norms, gate and rotation on the device against the reference, and alone against among others.
#include "backend/cuda/ready.h"
#include "backend/cuda/rows.h"

#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;

Floats gaussian(size_t n, uint32_t seed) { return test::gaussian(int64_t(n), seed, 2); }

void expect_near(const Floats& got, const Floats& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance * std::max(1.0, std::abs(double(want[i])))) << "element " << i;
}

using CudaNorm = CommandsTest<>;

TEST_F(CudaNorm, EqualsTheReferenceAndDoesNotDependOnOtherRows) {
  for (const int64_t n : {1, 3, 64, 80, 128, 1000, 1024, 1027, 2048, 4096, 5003, 8192, 12288}) {
    for (const int64_t rows : {1, 2, 7, 33}) {
      for (const int64_t pad : {0, 1, 4}) {
        const int64_t stride = n + pad;
        const auto x = gaussian(rows * stride, uint32_t(n)), weight = gaussian(n, 3);
        DeviceArray<float> device(x), weights(weight), out(x.size());
        Floats want = x;
        reference.norm(
            {strided<const float>(x.data(), rows, n, stride), weight.data(), 1e-6, strided(want.data(), rows, n, stride)});
        // The last row alone, then all in place.
        enqueue_norm(*commands,
            {strided<const float>(device.data() + (rows - 1) * stride, 1, n, stride), weights.data(), 1e-6,
                strided(out.data(), 1, n, stride)});
        enqueue_norm(*commands,
            {strided<const float>(device.data(), rows, n, stride), weights.data(), 1e-6,
                strided(device.data(), rows, n, stride)});
        finish();
        const auto got = device.get(), alone = out.get();
        expect_near(got, want, 2e-6);
        ASSERT_TRUE(same_bits(alone.data(), got.data() + (rows - 1) * stride, n));
      }
    }
  }
}

using CudaGate = CommandsTest<>;

TEST_F(CudaGate, EqualsTheReference) {
  for (const int64_t n : {1, 5, 1000, 12288})
    for (const int64_t pad : {0, 1}) {
      const int64_t rows = 3, stride = 2 * n + pad;  // gate and up side by side
      auto both = gaussian(rows * stride, 5);
      both[0] = 100, both[stride] = -200;
      for (const GateClamp clamp : {GateClamp{}, GateClamp{1.5f, 1.702f}}) {
        const DeviceArray<float> device(both);
        const auto args = [&](float* data) {
          return GateArgs{.gate = strided<const float>(data, rows, n, stride),
              .up = strided<const float>(data + n, rows, n, stride),
              .out = strided(data, rows, n, stride),
              .clamp = clamp};
        };
        enqueue_gate(*commands, args(device.data()));
        finish();
        Floats want = both;
        reference.gate(args(want.data()));
        expect_near(device.get(), want, 1e-6);
      }
    }
}

using CudaRope = CommandsTest<>;

TEST_F(CudaRope, EqualsTheReferenceInBothPairings) {
  const Ints positions{0, 1, 77, 30001, 131071, 1000000};
  const int64_t rows = std::ssize(positions);
  for (const int64_t dim : {64, 96, 128})
    for (const int64_t half : {dim / 2, dim / 4})
      for (const RopePairs pairs : {RopePairs::Halves, RopePairs::Neighbours}) {
        const int64_t heads = 5;
        Floats inv_freq(half), x = gaussian(rows * heads * dim, 2);
        for (int64_t i = 0; i < half; ++i) inv_freq[i] = std::pow(1e6f, -float(i) / float(half));
        Floats angles(rows * half * 2);
        DeviceArray<float> freq(inv_freq), device(x), cos_sin(angles.size());
        const View<const int32_t, 1> at(positions.data(), rows);
        enqueue_rope_angles(*commands, {at, view(freq, half), 1.25f, view(cos_sin, rows, half, 2)});
        ReadyHeadsArgs args{view(device, rows, heads, dim), view(device, rows, 0, dim)};
        args.cos_sin = view(cos_sin, rows, half, 2), args.pairs = pairs;
        CudaReady().enqueue(*commands, args, {}, {});
        finish();
        reference.rope_angles({at, view(inv_freq, half), 1.25f, view(angles, rows, half, 2)});
        expect_near(cos_sin.get(), angles, 3e-7);
        reference.rope({view(x, rows, heads, dim), view(angles, rows, half, 2), pairs});
        expect_near(device.get(), x, 3e-6);
      }
}

using CudaRows = CommandsTest<>;

// Guesses of many lengths: rows that come and go leave a graph's grids as they are.
TEST_F(CudaRows, OfSeveralNumbersShareGrids) {
  EXPECT_EQ(grid_rows(0), 1);
  for (const auto& [rows, grid] :
      {std::pair<int64_t, int64_t>{1, 1}, {2, 2}, {3, 4}, {9, 16}, {17, 24}, {25, 32}, {97, 128}, {512, 512}})
    EXPECT_EQ(grid_rows(rows), grid) << rows;
  constexpr int64_t kDim = 2048;
  const auto x = gaussian(16 * kDim, 4);
  DeviceArray<float> in(x), out(x.size()), weight(gaussian(kDim, 5));
  const auto run = [&](int64_t rows) {
    const View<float, 2> from(in.data(), rows, kDim), to(out.data(), rows, kDim);
    enqueue_norm(*commands, {.x = from, .weight = weight.data(), .out = to});
    enqueue_gate(*commands, {.gate = from, .up = to, .out = to});
    finish();
  };
  for (int i = 0; i <= Commands::kRecordAt; ++i) run(8);
  for (const int64_t rows : {5, 6, 7, 8}) run(rows);
  EXPECT_EQ(commands->counters().refits, 0u);
  run(9);
  EXPECT_EQ(commands->counters().refits, 2u);
}

}
}
