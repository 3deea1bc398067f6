// The kernels for AVX2 with FMA and F16C (x86-64-v3).
#define HUNCH_ISA avx2
#define HUNCH_LEVEL 1
#define HUNCH_TARGET "avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt"
#include "backend/cpu/isa_bodies.h"
