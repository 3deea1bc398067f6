// Rows of activations in bf16 as the tensor cores take them: [64 inputs][8 rows] blocks of 1 KiB, swizzled (wgmma.h). Ops whose
// rows go into a product leave them so beside the floats (rows.cu), which spares the product its own packing
// (products_kernel.cuh).
#pragma once

#include "backend/cuda/commands.h"
#include "backend/cuda/weights_kernel.cuh"
#include "backend/cuda/wgmma.h"

namespace hunch {

struct PackedRows {
  std::byte* at;  // null: not wanted
  int blocks;     // of 8 rows, for each 64 inputs; rows past the end hold anything
};

// Blocks that every form of a product finds enough.
inline int packed_blocks(int64_t rows) {
  return rows <= 8 ? 1 : rows <= 16 ? 2 : rows <= 32 ? 4 : rows <= 64 ? 8 : int((rows + 255) / 256 * 32);
}
// Where an op is to leave its rows as well; after its launch: commands.set_packed().
inline PackedRows wanted_packed(const Commands& commands, int64_t rows, int64_t dim) {
  const int blocks = packed_blocks(rows);
  // Whole records only: of 64 inputs, or of 128 where rows are made of 256. One row is packed by the product's blocks themselves,
  // each for itself.
  if (!is_hopper() || rows < 2 || dim % 64 != 0) return {};
  return {commands.packed_memory(size_t(dim) * blocks * 16), blocks};
}

// Inputs k .. k + 3 of a row.
HUNCH_DEVICE void pack_four(const PackedRows& packed, int64_t row, int k, const float4& x) {
  std::byte* block = packed.at + (int64_t(k / 64) * packed.blocks + row / 8) * 1024;
  *reinterpret_cast<uint2*>(block + swizzled(int(row % 8), k % 64)) = make_uint2(bf16x2_of(x.x, x.y), bf16x2_of(x.z, x.w));
}

}
