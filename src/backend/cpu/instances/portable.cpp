// The kernels for any machine: baseline code, compiler vectors.
#define HUNCH_ISA portable
#define HUNCH_LEVEL 0
#include "backend/cpu/isa_bodies.h"
