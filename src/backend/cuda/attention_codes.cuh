// Producers of attention over stores of 8-bit codes (FP8, Q8_0). Codes come to a place of their warp's own, half a tile at a
// time, are widened to fp16 and stand in the ring, swizzled, as if the cache held that: consumers, and rows' bits, are those of
// fp16. While a half is widened the next tile's other half is on its way. An FP8 code is exact in fp16, its layer's scale goes
// into that of logits and into the folding of values (attention.cu); a Q8_0 code times its scale, both in fp16, is rounded once.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "backend/cuda/attention_stream.cuh"

namespace hunch {

struct Coded {};  // in place of the type of a store: codes on the way in, products as of fp16

HUNCH_DEVICE uint4 load_shared(uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from));
  return x;
}
HUNCH_DEVICE void store_shared(uint32_t to, const uint4& x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// Four codes as fp16.
HUNCH_DEVICE uint2 widened_fp8(uint32_t codes) {
  const auto pair = [](uint32_t two) {
    const __half2_raw both = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(two), __NV_E4M3);
    return uint32_t(both.x) | uint32_t(both.y) << 16;
  };
  return make_uint2(pair(codes), pair(codes >> 16));
}
// The scales of K and V as fp16, times 128: where fp16 holds the values it then holds the scale to 11 bits.
HUNCH_DEVICE uint32_t int8_scales(float2 scales) {
  const __half2 both = __floats2half2_rn(scales.x * 128, scales.y * 128);
  return *reinterpret_cast<const uint32_t*>(&both);
}
// `scale`: one of int8_scales(), twice. 1,024 + 128 + code by its bits, then code / 128, which is exact.
HUNCH_DEVICE uint2 widened_int8(uint32_t codes, uint32_t scale) {
  codes ^= 0x80808080u;
  const auto pair = [&](uint32_t bytes) {
    const uint32_t shifted = __byte_perm(codes, 0x64646464u, bytes);
    const __half2 unscaled =
        __hfma2(*reinterpret_cast<const __half2*>(&shifted), __float2half2_rn(1.0f / 128), __float2half2_rn(-9.0f));
    const __half2 both = __hmul2(unscaled, *reinterpret_cast<const __half2*>(&scale));
    return *reinterpret_cast<const uint32_t*>(&both);
  };
  return make_uint2(pair(0x4140), pair(0x4342));
}
template <bool kIntegers>
HUNCH_DEVICE uint4 widened(uint32_t low, uint32_t high, uint32_t scale) {
  const uint2 a = kIntegers ? widened_int8(low, scale) : widened_fp8(low);
  const uint2 b = kIntegers ? widened_int8(high, scale) : widened_fp8(high);
  return make_uint4(a.x, a.y, b.x, b.y);
}

// kAtOnce: pieces of codes that are loaded together, as registers allow.
template <class Shared, bool kPaired, int kAtOnce>
class CodeProducer {
 public:
  HUNCH_DEVICE CodeProducer(const AttentionDevice& args, uint32_t shared, char* memory)
      : args_(args), shared_(shared), memory_(memory), lane_(int(threadIdx.x) % 32) {
    const int ring = int(threadIdx.x) / kRingThreads, warp = int(threadIdx.x) / 32;
    const int piece = lane_ % kPieces, of_row = piece % (kPieces / 2), row = lane_ / kPieces;
    // Lanes that are four pieces apart begin with another half of theirs: no two of a turn meet in a bank.
    swaps_ = piece / 4 % 2;
    to_ = shared +
        uint32_t(Shared::kRings + ring * Shared::kStages * Shared::kStageBytes +
            piece / (kPieces / 2) * (Shared::kStageBytes / 2) + of_row / 4 * 8192 + row * 128 +
            ((of_row % 4 * 2 + int(swaps_)) ^ row) * 16);
    full_ = shared + Shared::kBarriers + uint32_t(ring * 2 * Shared::kStages * 8);
    slot_ = shared + uint32_t(Shared::kCodes + warp * Shared::kCodeBytes), codes_ = slot_ + uint32_t(lane_ * 16);
    arrived_ = shared + Shared::kArrived + uint32_t(warp * 2 * 8);
    integers_ = args.runs[0].plane.dtype == DType::Q8_0;
  }

  HUNCH_DEVICE void run() {
    const uint64_t policy = args_.reread ? policy_normal() : policy_read_once();
    for_own_tiles<Shared, kPaired>(
        args_, shared_, memory_, [](const AttentionRunDevice&) {},
        [&](const AttentionRunDevice& run, const int32_t* pages, int kv_head, int end_entry, int block, int leaf, int stage,
            uint32_t phase) {
          const std::byte* head = run.plane.keys + kv_head * run.plane.head_bytes;
          // Of a page what is in a half lies together; else each lane fetches a line.
          const bool lines = run.index || leaf >= 0;
          int rows[2];
          if (lines) look_up_rows(rows, run, pages, kv_head, end_entry, block, leaf);
          else rows[0] = pages[block] * kPageLen + lane_, rows[1] = rows[0] + 32;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = rows[half];
            const std::byte* page = head + int64_t(row / kPageLen) * run.plane.chunk_bytes;
            if (widens_) widen(half);
            __syncwarp();  // everybody has read what stood there
            const uint32_t to = slot_ + uint32_t(half * kHalfBytes), arrives = arrived_ + uint32_t(half * 8);
            if (lane_ == 0) barrier_arrive_and_expect(arrives, kHalfBytes);
            __syncwarp();
            if (lines) copy_to_shared(to + uint32_t(lane_ * kLine), page + row % kPageLen * kLine, kLine, arrives, policy);
            else if (lane_ == 0) copy_to_shared(to, page + half * kHalfBytes, kHalfBytes, arrives, policy);
            if (integers_)  // past the L1, which may know a neighbour of it as it was before
              scales_[half] = int8_scales(__ldcg(reinterpret_cast<const float2*>(page + kPageLen * kLine) + row % kPageLen));
          }
          if (widens_) parity_ ^= 1;
          widens_ = true, stage_ = stage, phase_ = phase;
        });
    if (!widens_) return;
    widen(0);
    widen(1);
  }

 private:
  static constexpr int D = Shared::kHeadDim, kLine = 2 * D, kHalfBytes = 32 * kLine, kPieces = kLine / 16;

  HUNCH_DEVICE void widen(int half) {
    barrier_poll(arrived_ + uint32_t(half * 8), parity_);
    if (half == 0) barrier_poll(full_ + uint32_t((Shared::kStages + stage_) * 8), phase_ ^ 1);
    if (integers_) widen<true>(half);
    else widen<false>(half);
    if (half == 0) return;
    show_to_tensor_cores();
    barrier_arrive(full_ + uint32_t(stage_ * 8));
  }
  // Half of the tile that came last to its stage, 16 codes of a row of K or V at a time. Loads of some such pieces go together,
  // those of the next ones before these are stored: one warp hides its own latency.
  template <bool kIntegers>
  HUNCH_DEVICE void widen(int half) {
    constexpr int kRows = 32 / kPieces;  // that a piece of all lanes is of
    const uint32_t from = codes_ + uint32_t(half * kHalfBytes), to = to_ + uint32_t(stage_ * Shared::kStageBytes + half * 4096);
    uint4 codes[2][kAtOnce];
    const auto load = [&](int i) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) codes[i / kAtOnce % 2][j] = load_shared(from + uint32_t((i + j) * 512));
    };
    load(0);
#pragma unroll
    for (int i = 0; i < kPieces; i += kAtOnce) {
      if (i + kAtOnce < kPieces) load(i + kAtOnce);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const uint4 c = codes[i / kAtOnce % 2][j];
        uint32_t scale = 0;
        if constexpr (kIntegers) {
          const uint32_t scales = __shfl_sync(~0u, scales_[half], (i + j) * kRows + lane_ / kPieces);
          scale = __byte_perm(scales, 0, lane_ % kPieces < kPieces / 2 ? 0x1010 : 0x3232);
        }
        // Rows of a turn, and turns, have bits of their own in the swizzle.
        const uint32_t at = (to ^ uint32_t((i + j) * kRows % 8 * 16)) + uint32_t((i + j) * kRows * 128);
        store_shared(at, widened<kIntegers>(swaps_ ? c.z : c.x, swaps_ ? c.w : c.y, scale));
        store_shared(at ^ 16, widened<kIntegers>(swaps_ ? c.x : c.z, swaps_ ? c.y : c.w, scale));
      }
    }
  }

  const AttentionDevice& args_;
  const uint32_t shared_;
  char* const memory_;
  const int lane_;
  uint32_t to_, full_, slot_, codes_, arrived_;  // to_: of the lane's first codes in stage 0
  bool integers_, swaps_;
  uint32_t scales_[2] = {};  // of the lane's rows of each half: Q8_0
  // The tile whose codes are there, or on their way.
  bool widens_ = false;
  int stage_ = 0;
  uint32_t phase_ = 0, parity_ = 0;
};

}
