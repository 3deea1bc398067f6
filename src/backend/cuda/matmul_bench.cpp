// A Qwen3-8B layer's products, alone and with the norms and the gate between them, and its head's: few rows against the read
// bound, many rows against the tensor cores.
#include <fmt/format.h>

#include "backend/cuda/kernel_bench.h"
#include "backend/cuda/matmul.h"
#include "backend/cuda/rows.h"
#include "backend/cuda/weights.h"

namespace hunch {
namespace {

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
    HUNCH_CUDA_CHECK(cudaMalloc(&memory_, kMostRows * (12288 + 28672) * sizeof(float)));
    HUNCH_CUDA_CHECK(cudaMalloc(&norm_, 4096 * sizeof(float)));
    fill_activations(norm_, 4096);
    fill_activations(memory_, kMostRows * 12288);
    HUNCH_CUDA_CHECK(cudaMemset(memory_ + kMostRows * 12288, 0, kMostRows * 28672 * sizeof(float)));
    HUNCH_CUDA_CHECK(cudaDeviceSynchronize());
  }
  ~Products() {
    (void)cudaFree(memory_);
    (void)cudaFree(norm_);
  }

  // `chain`: with the ops whose rows they take, which pack them.
  void run(int64_t rows, bool chain) {
    const auto x = [&](int64_t k) { return View<const float, 2>(memory_, rows, k); };
    float* to = memory_ + kMostRows * 12288;
    const auto out = [&](int64_t at, int64_t n) { return View<float, 2>(to + at * rows, rows, n); };
    for (const Layer& l : layers_) {
      const Product qkv[] = {
          {l.q.get(), nullptr, out(0, 4096)}, {l.k.get(), nullptr, out(4096, 1024)}, {l.v.get(), nullptr, out(5120, 1024)}};
      const Product o[] = {{l.o.get(), nullptr, out(0, 4096)}};
      const Product both[] = {{l.gate.get(), nullptr, out(0, 12288)}, {l.up.get(), nullptr, out(12288, 12288)}};
      const Product down[] = {{l.down.get(), nullptr, out(0, 4096)}};
      const View<float, 2> in(memory_, rows, 4096);
      const auto norm = [&] {
        if (chain) enqueue_norm(commands_, {.x = in, .weight = norm_, .out = in});
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
      if (chain)
        enqueue_gate(commands_, {.gate = out(0, 12288), .up = out(12288, 12288), .out = View<float, 2>(memory_, rows, 12288)});
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
  float* memory_ = nullptr;  // x, then out
  float* norm_ = nullptr;
  double bytes_ = 0, parameters_ = 0;
};

}

std::vector<KernelRow> bench_products(Commands& commands) {
  std::vector<KernelRow> rows;
  const auto add = [&](std::string name, double bytes, double flops, double ms) {
    rows.push_back({std::move(name), bytes, flops, ms});
  };
  for (const DType dtype : {DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q6_K, DType::F8_E4M3}) {
    Products products(commands, dtype, kLayers);
    const std::string_view name = dtype_info(dtype).name;
    const bool plain = dtype == DType::BF16;
    for (const bool chain : {false, true})
      for (const int n : {1, 4, 8, 16, 32, 64, 96, 128, 160, 224, 256}) {
        add(fmt::format("products{}: {} rows, 8 layers, {}", chain ? ", norms, gate" : "", n, name), products.bytes(),
            2 * n * products.parameters(), time_commands(commands, 12, [&] { products.run(n, chain); }));
      }
    for (const int n : plain ? std::vector<int>{512, 2048, 8192} : std::vector<int>{512, 2048})
      for (const bool chain : {false, true})
        add(fmt::format("products{}: {} rows, 8 layers, {}", chain ? ", norms, gate" : "", n, name), products.bytes(),
            2.0 * n * products.parameters(), time_commands(commands, 4, [&] { products.run(n, chain); }));
  }
  for (const DType dtype : {DType::BF16, DType::Q8_0, DType::Q4_0}) {
    const auto head = random_weight(dtype, 151936, 4096, 1, 0.02f);
    float* memory;
    HUNCH_CUDA_CHECK(cudaMalloc(&memory, 64 * (4096 + 151936) * sizeof(float)));
    fill_activations(memory, 64 * 4096);
    for (const int n : {1, 8, 64}) {
      const Product product[] = {{head.get(), nullptr, View<float, 2>(memory + 64 * 4096, n, 151936)}};
      add(fmt::format("products: {} rows, head 4096 -> 151936, {}", n, dtype_info(dtype).name), double(head->bytes),
          2.0 * n * 151936 * 4096, time_commands(commands, 12, [&] {
            enqueue_matmul(commands, {View<const float, 2>(memory, n, 4096), product});
          }));
    }
    (void)cudaFree(memory);
  }
  return rows;
}

}
