// The read bound of the device for matmul_bench_test.cpp: a plain sum over 4 GiB.
#include <algorithm>

#include "backend/cuda/commands.h"
#include "backend/cuda/device_test.h"
#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

struct SumArgs {
  const uint4* from;
  size_t count;
  uint32_t* out;
};
__global__ void __launch_bounds__(512) sum_kernel(const SumArgs* args) {
  wait_for_previous();
  const SumArgs a = *args;
  uint32_t sum = 0;
  const size_t stride = size_t(gridDim.x) * blockDim.x;
  size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  for (; i + 7 * stride < a.count; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __ldcs(a.from + i + j * stride);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x12345) *a.out = sum;
}

}  // namespace

double measured_read_bound(Commands& commands) {
  double read = 0;
  {
    const size_t bytes = size_t(4) << 30;
    test::DeviceArray<uint4> data(bytes / 16);
    test::DeviceArray<uint32_t> out(1);
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    for (const int blocks : {2, 4})
      for (int i = 0; i < 8; ++i) {
        cudaEventRecord(begin, commands.stream());
        commands.launch(sum_kernel, {.blocks = dim3(unsigned(blocks * device_facts().num_sms)), .threads = 512},
                        SumArgs{data.data(), bytes / 16, out.data()});
        commands.submit();
        cudaEventRecord(end, commands.stream());
        cudaEventSynchronize(end);
        float ms;
        cudaEventElapsedTime(&ms, begin, end);
        read = std::max(read, double(bytes) / ms / 1e9);
      }
  }
  return read;
}

}  // namespace hunch
