// What matmul.cpp and the product kernels of one instruction set (matmul_body.h) agree on: quantised activations, one panel of a
// weight times some rows, and the table of functions.
#pragma once

#include "base/dtype.h"

namespace hunch {

inline constexpr int kPanelColumns = 32;     // output columns of a panel: two vectors of lanes
inline constexpr int kActivationBlock = 32;  // inputs that share a scale
inline constexpr int64_t kScaleGroup = 128;  // inputs of an FP8 column that share one

// 32 inputs of one row as x = scale q, with all that encodings need beside the codes, in one cache line: every operand of the
// kernel is a broadcast from it. A row with an infinity or a NaN gets a NaN scale, which its output shows.
struct alignas(64) ActivationBlock {
  int8_t q[32];              // in [-127, 127]
  float scale;               // greatest magnitude / 127
  float scale_sum;           // scale sum(q)
  int32_t minus_128_sum;     // where an accumulator starts whose codes are stored with 128 added (Q8_0)
  int32_t minus_8_sum;       // likewise Q4_0
  int32_t minus_32_half[2];  // likewise Q6_K, for inputs [0, 16) and [16, 32)
  int32_t minus_12_sum;      // likewise MXFP4
  int32_t unused;
};
static_assert(sizeof(ActivationBlock) == 64);

// out[r][0, columns) = rows x panel^T (+ bias) (+ out), for every row.
struct PanelArgs {
  const std::byte* panel = nullptr;  // layout in weights.h, aligned to 64
  int64_t k = 0;
  int rows = 0;
  const ActivationBlock* blocks = nullptr;  // [rows][k / 32]: quantised encodings
  const float* x = nullptr;                 // [rows], x_stride: F32, F16, BF16, F8_E4M3
  int64_t x_stride = 0;
  float* out = nullptr;  // [rows], out_stride
  int64_t out_stride = 0;
  int columns = 0;              // at most kPanelColumns
  const float* bias = nullptr;  // [columns] or null
  bool accumulate = false;
};

struct MatmulKernels {
  void (*quantise)(const float* x, int64_t k, ActivationBlock* out) = nullptr;  // one row; k is a multiple of 32
  void (*panel[kNumDTypes])(const PanelArgs&) = {};
};

}
