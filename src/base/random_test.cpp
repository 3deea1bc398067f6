// Noise: the published answers of Philox4x32-10, and that streams, positions and samples never share a counter.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/random.h"

namespace hunch {
namespace {

TEST(Philox, GivesThePublishedAnswers) {  // Random123's known-answer tests
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Noise, IsNeverZeroOrOne) {
  EXPECT_GT(uniform_from_bits(0), 0.0);
  EXPECT_LT(uniform_from_bits(0xffffffffu), 1.0);
  EXPECT_TRUE(std::isfinite(-std::log(-std::log(uniform_from_bits(0)))));
  EXPECT_TRUE(std::isfinite(-std::log(-std::log(uniform_from_bits(0xffffffffu)))));
}

TEST(Noise, StreamsPositionsTokensAndSamplesAreDisjoint) {
  // Equal bits by accident: about n^2 / 2^33 pairs.
  std::set<uint32_t> seen;
  int drawn = 0;
  for (const NoiseStream stream :
      {NoiseStream::Target, draft_stream(0), draft_stream(1), draft_stream(14), NoiseStream::Accept, NoiseStream::Residual})
    for (uint32_t sample = 0; sample < 2; ++sample)
      for (uint32_t position = 0; position < 20; ++position)
        for (uint32_t token = 0; token < 20; ++token, ++drawn) seen.insert(noise_bits({1, sample}, stream, position, token));
  EXPECT_GE(int(seen.size()), drawn - 1);
}

TEST(Noise, EveryDraftStepHasAStreamOfItsOwn) {
  std::set<uint32_t> streams{uint32_t(NoiseStream::Target), uint32_t(NoiseStream::Accept), uint32_t(NoiseStream::Residual)};
  for (int step = 0; step < 64; ++step) streams.insert(uint32_t(draft_stream(step)));
  EXPECT_EQ(streams.size(), 67u);
}

TEST(Noise, IsUniform) {
  double sum = 0, squares = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double u = uniform({.seed = 3}, NoiseStream::Target, uint32_t(i / 100), uint32_t(i % 100));
    sum += u, squares += u * u;
  }
  EXPECT_NEAR(sum / n, 0.5, 0.005);
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.005);
}

}
}
