// The kernels for AVX2 with FMA and F16C (x86-64-v3). See isa_bodies.h.
#if defined(__x86_64__)
#include "backend/cpu/isa_headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt")
#endif
#define HUNCH_ISA avx2
#define HUNCH_LEVEL 1
#include "backend/cpu/isa_bodies.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace hunch {

const KernelTable& kernels_avx2() {
  static const KernelTable table = avx2::make_kernels("avx2");
  return table;
}

}  // namespace hunch
#endif
