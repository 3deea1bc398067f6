// What the kernels of products get to know, and where they keep it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/ptx.h"

namespace hunch {

inline constexpr int kMaxProducts = 8;

struct ProductOnDevice {
  const std::byte* tiles;
  const float* bias;
  float* out;
  float* partials;  // Commands::ones: [row tile][tile][split][N / 2][128]
  int64_t out_stride;
  int num_tiles, out_dim;
};
struct ProductsOnDevice {
  ProductOnDevice products[kMaxProducts];
  const float* x;
  const std::byte* packed_x;  // [part][x_blocks] blocks of 8 rows x 64 inputs, 1 KiB each, swizzled
  int64_t x_stride, in_dim;
  int num_products, num_tiles;                         // tiles of all products
  int rows, row_tiles, row_band, x_blocks, row_shift;  // many rows: row tiles in pairs; log2 of resident rows
  int num_records, records_per_input, stage_records;   // of a tile; 2 of the same inputs (values, rests); most of a stage
  int splits, group_tiles, groups, units;
  int stages, stage_bytes, tile_bytes, x_offset;  // of shared memory; of a tile in a stage
  int burst, stage_cycles;                        // Pace
  int packers, parts;                             // blocks that pack (0: it is done); parts of the inputs
  float unit;                                     // of sums: a power of two
  int32_t* packed_count;                          // packers that are done, blocks that have seen it
  bool accumulate, keep_weights;
  bool cut;          // a unit is one run
  std::byte* gated;  // where silu(first) * second goes, like packed_x, in place of both; null: nowhere
  int gated_blocks;  // of few rows
};

// Shared memory: this, then the stages.
inline constexpr int kMostStages = 12;
struct SharedHead {
  ProductsOnDevice args;
  uint64_t full[kMostStages], empty[kMostStages];
};
inline constexpr int kHeadBytes = 1024;
static_assert(sizeof(SharedHead) <= kHeadBytes);

HUNCH_DEVICE const ProductOnDevice& product_of(const ProductsOnDevice& a, int& tile) {
  int p = 0;
  while (p + 1 < a.num_products && tile >= a.products[p].num_tiles) tile -= a.products[p++].num_tiles;
  return a.products[p];
}

// Adds to what lies there, as `red` does, which a chunk's products use: subnormals count as zeros. One rounding for all kernels.
HUNCH_DEVICE float accumulated(float old, float value) {
  float sum;
  asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(old), "f"(value));
  return sum;
}

}
