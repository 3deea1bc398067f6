// Weights in the form the tensor cores eat: tiles of 64 output features, each one stream of whole records along the inputs. Made
// once by weights.cu, read by products_kernel.cuh. A matrix is padded with zeros to whole tiles and records. A record of a tile
// is
//   BF16        64 inputs   [64 features][64] bf16, swizzled as wgmma.h's tile_descriptor wants it                8192 bytes
//   Q8_0        64          codes [2][128 threads][16 bytes] = q + 128; f16 d [32][2][2]                             4352
//   F8_E4M3     64          codes as Q8_0, their bits apart (f8_place); bf16 s 2^98 and its rest [32][2][2]          4352
//   Q4_0        64          codes [128][16 bytes]; f16 d [32][2][2]                                                  2304
//   MXFP4       64          codes as Q4_0, their bits apart (mxfp4_place); bf16 2^(e - 23) [32][2][2]               2304
//   Q4_K       128          codes [2 parts][128][16 bytes]; {bf16 scale, bf16 -min} [2][32][2][2]                    5120
//   Q5_K       128          codes as Q4_K; more of them [2][128] u32; scales as Q4_K                                 6144
//   Q6_K       128          codes as Q4_K; more of them [2][128] u64; bf16 scales [2][32][2][4]                      7168
// A part is 64 inputs. "thread" is the thread of a warpgroup whose operand registers hold the code (wgmma.h); [32][2] is feature
// 16 (i / 8) + i % 8 + 8 j. Codes of the input pair of operand register i of step s (16 inputs) of a part lie in the halves of a
// word: code_pieces below; bytes (Q8_0, F8_E4M3): word 2 (s % 2) + i / 2 of half s / 2, byte 2 (i % 2) and the next.
// F32 and F16 matrices become bf16: F16 rounded; F32 as two records after each other, the rounded values and the rounded rest
// (16 bits of mantissa). F8_E4M3's scales are taken as two bf16, NaN if one of their 64 codes is; MXFP4 is exact (scales above
// 2^23, which no weights have, are taken as that); the others have their scales (d, d sc, dmin m) rounded to bf16 first, then the
// dequantised value; look-ups take a d as it is. K-quants' scales lie times code_scale(), their minima over unit_of()
// (decode.cuh).
#pragma once

#include "backend/ops/matmul.h"
#include "base/dtype.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace hunch {

inline constexpr int kTileFeatures = 64, kPartInputs = 64;

// Kept as codes; the others become bf16.
constexpr bool has_codes(DType t) { return dtype_info(t).block > 1 || t == DType::F8_E4M3; }
constexpr bool has_byte_codes(DType t) { return t == DType::Q8_0 || t == DType::F8_E4M3; }
constexpr bool is_k_quant(DType t) { return t == DType::Q4_K || t == DType::Q5_K || t == DType::Q6_K; }

struct RecordShape {
  int inputs, bytes;
  int high, scales;  // offsets
};
constexpr RecordShape record_shape(DType t) {
  switch (t) {
    case DType::F32:
    case DType::F16:
    case DType::BF16: return {64, 8192, 0, 0};
    case DType::Q8_0:
    case DType::F8_E4M3: return {64, 4352, 0, 4096};
    case DType::Q4_0:
    case DType::MXFP4: return {64, 2304, 0, 2048};
    case DType::Q4_K: return {128, 5120, 0, 4096};
    case DType::Q5_K: return {128, 6144, 4096, 5120};
    case DType::Q6_K: return {128, 7168, 4096, 6144};
    case DType::I16: break;
  }
  return {};
}

// Of scales, of a part of two features 8 apart.
constexpr int pair_scale_bytes(DType t) { return is_k_quant(t) ? 16 : 8; }

// `bits` bits of a code, from bit `to` on, lie in either half of word `word` from bit `from` on.
struct CodePiece {
  int word, from, to, bits;
};
// Of register `reg` (4 s + i) of a part: what the words have room for lies together, of the last registers in the bits left over.
constexpr int code_pieces(DType t, int reg) { return t == DType::Q5_K && reg == 15 ? 5 : t == DType::Q6_K && reg >= 12 ? 3 : 1; }
constexpr CodePiece code_piece(DType t, int reg, int piece) {
  if (t == DType::Q5_K) return reg < 15 ? CodePiece{reg / 3, reg % 3 * 5, 0, 5} : CodePiece{piece, 15, piece, 1};
  if (t != DType::Q6_K) return {reg / 4, reg % 4 * 4, 0, 4};
  const int spare = 3 * (reg - 12) + piece;  // 2 bits above each code
  return reg < 12 ? CodePiece{reg / 2, reg % 2 * 8, 0, 6} : CodePiece{spare / 2, 6 + spare % 2 * 8, 2 * piece, 2};
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
