// Times attention, scores, gather and top_k of the cpu backend in the shape of wren-34m: 8 layers, 4 KV heads, groups of 2, heads
// of 64. One "call" runs all layers, as one pass of the model does.
//   attention_bench [--isa NAME] [--threads N] [--dtype bf16|f16|f32|q8_0|fp8] [--entries N] [--reps N]
// The best of the repetitions is printed beside the median: on a shared machine the best is nearer to the truth.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"

using namespace hunch;

namespace {

constexpr int kLayers = 8, kKvHeads = 4, kGroup = 2, kHeads = kKvHeads * kGroup, kDim = 64;

struct Times {
  double best = 0, median = 0;  // seconds
  double cpu = 0;               // least processor time of all threads; with one thread, the time on a quiet machine
};

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

Times time_calls(int reps, const std::function<void()>& call) {
  call();
  std::vector<double> seconds;
  double cpu = 1e9;
  for (int i = 0; i < reps; ++i) {
    const double cpu_begin = cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    call();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    cpu = std::min(cpu, cpu_seconds() - cpu_begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2], cpu};
}

struct Bench {
  Backend& backend;
  DType dtype;
  int64_t entries;
  int reps;
  std::vector<int32_t> table;
  std::unique_ptr<KvStore> store;
  std::vector<float> q, out, lse, scores;

  Bench(Backend& b, DType type, int64_t n, int r) : backend(b), dtype(type), entries(n), reps(r) {
    const int64_t pages = (n + 1023) / kPageLen;
    table.resize(size_t(pages));
    std::iota(table.begin(), table.end(), 0);
    store = backend.make_kv_store({dtype, kLayers, kKvHeads, kDim}, pages);
    std::mt19937 random(1);
    std::vector<float> rows(size_t(1024 * kKvHeads * kDim));
    for (float& x : rows) x = float(random()) / 2147483648.0f - 1;
    for (int layer = 0; layer < kLayers; ++layer)
      for (int64_t first = 0; first < n; first += 1024) {
        const View<const float, 3> part(rows.data(), std::min<int64_t>(1024, n - first), kKvHeads, kDim);
        backend.store_kv({layer, part, part, ref(), first});
      }
    q.resize(size_t(512 * kHeads * kDim));
    for (float& x : q) x = float(random()) / 1073741824.0f - 2;
    out.resize(q.size());
    lse.assign(512 * kHeads, 11);
    scores.resize(size_t(kKvHeads * n));
  }
  KvRef ref() const { return {store.get(), View<const int32_t, 1>(table.data(), table.size())}; }

  void attend(const char* name, int64_t rows, int64_t depth, ScoreMetric metric = ScoreMetric::None, int sets = kKvHeads) {
    std::vector<int32_t> last(static_cast<size_t>(rows));
    std::iota(last.begin(), last.end(), int32_t(depth - rows));
    const std::vector<uint8_t> used(size_t(rows), 1);
    AttentionRun run;
    run.num_rows = rows, run.kv = ref();
    run.last = View<const int32_t, 1>(last.data(), rows);
    run.scores.metric = metric, run.scores.combine = ScoreCombine::Max;
    run.scores.row_used = View<const uint8_t, 1>(used.data(), rows);
    run.scores.lse = View<const float, 2>(lse.data(), rows, kHeads);
    run.scores.prefix_len = depth - rows;
    run.scores.out = View<float, 2>(scores.data(), sets, entries);
    AttentionArgs args;
    args.scale = 0.125f;
    args.q = View<const float, 3>(q.data(), rows, kHeads, kDim);
    args.out = View<float, 3>(out.data(), rows, kHeads, kDim);
    args.runs = {&run, 1};
    const Times t = time_calls(reps, [&] {
      for (args.layer = 0; args.layer < kLayers; ++args.layer) backend.attention(args);
    });
    const double work = double(depth) * kLayers * kKvHeads, bytes = work * 2 * double(kv_row_bytes(dtype, kDim));
    const double flops = work * double(rows) * kGroup * kDim * 4;
    fmt::print("{:34} {:8.3f} {:8.3f} {:8.3f} ms   {:6.2f} ns/entry/core  {:6.1f} GB/s  {:6.0f} GFLOP/s\n", name, t.best * 1e3,
               t.median * 1e3, t.cpu * 1e3, t.best / work * 1e9 * backend.threads(), bytes / t.best / 1e9, flops / t.best / 1e9);
  }
};

}  // namespace

int main(int argc, char** argv) {
  Backend::Setup setup;
  DType dtype = DType::BF16;
  int64_t entries = 28672;
  int reps = 15;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--isa") setup.isa = value;
    else if (key == "--threads") setup.threads = std::atoi(value.c_str());
    else if (key == "--dtype") dtype = dtype_named(value).value_or(DType::BF16);
    else if (key == "--entries") entries = std::max(2048, std::atoi(value.c_str()));
    else if (key == "--reps") reps = std::max(1, std::atoi(value.c_str()));
  }
  auto made = CpuBackend::make(setup);
  if (!made.ok()) {
    fmt::print(stderr, "attention_bench: {}\n", made.error().message);
    return 2;
  }
  Backend& backend = **made;
  fmt::print("{}, {} KV, {} entries x {} layers x {} KV heads, group {}, dim {}\n", backend.description(), dtype_info(dtype).name,
             entries, kLayers, kKvHeads, kGroup, kDim);
  fmt::print("{:34} {:>8} {:>8} {:>8}\n", "", "best", "median", "cpu");
  Bench bench(backend, dtype, entries, reps);

  for (int64_t rows : {1, 2, 4, 8, 12, 16}) bench.attend(fmt::format("{} row(s)", rows).c_str(), rows, entries);
  for (int64_t rows : {1, 4, 8, 16})
    bench.attend(fmt::format("{} row(s), weight scores", rows).c_str(), rows, entries, ScoreMetric::Weight);
  bench.attend("8 row(s), weight, one set", 8, entries, ScoreMetric::Weight, 1);
  bench.attend("8 row(s), logit scores", 8, entries, ScoreMetric::Logit);
  bench.attend("1 row, 2,048 entries", 1, 2048);
  for (int64_t depth : {int64_t(512), int64_t(4096), entries * 4 / 7, entries})
    bench.attend(fmt::format("256 rows at {}", depth).c_str(), 256, depth);

  // Selection of 7 per cent, scattered or in runs of about 8, and the copy of it.
  const int64_t count = entries * 7 / 100;
  std::mt19937 random(2);
  std::vector<int32_t> index(size_t(kKvHeads * count));
  const auto to = backend.make_kv_store({dtype, kLayers, kKvHeads, kDim}, count / kPageLen + 2);
  for (int run_len : {1, 8}) {
    for (int set = 0; set < kKvHeads; ++set) {
      std::vector<uint8_t> chosen(size_t(entries), 0);
      for (int64_t left = count; left > 0;)
        for (int64_t e = int64_t(random() % uint32_t(entries)), end = std::min(entries, e + run_len); e < end && left > 0; ++e)
          if (!chosen[size_t(e)]) chosen[size_t(e)] = 1, --left;
      for (int64_t e = 0, i = 0; e < entries; ++e)
        if (chosen[size_t(e)]) index[size_t(set * count + i++)] = int32_t(e);
    }
    GatherKvArgs args;
    args.from = bench.ref(), args.to = {to.get(), bench.ref().pages};
    args.index = View<const int32_t, 2>(index.data(), kKvHeads, count);
    args.tail_first = entries - 8, args.tail_last = entries;
    const Times t = time_calls(reps, [&] {
      for (args.layer = 0; args.layer < kLayers; ++args.layer) backend.gather_kv(args);
    });
    fmt::print("gather {} of {}, runs of {:2}      {:8.3f} {:8.3f} ms\n", count, entries, run_len, t.best * 1e3, t.median * 1e3);
    // One layer again and again: its source lies in the third-level cache, as right after verify has read it.
    args.layer = 3;
    const Times warm = time_calls(reps, [&] {
      for (int i = 0; i < kLayers; ++i) backend.gather_kv(args);
    });
    fmt::print("  source in cache                  {:8.3f} {:8.3f} ms\n", warm.best * 1e3, warm.median * 1e3);
  }
  for (float& s : bench.scores) s = std::exp(-12.0f * float(random()) / 4294967296.0f);
  TopKArgs args;
  args.n = entries, args.count = count;
  args.index = View<int32_t, 2>(index.data(), kKvHeads, count);
  for (int sets : {1, 4})
    for (int spread : {0, 16}) {
      args.scores = View<const float, 2>(bench.scores.data(), sets, entries);
      args.spread = spread;
      const Times t = time_calls(reps * 10, [&] { backend.top_k(args); });
      fmt::print("top_k {} of {}, {} set(s), spread {:2} {:6.1f} {:8.1f} us\n", count, entries, sets, spread, t.best * 1e6,
                 t.median * 1e6);
    }
  return 0;
}
