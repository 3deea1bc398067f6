// Norm, gate and rope of the cpu backend: against the reference, and the same bits for a row in any company.

#include "backend/cpu/test_backends.h"
#include "backend/test_inputs.h"

namespace hunch {
namespace {

Floats gaussian(int64_t n, float spread = 1) { return test::gaussian(n, 6, spread); }

class CpuRows : public testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Backend> cpu_ = make_cpu(GetParam(), 2);
  ReferenceBackend reference_;
};
INSTANTIATE_TEST_SUITE_P(Isa, CpuRows, testing::ValuesIn(available_isas()), backend_name);

TEST_P(CpuRows, NormalisesLikeTheReference) {
  for (const int64_t n : {1, 5, 16, 31, 64, 100, 128, 1537}) {
    for (const int64_t rows : {1, 3, 200}) {
      const auto x = gaussian(rows * n, 3), weight = gaussian(n);
      Floats got = x, want(x.size());
      const auto in_place = view(got, rows, n);
      cpu_->norm({in_place, weight.data(), 1e-6, in_place});
      reference_.norm({view(x, rows, n), weight.data(), 1e-6, view(want, rows, n)});
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i])) << rows << " x " << n;
    }
  }
}

TEST_P(CpuRows, GatesLikeTheReferenceOverTheWholeRange) {
  for (const int64_t n : {1, 17, 1536}) {
    for (const int64_t rows : {1, 50}) {
      auto gate = gaussian(rows * n, 30), up = gaussian(rows * n);
      gate[0] = 1000, gate.back() = -1000;
      Floats got = gate, want = gate;
      const auto to = view(got, rows, n), expected = view(want, rows, n), factor = view(up, rows, n);
      cpu_->gate({to, factor, to});
      reference_.gate({expected, factor, expected});
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i]) + 1e-30) << gate[i];
      got = want = up;
      cpu_->gate({.gate = view(gate, rows, n), .up = factor, .out = to, .accumulate = true});
      reference_.gate({.gate = view(gate, rows, n), .up = factor, .out = expected, .accumulate = true});
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i]) + 1e-6) << gate[i];
    }
  }
}

TEST_P(CpuRows, RotatesWithTheBitsOfTheReference) {
  for (const int64_t half : {1, 16, 20, 32, 64, 300}) {
    for (const int64_t rows : {1, 40}) {
      constexpr int64_t kHeads = 3;
      const int64_t width = 2 * half + 4;  // the last elements are not rotated
      Ints positions(rows);
      for (int64_t r = 0; r < rows; ++r) positions[r] = int32_t(r * 701);
      Floats frequency(half);
      for (int64_t i = 0; i < half; ++i) frequency[i] = float(std::pow(10000.0, -double(i) / half));
      Floats got_angles(rows * half * 2), want_angles(got_angles.size());
      const auto got_view = view(got_angles, rows, half, 2), want_view = view(want_angles, rows, half, 2);
      cpu_->rope_angles({view(positions), view(frequency), 1.25f, got_view});
      reference_.rope_angles({view(positions), view(frequency), 1.25f, want_view});
      ASSERT_EQ(got_angles, want_angles);
      for (const RopePairs pairs : {RopePairs::Halves, RopePairs::Neighbours}) {
        auto got = gaussian(rows * kHeads * width), want = got;
        cpu_->rope({view(got, rows, kHeads, width), got_view, pairs});
        reference_.rope({view(want, rows, kHeads, width), want_view, pairs});
        ASSERT_EQ(got, want) << half << " pairs, " << rows << " rows";
      }
    }
  }
}

TEST_P(CpuRows, GivesARowTheSameBitsInAnyCompany) {
  constexpr int64_t kRows = 300, kWidth = 500;
  const auto x = gaussian(kRows * kWidth), weight = gaussian(kWidth);
  const auto many = make_cpu(GetParam(), 3), one = make_cpu(GetParam(), 1);
  Floats all_norm(x.size()), all_gate(x.size()), alone(kWidth);
  const auto in = view(x, kRows, kWidth);
  many->norm({in, weight.data(), 1e-5, view(all_norm, kRows, kWidth)});
  many->gate({in, in, view(all_gate, kRows, kWidth)});
  for (int64_t r = 0; r < kRows; ++r) {
    const auto out = view(alone, 1, kWidth);
    one->norm({in.slice(r, 1), weight.data(), 1e-5, out});
    ASSERT_TRUE(stands_at(alone, all_norm, r * kWidth));
    one->gate({in.slice(r, 1), in.slice(r, 1), out});
    ASSERT_TRUE(stands_at(alone, all_gate, r * kWidth));
  }
}

}
}
