// What any device from compute capability 8.0 on has for tiles of shared memory: copies of 16 bytes that come later, and matrices
// as operands. PTX ISA, "cp.async", "ldmatrix".
#pragma once

#include <cstdint>

#include "backend/cuda/ptx.h"

namespace hunch {

HUNCH_DEVICE void load_matrices(uint32_t (&r)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
HUNCH_DEVICE void load_transposed(uint32_t (&r)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
HUNCH_DEVICE void copy_16_or_zeros(uint32_t to, const void* from, bool stands) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(stands ? 16 : 0) : "memory");
}
HUNCH_DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
HUNCH_DEVICE void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}
