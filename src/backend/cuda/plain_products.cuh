// Products on devices that are not Hopper: the plain form of products_kernel.cuh over the same records. A block is a tile of 64
// features and 8 rows; a warp has 16 features and multiplies 16 inputs at a time (mma.sync) with rows that it rounds to bf16 as
// it reads them. An element's sum is made as everywhere: ascending inputs within each of the weight's runs, then the runs in
// order; so a row's bits do not depend on how many there are.
#pragma once

#include "backend/cuda/resident_kernel.cuh"

namespace hunch {

inline constexpr int kPlainRows = 8;

// Grid: (tiles of all products, rows / 8).
template <DType kType>
__global__ void __launch_bounds__(128) plain_rows_kernel(const ProductsOnDevice* args) {
  constexpr RecordShape kShape = record_shape(kType);
  __shared__ __align__(128) std::byte record[kShape.bytes];
  __shared__ ProductsOnDevice a;
  const int t = int(threadIdx.x), lane = t % 32;
  for (int i = t; i < int(sizeof a / 4); i += 128)
    reinterpret_cast<uint32_t*>(&a)[i] = __ldcg(reinterpret_cast<const uint32_t*>(args) + i);
  __syncthreads();
  let_next_start();
  wait_for_previous();
  int tile = int(blockIdx.x);
  const ProductOnDevice& p = product_of(a, tile);
  const int row = int(blockIdx.y) * kPlainRows + lane / 4;
  const float* x = a.x + int64_t(min(row, a.rows - 1)) * a.x_stride;
  // Inputs k and k + 1; zeros past the end.
  const auto pair_at = [&](int64_t k) {
    return bf16x2_of(
        row < a.rows && k < a.in_dim ? __ldcg(x + k) : 0.0f, row < a.rows && k + 1 < a.in_dim ? __ldcg(x + k + 1) : 0.0f);
  };
  float total[4] = {};
  for (int split = 0; split < a.splits; ++split) {
    float sums[4] = {};
    const int end = a.num_records * (split + 1) / a.splits;
    for (int at = a.num_records * split / a.splits; at < end; ++at) {
      const std::byte* from = p.tiles + (int64_t(tile) * a.num_records + at) * kShape.bytes;
      __syncthreads();
      for (int i = t; i < kShape.bytes / 16; i += 128)
        reinterpret_cast<uint4*>(record)[i] = reinterpret_cast<const uint4*>(from)[i];
      __syncthreads();
      const int64_t first = int64_t(at / a.records_per_input) * kShape.inputs;
      for (int part = 0; part < kShape.inputs / 64; ++part) {
        uint32_t operand[4][4];
        if constexpr (kType == DType::BF16) {
          const int feature = t / 32 * 16 + lane / 4;
          for (int step = 0; step < 4; ++step)
            for (int i = 0; i < 4; ++i)
              operand[step][i] = *reinterpret_cast<const uint32_t*>(
                  record + swizzled(feature + i % 2 * 8, step * 16 + i / 2 * 8 + lane % 4 * 2));
        } else {
          decode_part<kType, 0, 4>(load_part<kType>(shared_address(record), part, t), operand);
        }
        const int64_t k = first + part * 64 + lane % 4 * 2;
#pragma unroll
        for (int step = 0; step < 4; ++step) mma_sync(sums, operand[step], pair_at(k + step * 16), pair_at(k + step * 16 + 8));
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) total[i] = split == 0 ? sums[i] : total[i] + sums[i];
  }
  write_sums<kPlainRows>(total, a, p, tile, int(blockIdx.y), t);
}

}
