#include "backend/cuda/spare_memory.h"

#include <cuda_runtime.h>

namespace hunch {

Buffer spare_memory(size_t bytes) {
  constexpr size_t kLeft = size_t(256) << 20;  // for lists of kernels and their scratch, which have no other place
  size_t free = 0, total = 0;
  void* data = nullptr;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess && free > bytes + kLeft && cudaMalloc(&data, bytes) == cudaSuccess)
    return Buffer(data, bytes, [](void* memory, size_t) { (void)cudaFree(memory); });
  if (cudaMallocHost(&data, bytes) == cudaSuccess)
    return Buffer(data, bytes, [](void* memory, size_t) { (void)cudaFreeHost(memory); });
  (void)cudaGetLastError();
  return {};
}

}
