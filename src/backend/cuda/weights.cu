// See weights.h. Matrices are copied to the device piece by piece as the file has them and packed there, a block a record.
#include <atomic>

#include "backend/cuda/device.h"
#include "backend/cuda/weights.h"
#include "backend/cuda/weights_kernel.cuh"
#include "checkpoint/quantise.h"

namespace hunch {
namespace {

constexpr size_t kPieceBytes = size_t(64) << 20;

// Where codes come from: the file's rows, or a seed.
struct Source {
  const std::byte* rows;  // of the piece; null: random
  int64_t row_bytes, in_dim;
  int num_rows;  // rows past it are zero
  uint64_t seed;
  float spread;
  WeightScales scales;  // F8_E4M3: on the device
  int64_t first_row;    // of the piece in the matrix
};

__device__ uint32_t random_bits(uint64_t seed, uint64_t index) {  // splitmix64's finaliser
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return uint32_t((z ^ z >> 31) >> 16);
}
__device__ uint16_t u16_at(const std::byte* p) { return uint16_t(uint16_t(p[0]) | uint16_t(p[1]) << 8); }

// What packing asks of block encodings: an unsigned code, the scales of a group. Layouts: checkpoint/quantise.cpp.
template <DType kType>
struct Blocks {
  static constexpr int kBlock = dtype_info(kType).block, kBytes = dtype_info(kType).block_bytes;
  const Source& source;
  const std::byte* row;  // null: zeros
  uint64_t random_row;
  int64_t inputs, matrix_row;

  __device__ Blocks(const Source& s, int row_in_piece, uint64_t row_of_all, int64_t padded)
      : source(s),
        row(s.rows ? s.rows + row_in_piece * s.row_bytes : nullptr),
        random_row(row_of_all * uint64_t(padded)),
        inputs(row_in_piece < s.num_rows ? s.in_dim : 0),
        matrix_row(s.first_row + row_in_piece) {}
  __device__ const std::byte* block(int64_t k) const { return row + k / kBlock * kBytes; }

  __device__ uint32_t code(int64_t k) const {
    constexpr uint32_t kZero = kType == DType::Q8_0 ? 128 : kType == DType::Q4_0 ? 8 : kType == DType::Q6_K ? 32 : 0;
    if (k >= inputs) return kZero;
    if (!source.rows) {
      const uint32_t mask = has_byte_codes(kType) ? 255 : kType == DType::Q5_K ? 31 : kType == DType::Q6_K ? 63 : 15;
      const uint32_t bits = random_bits(source.seed, random_row + uint64_t(k)) & mask;
      if constexpr (kType == DType::F8_E4M3) return 64 | (bits & 159);  // magnitudes 2 to 30
      return kZero && bits == 0 ? kZero : bits;                         // symmetric about zero
    }
    const std::byte* b = block(k);
    const int i = int(k % kBlock);
    if constexpr (kType == DType::F8_E4M3) return uint32_t(b[0]);
    if constexpr (kType == DType::Q8_0) return uint32_t(b[2 + i]) ^ 128;
    if constexpr (kType == DType::Q4_0) return uint32_t(b[2 + i % 16]) >> (i < 16 ? 0 : 4) & 15;
    if constexpr (kType == DType::MXFP4) return uint32_t(b[1 + i % 16]) >> (i < 16 ? 0 : 4) & 15;
    if constexpr (kType == DType::Q4_K) return uint32_t(b[16 + i / 64 * 32 + i % 32]) >> (i / 32 % 2 * 4) & 15;
    if constexpr (kType == DType::Q5_K)
      return (uint32_t(b[48 + i / 64 * 32 + i % 32]) >> (i / 32 % 2 * 4) & 15) | (uint32_t(b[16 + i % 32]) >> (i / 32) & 1) << 4;
    if constexpr (kType == DType::Q6_K) {
      const int half = i / 128, g = i % 128 / 32, lane = i % 32;
      const uint32_t nibble = uint32_t(b[half * 64 + (g & 1) * 32 + lane]) >> ((g >> 1) * 4) & 15;
      return nibble | (uint32_t(b[128 + half * 32 + lane]) >> (2 * g) & 3) << 4;
    }
    return 0;
  }
  // Standard deviation of uniform codes: width / sqrt(12).
  __device__ uint16_t random_scale(float sigma) const { return __half_as_ushort(__float2half_rn(source.spread / sigma)); }
  __device__ uint16_t d(int64_t k) const {
    if (k >= inputs) return 0;
    if (!source.rows)
      return random_scale(kType == DType::Q8_0 ? 73.6f
              : kType == DType::Q4_0           ? 4.32f
                                               : 32 *
                  (kType == DType::Q4_K          ? 4.61f
                          : kType == DType::Q5_K ? 9.23f
                                                 : 18.2f));
    return u16_at(block(k) + (kType == DType::Q6_K ? 208 : 0));
  }
  // 2^(e - 23) in bf16. Random codes have a deviation of 2.926; exponents of two neighbours make it the wanted one.
  __device__ uint16_t mxfp4_scale(int64_t k) const {
    if (k >= inputs) return 0;
    int e = row ? int(block(k)[0]) : 0;
    if (!source.rows) {
      const float wanted = source.spread / 2.926f, ratio = scalbnf(wanted, -ilogbf(wanted));
      const float upper = float(random_bits(~source.seed, random_row + uint64_t(k)) & 0xffff) * 0x1p-16f;
      e = 127 + ilogbf(wanted) + (upper < (ratio * ratio - 1) / 3);
    }
    return uint16_t((min(e, 150) + 104) << 7);
  }
  // The scale of 64 inputs of FP8, which no block of the file's cuts.
  __device__ float f8_scale(int64_t k) const {
    if (k >= inputs) return 0;
    if (!source.rows) return source.spread / 13.51f;
    for (int i = 0; i < 64; ++i)
      if ((code(k + i) & 127) == 127) return NAN;
    const WeightScales& s = source.scales;
    return s.values ? s.values[matrix_row / s.rows * ((source.in_dim + s.columns - 1) / s.columns) + k / s.columns] : 1;
  }
  __device__ uint16_t d_min(int64_t k) const {
    if (k >= inputs) return 0;
    if (!source.rows) return random_scale(32 * (kType == DType::Q4_K ? 4.61f / 7.5f : 9.23f / 15.5f));
    return u16_at(block(k) + 2);
  }
  // Scale (low byte) and minimum of a group of 32 of Q4_K and Q5_K; the scale of 16 of Q6_K.
  __device__ uint16_t scale(int64_t k) const {
    if (k >= inputs) return 0;
    if (!source.rows) return kType == DType::Q6_K ? 32 : 32 | 32 << 8;
    const std::byte* b = block(k);
    if constexpr (kType == DType::Q6_K) return uint8_t(b[192 + k % 256 / 16]);
    const std::byte* s = b + 4;
    const int g = int(k % 256 / 32);
    const auto at = [&](int i) { return uint32_t(s[i]); };
    const uint32_t scale = g < 4 ? at(g) & 63 : (at(g + 4) & 15) | (at(g - 4) >> 6) << 4;
    const uint32_t min = g < 4 ? at(g + 4) & 63 : (at(g + 4) >> 4) | (at(g) >> 6) << 4;
    return uint16_t(scale | min << 8);
  }
};

// One block a record: blockIdx.x is the record of a tile, blockIdx.y the tile of the piece. 128 threads, as the warpgroup's.
template <DType kType>
__global__ void pack_codes(Source source, std::byte* tiles, int first_tile, int num_records) {
  constexpr RecordShape kShape = record_shape(kType);
  const int t = int(threadIdx.x), tile = first_tile + int(blockIdx.y);
  std::byte* record = tiles + (int64_t(tile) * num_records + blockIdx.x) * kShape.bytes;
  const int64_t first = int64_t(blockIdx.x) * kShape.inputs, padded = int64_t(num_records) * kShape.inputs;
  const auto row_at = [&](int feature) {
    return Blocks<kType>(source, int(blockIdx.y) * 64 + feature, uint64_t(tile) * 64 + uint64_t(feature), padded);
  };
  const Blocks<kType> rows[2] = {row_at(t / 32 * 16 + t % 32 / 4), row_at(t / 32 * 16 + t % 32 / 4 + 8)};
  for (int part = 0; part < kShape.inputs / 64; ++part) {
    uint32_t words[8] = {};
    for (int step = 0; step < 4; ++step)
      for (int i = 0; i < 4; ++i)
        for (int half = 0; half < 2; ++half) {
          const uint32_t code = rows[i % 2].code(first + part * 64 + step * 16 + t % 4 * 2 + i / 2 * 8 + half);
          if constexpr (kType == DType::F8_E4M3) words[2 * step + i / 2] |= f8_place(code, i % 2, half);
          else if constexpr (has_byte_codes(kType)) words[2 * step + i / 2] |= code << (8 * (2 * (i % 2) + half));
          else if constexpr (kType == DType::MXFP4) words[step] |= mxfp4_place(code, i, half);
          else
            for (int p = 0; p < code_pieces(kType, 4 * step + i); ++p) {
              const CodePiece piece = code_piece(kType, 4 * step + i, p);
              words[piece.word] |= (code >> piece.to & ((1u << piece.bits) - 1)) << (piece.from + 16 * half);
            }
        }
    auto* out = reinterpret_cast<uint32_t*>(record);
    if constexpr (has_byte_codes(kType)) {
      for (int w = 0; w < 8; ++w) out[((part * 2 + w / 4) * 128 + t) * 4 + w % 4] = words[w];
    } else {
      for (int w = 0; w < 4; ++w) out[(part * 128 + t) * 4 + w] = words[w];
    }
    constexpr int kMore = kType == DType::Q5_K ? 1 : kType == DType::Q6_K ? 2 : 0;
    for (int w = 0; w < kMore; ++w)
      reinterpret_cast<uint32_t*>(record + kShape.high)[(part * 128 + t) * kMore + w] = words[4 + w];
  }
  const int part = t / 32, pair = t % 32;  // thread t packs the scales of part t / 32, features of pair t % 32
  if (part >= kShape.inputs / 64) return;
  for (int below = 0; below < 2; ++below) {
    const Blocks<kType> row = row_at(pair / 8 * 16 + pair % 8 + 8 * below);
    std::byte* scales = record + kShape.scales + (part * 32 + pair) * pair_scale_bytes(kType);
    const int64_t k = first + part * 64;
    if constexpr (kType == DType::F8_E4M3) {
      const float scale = row.f8_scale(k) * 0x1p98f;  // bf16 has bits 2^120 and unit_of() 2^22 from the value
      auto* two = reinterpret_cast<__nv_bfloat16*>(scales) + below * 2;
      two[0] = __float2bfloat16_rn(scale), two[1] = __float2bfloat16_rn(scale - __bfloat162float(two[0]));
    } else if constexpr (is_k_quant(kType)) {
      const auto put = [&](int i, uint16_t d, int scale, float unit) {
        reinterpret_cast<__nv_bfloat16*>(scales)[below * 4 + i] =
            __float2bfloat16_rn(__half2float(__ushort_as_half(d)) * float(scale) * unit);
      };
      for (int i = 0; i < 4; ++i) {
        const int of = row.scale(k + i * 16);
        const float unit = code_scale(kType, below);
        if constexpr (kType == DType::Q6_K) put(i, row.d(first), int8_t(of), unit);
        else if (i % 2 == 0) put(i, row.d(first), of & 255, unit);
        else put(i, row.d_min(first), of >> 8, -1 / unit_of(kType));
      }
    } else {
      for (int block = 0; block < 2; ++block)
        reinterpret_cast<uint16_t*>(scales)[below * 2 + block] =
            kType == DType::MXFP4 ? row.mxfp4_scale(k + block * 32) : row.d(k + block * 32);
    }
  }
}

// 16 bytes a thread: 8 inputs of a feature.
template <DType kType>
__global__ void pack_elements(Source source, std::byte* tiles, int first_tile, int num_records, int per_input) {
  const int record = int(blockIdx.x), tile = first_tile + int(blockIdx.y);
  std::byte* out = tiles + (int64_t(tile) * num_records + record) * 8192;
  const bool rest = record % per_input == 1;
  for (int unit = int(threadIdx.x); unit < 512; unit += int(blockDim.x)) {
    const int feature = unit / 8, row = int(blockIdx.y) * 64 + feature;
    __nv_bfloat16 values[8];
    for (int j = 0; j < 8; ++j) {
      const int64_t k = int64_t(record / per_input) * 64 + unit % 8 * 8 + j;
      float value = 0;
      if (row < source.num_rows && k < source.in_dim) {
        if (!source.rows) {
          const uint64_t index = (uint64_t(tile) * 64 + uint64_t(feature)) * uint64_t(source.in_dim) + uint64_t(k);
          value = (float(random_bits(source.seed, index) & 0xffff) - 32767.5f) * (source.spread / 18918.6f);
        } else {
          const std::byte* at = source.rows + row * source.row_bytes;
          if constexpr (kType == DType::F32) value = reinterpret_cast<const float*>(at)[k];
          if constexpr (kType == DType::F16) value = __half2float(reinterpret_cast<const __half*>(at)[k]);
          if constexpr (kType == DType::BF16) value = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(at)[k]);
        }
      }
      values[j] = __float2bfloat16_rn(value);
      if (rest) values[j] = __float2bfloat16_rn(value - __bfloat162float(values[j]));
    }
    *reinterpret_cast<uint4*>(out + swizzled(feature, unit % 8 * 8)) = *reinterpret_cast<const uint4*>(values);
  }
}

void pack(DType dtype, const Source& source, const CudaWeight& weight, int first_tile, int num_tiles) {
  const auto run = [&]<DType kType>() {
    const dim3 grid(unsigned(weight.num_records), unsigned(num_tiles));
    if constexpr (has_codes(kType)) pack_codes<kType><<<grid, 128>>>(source, weight.tiles, first_tile, weight.num_records);
    else pack_elements<kType><<<grid, 128>>>(source, weight.tiles, first_tile, weight.num_records, weight.records_per_input);
    HUNCH_CUDA_CHECK(cudaGetLastError());
  };
  switch (dtype) {
    case DType::F32: return run.template operator()<DType::F32>();
    case DType::F16: return run.template operator()<DType::F16>();
    case DType::BF16: return run.template operator()<DType::BF16>();
    case DType::Q8_0: return run.template operator()<DType::Q8_0>();
    case DType::Q4_0: return run.template operator()<DType::Q4_0>();
    case DType::Q4_K: return run.template operator()<DType::Q4_K>();
    case DType::Q5_K: return run.template operator()<DType::Q5_K>();
    case DType::Q6_K: return run.template operator()<DType::Q6_K>();
    case DType::F8_E4M3: return run.template operator()<DType::F8_E4M3>();
    case DType::MXFP4: return run.template operator()<DType::MXFP4>();
    case DType::I16: break;
  }
}

std::unique_ptr<CudaWeight> make(DType dtype, int64_t out_dim, int64_t in_dim) {
  HUNCH_CHECK(out_dim > 0 && in_dim > 0 && in_dim % dtype_info(dtype).block == 0);
  auto weight = std::make_unique<CudaWeight>();
  weight->dtype = dtype, weight->out_dim = out_dim, weight->in_dim = in_dim;
  weight->form = has_codes(dtype) ? dtype : DType::BF16;
  weight->records_per_input = dtype == DType::F32 ? 2 : 1;
  const RecordShape shape = record_shape(dtype);
  weight->num_tiles = int((out_dim + kTileFeatures - 1) / kTileFeatures);
  weight->num_records = int((in_dim + shape.inputs - 1) / shape.inputs) * weight->records_per_input;
  // Wide matrices fill the device by their features; the others are cut along the inputs where there is enough to read.
  weight->splits = out_dim > 8192 || in_dim < 1024 ? 1 : in_dim < 2048 ? 2 : 4;
  weight->bytes = size_t(weight->num_tiles) * weight->num_records * shape.bytes;
  constexpr size_t kCountBytes = 2 * sizeof(int32_t);
  if (cudaMalloc(&weight->tiles, weight->bytes) != cudaSuccess || cudaMalloc(&weight->packed_count, kCountBytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  HUNCH_CUDA_CHECK(cudaMemset(weight->packed_count, 0, kCountBytes));
  return weight;
}

std::atomic<uint64_t> num_freed{0};

}

uint64_t weights_freed() { return num_freed; }

CudaWeight::~CudaWeight() {
  ++num_freed;
  (void)cudaFree(tiles);
  (void)cudaFree(packed_count);
}

std::unique_ptr<Weight> load_cuda_weight(const Tensor& matrix) {
  HUNCH_CHECK(matrix.shape.size() == 2);
  auto weight = make(matrix.dtype, matrix.shape[0], matrix.shape[1]);
  if (!weight) return nullptr;
  const int64_t row_bytes = int64_t(dtype_bytes(matrix.dtype, weight->in_dim));
  const int64_t tile_bytes = row_bytes * kTileFeatures;
  const int step = int(std::clamp<int64_t>(int64_t(kPieceBytes) / tile_bytes, 1, std::min(weight->num_tiles, 32768)));
  std::byte* piece = nullptr;
  if (cudaMalloc(&piece, size_t(step) * tile_bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  WeightScales scales = matrix.scales;
  void* scale_values = nullptr;
  if (scales.values) {
    // Packing takes one for 64 inputs; the checkpoint refuses other blocks.
    HUNCH_CHECK(scales.columns % kPartInputs == 0 || scales.columns >= weight->in_dim);
    const size_t bytes = size_t((weight->out_dim + scales.rows - 1) / scales.rows) *
        size_t((weight->in_dim + scales.columns - 1) / scales.columns) * sizeof(float);
    if (cudaMalloc(&scale_values, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      (void)cudaFree(piece);
      return nullptr;
    }
    HUNCH_CUDA_CHECK(copy_to_device(scale_values, scales.values, bytes));
    scales.values = static_cast<const float*>(scale_values);
  }
  std::vector<std::byte> blocks;  // of the piece, where the file has codes and scales apart
  for (int tile = 0; tile < weight->num_tiles; tile += step) {
    const int tiles = std::min(step, weight->num_tiles - tile);
    const int64_t first = int64_t(tile) * kTileFeatures;
    const int rows = int(std::min<int64_t>(int64_t(tiles) * kTileFeatures, weight->out_dim - first));
    const std::byte* from = matrix.data + first * row_bytes;
    if (matrix.split.scales) {
      blocks.resize(rows * row_bytes), from = blocks.data();
      for (int row = 0; row < rows; ++row) pack_blocks(matrix, first + row, blocks.data() + row * row_bytes);
    }
    HUNCH_CUDA_CHECK(copy_to_device(piece, from, rows * row_bytes));
    pack(matrix.dtype, {piece, row_bytes, weight->in_dim, rows, 0, 0, scales, first}, *weight, tile, tiles);
  }
  HUNCH_CUDA_CHECK(cudaDeviceSynchronize());
  HUNCH_CUDA_CHECK(cudaFree(piece));
  HUNCH_CUDA_CHECK(cudaFree(scale_values));
  return weight;
}

std::unique_ptr<Weight> random_weight(DType dtype, int64_t out_dim, int64_t in_dim, uint64_t seed, float spread) {
  auto weight = make(dtype, out_dim, in_dim);
  if (!weight) return nullptr;
  for (int tile = 0; tile < weight->num_tiles; tile += 32768) {
    const int tiles = std::min(32768, weight->num_tiles - tile);
    const int64_t rows = std::min<int64_t>(int64_t(tiles) * kTileFeatures, out_dim - int64_t(tile) * kTileFeatures);
    pack(dtype, {nullptr, 0, in_dim, int(rows), seed, spread, {}, 0}, *weight, tile, tiles);
  }
  HUNCH_CUDA_CHECK(cudaDeviceSynchronize());
  return weight;
}

}
