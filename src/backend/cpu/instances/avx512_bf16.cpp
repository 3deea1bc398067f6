// The kernels for AVX-512 with BF16 and VNNI dot products (Zen 4 and newer; Intel: kernels.cpp).
#define HUNCH_ISA avx512_bf16
#define HUNCH_LEVEL 4
#define HUNCH_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt"
#include "backend/cpu/isa_bodies.h"
