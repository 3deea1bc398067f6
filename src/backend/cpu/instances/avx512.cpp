// The kernels for AVX-512 F, BW, VL, DQ (x86-64-v4).
#define HUNCH_ISA avx512
#define HUNCH_LEVEL 2
#define HUNCH_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt"
#include "backend/cpu/isa_bodies.h"
