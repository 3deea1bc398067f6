// Products against CUDA's own library: cuBLASLt multiplies the operands that ours round to, and sums of both are fp32's. Loaded
// at run time; without the library, or built without its header, the test says so and is skipped.
#include <dlfcn.h>

#include <cmath>
#include <numeric>

#include "backend/cuda/commands_fixture.h"
#include "backend/cuda/matmul.h"
#include "backend/cuda/weights.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

namespace hunch {
namespace {

using namespace test;

void* open_library() {
  void* library = nullptr;
  for (const char* file : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"})
    if (!library) library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  return library;
}

// A function of the library; null without it.
#define HUNCH_BLAS(name) decltype(&name) name##_ = reinterpret_cast<decltype(&name)>(find(#name))
class CudaOracle : public CommandsTest<> {
 protected:
  void SetUp() override {
    CommandsTest::SetUp();
    if (IsSkipped()) return;
    if (!library_) GTEST_SKIP() << "no libcublasLt.so";
    ASSERT_TRUE(missing_.empty()) << missing_;
    ASSERT_EQ(cublasLtCreate_(&blas_), CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override {
    if (blas_) (void)cublasLtDestroy_(blas_);
    if (library_) (void)dlclose(library_);
  }

  // [rows][n] of x [rows][k] and w [n][k], both bf16.
  Floats multiplied(const std::vector<uint16_t>& w, const std::vector<uint16_t>& x, int64_t n, int64_t k, int64_t rows) {
    const DeviceArray<uint16_t> weights(w), in(x);
    const DeviceArray<float> out(rows * n);
    const float one = 1, zero = 0;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t layouts[3] = {};
    cublasStatus_t status = cublasLtMatmulDescCreate_(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto then = [&](cublasStatus_t next) { status = status == CUBLAS_STATUS_SUCCESS ? next : status; };
    then(cublasLtMatmulDescSetAttribute_(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    then(cublasLtMatrixLayoutCreate_(&layouts[0], CUDA_R_16BF, uint64_t(k), uint64_t(n), k));  // columns are its rows
    then(cublasLtMatrixLayoutCreate_(&layouts[1], CUDA_R_16BF, uint64_t(k), uint64_t(rows), k));
    then(cublasLtMatrixLayoutCreate_(&layouts[2], CUDA_R_32F, uint64_t(n), uint64_t(rows), n));
    if (status == CUBLAS_STATUS_SUCCESS)
      then(cublasLtMatmul_(blas_, product, &one, weights.data(), layouts[0], in.data(), layouts[1], &zero, out.data(), layouts[2],
          out.data(), layouts[2], nullptr, nullptr, 0, nullptr));
    EXPECT_EQ(status, CUBLAS_STATUS_SUCCESS) << n << " x " << k << ", " << rows << " rows";
    HUNCH_CUDA_CHECK(cudaDeviceSynchronize());
    for (const auto layout : layouts) (void)cublasLtMatrixLayoutDestroy_(layout);
    (void)cublasLtMatmulDescDestroy_(product);
    return out.get();
  }

 private:
  void* find(const char* name) {
    void* const found = library_ ? dlsym(library_, name) : nullptr;
    if (!found) missing_ = name;
    return found;
  }
  void* const library_ = have_device() ? open_library() : nullptr;
  std::string missing_;
  cublasLtHandle_t blas_ = nullptr;
  HUNCH_BLAS(cublasLtCreate);
  HUNCH_BLAS(cublasLtDestroy);
  HUNCH_BLAS(cublasLtMatmul);
  HUNCH_BLAS(cublasLtMatmulDescCreate);
  HUNCH_BLAS(cublasLtMatmulDescDestroy);
  HUNCH_BLAS(cublasLtMatmulDescSetAttribute);
  HUNCH_BLAS(cublasLtMatrixLayoutCreate);
  HUNCH_BLAS(cublasLtMatrixLayoutDestroy);
};

std::vector<uint16_t> magnitudes(std::vector<uint16_t> values) {
  for (uint16_t& value : values) value &= 0x7fff;
  return values;
}

TEST_F(CudaOracle, ProductsOfRandomShapesAreThoseOfCublas) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 1);
  const auto below = [&](int64_t most) { return 1 + int64_t(random() % uint64_t(most)); };
  const int64_t row_counts[] = {1, 4, 8, 15, 32, 64, 77, 128, 224, 400, 1030, 1500};
  // Whose operands are their elements rounded to bf16.
  using enum DType;
  const DType encodings[] = {BF16, Q4_K, F8_E4M3, Q5_K, F16, Q6_K, MXFP4};
  for (size_t i = 0; i < std::size(row_counts); ++i) {
    const int64_t rows = row_counts[i], n = 4 * below(i % 4 == 1 ? 3000 : 1100), k = 256 * below(i % 4 == 2 ? 38 : 17);
    const auto weight = random_weight(encodings[i % std::size(encodings)], n, k, i, 0.05f);
    ASSERT_TRUE(weight);
    Ints ids(n);
    std::iota(ids.begin(), ids.end(), 0);
    Floats values(rows * k);
    for (float& value : values) value = normal(random);
    const DeviceArray<int32_t> list(ids);
    const DeviceArray<float> x(values), elements(size_t(n * k)), out(rows * n);
    const Product products[] = {{weight.get(), nullptr, view(out, rows, n)}};
    enqueue_embed(*commands, {view(list, n), weight.get(), view(elements, n, k)});
    enqueue_matmul(*commands, {view(x, rows, k), products});
    finish();

    std::vector<uint16_t> w, in;
    for (const float value : elements.get()) w.push_back(f32_to_bf16(value));
    for (const float value : values) in.push_back(f32_to_bf16(value));
    const auto want = multiplied(w, in, n, k, rows), size = multiplied(magnitudes(w), magnitudes(in), n, k, rows),
               got = out.get();
    double worst = 0;
    for (size_t at = 0; at < got.size(); ++at) {
      const double off = std::abs(double(got[at]) - double(want[at])) / (double(size[at]) + 1e-30);
      worst = off <= worst ? worst : off;
    }
    // Tensor cores cut what they add at 2^-24 or so of the sum; either's errors are of a few hundred such steps at most.
    EXPECT_LE(worst, 8e-6) << n << " x " << k << ", " << rows << " rows";
  }
}

}
}
#else
TEST(CudaOracle, ProductsOfRandomShapesAreThoseOfCublas) { GTEST_SKIP() << "built without cublasLt.h"; }
#endif
