// The kernels for AVX-512 with VNNI dot products (Cascade Lake and newer).
#define HUNCH_ISA avx512_vnni
#define HUNCH_LEVEL 3
#define HUNCH_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,bmi,bmi2,popcnt,lzcnt"
#include "backend/cpu/isa_bodies.h"
