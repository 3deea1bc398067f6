// All that kernel bodies may use from outside their instruction set, included by instances/*.cpp BEFORE the target region opens:
// an inline function of these headers must never be compiled for AVX-512 and linked into the portable path. So bodies take
// pointers and plain structs, and instantiate no template of std or of another folder.
#pragma once

#if defined(__x86_64__)
#if !defined(__clang__)
// GCC 12 takes the deliberately undefined operands inside its own intrinsics for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/ops/kv.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/half.h"
