// PTX that several kernels use. Programmatic dependent launch: a kernel may be started while the one before it still runs.
// Kernels of Hopper alone (tensor cores by warpgroup, copy engine, clusters of blocks) are empty for other devices, which run the
// plain forms instead: HUNCH_HOPPER is 1 where their bodies are compiled.
#pragma once

#define HUNCH_DEVICE __device__ __forceinline__
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define HUNCH_HOPPER 1
#define HUNCH_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define HUNCH_HOPPER 0
#define HUNCH_CLUSTER(blocks)
#endif

namespace hunch {

// Until here a kernel may read only its arguments and what no kernel that may still run writes (weights): returns when all that
// the kernels before it wrote is visible. EVERY kernel calls it, in every thread that touches other memory, before it does.
HUNCH_DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the kernel behind start (it still waits for this one's end in wait_for_previous()). Best early, to hide its prologue; past
// wait_for_previous() all that came before this kernel is done.
HUNCH_DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}
