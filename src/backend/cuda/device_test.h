// For tests of this backend: memory on the device, and a word when there is no device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
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
  DeviceArray() = default;
  explicit DeviceArray(size_t count) : count_(count) {
    void* data = nullptr;
    HUNCH_CUDA_CHECK(cudaMalloc(&data, count * sizeof(T) + 16));
    data_.reset(static_cast<T*>(data));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    HUNCH_CUDA_CHECK(copy_to_device(data(), values.data(), count_ * sizeof(T)));
  }
  T* data() const { return data_.get(); }
  size_t size() const { return count_; }
  std::vector<T> get() const {  // after Commands::wait()
    std::vector<T> values(count_);
    HUNCH_CUDA_CHECK(cudaMemcpy(values.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  struct Free {
    void operator()(T* data) const { (void)cudaFree(data); }
  };
  std::unique_ptr<T, Free> data_;
  size_t count_ = 0;
};

}
