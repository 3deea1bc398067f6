// Top-k, sampling, log-probabilities and the small kernels of a layer alone, for `hunch bench kernels`.
#include <cmath>
#include <sstream>

#include "backend/cuda/kernel_bench.h"
#include "backend/cuda/log_probs.h"
#include "backend/cuda/ptx.h"
#include "backend/cuda/rows.h"
#include "backend/cuda/sample.h"
#include "backend/cuda/top_k.h"

namespace hunch {
namespace {

constexpr int kRepeats = 20;
constexpr int kInList = 10;  // calls in one list, as a round has other work around them

template <class T>
class Memory {
 public:
  explicit Memory(int64_t count) { HUNCH_CUDA_CHECK(cudaMalloc(&data_, size_t(count) * sizeof(T))); }
  explicit Memory(const std::vector<T>& values) : Memory(int64_t(values.size())) {
    HUNCH_CUDA_CHECK(copy_to_device(data_, values.data(), values.size() * sizeof(T)));
  }
  ~Memory() { (void)cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

// Scores like those of softmax rows: exp of a normal variable with deviation `spread`; logits: without exp.
struct FillDevice {
  float* out;
  int64_t n;
  float deviation;
  int exponential;
};
__global__ void __launch_bounds__(256) fill_kernel(const FillDevice* args) {
  wait_for_previous();
  const FillDevice a = *args;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < a.n; i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t x = uint64_t(i) * 0x9E3779B97F4A7C15ull + 0x1234567;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull, x = (x ^ x >> 27) * 0x94D049BB133111EBull, x ^= x >> 31;
    const float u = (float(uint32_t(x)) + 0.5f) * 0x1p-32f, v = float(uint32_t(x >> 32)) * 0x1p-32f;
    const float normal = sqrtf(-2 * logf(fminf(u, 0.9999999f))) * cospif(2 * v) * a.deviation;
    a.out[i] = a.exponential ? expf(normal) : normal;
  }
}

// (nvcc cannot check fmt's formats.)
template <class... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

class RowsBench {
 public:
  explicit RowsBench(Commands& commands) : commands_(commands) {}

  // all: the sets of a whole round, alone in their list.
  void top_k(int64_t sets, int64_t n, int64_t count, int spread, bool all = false) {
    Memory<float> scores(sets * n);
    Memory<int32_t> index(sets * count);
    fill(scores.data(), sets * n, 2, true);
    const auto body = [&] {
      enqueue_top_k(commands_, {.scores = View<const float, 2>(scores.data(), sets, n),
                                .n = n,
                                .count = count,
                                .spread = spread,
                                .sinks = 4,
                                .recent = 64,
                                .index = View<int32_t, 2>(index.data(), sets, count)});
    };
    const double ms = all ? time_commands(commands_, kRepeats, body) : timed(body);
    add(joined("top-k: ", count, " of ", n, ", ", sets, " sets, spread ", spread), double(sets * (n + count) * 4), ms);
  }

  void sample(int64_t rows, int64_t vocab, const SamplingParams& params, bool probs, float deviation, const char* what) {
    Memory<float> logits(rows * vocab), out(probs ? rows * vocab : 1);
    Memory<int32_t> tokens(rows);
    fill(logits.data(), rows * vocab, deviation, false);
    std::vector<int32_t> positions;
    for (int64_t r = 0; r < rows; ++r) positions.push_back(int32_t(r));
    SampleArgs args;
    args.logits = View<const float, 2>(logits.data(), rows, vocab);
    args.params = params;
    args.positions = View<const int32_t, 1>(positions.data(), rows);
    args.tokens = View<int32_t, 1>(tokens.data(), rows);
    if (probs) args.probs = View<float, 2>(out.data(), rows, vocab);
    const double ms = timed([&] { enqueue_sample(commands_, args); });
    add(joined("sample: ", what, ", ", rows, " x ", vocab, probs ? ", with probabilities" : ""),
        double(rows * vocab) * (probs ? 8 : 4), ms);
  }

  void log_probs(int64_t rows, int64_t vocab, int count) {
    Memory<float> logits(rows * vocab), values(rows), top_values(rows * count + 1);
    Memory<int32_t> ids(std::vector<int32_t>(size_t(rows), 7)), top_ids(rows * count + 1);
    fill(logits.data(), rows * vocab, 3, false);
    const double ms = timed([&] {
      enqueue_log_probs(commands_, {View<const float, 2>(logits.data(), rows, vocab), View<const int32_t, 1>(ids.data(), rows),
                                    View<float, 1>(values.data(), rows), count, View<int32_t, 2>(top_ids.data(), rows, count),
                                    View<float, 2>(top_values.data(), rows, count)});
    });
    add(joined("log-probabilities: ", count, " best, ", rows, " x ", vocab), double(rows * vocab * 4), ms);
  }

  // The small kernels of a Qwen3-8B layer, a hundred in one list: what a launch within a graph costs.
  void layer(int64_t rows) {
    constexpr int64_t kHidden = 4096, kHeads = 32, kKvHeads = 8, kDim = 128, kFfn = 12288;
    constexpr int kTimes = 100;
    Memory<float> x(rows * kHidden), out(rows * kHidden), q(rows * kHeads * kDim), k(rows * kKvHeads * kDim),
        ffn(rows * 2 * kFfn), gated(rows * kFfn), weight(std::vector<float>(kHidden, 1.0f)), angles(rows * kDim),
        freq(std::vector<float>(kDim / 2, 0.01f));
    fill(x.data(), rows * kHidden, 1, false), fill(q.data(), rows * kHeads * kDim, 1, false);
    fill(k.data(), rows * kKvHeads * kDim, 1, false), fill(ffn.data(), rows * 2 * kFfn, 1, false);
    fill(angles.data(), rows * kDim, 0.1f, false);
    const std::vector<int32_t> positions(size_t(rows), 5);
    const auto hundred = [&](const char* what, double bytes, const std::function<void()>& body) {
      const double ms = time_commands(commands_, kRepeats, [&] {
        for (int i = 0; i < kTimes; ++i) body();
      });
      add(joined(what, ", ", rows, " rows"), bytes, ms / kTimes);
    };
    hundred("norm of 4096", double(rows * kHidden * 8), [&] {
      enqueue_norm(commands_, {View<const float, 2>(x.data(), rows, kHidden), weight.data(), 1e-6,
                               View<float, 2>(out.data(), rows, kHidden)});
    });
    hundred("norm of 32 heads of 128", double(rows * kHeads * kDim * 8), [&] {
      const View<float, 2> view(q.data(), rows * kHeads, kDim);
      enqueue_norm(commands_, {view, weight.data(), 1e-6, view});
    });
    hundred("gate of 12288", double(rows * kFfn * 12), [&] {
      View<float, 2> gate(ffn.data(), rows, kFfn), up(ffn.data() + kFfn, rows, kFfn);
      gate.stride[0] = up.stride[0] = 2 * kFfn;
      enqueue_gate(commands_, {gate, up, View<float, 2>(gated.data(), rows, kFfn)});
    });
    hundred("angles", double(rows * kDim * 4), [&] {
      enqueue_rope_angles(commands_, {View<const int32_t, 1>(positions.data(), rows), View<const float, 1>(freq.data(), kDim / 2),
                                      1, View<float, 3>(angles.data(), rows, kDim / 2, 2)});
    });
  }

  std::vector<KernelRow> take() { return std::move(rows_); }

 private:
  void fill(float* out, int64_t n, float deviation, bool exponential) {
    commands_.launch(fill_kernel, {.blocks = dim3(512), .threads = 256}, FillDevice{out, n, deviation, exponential});
    HUNCH_CHECK(commands_.wait().ok());
  }
  double timed(const std::function<void()>& body) {
    return time_commands(commands_, kRepeats,
                         [&] {
                           for (int i = 0; i < kInList; ++i) body();
                         }) /
           kInList;
  }
  void add(std::string name, double bytes, double ms) { rows_.push_back({.name = std::move(name), .bytes = bytes, .ms = ms}); }

  Commands& commands_;
  std::vector<KernelRow> rows_;
};

}  // namespace

std::vector<KernelRow> bench_top_k(Commands& commands) {
  RowsBench bench(commands);
  // 36 layers of 4 sequences of 8 KV heads; 32 shorter sequences.
  bench.top_k(1152, 131072, 9175, 16, true);
  bench.top_k(9216, 10240, 717, 16, true);
  bench.top_k(144, 131072, 9175, 16);
  bench.top_k(144, 131072, 9175, 0);
  bench.top_k(36, 131072, 9175, 16);
  bench.top_k(8, 131072, 9175, 16);
  bench.top_k(1, 32768, 2294, 16);
  bench.top_k(1, 1 << 20, 73400, 16);
  bench.top_k(64, 1 << 20, 73400, 16);
  return bench.take();
}

std::vector<KernelRow> bench_rows(Commands& commands) {
  RowsBench bench(commands);
  const SamplingParams plain{.temperature = 0.8f, .top_k = 0, .top_p = 1, .min_p = 0}, usual, greedy{.temperature = 0};
  const SamplingParams nucleus{.temperature = 0.8f, .top_k = 0, .top_p = 0.95f, .min_p = 0};
  const int64_t vocab = 151936;
  for (const int64_t rows : {1, 8, 48, 128}) {
    bench.sample(rows, vocab, usual, false, 3, "default settings");
    bench.sample(rows, vocab, plain, false, 3, "temperature alone");
  }
  bench.sample(8, vocab, usual, false, 0.5f, "default settings, flat");
  bench.sample(8, vocab, usual, true, 3, "default settings");
  bench.sample(8, vocab, plain, true, 3, "temperature alone");
  bench.sample(8, vocab, nucleus, false, 3, "top-p alone");
  bench.sample(8, vocab, nucleus, false, 0.5f, "top-p alone, flat");
  bench.sample(8, vocab, greedy, false, 3, "greedy");
  bench.log_probs(8, vocab, 0);
  bench.log_probs(8, vocab, 20);
  for (const int64_t rows : {1, 8, 64}) bench.layer(rows);
  std::vector<KernelRow> rows = bench_top_k(commands), others = bench.take();
  rows.insert(rows.end(), others.begin(), others.end());
  return rows;
}

}  // namespace hunch
