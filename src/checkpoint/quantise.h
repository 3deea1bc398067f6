// Rows between f32 and the encodings of base/dtype.h. The dequantiser is the scalar definition that kernels are tested against:
// one fp32 operation per step, in the order of the formulas below, bit for bit what the `gguf` Python package computes.
//   Q8_0: d q    Q4_0: d (q - 8)    Q4_K, Q5_K: (d sc) q - (dmin m)    Q6_K: (d sc) (q - 32)    F8_E4M3: scale value
//   MXFP4: 2^(e - 128) v, v twice the code's value
#pragma once

#include "checkpoint/checkpoint.h"

namespace hunch {

// `count` elements, a multiple of the encoding's block. `in` needs no alignment. F8_E4M3: values without a scale.
void dequantise_row(DType dtype, const std::byte* in, float* out, int64_t count);

// Row `row` of a matrix, the scales of FP8 applied, MXFP4 in either layout.
void dequantise_row(const Tensor& matrix, int64_t row, float* out);

// A failure that names the first weight that is no finite number.
Status check_values(const Tensor& tensor);

// Row `row` in its encoding's own blocks, dtype_bytes() of them, however the matrix keeps them (SplitBlocks).
void pack_blocks(const Tensor& matrix, int64_t row, std::byte* out);

// Every encoding but Q5_K and Q6_K (kept as they are where a file holds them). Q8_0, Q4_0 and MXFP4 equal the `gguf` package's
// bit for bit; Q4_K searches scale and minimum of each group of 32; F8_E4M3 is the nearest value, at most 448. Input must be
// finite.
void quantise_row(DType dtype, const float* in, std::byte* out, int64_t count);
bool can_quantise(DType dtype);

}
