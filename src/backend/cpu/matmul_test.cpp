// Products of the cpu backend against the reference, for every encoding and instruction set; row invariance bit for bit.

#include <numeric>

#include "backend/cpu/test_backends.h"
#include "backend/cpu/weights.h"
#include "backend/test_inputs.h"

namespace hunch {
namespace {

// Values that quantise without loss: multiples of a power of two, at most 127 of it, with 127 in every block of 32.
Floats representable(int64_t n) {
  std::mt19937 random(3);
  Floats out(n);
  for (size_t i = 0; i < out.size(); ++i) {
    const float unit = std::ldexp(1.0f, int(i / 32 % 7) - 9);
    out[i] = unit * float(i % 32 == 5 ? 127 : int(random() % 255) - 127);
  }
  return out;
}

Floats product(
    Backend& backend, const Weight& weight, const Floats& x, int64_t rows, const float* bias = nullptr, bool accumulate = false) {
  Floats out(rows * weight.out_dim, 0.25f);
  const Product products[] = {{&weight, bias, view(out, rows, weight.out_dim)}};
  backend.matmul({view(x, rows, weight.in_dim), products, accumulate});
  return out;
}

class EveryEncoding : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  const std::string isa = std::get<0>(GetParam());
  const DType dtype = std::get<1>(GetParam());
};

std::string name_of(const testing::TestParamInfo<std::tuple<std::string, DType>>& info) {
  return std::get<0>(info.param) + "_" + std::string(dtype_info(std::get<1>(info.param)).name);
}
INSTANTIATE_TEST_SUITE_P(
    Cpu, EveryEncoding, testing::Combine(testing::ValuesIn(available_isas()), testing::ValuesIn(kEncodings)), name_of);

void expect_near_reference(Backend& cpu, const Matrix& matrix, int64_t rows) {
  ReferenceBackend reference;
  const auto exact = reference.load_weight(matrix.tensor), weight = cpu.load_weight(matrix.tensor);
  const int64_t n = weight->out_dim, k = weight->in_dim;
  const auto x = representable(rows * k), bias = gaussian(n);
  for (const bool accumulate : {false, true}) {
    const float* added = accumulate ? nullptr : bias.data();
    const auto got = product(cpu, *weight, x, rows, added, accumulate),
               want = product(reference, *exact, x, rows, added, accumulate);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        double size = 4;  // rounding is relative to the terms of the sum
        const float* w = static_cast<const ReferenceWeight&>(*exact).row(i);
        for (int64_t j = 0; j < k; ++j) size += std::abs(double(w[j]) * double(x[r * k + j]));
        ASSERT_NEAR(got[r * n + i], want[r * n + i], 2e-6 * size) << "row " << r << " of " << rows << ", " << n << " x " << k;
      }
    }
  }
}

TEST_P(EveryEncoding, EqualsTheReferenceAroundTheEdgesOfPanels) {
  const auto cpu = make_cpu(isa, 2);
  for (const int64_t n : {1, 15, 16, 17, 31, 32, 33, 100}) expect_near_reference(*cpu, Matrix(dtype, n, 256), 3);
}

TEST_P(EveryEncoding, EqualsTheReferenceForEveryInputLength) {
  const auto cpu = make_cpu(isa, 2);
  const int block = dtype_info(dtype).block;
  std::vector<int64_t> lengths = {block, 3 * block, 768};
  if (block == 1) lengths = {1, 2, 7, 31, 32, 33, 768};
  for (const int64_t k : lengths) expect_near_reference(*cpu, Matrix(dtype, 37, k), 5);
}

TEST_P(EveryEncoding, EqualsTheReferenceForEveryNumberOfRows) {
  const auto cpu = make_cpu(isa, 2);
  const Matrix matrix(dtype, 33, 256);
  for (int64_t rows = 1; rows <= 20; ++rows) expect_near_reference(*cpu, matrix, rows);
  for (const int64_t rows : {64, 300}) expect_near_reference(*cpu, matrix, rows);
}

TEST_P(EveryEncoding, GivesARowTheSameBitsInAnyCompany) {
  constexpr int64_t kRows = 600, kOut = 40, kIn = 512;  // more rows than one chunk of the hand-out
  const Matrix matrix(dtype, kOut, kIn), beside(dtype, 40, kIn, 9);
  const auto x = gaussian(kRows * kIn), bias = gaussian(kOut, 5);
  Floats whole;
  for (const int threads : {1, 2, 3}) {
    const auto cpu = make_cpu(isa, threads);
    const auto weight = cpu->load_weight(matrix.tensor), other = cpu->load_weight(beside.tensor);
    const auto all = product(*cpu, *weight, x, kRows, bias.data(), true);
    if (whole.empty()) whole = all;
    ASSERT_TRUE(same_bits(all, whole)) << threads << " threads";
    for (int64_t rows = 1; rows <= (threads == 2 ? 64 : 17); ++rows) {
      const int64_t first = kRows - 9 * rows;
      Floats out(rows * kOut, 0.25f), out_beside(rows * 40);
      const Product alone[] = {{weight.get(), bias.data(), view(out, rows, kOut)}};
      const Product both[] = {{other.get(), nullptr, view(out_beside, rows, 40)}, alone[0]};
      const View<const float, 2> in(x.data() + first * kIn, rows, kIn);
      if (rows % 2) cpu->matmul({in, alone, true});
      else cpu->matmul({in, both, true});
      ASSERT_TRUE(stands_at(out, whole, first * kOut)) << rows << " rows, " << threads << " threads";
    }
  }
}

TEST_P(EveryEncoding, ErrsByTheRoundingOfActivationsOnly) {
  constexpr int64_t kOut = 20, kIn = 512;
  const auto cpu = make_cpu(isa, 1);
  ReferenceBackend reference;
  const Matrix matrix(dtype, kOut, kIn);
  const auto exact = reference.load_weight(matrix.tensor), weight = cpu->load_weight(matrix.tensor);
  const auto x = gaussian(kIn);
  const auto got = product(*cpu, *weight, x, 1), want = product(reference, *exact, x, 1);
  for (int64_t i = 0; i < kOut; ++i) {
    double bound = 0;
    for (int64_t j = 0; j < kIn; ++j) {
      double greatest = 0;
      for (int64_t m = j / 32 * 32; m < j / 32 * 32 + 32; ++m) greatest = std::max(greatest, double(std::abs(x[m])));
      const double w = std::abs(double(static_cast<const ReferenceWeight&>(*exact).row(i)[j]));
      bound += w * (dtype_info(dtype).block > 1 ? greatest / 254 : 0) + w * greatest * 1e-6;
    }
    EXPECT_NEAR(got[i], want[i], bound);
  }
}

TEST_P(EveryEncoding, EmbedsTheBitsOfTheDequantiser) {
  const auto cpu = make_cpu(isa, 2);
  const Matrix matrix(dtype, 70, 512);
  ReferenceBackend reference;
  const auto table = cpu->load_weight(matrix.tensor), exact = reference.load_weight(matrix.tensor);
  Ints ids(72);  // one past either end
  std::iota(ids.rbegin(), ids.rend(), -1);
  Floats got(72 * 512), want(72 * 512);
  cpu->embed({view(ids), table.get(), view(got, 72, 512)});
  reference.embed({view(ids), exact.get(), view(want, 72, 512)});
  EXPECT_TRUE(same_bits(got, want));
}

TEST_P(EveryEncoding, ShowsANanInItsOwnRowOnly) {
  const auto cpu = make_cpu(isa, 1);
  const Matrix matrix(dtype, 32, 256);
  const auto weight = cpu->load_weight(matrix.tensor);
  for (const float poison : {NAN, INFINITY}) {
    auto x = gaussian(3 * 256);
    const auto clean = product(*cpu, *weight, x, 3);
    x[256 + 77] = poison;
    const auto got = product(*cpu, *weight, x, 3);
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(got[i], clean[i]);
      EXPECT_FALSE(std::isfinite(got[32 + i]));
      EXPECT_EQ(got[64 + i], clean[64 + i]);
    }
  }
}

TEST(CpuMatmul, TakesTheScalesOfFp8ByMatrixRowAndBlock) {
  const auto cpu = make_cpu("", 2);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{300, 400}, {1, 400}, {128, 128}}) {
    Matrix matrix(DType::F8_E4M3, 300, 400);
    matrix.scale_by(rows, columns);
    expect_near_reference(*cpu, matrix, 3);
  }
}

TEST(CpuMatmul, ShowsANanCodeOfFp8InItsColumnOnly) {
  ReferenceBackend reference;
  for (const std::string& isa : available_isas()) {
    const auto cpu = make_cpu(isa, 1);
    Matrix matrix(DType::F8_E4M3, 40, 300);
    matrix.bytes[17 * 300 + 299] = std::byte(0xff);
    const auto x = gaussian(2 * 300);
    const auto got = product(*cpu, *cpu->load_weight(matrix.tensor), x, 2),
               want = product(reference, *reference.load_weight(matrix.tensor), x, 2);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(std::isnan(got[i]), i % 40 == 17);
      EXPECT_EQ(std::isnan(want[i]), i % 40 == 17);
    }
  }
}

TEST(CpuMatmul, TakesTheGreatestCodesOfBothSigns) {
  Matrix matrix(DType::Q8_0, 33, 64);
  for (size_t i = 0; i < matrix.bytes.size(); ++i)
    if (i % 34 > 1) matrix.bytes[i] = std::byte(i / 34 % 2 ? 0x80 : 0x7f);  // 32 times -128, 32 times 127
  Floats x(128, 127);
  std::fill_n(x.begin(), 64, -127.0f);
  ReferenceBackend reference;
  const auto want = product(reference, *reference.load_weight(matrix.tensor), x, 2);
  for (const std::string& isa : available_isas()) {
    const auto cpu = make_cpu(isa, 1);
    const auto got = product(*cpu, *cpu->load_weight(matrix.tensor), x, 2);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1) << isa;
  }
}

TEST(CpuMatmul, CountsTheBytesOfEachProductOnce) {
  const auto cpu = make_cpu("", 2);
  const Matrix matrix(DType::Q8_0, 64, 512);
  const auto weight = cpu->load_weight(matrix.tensor);
  EXPECT_EQ(weight->bytes, matrix.bytes.size());  // packing adds nothing
  product(*cpu, *weight, gaussian(300 * 512), 300);
  EXPECT_EQ(cpu->counters().weight_bytes, weight->bytes);
}

TEST(CpuMatmul, MixesEncodingsInOneCall) {
  const auto cpu = make_cpu("", 2);
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<Floats> alone, together;
  const auto x = gaussian(4 * 256);
  std::vector<Product> products;
  for (const DType dtype : kEncodings) {
    weights.push_back(cpu->load_weight(Matrix(dtype, 48, 256).tensor));
    alone.push_back(product(*cpu, *weights.back(), x, 4));
    together.emplace_back(4 * 48);
  }
  for (size_t i = 0; i < weights.size(); ++i) products.push_back({weights[i].get(), nullptr, view(together[i], 4, 48)});
  cpu->matmul({view(x, 4, 256), products});
  EXPECT_EQ(together, alone);
}

TEST(CpuMatmul, WritesStridedRowsAndNothingElse) {
  const auto cpu = make_cpu("", 2);
  const Matrix matrix(DType::Q8_0, 20, 64);
  const auto weight = cpu->load_weight(matrix.tensor);
  const auto x = gaussian(3 * 100);
  Floats dense_x, out(3 * 50, -7);
  for (int r = 0; r < 3; ++r) append(dense_x, part_of(x, r * 100, 64));
  const Product products[] = {{weight.get(), nullptr, strided(out.data(), 3, 20, 50)}};
  cpu->matmul({strided(x.data(), 3, 64, 100), products});
  const auto dense = product(*cpu, *weight, dense_x, 3);
  for (size_t r = 0; r < 3; ++r)
    for (size_t i = 0; i < 50; ++i) EXPECT_EQ(out[r * 50 + i], i < 20 ? dense[r * 20 + i] : -7);
}

}
}
