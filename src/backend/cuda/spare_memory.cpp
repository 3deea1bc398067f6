#include "backend/cuda/spare_memory.h"

#include <cuda_runtime.h>

#include <mutex>
#include <unordered_map>
#include <vector>

namespace hunch {

bool has_spare_memory(size_t bytes) {
  constexpr size_t kLeft = size_t(256) << 20;  // for lists of kernels and their scratch, which have no other place
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess && free > bytes + kLeft;
}

Buffer spare_memory(size_t bytes) {
  void* data = nullptr;
  if (has_spare_memory(bytes) && cudaMalloc(&data, bytes) == cudaSuccess)
    return Buffer(data, bytes, [](void* memory, size_t) { (void)cudaFree(memory); });
  return pinned_memory(bytes);
}

Buffer pinned_memory(size_t bytes) {
  static constexpr size_t kSmall = 1 << 16;
  static auto& kept = *new std::unordered_map<size_t, std::vector<void*>>;  // by bytes; buffers may outlive what is static
  static auto& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  void* data = nullptr;
  if (auto& pieces = kept[bytes]; !pieces.empty()) data = pieces.back(), pieces.pop_back();
  else if (cudaMallocHost(&data, bytes) != cudaSuccess) return (void)cudaGetLastError(), Buffer();
  return Buffer(data, bytes, [](void* memory, size_t size) {
    if (size > kSmall) return (void)cudaFreeHost(memory);
    const std::lock_guard lock(mutex);
    kept[size].push_back(memory);
  });
}

}
