// What is left out of feed-forward blocks on the device against the host's definitions.
#include "backend/cuda/thin.h"

#include <cmath>

#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;

using CudaThin = CommandsTest<>;

TEST_F(CudaThin, LeavesOutTheChannelsOfTheReference) {
  for (const int64_t rows : {1, 2, 9})
    for (const int64_t width : {5, 256, 1000})
      for (const bool by_row : {false, true}) {
        auto gate = gaussian(rows * (width + 3), 5);
        for (float& x : gate) x = std::round(8 * x) / 8;  // none near the threshold
        DeviceArray<float> device(gate);
        DeviceArray<int64_t> counts(std::vector<int64_t>{7, 9});
        int64_t below = 7, skipped = 9;
        const auto args = [&](float* data, int64_t* first, int64_t* second) {
          return ThinChannelsArgs{strided(data, rows, width, width + 3), 0.17f, by_row, first, second};
        };
        enqueue_thin_channels(*commands, args(device.data(), counts.data(), counts.data() + 1));
        thin_channels(args(gate.data(), &below, &skipped));
        finish();
        EXPECT_EQ(device.get(), gate) << rows << " x " << width;
        EXPECT_EQ(counts.get(), (std::vector<int64_t>{below, skipped}));
      }
}

TEST_F(CudaThin, LeavesOutTheExpertsOfTheReference) {
  std::mt19937 random(3);
  for (const int64_t rows : {1, 3, 300})
    for (const int64_t k : {1, 2, 8, 40})
      for (const ExpertSkip mode : {ExpertSkip::Literal, ExpertSkip::Graded, ExpertSkip::TailMass, ExpertSkip::UnionAware})
        for (const bool renorm : {false, true}) {
          Ints ids(rows * k);
          for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i % size_t(k) * 20 + random() % 20);
          Floats shares = gaussian(rows * k, 4), betas(40);
          for (float& x : shares) x = std::round(16 * std::fabs(x)) + 1;  // many alike
          for (size_t m = 0; m < betas.size(); ++m) betas[m] = 1 - 0.9f * float(m + 1) / float(k);
          DeviceArray<int32_t> device_ids(ids);
          DeviceArray<float> device_shares(shares), device_betas(betas);
          DeviceArray<int64_t> count(std::vector<int64_t>{11});
          int64_t skipped = 11;
          const auto args = [&](int32_t* i, float* s, const float* b, int64_t* n) {
            return ThinExpertsArgs{mode, 5, 0.3f, renorm, b, View<int32_t, 2>(i, rows, k), View<float, 2>(s, rows, k), n};
          };
          enqueue_thin_experts(*commands, args(device_ids.data(), device_shares.data(), device_betas.data(), count.data()));
          thin_experts(args(ids.data(), shares.data(), betas.data(), &skipped));
          finish();
          EXPECT_EQ(device_ids.get(), ids) << rows << " x " << k << " mode " << int(mode);
          EXPECT_EQ(device_shares.get(), shares);
          EXPECT_EQ(count.get()[0], skipped);
        }
}

}
}
