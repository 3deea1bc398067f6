// The tensor cores of Hopper as products use them: out[64 features][N rows] += weights[64][16] activations[N][16]^T in bf16 with
// fp32 sums, asynchronous, issued by 4 warps together; and the copy engine with its barriers. PTX ISA, "wgmma", "mbarrier",
// "cp.async.bulk". Thread t of the 128 holds of a sum: register 4j + i is feature 16 (t / 32) + t % 32 / 4 + 8 (i / 2), row
// 8 j + 2 (t % 4) + i % 2. Of a register operand: register i is feature (as above, 8 (i % 2)), inputs 2 (t % 4) + 8 (i / 2) + {0,
// 1}.
#pragma once

#include "backend/cuda/hopper.h"
#include "backend/cuda/ptx.h"

namespace hunch {

// Shared memory [rows][64 bf16], each 8 rows a block of 1 KiB with 16-byte units exchanged (unit ^ row % 8), at a multiple of 1
// KiB.
HUNCH_DEVICE uint64_t tile_descriptor(uint32_t shared_address) {
  return uint64_t((shared_address & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}
// Its low word, which alone moves: adding 1 goes on by 16 bytes.
HUNCH_DEVICE uint32_t tile_operand(uint32_t shared_address) { return uint32_t(tile_descriptor(shared_address)); }

// copy_to_shared() into the shared memory of those blocks of a cluster, at the same place and counted by the same barrier in
// each.
HUNCH_DEVICE void copy_to_blocks(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, int blocks, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1], %2, [%3], "
      "%4, %5;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(uint16_t(blocks)), "l"(policy)
      : "memory");
}
// Arrives at the barrier in the block of the cluster with this rank.
HUNCH_DEVICE void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
HUNCH_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
HUNCH_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
HUNCH_DEVICE void sync_cluster() {  // threads that have exited are not waited for
  cluster_arrive();
  cluster_wait();
}
HUNCH_DEVICE bool barrier_done(uint32_t barrier, uint32_t parity) {  // asks once
  uint32_t done;
  asm volatile(
      "{.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// Orders memory written by ordinary stores and the copy engine's reads of it.
HUNCH_DEVICE void show_to_copy_engine() { asm volatile("fence.proxy.async;" ::: "memory"); }
// Single words that other blocks write or read meanwhile; no order among them.
HUNCH_DEVICE uint32_t load_relaxed(const uint32_t* p) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}
HUNCH_DEVICE void store_relaxed(uint32_t* p, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}
HUNCH_DEVICE int load_acquire(const int* p) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

HUNCH_DEVICE void add_release(int* p, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

// Words of shared memory by their 32-bit address.
HUNCH_DEVICE uint32_t load_4(uint32_t from) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
HUNCH_DEVICE uint2 load_8(uint32_t from) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from) : "memory");
  return x;
}
HUNCH_DEVICE uint4 load_16(uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from) : "memory");
  return x;
}

HUNCH_DEVICE uint32_t bf16x2_mul(uint32_t a, uint32_t b) {
  uint32_t d;
#if HUNCH_HOPPER
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else  // a b + -0
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
#endif
  return d;
}
HUNCH_DEVICE uint32_t bf16x2_fma(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Rounds to nearest even; `low` goes to the low half.
HUNCH_DEVICE uint32_t bf16x2_of(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// d (+)= a b^T; without `add` d starts from zero. Both as descriptors, or `a` in registers and `b` as a tile_operand().
template <int N>
__device__ void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool add);
template <int N>
__device__ void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint32_t b, bool add);

// The assembler wants every register of the sums by its name and its number.
#define HUNCH_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HUNCH_D8(i) HUNCH_D4(i), HUNCH_D4(i + 4)
#define HUNCH_D16(i) HUNCH_D8(i), HUNCH_D8(i + 8)
#define HUNCH_D32(i) HUNCH_D16(i), HUNCH_D16(i + 16)
#define HUNCH_D64(i) HUNCH_D32(i), HUNCH_D32(i + 32)
#define HUNCH_N4 "%0, %1, %2, %3"
#define HUNCH_N8 HUNCH_N4 ", %4, %5, %6, %7"
#define HUNCH_N16 HUNCH_N8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define HUNCH_N24 HUNCH_N16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define HUNCH_N32 HUNCH_N24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define HUNCH_N48 HUNCH_N32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define HUNCH_N56 HUNCH_N48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define HUNCH_N64 HUNCH_N56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define HUNCH_N80 HUNCH_N64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define HUNCH_N96 HUNCH_N80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HUNCH_N128 \
  HUNCH_N96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define HUNCH_SUMS(...) __VA_ARGS__
// i0, i1, ...: the numbers that follow those of the sums.
#define HUNCH_WGMMA(n, names, sums, i0, i1, i2, i3, i4, i5) \
  template <> \
  HUNCH_DEVICE void wgmma<n>(float(&d)[n / 2], uint64_t a, uint64_t b, bool add) { \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #i2 \
                 ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, %" #i0 ", %" #i1 ", p, 1, 1, 0, 0;}\n" \
                 : sums \
                 : "l"(a), "l"(b), "r"(int(add))); \
  } \
  template <> \
  HUNCH_DEVICE void wgmma<n>(float(&d)[n / 2], const uint32_t(&a)[4], uint32_t b, bool add) { \
    asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %" #i5 ", 0;\nmov.b64 b, {%" #i4 \
                 ", 0x40000040};\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 \
                 "}, b, p, 1, 1, 0;}\n" \
                 : sums \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(int(add))); \
  }
HUNCH_WGMMA(8, HUNCH_N4, HUNCH_SUMS(HUNCH_D4(0)), 4, 5, 6, 7, 8, 9)
HUNCH_WGMMA(16, HUNCH_N8, HUNCH_SUMS(HUNCH_D8(0)), 8, 9, 10, 11, 12, 13)
HUNCH_WGMMA(32, HUNCH_N16, HUNCH_SUMS(HUNCH_D16(0)), 16, 17, 18, 19, 20, 21)
HUNCH_WGMMA(48, HUNCH_N24, HUNCH_SUMS(HUNCH_D16(0), HUNCH_D8(16)), 24, 25, 26, 27, 28, 29)
HUNCH_WGMMA(64, HUNCH_N32, HUNCH_SUMS(HUNCH_D32(0)), 32, 33, 34, 35, 36, 37)
HUNCH_WGMMA(96, HUNCH_N48, HUNCH_SUMS(HUNCH_D32(0), HUNCH_D16(32)), 48, 49, 50, 51, 52, 53)
HUNCH_WGMMA(112, HUNCH_N56, HUNCH_SUMS(HUNCH_D32(0), HUNCH_D16(32), HUNCH_D8(48)), 56, 57, 58, 59, 60, 61)
HUNCH_WGMMA(128, HUNCH_N64, HUNCH_SUMS(HUNCH_D64(0)), 64, 65, 66, 67, 68, 69)
HUNCH_WGMMA(160, HUNCH_N80, HUNCH_SUMS(HUNCH_D64(0), HUNCH_D16(64)), 80, 81, 82, 83, 84, 85)
HUNCH_WGMMA(192, HUNCH_N96, HUNCH_SUMS(HUNCH_D64(0), HUNCH_D32(64)), 96, 97, 98, 99, 100, 101)
HUNCH_WGMMA(256, HUNCH_N128, HUNCH_SUMS(HUNCH_D64(0), HUNCH_D64(64)), 128, 129, 130, 131, 132, 133)
#undef HUNCH_WGMMA

}
