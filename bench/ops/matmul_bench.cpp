// Products of one model pass, by encoding and rows: time, weight bytes a second, integer or float operations a second.
// Weights are random; shapes are those of an 8-layer model with hidden 512 (34 M parameters), or a larger one with --big.
//   matmul_bench [threads] [isa] [--big] [encoding...]

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/backend.h"
#include "checkpoint/quantise.h"

namespace hunch {
namespace {

struct Shape {
  int64_t hidden = 512, kv = 256, ffn = 1536, vocab = 16384;
  int layers = 8;
};

double now_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A model's matrices: 7 for each layer (q k v o gate up down), then the head.
struct Matrices {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::unique_ptr<Weight>> weights;
  double load_ms = 0;
  size_t total_bytes = 0;
  double parameters = 0;
};

Matrices make(Backend& backend, DType dtype, const Shape& s) {
  Matrices out;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<Tensor> tensors;
  const auto add = [&](int64_t n, int64_t k) {
    const size_t row_bytes = dtype_bytes(dtype, size_t(k));
    std::vector<std::byte> bytes(row_bytes * size_t(n));
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t i = 0; i < n; ++i) {  // 32 different rows will do
      std::byte* to = bytes.data() + size_t(i) * row_bytes;
      if (i >= 32) {
        std::memcpy(to, to - 32 * row_bytes, row_bytes);
        continue;
      }
      if (can_quantise(dtype)) {
        for (float& x : row) x = normal(random);
        quantise_row(dtype, row.data(), to, k);
        continue;
      }
      for (size_t j = 0; j < row_bytes; ++j) to[j] = std::byte(random());
      const size_t block_bytes = size_t(dtype_info(dtype).block_bytes), at = dtype == DType::Q6_K ? block_bytes - 2 : 0;
      for (size_t block = 0; block < row_bytes; block += block_bytes)  // f16 scales that are finite
        std::memset(to + block + at, 0x11, dtype == DType::Q6_K ? 2 : 4);
    }
    tensors.push_back({"", dtype, {n, k}, bytes.data(), bytes.size()});
    out.bytes.push_back(std::move(bytes));
    out.parameters += double(n) * double(k);
  };
  for (int layer = 0; layer < s.layers; ++layer) {
    add(s.hidden, s.hidden), add(s.kv, s.hidden), add(s.kv, s.hidden), add(s.hidden, s.hidden);
    add(s.ffn, s.hidden), add(s.ffn, s.hidden), add(s.hidden, s.ffn);
  }
  add(s.vocab, s.hidden);
  const double start = now_ms();
  for (const Tensor& tensor : tensors) out.weights.push_back(backend.load_weight(tensor));
  out.load_ms = now_ms() - start;
  for (const auto& weight : out.weights) out.total_bytes += weight->bytes;
  return out;
}

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + long(times.size() / 2), times.end());
  return times[times.size() / 2];
}

void bench(Backend& backend, DType dtype, const Shape& s) {
  const Matrices m = make(backend, dtype, s);
  fmt::print("\n{}: {:.2f} MB, packed in {:.1f} ms\n  rows  best ms  median ms    GB/s    GOP/s\n", dtype_info(dtype).name,
             double(m.total_bytes) / 1e6, m.load_ms);
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 1);
  for (const int64_t rows : {1, 2, 4, 8, 12, 16, 256}) {
    std::vector<float> x(size_t(rows * s.hidden)), wide(size_t(rows * s.ffn)), up(wide.size()), qkv(size_t(rows * 4 * s.hidden));
    std::vector<float> logits(size_t(rows * s.vocab));
    for (float& value : x) value = normal(random);
    const View<float, 2> in(x.data(), rows, s.hidden), gate_out(wide.data(), rows, s.ffn), up_out(up.data(), rows, s.ffn);
    const auto part = [&](int64_t first, int64_t n) { return View<float, 2>(qkv.data() + first * rows, rows, n); };
    const View<float, 2> logits_out(logits.data(), rows, s.vocab);
    const int layers = s.layers;
    const auto pass = [&] {
      for (int layer = 0; layer < layers; ++layer) {
        const auto* w = &m.weights[size_t(layer) * 7];
        const Product first[] = {
            {w[0].get(), nullptr, part(0, s.hidden)},
            {w[1].get(), nullptr, part(s.hidden, s.kv)},
            {w[2].get(), nullptr, part(s.hidden + s.kv, s.kv)},
        };
        backend.matmul({in, first});
        const Product out[] = {{w[3].get(), nullptr, part(2 * s.hidden, s.hidden)}};
        backend.matmul({in, out});
        const Product both[] = {{w[4].get(), nullptr, gate_out}, {w[5].get(), nullptr, up_out}};
        backend.matmul({in, both});
        const Product down[] = {{w[6].get(), nullptr, part(0, s.hidden)}};
        backend.matmul({gate_out, down});
      }
      const Product head[] = {{m.weights.back().get(), nullptr, logits_out}};
      backend.matmul({in, head});
    };
    std::vector<double> times;
    const double until = now_ms() + 400;
    do {
      const double start = now_ms();
      pass();
      times.push_back(now_ms() - start);
    } while (times.size() < 7 || now_ms() < until);
    const double best = *std::min_element(times.begin(), times.end());
    fmt::print("  {:4}  {:7.3f}  {:9.3f}  {:6.1f}  {:7.0f}\n", rows, best, median(times), double(m.total_bytes) / best / 1e6,
               2 * m.parameters * double(rows) / best / 1e6);
  }
}

int run(int argc, char** argv) {
  Backend::Setup setup;
  Shape shape;
  std::vector<DType> encodings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--big") shape = {2048, 512, 8192, 32768, 4};
    else if (const auto dtype = dtype_named(word)) encodings.push_back(*dtype);
    else if (std::isdigit(static_cast<unsigned char>(word[0]))) setup.threads = std::atoi(argv[i]);
    else setup.isa = word;
  }
  auto backend = Register<Backend>::find("cpu")->make(setup);
  if (!backend) {
    fmt::print(stderr, "matmul_bench: {}\n", backend.error().message);
    return 1;
  }
  fmt::print("{}\n", (*backend)->description());
  if (encodings.empty()) encodings = {DType::Q8_0, DType::Q4_0, DType::BF16, DType::Q4_K, DType::Q6_K};
  for (const DType dtype : encodings) bench(**backend, dtype, shape);
  return 0;
}

}  // namespace
}  // namespace hunch

int main(int argc, char** argv) { return hunch::run(argc, argv); }
