// Weights in the form the CPU multiplies: panels of 32 output columns, which are the lanes (no horizontal sums). Made once by
// matmul.cpp, read by matmul_body.h front to back as one stream of whole cache lines.
//
// A step holds 4 consecutive inputs of the 32 columns: 128 bytes, column c at byte 4c. For k inputs a panel is
//   F32, F16, BF16  [k][32] elements
//   Q8_0            [k/32] { codes [8 steps][128] = q + 128; f16 d[32] }                                         34 bytes / 32
//   Q4_0            [k/32] { codes [4][128], low nibble inputs 4j.., high nibble 16 + 4j..; f16 d[32] }          18 / 32
//   Q4_K            [k/256] { f16 d[32], f16 dmin[32]; [8] { codes as Q4_0; u8 scale[32], u8 min[32] } }         18.5 / 32
//   Q5_K            [k/256] { as Q4_K, codes with high [1][128] behind them: bit g of a byte is of inputs 4g.. }     22.5 / 32
//   Q6_K            [k/256] { f16 d[32]; [8] { codes as Q4_0; high [2][128]; int8 scale[2 halves][32] } }        26.25 / 32
//                   high: bits 2g, 2g + 1 of a byte are of inputs 4g.., in the second vector pair of 16 + 4g..
//   MXFP4           [k/32] { codes as Q4_0; bf16 d[32] = 2^(e - 128), which f16 cannot hold }                     18 / 32
//   F8_E4M3         [k/128, the last one may be short] { f32 scale[32]; codes [128][32] }, whole cache lines            1.03 / 1
//                   scale: 2^8 times the scale of 128 inputs of a column (load_f8 of simd.h); NaN if a code of them is NaN
// Columns past out_dim are zero.
#pragma once

#include "backend/cpu/matmul_kernels.h"
#include "backend/ops/matmul.h"
#include "base/dtype.h"
#include "checkpoint/checkpoint.h"

namespace hunch {

struct CpuWeight : Weight {
  const std::byte* panels = nullptr;  // memory of CpuMatmul
  size_t panel_bytes = 0;
  int64_t num_panels() const { return (out_dim + kPanelColumns - 1) / kPanelColumns; }
  const std::byte* panel(int64_t i) const { return panels + size_t(i) * panel_bytes; }
};

size_t panel_bytes(DType dtype, int64_t k);

// Packs rows first..first+columns-1 of the matrix as columns; columns <= 32.
void pack_panel(const Tensor& matrix, int64_t first, int columns, std::byte* panel);

// Column `column` of a panel as fp32: the same bits as dequantise_row of checkpoint/quantise.h (FP8 with NaN codes excepted).
void unpack_column(DType dtype, const std::byte* panel, int column, int64_t k, float* out);

}
