// Top-k alone, for `hunch bench kernels`.
#include <sstream>

#include "backend/cuda/device_test.h"
#include "backend/cuda/kernel_bench.h"
#include "backend/cuda/ptx.h"
#include "backend/cuda/top_k.h"

namespace hunch {
namespace {

using test::DeviceArray, test::view;

struct FillDevice {
  float* out;
  int64_t n;
};
// Scores like those of softmax rows: exp of a normal variable.
__global__ void __launch_bounds__(256) fill_kernel(const FillDevice* args) {
  wait_for_previous();
  const FillDevice a = *args;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < a.n; i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t x = uint64_t(i) * 0x9E3779B97F4A7C15ull + 0x1234567;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull, x = (x ^ x >> 27) * 0x94D049BB133111EBull, x ^= x >> 31;
    const float u = (float(uint32_t(x)) + 0.5f) * 0x1p-32f, v = float(uint32_t(x >> 32)) * 0x1p-32f;
    a.out[i] = expf(sqrtf(-2 * logf(fminf(u, 0.9999999f))) * cospif(2 * v) * 2);
  }
}

struct Case {
  int64_t sets, n, count;
  int spread;
  int in_list;  // calls in one list, as a round has other work around them; 1: the sets of a whole round
};
// 36 layers of 4 sequences of 8 KV heads, by blocks of 8 entries and by entries; 32 shorter sequences; fewer sets, longer ones.
constexpr Case kCases[] = {{1152, 16384, 492, 2, 1}, {9216, 1280, 39, 2, 1}, {256, 3584, 108, 2, 1}, {1152, 131072, 9175, 16, 1},
    {9216, 10240, 717, 16, 1}, {144, 131072, 9175, 16, 10}, {144, 131072, 9175, 0, 10}, {8, 131072, 9175, 16, 10},
    {1, 32768, 2294, 16, 10}, {1, 1 << 20, 73400, 16, 10}, {64, 1 << 20, 73400, 16, 10}};

}

std::vector<KernelRow> bench_top_k(Commands& commands) {
  std::vector<KernelRow> rows;
  for (const Case& c : kCases) {
    const DeviceArray<float> scores(size_t(c.sets * c.n));
    const DeviceArray<int32_t> index(size_t(c.sets * c.count));
    commands.launch(fill_kernel, {.blocks = dim3(512), .threads = 256}, FillDevice{scores.data(), c.sets * c.n});
    HUNCH_CHECK(commands.wait().ok());
    const double ms = time_commands(commands, 20, [&] {
      for (int i = 0; i < c.in_list; ++i)
        enqueue_top_k(commands,
            {.scores = view(scores, c.sets, c.n),
                .n = c.n,
                .count = c.count,
                .spread = c.spread,
                .sinks = 4,
                .recent = 64,
                .index = view(index, c.sets, c.count)});
    });
    std::ostringstream name;  // nvcc cannot check fmt's formats
    name << "top-k: " << c.count << " of " << c.n << ", " << c.sets << " sets, spread " << c.spread;
    rows.push_back({.name = name.str(), .bytes = double(c.sets * (c.n + c.count) * 4), .ms = ms / c.in_list});
  }
  return rows;
}

}
