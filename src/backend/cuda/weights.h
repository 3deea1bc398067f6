// Weights in the form the tensor cores eat: tiles of 64 output features, each one stream of whole records along the inputs. Made
// once by weights.cu, read by products_kernel.cuh. A matrix is padded with zeros to whole tiles and records. A record of a tile
// is
//   BF16        64 inputs   [64 features][64] bf16, swizzled as wgmma.h's tile_descriptor wants it                8192 bytes
//   Q8_0        64          codes [2][128 threads][16 bytes] = q + 128; f16 d [32][2][2]                             4352
//   F8_E4M3     64          codes as Q8_0, as they are; f32 scale [32][2]; NaN if one of its 64 codes is             4352
//   Q4_0        64          codes [128][16 bytes]; f16 d [32][2][2]                                                  2304
//   MXFP4       64          codes as Q4_0, their bits apart (mxfp4_place); bf16 2^(e - 23) [32][2][2]               2304
//   Q4_K       128          codes [2 parts][128][16 bytes]; {u8 scale, u8 min} [2][32][2][2]; {f16 d, f16 dmin} [32][2]  4864
//   Q5_K       128          codes as Q4_K; fifth bits [2][128] u32; scales as Q4_K                                   5888
//   Q6_K       128          codes as Q4_K; high bits [2][128] u64; int8 scales [2][32][2][4]; f16 d [32][2]          6784
// A part is 64 inputs. "thread" is the thread of a warpgroup whose operand registers hold the code (wgmma.h); [32][2] is feature
// 16 (i / 8) + i % 8 + 8 j. For operand register i of step s (16 inputs) of a part, code words hold the input pair as
//   nibbles: word s, bits 4 i and 16 + 4 i; fifth bits: bits 4 s + i and 16 + 4 s + i; high bits: word s / 2, bits 2 (4 (s % 2) +
//   i) and 16 +; bytes (Q8_0, F8_E4M3): word 2 (s % 2) + i / 2 of half s / 2, byte 2 (i % 2) and the next.
// F32 and F16 matrices become bf16: F16 rounded; F32 as two records after each other, the rounded values and the rounded rest
// (16 bits of mantissa). Q8_0 and F8_E4M3 are dequantised in fp32 and rounded to bf16; MXFP4 is exact in it (scales above 2^23,
// which no weights have, are taken as that); the others have their scales (d sc, dmin
// m) rounded to bf16 first, then the dequantised value.
#pragma once

#include "backend/ops/matmul.h"
#include "base/dtype.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace hunch {

inline constexpr int kTileFeatures = 64, kPartInputs = 64;

// Kept as codes; the others become bf16.
constexpr bool is_coded(DType t) { return dtype_info(t).block > 1 || t == DType::F8_E4M3; }
constexpr bool has_byte_codes(DType t) { return t == DType::Q8_0 || t == DType::F8_E4M3; }

struct RecordShape {
  int inputs, bytes;
  int high, scales, super;  // offsets
};
constexpr RecordShape record_shape(DType t) {
  switch (t) {
    case DType::F32:
    case DType::F16:
    case DType::BF16: return {64, 8192, 0, 0, 0};
    case DType::Q8_0:
    case DType::F8_E4M3: return {64, 4352, 0, 4096, 0};
    case DType::Q4_0:
    case DType::MXFP4: return {64, 2304, 0, 2048, 0};
    case DType::Q4_K: return {128, 4864, 0, 4096, 4608};
    case DType::Q5_K: return {128, 5888, 4096, 5120, 5632};
    case DType::Q6_K: return {128, 6784, 4096, 6144, 6656};
  }
  return {};
}

// A matrix on the device; frees its memory. Products of one weight must not overlap (they run in stream order).
struct CudaWeight : Weight {
  ~CudaWeight() override;
  DType form = DType::BF16;         // of the records: BF16 for F32 and F16
  int records_per_input = 1;        // 2: values and rests
  std::byte* tiles = nullptr;       // [num_tiles][num_records][record bytes]
  int32_t* packed_count = nullptr;  // [2] of who packs activations (products_args.cuh); zero between kernels
  int num_tiles = 0, num_records = 0;
  // Inputs are summed in this many runs of records, run by run; the sums are added in order. The same for any number of rows.
  int splits = 1;  // 1, 2 or 4; run i begins at record num_records * i / splits
};
// How many weights of this process are gone: what is known of a weight's place holds as long as this does not change.
uint64_t weights_freed();
// The tensor's data may go away afterwards. nullptr if there is no device memory.
std::unique_ptr<Weight> load_cuda_weight(const Tensor& matrix);

// Random values of standard deviation `spread` (uniform codes), made on the device. nullptr if there is no device memory.
std::unique_ptr<Weight> random_weight(DType dtype, int64_t out_dim, int64_t in_dim, uint64_t seed, float spread);

}
