// See kernel_bench.h: what the device's memory gives, and how long a list of kernels takes.
#include "backend/cuda/kernel_bench.h"

#include "backend/cuda/device_test.h"
#include "backend/cuda/ptx.h"
#include "backend/cuda/wgmma.h"

namespace hunch {
namespace {

using test::DeviceArray;

struct CopyDevice {
  const uint4* from;  // null: write only
  uint4* to;          // null: read only
  int64_t count;
};
constexpr int kAhead = 8;

__global__ void __launch_bounds__(512) stream_kernel(const CopyDevice* args) {
  const CopyDevice a = *args;
  wait_for_previous();
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  uint32_t sum = 0;
  for (int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; first < a.count; first += kAhead * step) {
    uint4 x[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      x[i] = a.from && first + i * step < a.count ? __ldcs(a.from + first + i * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (a.to && first + i * step < a.count) __stcs(a.to + first + i * step, x[i]);
      sum ^= x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
    }
  }
  if (!a.to && sum == 0x12345678u) asm volatile("trap;");  // so that the reads are not dropped
}

struct TensorDevice {
  int steps;  // of 4 products of 64 x 128 x 16, for every 4 warps
};
constexpr int kTensorThreads = 256, kTensorBlocks = 2;  // a block's threads, an SM's blocks
constexpr double kTensorFlops = 2.0 * 64 * 128 * 64;    // of a step

// What the tensor cores give if nothing has to come from memory: the same tile of random values again and again. With zeros they
// would draw less power, and run faster than they do at work.
__global__ void __launch_bounds__(kTensorThreads, kTensorBlocks) tensor_kernel(const TensorDevice* args) {
  wait_for_previous();
#if HUNCH_HOPPER
  constexpr int kWords = (64 + 128) * 64 / 2;  // two bf16 each
  alignas(1024) __shared__ uint32_t tile[kWords];
  for (int i = int(threadIdx.x); i < kWords; i += kTensorThreads) {
    uint32_t x = (uint32_t(i) + blockIdx.x * 7919) * 2654435761u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    tile[i] = (x & 0x807f807fu) | 0x3f003f00u;  // 1/2 to 1, either sign
  }
  show_to_tensor_cores();
  __syncthreads();
  const uint64_t a = tile_descriptor(shared_address(tile)), b = tile_descriptor(shared_address(tile + 64 * 32));
  float sum[64] = {};
  const int steps = args->steps;
  for (int step = 0; step < steps; ++step) {
    hold(sum);
    wgmma_begin();
#pragma unroll
    for (int part = 0; part < 4; ++part) wgmma<128>(sum, a + 2 * part, b + 2 * part, true);  // 32 bytes on: 16 inputs
    wgmma_commit();
    wgmma_wait<0>();
    hold(sum);
  }
  if (sum[0] == 12345.678f) asm volatile("trap;");  // so that they are not dropped
#endif
}

double tensor_flops(Commands& commands) {
  const TensorDevice device{4000};
  const int blocks = device_facts().num_sms * kTensorBlocks;
  const double ms = time_commands(commands, 21,
      [&] { commands.launch(tensor_kernel, {.blocks = dim3(unsigned(blocks)), .threads = kTensorThreads}, device); });
  return kTensorFlops * device.steps * (kTensorThreads / 128) * blocks / (ms * 1e-3);
}

}

double time_commands(Commands& commands, int repeats, const std::function<void()>& body) {
  cudaEvent_t begin, end;
  HUNCH_CUDA_CHECK(cudaEventCreate(&begin));
  HUNCH_CUDA_CHECK(cudaEventCreate(&end));
  const auto timed = [&](int bodies) {
    HUNCH_CUDA_CHECK(cudaEventRecord(begin, commands.stream()));
    for (int i = 0; i < bodies; ++i) body();
    commands.submit();
    HUNCH_CUDA_CHECK(cudaEventRecord(end, commands.stream()));
    HUNCH_CHECK(commands.wait().ok());
    float ms = 0;
    HUNCH_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    return double(ms) / bodies;
  };
  timed(1);
  // Several runs in one list, so that the copy of its arguments does not count.
  const int bodies = std::clamp(int(10 / timed(1)), 1, 32);
  timed(bodies), timed(bodies);  // seen twice: a graph from now on
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(timed(bodies));
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  HUNCH_CUDA_CHECK(cudaEventDestroy(begin));
  HUNCH_CUDA_CHECK(cudaEventDestroy(end));
  return times[repeats / 2];
}

Ceilings measure_ceilings() {
  Ceilings ceilings;
  constexpr int64_t kBytes = int64_t(4) << 30;
  auto commands = std::move(*Commands::make());
  const DeviceArray<uint4> from(kBytes / 16), to(kBytes / 16);
  HUNCH_CUDA_CHECK(cudaMemset(from.data(), 1, kBytes));
  HUNCH_CUDA_CHECK(cudaDeviceSynchronize());
  for (const bool copy : {false, true}) {
    double best = 1e9;
    for (const int per_sm : {1, 2, 4}) {
      const CopyDevice device{from.data(), copy ? to.data() : nullptr, kBytes / 16};
      best = std::min(best, time_commands(*commands, 5, [&] {
        commands->launch(stream_kernel, {.blocks = dim3(unsigned(device_facts().num_sms * per_sm)), .threads = 512}, device);
      }));
    }
    (copy ? ceilings.copy_bytes : ceilings.read_bytes) = double(kBytes) * (copy ? 2 : 1) / best * 1e3;
  }
  if (is_hopper()) ceilings.bf16_flops = tensor_flops(*commands);
  return ceilings;
}

KernelRow bench_scores_stream(Commands& commands, int64_t bytes, std::string name) {
  const DeviceArray<uint4> memory(size_t(bytes / 16));
  HUNCH_CUDA_CHECK(cudaMemset(memory.data(), 1, size_t(bytes)));
  const Grid grid{.blocks = dim3(unsigned(device_facts().num_sms * 2)), .threads = 512};
  KernelRow row{.name = std::move(name), .bytes = 2.0 * double(bytes)};
  row.ms = time_commands(commands, 9, [&] {
    commands.launch(stream_kernel, grid, CopyDevice{nullptr, memory.data(), bytes / 16});
    commands.launch(stream_kernel, grid, CopyDevice{memory.data(), nullptr, bytes / 16});
  });
  return row;
}

}
