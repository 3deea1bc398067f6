// Times natively trained sparse attention on the cpu backend: decoding and verifying at a depth, against the bytes that any
// implementation must read: compressed rows, and the union of the blocks and windows that the rows own, once.
//   nsa_bench [--isa NAME] [--threads N] [--dtype bf16|f16|f32] [--entries N] [--reps N] [--block N] [--kv-heads N] [--group N]
//   [--dim N] [--rows N] [--layers N] [--stride N] [--window N]
// Rows of a pass choose mostly the same blocks, as neighbours in a text do: each query is the one before it, with noise.
// Beside wall time stands the least processor time of all threads, which other work on the machine disturbs less,
// and the arithmetic that rows need, at that time (true with --threads 1: other threads' time is counted by clock ticks).
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/threads.h"

using namespace hunch;

namespace {

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

double seconds_of(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Bytes per second of a sum over memory far larger than any cache, the best of some.
double read_ceiling(int count) {
  Threads threads(count);
  const size_t part = size_t(96) << 20;
  const Buffer memory = allocate_aligned(part * size_t(count));
  std::fill_n(static_cast<char*>(memory.data()), memory.bytes(), char(1));
  std::vector<uint64_t> sums(size_t(count) * 8);
  double best = 1e9;
  for (int repeat = 0; repeat < 6; ++repeat)
    best = std::min(best, seconds_of([&] {
      threads.run(count, [&](int64_t item, int) {
        const auto* words = static_cast<const uint64_t*>(memory.data()) + size_t(item) * part / 8;
        uint64_t lanes[16] = {};
        for (size_t i = 0; i < part / 8; i += 16)
          for (size_t lane = 0; lane < 16; ++lane) lanes[lane] += words[i + lane];
        sums[size_t(item) * 8] = std::accumulate(lanes, lanes + 16, uint64_t(0));
      });
    }));
  volatile uint64_t sink = sums[0];
  (void)sink;
  return double(part) * count / best;
}

}  // namespace

int main(int argc, char** argv) {
  Backend::Setup setup;
  DType dtype = DType::BF16;
  int64_t entries = 16384;
  int reps = 15, block = 64, kv_heads = 8, group = 4, dim = 64, rows_only = 0, layers = 24, stride = 16, window = 512;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    const int number = std::max(1, std::atoi(value.c_str()));
    if (key == "--isa") setup.isa = value;
    else if (key == "--threads") setup.threads = number;
    else if (key == "--dtype") dtype = dtype_named(value).value_or(DType::BF16);
    else if (key == "--entries") entries = std::max(2048, number);
    else if (key == "--reps") reps = number;
    else if (key == "--block") block = number;
    else if (key == "--kv-heads") kv_heads = number;
    else if (key == "--group") group = number;
    else if (key == "--dim") dim = number;
    else if (key == "--rows") rows_only = number;
    else if (key == "--layers") layers = number;
    else if (key == "--stride") stride = number;
    else if (key == "--window") window = number;
  }
  auto made = CpuBackend::make(setup);
  if (!made.ok()) {
    fmt::print(stderr, "nsa_bench: {}\n", made.error().message);
    return 2;
  }
  Backend& backend = **made;
  NsaShape s;
  s.variant = "std", s.cmp_len = 2 * stride, s.cmp_stride = stride, s.sel_block = block, s.sel_count = 16;
  s.init_blocks = 1, s.local_blocks = 2, s.window = window;
  const int heads = kv_heads * group;
  const int64_t pages = (entries + kPageLen - 1) / kPageLen, row_pages = s.rows_of(entries) / kPageLen + 1;
  const KvGeometry geometry{.dtype = dtype, .layers = layers, .kv_heads = kv_heads, .head_dim = dim};
  const auto store = backend.make_kv_store(geometry, pages), rows = backend.make_kv_store(geometry, row_pages);
  std::vector<int32_t> table(static_cast<size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  const View<const int32_t, 1> table_view(table.data(), table.size());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(size_t(1024 * kv_heads * dim)), mean(size_t(kv_heads * s.cmp_len), 1.0f / float(s.cmp_len));
  std::vector<float> inv_freq;
  for (int i = 0; i < dim / 2; ++i) inv_freq.push_back(std::pow(10000.0f, -float(2 * i) / float(dim)));
  const NsaLayer layer{.shape = &s, .key = mean.data(), .value = mean.data(), .inv_freq = inv_freq.data()};
  for (int l = 0; l < layers; ++l) {
    for (int64_t first = 0; first < entries; first += 1024) {
      for (float& x : values) x = normal(random);
      const View<const float, 3> part(values.data(), std::min<int64_t>(1024, entries - first), kv_heads, dim);
      backend.store_kv({l, part, part, {store.get(), table_view}, first});
    }
    backend.compress_kv({
        .layer = l,
        .nsa = layer,
        .kv = {store.get(), table_view},
        .rows = {rows.get(), table_view},
        .first = 0,
        .last = s.rows_of(entries),
    });
  }
  const double ceiling = read_ceiling(backend.threads());
  fmt::print("{}, {} KV, {} entries x {} KV heads, group {}, dim {}, blocks of {}; this machine reads {:.1f} GB/s\n",
      backend.description(), dtype_info(dtype).name, entries, kv_heads, group, dim, block, ceiling / 1e9);
  for (const int64_t count : {1, 4, 8, 16, 32, 64}) {
    if (rows_only > 0 && count != rows_only) continue;
    std::vector<float> q(size_t(count * heads * dim)), gates(size_t(count * 3 * heads)), out(q.size());
    const size_t width = size_t(heads * dim);
    for (size_t i = 0; i < q.size(); ++i) q[i] = i < width ? 2 * normal(random) : 0.98f * q[i - width] + 0.4f * normal(random);
    for (float& g : gates) g = normal(random);
    std::vector<int32_t> last(static_cast<size_t>(count)), chosen(size_t(count * kv_heads * s.sel_count));
    std::iota(last.begin(), last.end(), int32_t(entries - count));
    const NsaRun run{
        .num_rows = count,
        .kv = {store.get(), table_view},
        .rows = {rows.get(), table_view},
        .last = View<const int32_t, 1>(last.data(), count),
    };
    NsaAttentionArgs args{
        .nsa = layer,
        .scale = 1 / std::sqrt(float(dim)),
        .q = View<const float, 3>(q.data(), count, heads, dim),
        .gates = View<const float, 2>(gates.data(), count, 3 * heads),
        .out = View<float, 3>(out.data(), count, heads, dim),
        .runs = {&run, 1},
    };
    args.chosen = View<int32_t, 3>(chosen.data(), count, kv_heads, s.sel_count);
    double bytes = 0, lists = 0, unions = 0, flops = 0;
    for (args.layer = 0; args.layer < layers; ++args.layer) {
      backend.nsa_attention(args);
      for (int head = 0; head < kv_heads; ++head) {
        std::set<int32_t> blocks;
        for (int64_t row = 0; row < count; ++row) {
          std::set<int32_t> own;
          for (int i = 0; i < s.sel_count; ++i) own.insert(args.chosen(row, head, i));
          blocks.insert(own.begin(), own.end());
          for (int64_t e = std::max<int64_t>(0, last[size_t(row)] + 1 - s.window) / block; e <= last[size_t(row)] / block; ++e)
            own.insert(int32_t(e));
          own.erase(-1);
          flops += double(int64_t(own.size()) * block + s.rows_of(entries)) * 4 * dim * group;
        }
        blocks.erase(-1);
        lists += s.sel_count, unions += double(blocks.size());
        for (int64_t e = std::max<int64_t>(0, last[0] + 1 - s.window) / block; e <= (entries - 1) / block; ++e)
          blocks.insert(int32_t(e));
        bytes += double(int64_t(blocks.size()) * block + s.rows_of(entries)) * 2 * double(kv_row_bytes(dtype, dim));
      }
    }
    std::vector<double> times;
    double cpu = 1e9;
    for (int i = 0; i < reps; ++i) {
      const double began = cpu_seconds();
      times.push_back(seconds_of([&] {
        for (args.layer = 0; args.layer < layers; ++args.layer) backend.nsa_attention(args);
      }));
      cpu = std::min(cpu, cpu_seconds() - began);
    }
    std::sort(times.begin(), times.end());
    fmt::print(
        "{:3} rows: {:.3f} ms a layer (median {:.3f}, cpu {:.3f}), union {:.2f} of a list, {:.1f} GB/s: {:.0f} % of the byte "
        "bound,"
        " {:.0f} GFLOP/s of processor time\n",
        count, times[0] / layers * 1e3, times[times.size() / 2] / layers * 1e3, cpu / layers * 1e3, unions / lists,
        bytes / times[0] / 1e9, 100 * bytes / times[0] / ceiling, flops / cpu / 1e9);
  }
  return 0;
}
