// What every file of this backend needs of CUDA: errors as values, errors as bugs, and the device's facts.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "base/check.h"
#include "base/result.h"

namespace hunch {

// "CUDA: out of memory (cudaErrorMemoryAllocation) while allocating 3 bytes"
Error cuda_error(cudaError_t code, const std::string& doing);

// For calls that fail only through a bug of ours.
#define HUNCH_CUDA_CHECK(call) \
  do { \
    const cudaError_t code_ = (call); \
    HUNCH_CHECK(code_ == cudaSuccess); \
  } while (0)

struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0, num_sms = 0;
  size_t l2_bytes = 0, shared_bytes = 0;  // L2; dynamic shared memory that one block may have
  size_t memory = 0;
};
// Facts of the device in use; asked once.
const DeviceFacts& device_facts();
// Whether the kernels of HUNCH_HOPPER (ptx.h) run here: on such a device, by a build that holds them. Elsewhere the plain forms
// do, and everywhere where HUNCH_CUDA_PLAIN is set, for tests.
bool is_hopper();

// Copies host memory, and returns when the device has it. cudaMemcpy alone may return before: with the end of the data still on
// its way, which a kernel of a stream that does not wait for the default stream (all of ours) would read as it was.
cudaError_t copy_to_device(void* to, const void* from, size_t bytes);

}
