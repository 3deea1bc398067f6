// Products and embedding look-ups of the device: against plain fp32 loops for every encoding, and row invariance bit for bit.
#include "backend/cuda/matmul.h"
#include "backend/cuda/rows.h"

#include <numeric>

#include "backend/cuda/commands_fixture.h"
#include "backend/cuda/weights.h"

namespace hunch {
namespace {

using namespace test;
using enum DType;

struct Matrix : test::Matrix {
  Matrix(DType dtype, int64_t out_dim, int64_t in_dim, uint32_t seed = 1) : test::Matrix(dtype, out_dim, in_dim, seed, true) {}
};

class CudaMatmul : public CommandsTest<testing::TestWithParam<DType>> {
 protected:
  // Rows first .. first + rows - 1 of x.
  Floats product(const Weight& weight, const DeviceArray<float>& x, int64_t first, int64_t rows, const float* bias = nullptr,
      bool accumulate = false, ActivationPath path = ActivationPath::Auto) {
    DeviceArray<float> out(Floats(rows * weight.out_dim, 0.25f));
    const Product products[] = {{&weight, bias, view(out, rows, weight.out_dim)}};
    enqueue_matmul(
        *commands, {View<const float, 2>(x.data() + first * weight.in_dim, rows, weight.in_dim), products, accumulate}, path);
    finish();
    return out.get();
  }
  Floats embedded(const Weight& weight, const Ints& ids) {
    DeviceArray<int32_t> list(ids);
    const int64_t rows = std::ssize(ids);
    DeviceArray<float> out(rows * weight.in_dim);
    enqueue_embed(*commands, {view(list, rows), &weight, view(out, rows, weight.in_dim)});
    finish();
    return out.get();
  }
};
constexpr ActivationPath kPaths[] = {ActivationPath::Auto, ActivationPath::Packed, ActivationPath::Plain, ActivationPath::Chunk};
class CudaEncodings : public CudaMatmul {};
std::string name_of(const testing::TestParamInfo<DType>& info) { return std::string(dtype_info(info.param).name); }
INSTANTIATE_TEST_SUITE_P(Encodings, CudaEncodings, testing::ValuesIn(kEncodings), name_of);

// Relative to the terms of a sum: rounding of sums, and of weights where they do not fit into bf16.
double tolerance(DType dtype) {
  switch (dtype) {
    case F32: return 2e-5;
    case MXFP4:
    case BF16: return 4e-6;
    case F8_E4M3:
    case F16: return 0.0025;
    default: return 0.008;
  }
}

Ints first_ids(int32_t count) {
  Ints ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

float rounded(float x) { return bf16_to_f32(f32_to_bf16(x)); }

TEST_P(CudaEncodings, AreNearPlainLoopsForEveryShape) {
  const DType dtype = GetParam();
  const int block = dtype_info(dtype).block;
  std::vector<std::pair<int64_t, int64_t>> shapes = {
      {1, 256}, {63, 512}, {64, 256}, {65, 256}, {200, 1024}, {130, 2304}, {70, 4096}};
  if (block == 1) shapes.insert(shapes.end(), {{3, 1}, {5, 7}, {80, 33}, {100, 64}, {40, 1100}, {40, 2060}});
  if (block == 32) shapes.insert(shapes.end(), {{3, 32}, {80, 96}, {100, 288}, {40, 2080}});
  for (const auto& [n, k] : shapes) {
    const Matrix matrix(dtype, n, k);
    const auto exact = reference.load_weight(matrix.tensor), weight = load_cuda_weight(matrix.tensor);
    ASSERT_TRUE(weight);
    for (const int64_t rows : {1, 9, 40, 70, 600}) {
      if ((rows == 600 && n > 65) || left_out()) continue;
      const auto x = gaussian(rows * k), bias = gaussian(n, 5);
      const DeviceArray<float> in(x), device_bias(bias);
      for (const bool accumulate : {false, true}) {
        const auto got = product(*weight, in, 0, rows, accumulate ? nullptr : device_bias.data(), accumulate);
        double worst = 0;
        int64_t worst_row = 0, worst_column = 0;
        for (int64_t r = 0; r<rows; r += rows> 100 ? 37 : 1)
          for (int64_t i = 0; i < n; ++i) {
            double sum = accumulate ? 0.25 : bias[i], size = 1;
            const float* w = static_cast<const ReferenceWeight&>(*exact).row(i);
            for (int64_t j = 0; j < k; ++j) {
              const double term = double(w[j]) * double(rounded(x[r * k + j]));
              sum += term, size += std::abs(term);
            }
            const double off = std::abs(sum - double(got[r * n + i])) / size;
            if (!(off <= worst)) worst = off, worst_row = r, worst_column = i;
          }
        ASSERT_LE(worst, tolerance(dtype)) << "row " << worst_row << " of " << rows << ", feature " << worst_column << " of " << n
                                           << ", " << k << " inputs, accumulate " << accumulate;
      }
    }
  }
}

TEST_P(CudaEncodings, GiveARowTheSameBitsInAnyCompany) {
  const DType dtype = GetParam();
  constexpr int64_t kRows = 1100;
  const std::pair<int64_t, int64_t> shapes[] = {
      {4096, 4096}, {1024, 4096}, {12288, 1024}, {512, 1536}, {300, 512}, {4096, 12288}};
  for (const auto& [n, k] : shapes) {
    if (left_out()) continue;
    const auto weight = random_weight(dtype, n, k, 7, 0.02f);
    ASSERT_TRUE(weight);
    const DeviceArray<float> x(gaussian(kRows * k)), bias(gaussian(n, 5));
    const auto all = product(*weight, x, 0, kRows, bias.data(), true);
    for (const int64_t rows : {1, 2, 7, 8, 9, 16, 17, 32, 33, 48, 64, 65, 96, 128, 129, 160, 192, 200, 256, 257, 512, 513}) {
      for (const ActivationPath path : kPaths) {
        if (rows > (path == ActivationPath::Packed ? 8 : path == ActivationPath::Plain ? 65 : 1 << 20) || left_out()) continue;
        const int64_t first = rows == 1 ? 77 : 5 * rows % (kRows - rows);
        const auto some = product(*weight, x, first, rows, bias.data(), true, path);
        int64_t different = 0, at = -1;
        for (size_t i = 0; i < some.size(); ++i)
          if (std::memcmp(&some[i], &all[size_t(first * n) + i], 4) != 0 && different++ == 0) at = int64_t(i);
        EXPECT_EQ(different, 0) << rows << " rows of " << n << " x " << k << ", path " << int(path) << ": row " << at / n
                                << " feature " << at % n << ": " << some[std::max<int64_t>(at, 0)] << " and "
                                << all[first * n + std::max<int64_t>(at, 0)];
      }
    }
  }
}

TEST_P(CudaEncodings, EmbedTheDequantiser) {
  const DType dtype = GetParam();
  const Matrix matrix(dtype, 70, 512);
  const auto table = load_cuda_weight(matrix.tensor), exact = reference.load_weight(matrix.tensor);
  Ints ids;
  for (int32_t id = 71; id >= -2; --id) ids.push_back(id);
  const auto got = embedded(*table, ids);
  for (size_t r = 0; r < ids.size(); ++r)
    for (size_t j = 0; j < 512; ++j) {
      const bool known = ids[r] >= 0 && ids[r] < 70;
      const float* row = known ? static_cast<const ReferenceWeight&>(*exact).row(ids[r]) : nullptr;
      const float want = known ? row[j] : 0.0f, value = got[r * 512 + j];
      float widest = 0;  // of the group of 32, whose scale and minimum are rounded
      for (size_t i = j / 32 * 32; known && i < j / 32 * 32 + 32; ++i) widest = std::max(widest, std::abs(row[i]));
      if (dtype == F32 || dtype == F8_E4M3) ASSERT_NEAR(value, want, std::abs(want) * 0x1p-16);
      else if (is_k_quant(dtype)) ASSERT_NEAR(value, want, widest * 0x1p-6f) << "row " << ids[r] << " input " << j;
      else if (dtype == F16) ASSERT_EQ(value, rounded(want));
      else ASSERT_EQ(value, want) << "row " << ids[r] << " input " << j;
    }
}

TEST_P(CudaEncodings, ShowANanInItsOwnRowOnly) {
  const DType dtype = GetParam();
  const auto weight = random_weight(dtype, 100, 2304, 3, 1);
  for (const int64_t rows : {3, 30, 700}) {
    auto x = gaussian(rows * 2304);
    const auto clean = product(*weight, DeviceArray<float>(x), 0, rows);
    x[2304 + 77] = NAN;
    const auto got = product(*weight, DeviceArray<float>(x), 0, rows);
    for (size_t i = 0; i < got.size(); ++i) {
      if (i / 100 == 1) ASSERT_FALSE(std::isfinite(got[i]));
      else ASSERT_EQ(got[i], clean[i]) << i;
    }
  }
}

TEST_P(CudaEncodings, RandomWeightsHaveTheirSpread) {
  const auto weight = random_weight(GetParam(), 300, 1024, 11, 0.5f);
  const auto rows = embedded(*weight, {0, 1, 64, 100, 299});
  double sum = 0, square = 0;
  for (const float v : rows) sum += v, square += double(v) * v;
  const double n = double(rows.size());
  EXPECT_NEAR(std::sqrt(square / n), 0.5, 0.03);
  EXPECT_NEAR(sum / n, 0, 0.05);
  EXPECT_NE(rows[0], rows[1024]);
}

using CudaProducts = CudaMatmul;
INSTANTIATE_TEST_SUITE_P(Once, CudaProducts, testing::Values(BF16));

// Gated rows are never stored as floats.
TEST_P(CudaProducts, FeedForwardHasTheBitsOfItsOps) {
  HUNCH_NEEDS_HOPPER();
  std::vector<std::array<int64_t, 3>> shapes = {{2048, 512, 12288}, {1031, 4096, 8448}, {300, 1024, 33280}, {4, 4096, 12288}};
  for (const int64_t rows : {2, 3, 4, 5, 8, 9, 16, 20, 33, 48, 64, 65, 100, 130, 192, 200, 256})
    shapes.push_back({rows, 1000, 8448});
  for (const DType type : {BF16, Q8_0, Q4_K, MXFP4})
    for (const auto& [rows, dim, width] : shapes) {
      if (has_codes(type) && rows < 1000) continue;  // their products take no gate then
      const auto gate = random_weight(type, width, dim, 1, 0.1f), up = random_weight(type, width, dim, 2, 0.1f);
      const auto down = random_weight(type, dim, width, 3, 0.1f);
      const DeviceArray<float> x(gaussian(rows * dim)), scale(Floats(dim, 1.0f)), normed(rows * dim);
      DeviceArray<float> between(size_t(2 * rows * width));
      const View<float, 2> gate_out(between.data(), rows, width), up_out(between.data() + rows * width, rows, width);
      const View<const float, 2> before(x.data(), rows, dim), in(rows % 4 ? x.data() : normed.data(), rows, dim);
      Floats got[2];
      for (const bool together : {false, true}) {
        DeviceArray<float> out(gaussian(rows * dim, 9));
        const View<float, 2> to(out.data(), rows, dim);
        const Product both[] = {{gate.get(), nullptr, gate_out}, {up.get(), nullptr, up_out}},
                      last[] = {{down.get(), nullptr, to}};
        enqueue_norm(*commands, {.x = before, .weight = scale.data(), .out = view(normed, rows, dim)});
        if (together) {
          ASSERT_TRUE(enqueue_feed_forward(*commands, {in, gate.get(), up.get(), down.get(), gate_out, up_out, to})) << rows;
        } else {
          enqueue_matmul(*commands, {in, both});
          enqueue_gate(*commands, {.gate = gate_out, .up = up_out, .out = gate_out});
          enqueue_matmul(*commands, {gate_out, last, true});
        }
        finish();
        got[together] = out.get();
      }
      EXPECT_EQ(got[0], got[1]) << rows << " rows";
    }
}

// What is too small for a normal float is added alike: as zero.
TEST_P(CudaProducts, AddTinyResidualsAlike) {
  constexpr int64_t kRows = 9, kDim = 256;
  const auto weight = random_weight(BF16, kDim, kDim, 4, 1);
  const DeviceArray<float> x(Floats(kRows * kDim, 0x1p-126f));
  Floats first;
  for (const ActivationPath path : kPaths) {
    DeviceArray<float> out(Floats(kRows * kDim, -0x1p-130f));
    const Product products[] = {{weight.get(), nullptr, view(out, kRows, kDim)}};
    enqueue_matmul(*commands, {view(x, kRows, kDim), products, true}, path);
    finish();
    if (first.empty()) first = out.get();
    EXPECT_TRUE(same_bits(first, out.get())) << int(path);
  }
}

// Embedding look-ups show every element as packed.
TEST_P(CudaProducts, TakesTheScalesOfFp8ByMatrixRowAndBlock) {
  const Ints ids = first_ids(300);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{300, 400}, {1, 400}, {128, 128}}) {
    Matrix matrix(F8_E4M3, 300, 400);
    matrix.scale_by(rows, columns);
    const auto weight = load_cuda_weight(matrix.tensor), exact = reference.load_weight(matrix.tensor);
    ASSERT_TRUE(weight);
    const auto got = embedded(*weight, ids);
    const Floats& want = static_cast<const ReferenceWeight&>(*exact).values;
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], std::abs(want[i]) * 0x1p-16) << rows << " x " << columns;
  }
}

// Codes and scales apart, as gpt-oss folders have them, in every other row; products with unit vectors show what is multiplied.
TEST_P(CudaProducts, TakesMxfp4ApartForAllItsCodesAndScales) {
  constexpr int64_t kRows = 70, kInputs = 192;
  std::mt19937 random(6);
  std::vector<std::byte> codes(2 * kRows * kInputs / 2), scales(2 * kRows * kInputs / 32);
  for (std::byte& code : codes) code = std::byte(random());
  for (std::byte& scale : scales) scale = std::byte(90 + random() % 51);
  Tensor tensor{.dtype = MXFP4, .shape = {kRows, kInputs}, .data = codes.data() + kInputs / 2};
  tensor.split = {scales.data() + kInputs / 32, 2};
  const auto weight = load_cuda_weight(tensor), exact = reference.load_weight(tensor);
  const Floats& want = static_cast<const ReferenceWeight&>(*exact).values;
  EXPECT_EQ(embedded(*weight, first_ids(kRows)), want);
  Floats units(kInputs * kInputs);
  for (int64_t i = 0; i < kInputs; ++i) units[i * kInputs + i] = 1;
  const DeviceArray<float> x(units);
  for (const int64_t rows : {1, 8, 20, 64, 192}) {
    const auto got = product(*weight, x, kInputs - rows, rows);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < kRows; ++i)
        ASSERT_EQ(got[r * kRows + i], want[i * kInputs + kInputs - rows + r]) << rows << " rows, feature " << i;
  }
}

TEST_P(CudaProducts, ShowsANanCodeOfFp8InItsFeatureOnly) {
  Matrix matrix(F8_E4M3, 100, 300);
  matrix.bytes[17 * 300 + 299] = std::byte(0xff);
  const auto weight = load_cuda_weight(matrix.tensor);
  for (const int64_t rows : {2, 20, 600}) {
    const auto got = product(*weight, DeviceArray<float>(gaussian(rows * 300)), 0, rows);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(std::isnan(got[i]), i % 100 == 17) << i << " of " << rows << " rows";
  }
}

TEST_P(CudaProducts, OfOneCallEqualThoseAlone) {
  for (const int64_t rows : {1, 8, 20, 64, 130, 250, 1100}) {
    const std::pair<DType, int64_t> parts[] = {
        {BF16, 8192}, {BF16, 8000}, {BF16, 1000}, {Q4_0, 1024}, {BF16, 1024}, {Q6_K, 70}, {Q4_0, 64}, {BF16, 9000}, {F32, 65}};
    std::vector<std::unique_ptr<Weight>> weights;
    std::vector<DeviceArray<float>> together;
    std::vector<Product> products;
    const DeviceArray<float> x(gaussian(rows * 2048));
    for (const auto& [dtype, n] : parts) {
      weights.push_back(random_weight(dtype, n, 2048, uint64_t(n), 0.1f));
      together.emplace_back(size_t(rows * n));
      products.push_back({weights.back().get(), nullptr, view(together.back(), rows, n)});
    }
    enqueue_matmul(*commands, {view(x, rows, 2048), products});
    finish();
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_EQ(together[i].get(), product(*weights[i], x, 0, rows)) << i << " " << rows;
  }
}

TEST_P(CudaProducts, OfRowsThatAnOpHasPackedEqualThoseOfItsFloats) {
  constexpr int64_t kWide = 4096, kOutputs = 200;
  const DeviceArray<float> scale(gaussian(kWide, 9));
  for (const auto& [dtype, inputs] : {std::pair<DType, int64_t>{BF16, kWide}, {F32, kWide}, {Q8_0, kWide}, {Q4_K, kWide},
           {BF16, 2880}, {Q8_0, 2880}, {BF16, 1000}}) {
    const auto weight = random_weight(dtype, kOutputs, inputs, 3, 0.02f);
    for (const int64_t rows : {1, 2, 8, 9, 17, 33, 64, 65, 224, 520}) {
      const DeviceArray<float> x(gaussian(rows * inputs)), normed(rows * inputs), gated(rows * inputs), out(rows * kOutputs);
      const View<const float, 2> in(x.data(), rows, inputs);
      const View<float, 2> norm(normed.data(), rows, inputs), gate(gated.data(), rows, inputs);
      const Product products[] = {{weight.get(), nullptr, view(out, rows, kOutputs)}};
      const NormArgs norm_args{.x = in, .weight = scale.data(), .out = norm};
      const GateArgs gate_args{.gate = in, .up = norm, .out = gate};

      // What wider rows left behind these is not read.
      const DeviceArray<float> bad(Floats(rows * kWide, NAN));
      enqueue_norm(*commands, {.x = view(bad, rows, kWide), .weight = scale.data(), .out = view(bad, rows, kWide)});
      enqueue_norm(*commands, norm_args);
      enqueue_matmul(*commands, {norm, products});
      finish();
      EXPECT_EQ(out.get(), product(*weight, normed, 0, rows)) << rows << " rows after a norm";
      enqueue_gate(*commands, gate_args);
      enqueue_matmul(*commands, {gate, products});
      finish();
      const auto want = product(*weight, gated, 0, rows);
      EXPECT_EQ(out.get(), want) << rows << " rows after a gate";
      // What was packed is not taken for rows that something has written since, nor for others.
      enqueue_norm(*commands, {.x = in, .weight = scale.data(), .out = gate});
      enqueue_gate(*commands, {.gate = in, .up = norm, .out = gate});
      enqueue_norm(*commands, norm_args);
      enqueue_matmul(*commands, {gate, products});
      finish();
      EXPECT_EQ(out.get(), want) << rows << " rows, others packed";
      enqueue_norm(*commands, norm_args);
      finish();
      HUNCH_CUDA_CHECK(cudaMemcpy(normed.data(), gated.data(), normed.size() * sizeof(float), cudaMemcpyDeviceToDevice));
      HUNCH_CUDA_CHECK(cudaDeviceSynchronize());
      enqueue_matmul(*commands, {norm, products});
      finish();
      EXPECT_EQ(out.get(), want) << rows << " rows, copied";
    }
  }
}

TEST_P(CudaProducts, OfAVocabularyEqualPlainLoopsWhereSampled) {
  const auto head = random_weight(BF16, 151936, 4096, 3, 0.02f);
  const Ints ids = {0, 63, 64, 100000, 151935};
  const auto rows = embedded(*head, ids);
  const auto x = gaussian(5 * 4096);
  const auto logits = product(*head, DeviceArray<float>(x), 0, 5);
  for (size_t r = 0; r < 5; ++r)
    for (size_t i = 0; i < ids.size(); ++i) {
      double sum = 0;
      for (size_t j = 0; j < 4096; ++j) sum += double(rows[i * 4096 + j]) * double(rounded(x[r * 4096 + j]));
      EXPECT_NEAR(logits[r * 151936 + size_t(ids[i])], sum, 1e-4);
    }
}

TEST_P(CudaProducts, WriteStridedRowsAndNothingElse) {
  const auto weight = random_weight(Q8_0, 20, 64, 3, 1);
  for (const int64_t stride : {100, 101}) {
    const auto x = gaussian(3 * stride);
    Floats dense;
    for (int64_t r = 0; r < 3; ++r) append(dense, part_of(x, r * stride, 64));
    const DeviceArray<float> in(x), out(Floats(3 * 50, -7));
    const Product products[] = {{weight.get(), nullptr, strided(out.data(), 3, 20, 50)}};
    enqueue_matmul(*commands, {strided<const float>(in.data(), 3, 64, stride), products});
    finish();
    const auto want = product(*weight, DeviceArray<float>(dense), 0, 3), got = out.get();
    for (size_t r = 0; r < 3; ++r)
      for (size_t i = 0; i < 50; ++i) EXPECT_EQ(got[r * 50 + i], i < 20 ? want[r * 20 + i] : -7);
  }
}

TEST_P(CudaProducts, StayRightWhenListsOfThemAreReplayed) {
  const auto up = random_weight(BF16, 4096, 2048, 3, 0.02f), down = random_weight(BF16, 2048, 4096, 4, 0.02f);
  const DeviceArray<float> x(gaussian(4 * 2048)), middle(4 * 4096), out(4 * 2048);
  Floats first;
  for (int round = 0; round < 6; ++round) {
    for (int repeat = 0; repeat < 10; ++repeat) {
      const Product a[] = {{up.get(), nullptr, view(middle, 4, 4096)}};
      enqueue_matmul(*commands, {View<const float, 2>(repeat ? out.data() : x.data(), 4, 2048), a});
      const Product b[] = {{down.get(), nullptr, view(out, 4, 2048)}};
      enqueue_matmul(*commands, {view(middle, 4, 4096), b});
    }
    finish();
    if (round == 0) first = out.get();
    EXPECT_EQ(out.get(), first);
  }
  // The same, one by one.
  auto value = x.get();
  for (int repeat = 0; repeat < 10; ++repeat) {
    const auto wide = product(*up, DeviceArray<float>(value), 0, 4);
    value = product(*down, DeviceArray<float>(wide), 0, 4);
  }
  EXPECT_EQ(value, first);
}

}
}
