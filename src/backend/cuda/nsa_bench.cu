// Natively trained sparse attention alone, for `hunch bench kernels --only nsa`: the kernels' study of SSV. 32 query heads and 8
// KV heads of 64, compression 32 by 16, 16 blocks of 64, a window of 512. Rows of a draft ask alike (each the one before and some
// noise), so that the blocks that neighbours select overlap; how much stands in the name.
#include <set>
#include <sstream>

#include "backend/cuda/kernel_bench.h"
#include "backend/cuda/nsa_fixture.h"

namespace hunch {
namespace {

constexpr int kHeads = 32, kKvHeads = 8, kDim = 64, kRepeats = 10,
              kLayers = 12;  // caches of several layers: more than the L2 holds

struct Layer {
  KvPlane raw, compressed;
  test::DeviceArray<uint16_t> memory[2];
};

struct Draft {
  std::vector<float> q;
  std::vector<int32_t> positions;
};
Draft draft(int entries, int rows, float alike) {
  Draft x;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  const size_t width = kHeads * kDim;
  for (int row = 0; row < rows; ++row) {
    for (size_t i = 0; i < width; ++i)
      x.q.push_back(
          row == 0 ? 2 * normal(random) : alike * x.q[x.q.size() - width] + 2 * std::sqrt(1 - alike * alike) * normal(random));
    x.positions.push_back(entries + row);
  }
  return x;
}

struct Form {
  const char* name;
  int grouped;
  bool shared = false, given = false, apart = false;
};

double union_share(const std::vector<int32_t>& chosen, int rows, int count, int grouped) {  // blocks read, of rows times count
  size_t read = 0;
  for (int kv = 0; kv < kKvHeads; ++kv)
    for (int first = 0; first < rows; first += grouped) {
      std::set<int32_t> blocks;
      for (int row = first; row < std::min(rows, first + grouped); ++row)
        for (int i = 0; i < count; ++i) blocks.insert(chosen[(row * kKvHeads + kv) * count + i]);
      read += blocks.size();
    }
  return double(read) / double(rows * kKvHeads * count);
}

}

std::vector<KernelRow> bench_nsa(Commands& commands) {
  std::vector<KernelRow> out;
  const NsaShape& settings = test::kUsualNsa;
  CudaNsa nsa;
  const double scale = 1 / std::sqrt(double(kDim));
  for (const int entries : {4096, 8192, 16384, 32768, 65536}) {
    const int most = 2048, compressed_entries = (entries - settings.cmp_len) / settings.cmp_stride + 1;
    std::vector<Layer> layers(kLayers);
    test::NsaStore raw(kKvHeads, kDim, entries + most, 1), compressed(kKvHeads, kDim, compressed_entries + most, 2);
    for (Layer& layer : layers) {  // the same values at places of their own
      raw.show(), compressed.show();
      layer.raw = raw.plane, layer.compressed = compressed.plane;
      layer.memory[0] = std::move(raw.memory), layer.memory[1] = std::move(compressed.memory);
    }
    for (const int rows : {4, 8, 16, 32, 64, most}) {
      Draft x = draft(entries, rows, 0.97f);
      test::DeviceArray<float> q(x.q), gates(rows * kHeads * 3), answer(x.q.size());
      HUNCH_CUDA_CHECK(cudaMemset(gates.data(), 0, gates.size() * sizeof(float)));
      test::DeviceArray<int32_t> chosen(rows * kKvHeads * settings.sel_count);
      NsaRows run;
      run.q = test::view(q, rows, kHeads, kDim), run.gates = test::view(gates, rows, 3 * kHeads);
      run.out = test::view(answer, rows, kHeads, kDim), run.positions = x.positions;
      run.chosen = chosen.data();
      run.raw_pages = raw.table(), run.compressed_pages = compressed.table();
      std::vector<int32_t> parents, owned;
      const auto time = [&](const Form& form) {
        NsaRows mine = run;
        mine.parents = parents, mine.owned = owned;
        mine.given = form.given;
        return time_commands(commands, kRepeats, [&] {
          for (const Layer& layer : layers) {
            mine.raw = layer.raw, mine.compressed = layer.compressed;
            nsa.enqueue(commands, settings, float(scale), std::span(&mine, 1),
                {.rows = form.grouped, .shared = form.shared, .apart = form.apart});
          }
        }) / kLayers;
      };
      if (rows == most) {
        const double ms = time({.name = "a chunk of a prompt"}), blocks = double(rows) * kKvHeads * settings.sel_count;
        const double read = blocks * union_share(chosen.get(), rows, settings.sel_count, kNsaMostGrouped);
        std::ostringstream name;
        name.precision(3);
        name << "nsa: " << entries / 1024 << "K, " << rows << " rows, a chunk of a prompt; blocks read " << read / blocks
             << " of chosen";
        out.push_back({.name = name.str(), .bytes = read * settings.sel_block * kDim * 4, .ms = ms});
        continue;
      }
      const double base = time({.grouped = 1, .apart = true});
      const std::vector<int32_t> own = chosen.get();
      const auto add = [&](const Form& form) {
        const double ms = form.apart && form.grouped == 1 ? base : time(form);
        std::ostringstream name;
        name.precision(3);
        name << "nsa: " << entries / 1024 << "K, " << rows << " rows, " << form.name << ", groups of " << form.grouped << ", "
             << base / ms << " x; blocks read " << union_share(own, rows, settings.sel_count, form.grouped) << " of chosen";
        const double blocks = union_share(own, rows, settings.sel_count, rows) * rows * kKvHeads * settings.sel_count;
        const double bytes = (blocks * settings.sel_block + double(kKvHeads) * (compressed_entries + settings.window)) * kDim * 4;
        out.push_back({.name = name.str(), .bytes = bytes, .ms = ms});
      };
      add({.name = "branches apart", .grouped = 1, .apart = true});
      for (const int grouped : {1, 2, 4, 8, 16}) {
        if (grouped > rows) continue;
        add({"exact", grouped});
        add({"exact, reused choice", grouped, false, true});
        add({"shared", grouped, true});
        add({"shared, reused choice", grouped, true, true});
      }
      if (rows < 16) continue;
      for (int row = 0; row < rows; ++row) {  // a path of five guesses and leaves beside it
        parents.push_back(row < 6 ? row - 1 : row % 5);
        x.positions[row] = entries + (row < 6 ? row : row % 5 + 1);
      }
      owned.assign(rows, -1);
      add({"exact, a tree", 16});
    }
  }
  return out;
}

}
