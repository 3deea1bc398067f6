// Times natively trained sparse attention on the cpu backend: decoding and verifying at a depth, against the bytes that any
// implementation must read: compressed rows, and the union of the blocks and windows that the rows own, once.
//   nsa_bench [--threads N] [--layers N] [--rows N]
// Rows of a pass choose mostly the same blocks, as neighbours in a text do: each query is the one before it, with noise.
#include <fmt/format.h>

#include <numeric>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "engine/bench.h"

using namespace hunch;

int main(int argc, char** argv) {
  std::map<std::string, int> flags = {{"--threads", 0}, {"--layers", 24}, {"--rows", 0}};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!flags.count(argv[i])) return fmt::print(stderr, "nsa_bench: unknown flag {}\n", argv[i]), 2;
    flags[argv[i]] = std::max(1, std::atoi(argv[i + 1]));
  }
  const int64_t entries = 16384;
  const int dim = 64, group = 4, kv_heads = 8, layers = flags["--layers"];
  auto made = CpuBackend::make({.threads = flags["--threads"], .isa = ""});
  Backend& backend = **made;
  NsaShape s;
  s.variant = "std", s.cmp_len = 32, s.cmp_stride = 16, s.sel_block = 64, s.sel_count = 16;
  s.init_blocks = 1, s.local_blocks = 2, s.window = 512;
  const int heads = kv_heads * group;
  const int64_t pages = entries / kPageLen, row_pages = s.rows_of(entries) / kPageLen + 1;
  const KvGeometry geometry{.dtype = DType::BF16, .layers = layers, .kv_heads = kv_heads, .head_dim = dim};
  const auto store = backend.make_kv_store(geometry, pages), rows = backend.make_kv_store(geometry, row_pages);
  std::vector<int32_t> table(static_cast<size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  const KvRef kv{store.get(), View<const int32_t, 1>(table.data(), table.size())}, compressed{rows.get(), kv.pages};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(size_t(entries * kv_heads * dim)), mean(size_t(kv_heads * s.cmp_len), 1.0f / float(s.cmp_len));
  std::vector<float> inv_freq;
  for (int i = 0; i < dim / 2; ++i) inv_freq.push_back(std::pow(10000.0f, -float(2 * i) / float(dim)));
  const NsaLayer layer{.shape = &s, .key = mean.data(), .value = mean.data(), .inv_freq = inv_freq.data()};
  for (int l = 0; l < layers; ++l) {
    for (float& x : values) x = normal(random);
    const View<const float, 3> view(values.data(), entries, kv_heads, dim);
    backend.store_kv({.layer = l, .k = view, .v = view, .kv = kv});
    backend.compress_kv({.layer = l, .nsa = layer, .kv = kv, .rows = compressed, .last = s.rows_of(entries)});
  }
  const double ceiling = streaming_read_ceiling(backend.threads(), size_t(256) << 20, 7);
  fmt::print("{}; this machine reads {:.1f} GB/s\n", backend.description(), ceiling / 1e9);
  std::vector<int64_t> counts = {1, 4, 8, 16, 32, 64};
  if (flags["--rows"] > 0) counts = {flags["--rows"]};
  for (const int64_t count : counts) {
    std::vector<float> q(size_t(count * heads * dim)), gates(size_t(count * 3 * heads)), out(q.size());
    const size_t width = size_t(heads * dim);
    for (size_t i = 0; i < q.size(); ++i) q[i] = i < width ? 2 * normal(random) : 0.98f * q[i - width] + 0.4f * normal(random);
    for (float& g : gates) g = normal(random);
    std::vector<int32_t> last(static_cast<size_t>(count)), chosen(size_t(count * kv_heads * s.sel_count));
    std::iota(last.begin(), last.end(), int32_t(entries - count));
    const NsaRun run{.num_rows = count, .kv = kv, .rows = compressed, .last = View<const int32_t, 1>(last.data(), count)};
    NsaAttentionArgs args{
        .nsa = layer,
        .scale = 1 / std::sqrt(float(dim)),
        .q = View<const float, 3>(q.data(), count, heads, dim),
        .gates = View<const float, 2>(gates.data(), count, 3 * heads),
        .out = View<float, 3>(out.data(), count, heads, dim),
        .runs = {&run, 1},
        .chosen = View<int32_t, 3>(chosen.data(), count, kv_heads, s.sel_count),
    };
    double bytes = 0, flops = 0;
    for (args.layer = 0; args.layer < layers; ++args.layer) {
      backend.nsa_attention(args);
      for (int head = 0; head < kv_heads; ++head) {
        std::set<int64_t> read;  // blocks of any row: those it chose and its window's
        for (int64_t row = 0; row < count; ++row) {
          std::set<int64_t> own;
          for (int i = 0; i < s.sel_count; ++i) own.insert(args.chosen(row, head, i));
          own.erase(-1);
          const int64_t end = last[row], begin = std::max<int64_t>(0, end + 1 - s.window);
          for (int64_t b = begin / s.sel_block; b <= end / s.sel_block; ++b) own.insert(b);
          read.insert(own.begin(), own.end());
          flops += double(int64_t(own.size()) * s.sel_block + s.rows_of(entries)) * 4 * dim * group;
        }
        bytes += double(int64_t(read.size()) * s.sel_block + s.rows_of(entries)) * 2 * double(kv_row_bytes(DType::BF16, dim));
      }
    }
    double least = 1e9;
    for (int i = 0; i < 15; ++i) {
      const auto start = std::chrono::steady_clock::now();
      for (args.layer = 0; args.layer < layers; ++args.layer) backend.nsa_attention(args);
      least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    fmt::print("{:3} rows: {:.3f} ms a layer, {:.1f} GB/s: {:.0f} % of the byte bound, {:.0f} GFLOP/s\n", count,
        least / layers * 1e3, bytes / least / 1e9, 100 * bytes / least / ceiling, flops / least / 1e9);
  }
  return 0;
}
