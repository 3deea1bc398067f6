// The kernel bodies of one instruction set and the table that exports them. Included by instances/*.cpp inside a target region,
// with HUNCH_ISA (the namespace) and HUNCH_LEVEL (0 portable, 1 avx2, 2 avx512, 3 avx512_bf16) defined.
#pragma once

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

// Each body defines `<Name>Kernels <name>_kernels()`, which fills its table.
static KernelTable make_kernels(const char* name) {
  KernelTable table;
  table.isa = name;
  table.attention = attention_kernels();
  table.nsa = nsa_kernels();
  table.gather = gather_kernels();
  table.bounds = bounds_kernels();
  table.top_k = top_k_kernels();
  table.matmul = matmul_kernels();
  table.rows = rows_kernels();
  return table;
}

}  // namespace hunch::HUNCH_ISA
