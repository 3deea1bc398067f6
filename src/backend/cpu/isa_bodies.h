// The kernel bodies of one instruction set and the table that exports them. Included by instances/*.cpp with HUNCH_ISA (the
// namespace, and the name that --isa takes), HUNCH_LEVEL (0 portable, 1 avx2, 2 avx512, 3 avx512_vnni, 4 avx512_bf16) and, for
// all but the portable one, HUNCH_TARGET (as compilers call what they may use) defined.
#pragma once

#if !defined(HUNCH_TARGET) || defined(__x86_64__)
#include "backend/cpu/isa_headers.h"

#define HUNCH_TEXT(...) #__VA_ARGS__
#define HUNCH_TEXT_OF(x) HUNCH_TEXT(x)
#define HUNCH_PRAGMA(...) _Pragma(HUNCH_TEXT(__VA_ARGS__))
#define HUNCH_JOIN(a, b) a##b
#define HUNCH_JOINED(a, b) HUNCH_JOIN(a, b)

#if !defined(HUNCH_TARGET)
#elif defined(__clang__)
HUNCH_PRAGMA(clang attribute push(__attribute__((target(HUNCH_TARGET))), apply_to = function))
#else
#pragma GCC push_options
HUNCH_PRAGMA(GCC target(HUNCH_TARGET))
#endif

// clang-format off
#include "backend/cpu/simd.h"
#include "backend/cpu/attention_block_body.h"
#include "backend/cpu/attention_codes_body.h"
#include "backend/cpu/score_body.h"
#include "backend/cpu/store_kv_body.h"
#include "backend/cpu/attention_tree_body.h"
#include "backend/cpu/attention_body.h"
#include "backend/cpu/nsa_block_body.h"
#include "backend/cpu/nsa_body.h"
#include "backend/cpu/gather_body.h"
#include "backend/cpu/bounds_body.h"
#include "backend/cpu/gather_codes_body.h"
#include "backend/cpu/top_k_body.h"
#include "backend/cpu/matmul_body.h"
#include "backend/cpu/rows_body.h"
// clang-format on

namespace hunch::HUNCH_ISA {

// Each body defines `<Name>Kernels <name>_kernels()`, which fills its table: as this is compiled, since the machine that looks
// into it may not have the instructions.
static constexpr KernelTable make_kernels() {
  return {HUNCH_TEXT_OF(HUNCH_ISA), attention_kernels(), nsa_kernels(), gather_kernels(), bounds_kernels(), top_k_kernels(),
      matmul_kernels(), rows_kernels()};
}

}

#if !defined(HUNCH_TARGET)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace hunch {

const KernelTable& HUNCH_JOINED(kernels_, HUNCH_ISA)() {
  static constexpr KernelTable table = HUNCH_ISA::make_kernels();
  return table;
}

}
#endif
