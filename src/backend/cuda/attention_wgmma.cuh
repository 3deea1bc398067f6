// The products of attention on the tensor cores, as wgmma of one warpgroup: d[64][N] += a[64][16] b[N][16]^T for a tile of 64
// keys or dimensions and N packed rows. Both operands lie in shared memory in the 128-byte swizzle, sums are fp32. Thread t of
// the 128 holds of d: register 4 j + 2 h + e is row 16 (t / 32) + t % 32 / 4 + 8 h, column 8 j + 2 (t % 4) + e. PTX ISA, "wgmma",
// "stmatrix".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "backend/cuda/hopper.h"

namespace hunch {

// The low word of the matrix descriptor of an operand at a shared address, which counts in units of 16 bytes: adding to it goes
// on in memory. The high word is the same for all: 128-byte swizzle, groups of 8 rows 1024 bytes apart. `leading` in bytes.
HUNCH_DEVICE uint32_t wgmma_operand(uint32_t address, uint32_t leading) {
  return ((address >> 4) & 0x3fff) | (leading >> 4) << 16;
}

// Lists of N / 2 registers, as text and as operands.
#define HUNCH_TEXT_4 "%0, %1, %2, %3"
#define HUNCH_TEXT_8 HUNCH_TEXT_4 ", %4, %5, %6, %7"
#define HUNCH_TEXT_16 HUNCH_TEXT_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define HUNCH_TEXT_24 HUNCH_TEXT_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define HUNCH_TEXT_32 HUNCH_TEXT_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define HUNCH_TEXT_64 \
  HUNCH_TEXT_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HUNCH_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HUNCH_REGISTERS_4 HUNCH_FOUR(0)
#define HUNCH_REGISTERS_8 HUNCH_REGISTERS_4, HUNCH_FOUR(4)
#define HUNCH_REGISTERS_16 HUNCH_REGISTERS_8, HUNCH_FOUR(8), HUNCH_FOUR(12)
#define HUNCH_REGISTERS_24 HUNCH_REGISTERS_16, HUNCH_FOUR(16), HUNCH_FOUR(20)
#define HUNCH_REGISTERS_32 HUNCH_REGISTERS_24, HUNCH_FOUR(24), HUNCH_FOUR(28)
#define HUNCH_REGISTERS_64 \
  HUNCH_REGISTERS_32, HUNCH_FOUR(32), HUNCH_FOUR(36), HUNCH_FOUR(40), HUNCH_FOUR(44), HUNCH_FOUR(48), HUNCH_FOUR(52), \
      HUNCH_FOUR(56), HUNCH_FOUR(60)
// count registers are followed by operands number A to X: a, b, whether to add, whether a lies along its rows.
#define HUNCH_WGMMA(n, count, type, A, B, P, X) \
  asm volatile("{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %" #P ", 0;\nmov.b64 a, {%" #A ", 0x40000040}; mov.b64 b, {%" #B \
               ", 0x40000040};\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" HUNCH_TEXT_##count \
               "}, a, b, p, 1, 1, %" #X ", 0;}\n" \
               : HUNCH_REGISTERS_##count \
               : "r"(a), "r"(b), "r"(int(add)), "n"(int(kAlongRows)))
#define HUNCH_WGMMAS(type) \
  if constexpr (N == 8) HUNCH_WGMMA(8, 4, type, 4, 5, 6, 7); \
  else if constexpr (N == 16) HUNCH_WGMMA(16, 8, type, 8, 9, 10, 11); \
  else if constexpr (N == 32) HUNCH_WGMMA(32, 16, type, 16, 17, 18, 19); \
  else HUNCH_WGMMA(64, 32, type, 32, 33, 34, 35)

// kAlongRows: a stands in memory with its 64 rows in sequence (V: dimensions of an entry), else with its 16 elements (K).
template <class T, int N, bool kAlongRows>
HUNCH_DEVICE void wgmma_tile(float (&d)[N / 2], uint32_t a, uint32_t b, bool add) {
  static_assert(N == 8 || N == 16 || N == 32 || N == 64);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    HUNCH_WGMMAS("bf16");
  } else {
    HUNCH_WGMMAS("f16");
  }
}
#undef HUNCH_WGMMAS
#undef HUNCH_WGMMA

// The same with a in registers and b, 16 rows of N elements, in memory with its elements in sequence (P and V): register 2 h + e
// of a is row 16 (t / 32) + t % 32 / 4 + 8 h of it, columns 2 (t % 4) + 8 e and the next.
#define HUNCH_WGMMA(n, count, type, A, B) \
  asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, 1, 0;\nmov.b64 b, {%" #B \
               ", 0x40000040};\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" HUNCH_TEXT_##count \
               "}, {" A "}, b, p, 1, 1, 1;}\n" \
               : HUNCH_REGISTERS_##count \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b))
template <class T>
HUNCH_DEVICE void wgmma_values(float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) HUNCH_WGMMA(64, 32, "bf16", "%32, %33, %34, %35", 36);
  else HUNCH_WGMMA(64, 32, "f16", "%32, %33, %34, %35", 36);
}
template <class T>
HUNCH_DEVICE void wgmma_values(float (&d)[64], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) HUNCH_WGMMA(128, 64, "bf16", "%64, %65, %66, %67", 68);
  else HUNCH_WGMMA(128, 64, "f16", "%64, %65, %66, %67", 68);
}
#undef HUNCH_WGMMA
#undef HUNCH_REGISTERS_64
#undef HUNCH_TEXT_64
#undef HUNCH_REGISTERS_32
#undef HUNCH_REGISTERS_24
#undef HUNCH_REGISTERS_16
#undef HUNCH_REGISTERS_8
#undef HUNCH_REGISTERS_4
#undef HUNCH_FOUR
#undef HUNCH_TEXT_32
#undef HUNCH_TEXT_24
#undef HUNCH_TEXT_16
#undef HUNCH_TEXT_8
#undef HUNCH_TEXT_4

// The same sums by warps, 16 rows of d each: d[16][8] += a[16][16] b[8][16]^T, registers as a warp has them of wgmma.
template <class T>
HUNCH_DEVICE void mma_tile(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8 x 8 pieces of an operand; lane 8 m + i names the 16 bytes of row i of piece m.
template <bool kTransposed>
HUNCH_DEVICE void load_pieces(uint32_t (&x)[4], uint32_t from) {
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

// Stores 8 x 8 pieces of a sum, rounded, transposed: lane 8 m + i names the 16 bytes of column i of piece m.
HUNCH_DEVICE void store_transposed(uint32_t to, uint32_t p0, uint32_t p1, uint32_t p2, uint32_t p3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(p0), "r"(p1), "r"(p2), "r"(p3)
      : "memory");
}
HUNCH_DEVICE void store_transposed(uint32_t to, uint32_t p0, uint32_t p1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(p0), "r"(p1) : "memory");
}

}
