#include "backend/cuda/device.h"

#include <fmt/format.h>

#include "backend/cuda/small.h"

namespace hunch {

Error cuda_error(cudaError_t code, const std::string& doing) {
  return Error{fmt::format("CUDA: {} ({}) while {}", cudaGetErrorString(code), cudaGetErrorName(code), doing)};
}

const DeviceFacts& device_facts() {
  static const DeviceFacts facts = [] {
    cudaDeviceProp prop;
    HUNCH_CUDA_CHECK(cudaGetDeviceProperties(&prop, 0));
    return DeviceFacts{.name = prop.name,
        .major = prop.major,
        .minor = prop.minor,
        .num_sms = prop.multiProcessorCount,
        .l2_bytes = size_t(prop.l2CacheSize),
        .shared_bytes = prop.sharedMemPerBlockOptin,
        .memory = prop.totalGlobalMem};
  }();
  return facts;
}

bool is_hopper() {
  static const bool is = [] {
    int compiled_for = 0;
    return device_facts().major == 9 && look_for_code(&compiled_for) == cudaSuccess && compiled_for >= 90 &&
        !std::getenv("HUNCH_CUDA_PLAIN");
  }();
  return is;
}

cudaError_t copy_to_device(void* to, const void* from, size_t bytes) {
  const cudaError_t code = cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
  return code == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : code;
}

}
