// Barriers, the copy engine and named barriers as attention uses them.
#pragma once

#include <cuda.h>

#include "backend/cuda/hopper.h"

namespace hunch {

// Arrives once the 16-byte copies that this thread started before are done.
HUNCH_DEVICE void barrier_arrive_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
HUNCH_DEVICE void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
HUNCH_DEVICE void copy_box(uint32_t to, const CUtensorMap* map, int row, int part, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], "
      "[%5], %6;" ::"r"(to),
      "l"(map), "r"(0), "r"(row), "r"(part), "r"(barrier), "l"(policy)
      : "memory");
}
// A store that was made where another one was: what the copy engine remembers of a map at this address is not the map any more.
HUNCH_DEVICE void forget_map(const CUtensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
HUNCH_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}
