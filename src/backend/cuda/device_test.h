// For tests of this backend: memory on the device, and a word when there is no device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "backend/cuda/device.h"
#include "tensor/test_view.h"

namespace hunch::test {

inline bool have_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}
#define HUNCH_NEEDS_DEVICE() \
  if (!hunch::test::have_device()) GTEST_SKIP() << "no device"

// Kernels that other devices have no form of (host_ops.h).
#define HUNCH_NEEDS_HOPPER() \
  if (!hunch::test::have_device() || !is_hopper()) GTEST_SKIP() << "no Hopper device"

// Under compute-sanitizer a kernel takes a hundred times as long: HUNCH_TEST_EVERY=N leaves every Nth case of tests with many.
inline bool left_out() {
  static const char* const given = std::getenv("HUNCH_TEST_EVERY");
  static const int every = given ? std::max(1, std::atoi(given)) : 1;
  static int seen = 0;
  return ++seen % every != 0;
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) { HUNCH_CUDA_CHECK(cudaMalloc(&data_, count * sizeof(T) + 16)); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    HUNCH_CUDA_CHECK(copy_to_device(data_, values.data(), count_ * sizeof(T)));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() const { return data_; }
  size_t size() const { return count_; }
  std::vector<T> get() const {  // after Commands::wait()
    std::vector<T> values(count_);
    HUNCH_CUDA_CHECK(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

}
