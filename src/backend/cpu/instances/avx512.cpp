// The kernels for AVX-512 F, BW, VL, DQ (x86-64-v4). See isa_bodies.h.
#if defined(__x86_64__)
#include "backend/cpu/isa_headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt")
#endif
#define HUNCH_ISA avx512
#define HUNCH_LEVEL 2
#include "backend/cpu/isa_bodies.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace hunch {

const KernelTable& kernels_avx512() {
  static const KernelTable table = avx512::make_kernels("avx512");
  return table;
}

}  // namespace hunch
#endif
