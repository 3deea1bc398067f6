// The kernels for AVX-512 with BF16 and VNNI dot products (Zen 4, Cooper Lake, Sapphire Rapids). See isa_bodies.h.
#if defined(__x86_64__)
#include "backend/cpu/isa_headers.h"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt")
#endif
#define HUNCH_ISA avx512_bf16
#define HUNCH_LEVEL 3
#include "backend/cpu/isa_bodies.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace hunch {

const KernelTable& kernels_avx512_bf16() {
  static const KernelTable table = avx512_bf16::make_kernels("avx512_bf16");
  return table;
}

}  // namespace hunch
#endif
