// KernelTable: the functions of one instruction set level. One table per instances/*.cpp; CpuBackend picks one when it is made.
#pragma once

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/bounds_kernels.h"
#include "backend/cpu/gather_kernels.h"
#include "backend/cpu/matmul_kernels.h"
#include "backend/cpu/nsa_kernels.h"
#include "backend/cpu/rows_kernels.h"
#include "backend/cpu/top_k_kernels.h"
#include "backend/isas.h"
#include "base/result.h"

namespace hunch {

struct KernelTable {
  const char* isa = "";  // as --isa takes and prints it
  AttentionKernels attention;
  NsaKernels nsa;
  GatherKernels gather;
  BoundsKernels bounds;
  TopKKernels top_k;
  MatmulKernels matmul;
  RowsKernels rows;
};

const KernelTable& kernels_portable();
#if defined(__x86_64__)
const KernelTable& kernels_avx2();
const KernelTable& kernels_avx512();
const KernelTable& kernels_avx512_vnni();
const KernelTable& kernels_avx512_bf16();
#endif

// The table called `isa`, or the best one for an empty name. An error if the name is unknown or this machine lacks it.
Result<const KernelTable*> choose_kernels(std::string_view isa);

}
