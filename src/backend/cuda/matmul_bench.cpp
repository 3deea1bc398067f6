// A Qwen3-8B layer's products, alone and with the norms and the gate between them, and its head's: few rows against the read
// bound, many rows against the tensor cores.
#include <fmt/format.h>

#include "backend/cuda/device_test.h"
#include "backend/cuda/kernel_bench.h"
#include "backend/cuda/matmul.h"
#include "backend/cuda/rows.h"
#include "backend/cuda/weights.h"

namespace hunch {
namespace {

using test::DeviceArray, test::view;
using enum DType;

constexpr int kLayers = 8;

struct Layer {
  std::unique_ptr<Weight> q, k, v, o, gate, up, down;
};

// Values about zero: with zeros the tensor cores would draw less power and run faster than they do at work.
void fill_activations(float* to, size_t count) {
  std::vector<float> values(size_t(1) << 18);
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = float(int32_t(state)) * 0x1p-31f;
  }
  for (size_t at = 0; at < count; at += values.size())
    HUNCH_CUDA_CHECK(copy_to_device(to + at, values.data(), std::min(values.size(), count - at) * sizeof(float)));
}

class Products {
 public:
  Products(Commands& commands, DType dtype, int layers) : commands_(commands) {
    const auto make = [&](int64_t n, int64_t k) {
      auto weight = random_weight(dtype, n, k, seed_++, 0.02f);
      HUNCH_CHECK(weight);
      bytes_ += double(weight->bytes), parameters_ += double(n) * double(k);
      return weight;
    };
    for (int i = 0; i < layers; ++i) {
      Layer l;
      l.q = make(4096, 4096), l.k = make(1024, 4096), l.v = make(1024, 4096), l.o = make(4096, 4096);
      l.gate = make(12288, 4096), l.up = make(12288, 4096), l.down = make(4096, 12288);
      layers_.push_back(std::move(l));
    }
    fill_activations(norm_.data(), 4096);
    fill_activations(memory_.data(), kMostRows * 12288);
    HUNCH_CUDA_CHECK(cudaMemset(memory_.data() + kMostRows * 12288, 0, kMostRows * 28672 * sizeof(float)));
    HUNCH_CUDA_CHECK(cudaDeviceSynchronize());
  }

  // `chain`: with the ops whose rows they take, which pack them.
  void run(int64_t rows, bool chain) {
    const auto x = [&](int64_t k) { return view(memory_, rows, k); };
    float* to = memory_.data() + kMostRows * 12288;
    const auto out = [&](int64_t at, int64_t n) { return View<float, 2>(to + at * rows, rows, n); };
    for (const Layer& l : layers_) {
      const auto product = [&](const std::unique_ptr<Weight>& weight, int64_t at) {
        return Product{weight.get(), nullptr, out(at, weight->out_dim)};
      };
      const Product qkv[] = {product(l.q, 0), product(l.k, 4096), product(l.v, 5120)}, o[] = {product(l.o, 0)};
      const Product both[] = {product(l.gate, 0), product(l.up, 12288)}, down[] = {product(l.down, 0)};
      const View<float, 2> in = x(4096);
      const auto norm = [&] {
        if (chain) enqueue_norm(commands_, {.x = in, .weight = norm_.data(), .out = in});
      };
      norm();
      enqueue_matmul(commands_, {x(4096), qkv});
      enqueue_matmul(commands_, {x(4096), o, true});
      norm();
      if (chain &&
          enqueue_feed_forward(
              commands_, {x(4096), l.gate.get(), l.up.get(), l.down.get(), out(4096, 12288), out(16384, 12288), out(0, 4096)}))
        continue;
      enqueue_matmul(commands_, {x(4096), both});
      if (chain) enqueue_gate(commands_, {.gate = out(0, 12288), .up = out(12288, 12288), .out = x(12288)});
      enqueue_matmul(commands_, {x(12288), down, true});
    }
  }
  double bytes() const { return bytes_; }
  double parameters() const { return parameters_; }
  static constexpr int64_t kMostRows = 8192;

 private:
  Commands& commands_;
  uint64_t seed_ = 1;
  std::vector<Layer> layers_;
  const DeviceArray<float> memory_{size_t(kMostRows * (12288 + 28672))}, norm_{4096};  // x, then out
  double bytes_ = 0, parameters_ = 0;
};

}

std::vector<KernelRow> bench_products(Commands& commands) {
  std::vector<KernelRow> rows;
  const auto add = [&](std::string name, double bytes, double flops, double ms) {
    rows.push_back({std::move(name), bytes, flops, ms});
  };
  for (const DType dtype : {BF16, Q8_0, Q4_0, Q4_K, Q6_K, F8_E4M3}) {
    Products products(commands, dtype, kLayers);
    const std::string_view name = dtype_info(dtype).name;
    const auto measure = [&](int n, bool chain, int repeats) {
      add(fmt::format("products{}: {} rows, 8 layers, {}", chain ? ", norms, gate" : "", n, name), products.bytes(),
          2.0 * n * products.parameters(), time_commands(commands, repeats, [&] { products.run(n, chain); }));
    };
    for (const bool chain : {false, true})
      for (const int n : {1, 4, 8, 16, 32, 64, 96, 128, 160, 224, 256}) measure(n, chain, 12);
    for (const int n : {512, 2048, 8192})
      for (const bool chain : {false, true})
        if (n <= 2048 || dtype == BF16) measure(n, chain, 4);
  }
  for (const DType dtype : {BF16, Q8_0, Q4_0}) {
    const auto head = random_weight(dtype, 151936, 4096, 1, 0.02f);
    const DeviceArray<float> memory(64 * (4096 + 151936));
    fill_activations(memory.data(), 64 * 4096);
    for (const int n : {1, 8, 64}) {
      const Product product[] = {{head.get(), nullptr, View<float, 2>(memory.data() + 64 * 4096, n, 151936)}};
      add(fmt::format("products: {} rows, head 4096 -> 151936, {}", n, dtype_info(dtype).name), double(head->bytes),
          2.0 * n * 151936 * 4096, time_commands(commands, 12, [&] {
            enqueue_matmul(commands, {view(memory, n, 4096), product});
          }));
    }
  }
  return rows;
}

}
