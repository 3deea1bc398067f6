// Natively trained sparse attention on the device: the values of plain loops, and a row's bits in any group and tree.

#include "backend/cuda/commands_fixture.h"
#include "backend/cuda/nsa_fixture.h"
#include "backend/ops/nsa.h"

namespace hunch {
namespace {

using namespace test;

struct Answer {
  Floats out;
  Ints chosen;
  bool operator==(const Answer& o) const { return chosen == o.chosen && same_bits(out, o.out); }
  Answer row(int row, int rows) const {
    const int64_t o = std::ssize(out) / rows, c = std::ssize(chosen) / rows;
    return {part_of(out, row * o, o), part_of(chosen, row * c, c)};
  }
};

struct Case {
  int heads, kv_heads, dim;
  NsaShape settings;
};

int visible(const NsaShape& s, int position) {
  return position + 1 < s.cmp_len ? 0 : (position + 1 - s.cmp_len) / s.cmp_stride + 1;
}

struct Caches {
  Caches(const Case& c, int64_t entries, int64_t rows)
      : raw(c.kv_heads, c.dim, entries, 1), compressed(c.kv_heads, c.dim, rows, 2) {}
  // Of so many entries, on the device too.
  Caches(const Case& c, int entries) : Caches(c, entries, visible(c.settings, entries) + 1) { show(); }
  void show() { raw.show(), compressed.show(); }
  NsaStore raw, compressed;
};

class Stores;

struct NsaTest : HopperTest {
  Answer ask(Caches& caches, const NsaQuestion& x, const NsaShape& settings, const NsaGrouping& grouping = {}) {
    const int64_t rows = std::ssize(x.positions), sets = rows * x.kv_heads * settings.sel_count;
    DeviceArray<float> q(x.q), gates(x.gates), out(x.q.size());
    DeviceArray<int32_t> chosen(x.chosen.empty() ? Ints(sets, -7) : x.chosen);
    NsaRows run;
    run.raw = caches.raw.plane, run.raw_pages = caches.raw.table();
    run.compressed = caches.compressed.plane, run.compressed_pages = caches.compressed.table();
    run.q = view(q, rows, x.heads, x.dim), run.gates = view(gates, rows, 3 * x.heads);
    run.out = view(out, rows, x.heads, x.dim);
    run.positions = x.positions, run.parents = x.parents;
    DeviceArray<uint16_t> owned(x.owned_rows);
    if (!x.parents.empty()) {
      run.owned = x.owned, run.num_owned = int(rows);
      run.owned_rows = reinterpret_cast<const std::byte*>(owned.data());
    }
    run.chosen = chosen.data(), run.given = !x.chosen.empty();
    nsa.enqueue(*commands, settings, 1 / std::sqrt(float(x.dim)), std::span(&run, 1), grouping);
    finish();
    return {out.get(), chosen.get()};
  }
  Floats attend(Stores& stores, const Case& c, const Floats& q, const Ints& positions, const Ints& parents = {});

  CudaNsa nsa;
};
// Names of suites, the first of which hides the class here.
using CudaNsa = NsaTest;
using CudaNsaOps = NsaTest;

// Rows at the end of a chain of `entries` entries before them.
NsaQuestion chain(const Case& c, int entries, int rows, uint32_t seed) {
  NsaQuestion x{.heads = c.heads, .dim = c.dim, .kv_heads = c.kv_heads};
  x.q = gaussian(rows * c.heads * c.dim, seed, 1.5f), x.gates = gaussian(rows * c.heads * 3, seed + 100);
  for (int row = 0; row < rows; ++row) x.positions.push_back(entries + row);
  return x;
}
// The row alone, what stands before it in the cache.
NsaQuestion alone(const NsaQuestion& x, int row) {
  NsaQuestion one{.heads = x.heads, .dim = x.dim, .kv_heads = x.kv_heads, .positions = {x.positions[row]}};
  one.q = part_of(x.q, row * x.heads * x.dim, x.heads * x.dim), one.gates = part_of(x.gates, row * x.heads * 3, x.heads * 3);
  return one;
}

double bf16(float x) { return double(bf16_to_f32(f32_to_bf16(x))); }

// The definition, in doubles, of one row of a chain; `blocks` as the device chose them. Returns the most that a block left out
// would have been better than one that was chosen.
double plain_row(
    Caches& caches, const NsaQuestion& x, const NsaShape& s, int row, const int32_t* chosen, std::vector<double>& out) {
  const int group = x.heads / x.kv_heads, position = x.positions[row], newest = position / s.sel_block;
  const double scale = 1 / std::sqrt(double(x.dim));
  out.assign(x.heads * x.dim, 0);
  double worst = 0;
  for (int kv = 0; kv < x.kv_heads; ++kv) {
    const int entries = visible(s, position);
    std::vector<double> pooled(entries, 0);
    const auto attend = [&](int head, NsaStore& store, int branch, const std::vector<int>& at, std::vector<double>* weights) {
      if (at.empty()) return;
      std::vector<double> p;
      double top = -1e300, total = 0;
      for (const int entry : at) {
        double dot = 0;
        for (int d = 0; d < x.dim; ++d)
          dot += bf16(x.q[(row * x.heads + head) * x.dim + d]) * double(bf16_to_f32(store.entry(kv, entry, 0)[d]));
        p.push_back(dot * scale), top = std::max(top, p.back());
      }
      for (double& w : p) w = std::exp(w - top), total += w;
      const double gate = 1 / (1 + std::exp(-double(x.gates[(row * x.heads + head) * 3 + branch])));
      for (size_t i = 0; i < at.size(); ++i) {
        if (weights) (*weights)[i] += p[i] / total;
        for (int d = 0; d < x.dim; ++d)
          out[head * x.dim + d] += gate * p[i] / total * double(bf16_to_f32(store.entry(kv, at[i], 1)[d]));
      }
    };
    std::vector<int> all, selected, window;
    for (int i = 0; i < entries; ++i) all.push_back(i);
    for (int g = 0; g < group; ++g) attend(kv * group + g, caches.compressed, 0, all, &pooled);
    std::vector<double> scores;
    for (int block = 0; block <= newest; ++block) {
      double score = 0;
      for (int m = 0; m < s.cmp_len / s.cmp_stride; ++m)
        for (int u = 0; u < s.sel_block / s.cmp_stride; ++u) {
          const int entry = s.sel_block / s.cmp_stride * block + m + u - (s.cmp_len / s.cmp_stride - 1);
          if (entry >= 0 && entry < entries) score += pooled[entry];
        }
      scores.push_back(block < s.init_blocks || newest - block < s.local_blocks ? 1e300 : score);
    }
    const int32_t* mine = chosen + (row * x.kv_heads + kv) * s.sel_count;
    const int picks = std::min(s.sel_count, newest + 1);
    std::vector<bool> is_chosen(newest + 1, false);
    double least = 1e300, best_left = 0;
    for (int i = 0; i < s.sel_count; ++i) {
      if (i >= picks) {
        EXPECT_EQ(mine[i], -1);
        continue;
      }
      EXPECT_TRUE(mine[i] >= 0 && mine[i] <= newest && (i == 0 || mine[i] > mine[i - 1])) << "row " << row << " pick " << i;
      if (mine[i] < 0 || mine[i] > newest) return 1e9;
      is_chosen[mine[i]] = true, least = std::min(least, scores[mine[i]]);
      for (int e = mine[i] * s.sel_block; e < (mine[i] + 1) * s.sel_block && e <= position; ++e) selected.push_back(e);
    }
    for (int block = 0; block <= newest; ++block)
      if (!is_chosen[block]) best_left = std::max(best_left, scores[block]);
    worst = std::max(worst, best_left - least);
    for (int e = std::max(0, position - s.window + 1); e <= position && s.window > 0; ++e) window.push_back(e);
    for (int g = 0; g < group; ++g) {
      attend(kv * group + g, caches.raw, 1, selected, nullptr);
      attend(kv * group + g, caches.raw, 2, window, nullptr);
    }
  }
  return worst;
}

NsaShape changed(auto change) {
  NsaShape shape = kUsualNsa;
  change(shape);
  return shape;
}
const Case kCases[] = {
    {8, 2, 64, kUsualNsa},
    {16, 1, 64,
        changed([](NsaShape& s) { s.cmp_len = s.sel_block = 16, s.init_blocks = 0, s.local_blocks = 1, s.window = 128; })},
    {4, 2, 128, changed([](NsaShape& s) { s.sel_count = 8, s.window = 128; })},
    {8, 2, 64, changed([](NsaShape& s) { s.cmp_len = 16, s.cmp_stride = 8, s.sel_block = 32, s.window = 128; })},
    {3, 1, 64, changed([](NsaShape& s) { s.sel_count = 4, s.window = 0; })},
};

TEST_F(CudaNsa, HasTheValuesOfPlainLoops) {
  for (const Case& c : kCases)
    for (const int entries : {0, 1, 14, 31, 47, 63, 64, 127, 700, 5000, 40000}) {
      const int rows = 5;
      Caches caches(c, entries + rows);
      const NsaQuestion x = chain(c, entries, rows, 3);
      const Answer got = ask(caches, x, c.settings);
      for (int row = 0; row < rows; ++row) {
        std::vector<double> want;
        EXPECT_LT(plain_row(caches, x, c.settings, row, got.chosen.data(), want), 1e-4) << entries << " row " << row;
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(got.out[size_t(row) * want.size() + i], want[i], 0.02)
              << entries << " entries, row " << row << ", element " << i << ", heads of " << c.dim;
      }
    }
}

// Many rows at once go another way than few.
TEST_F(CudaNsa, GivesARowTheSameBitsInAChunkOfAPrompt) {
  const Case usual_128{8, 2, 128, kUsualNsa};
  for (const Case& c : {kCases[0], kCases[1], kCases[3], kCases[4], usual_128})
    for (const int entries : {0, 900, 30000, 280000}) {
      if (left_out() || entries > 8000 * c.settings.sel_block) continue;
      const int rows = entries == 0 ? 1603 : 800, few = 16, heads = c.kv_heads * c.settings.sel_count;
      Caches caches(c, entries + rows);
      const NsaQuestion x = chain(c, entries, rows, 5);
      const Answer all = ask(caches, x, c.settings);
      for (int first = 0; first < rows; first += few) {
        NsaQuestion part = chain(c, entries + first, std::min(few, rows - first), 1);
        const int64_t count = std::ssize(part.positions);
        const auto take = [&](const auto& from, int64_t width) { return part_of(from, first * width, count * width); };
        part.q = take(x.q, c.heads * c.dim), part.gates = take(x.gates, c.heads * 3);
        const Answer same{take(all.out, c.heads * c.dim), take(all.chosen, heads)};
        ASSERT_TRUE(ask(caches, part, c.settings) == same) << "heads of " << c.dim << ", rows from " << entries + first;
      }
    }
}

TEST_F(CudaNsa, GivesARowTheSameBitsInAnyGroup) {
  for (const Case& c : kCases)
    for (const int entries : {5, 60, 1000, 9000}) {
      const int rows = 21;
      Caches caches(c, entries + rows);
      const NsaQuestion x = chain(c, entries, rows, 5);
      const Answer one = ask(caches, x, c.settings, {.rows = 1});
      EXPECT_TRUE(ask(caches, x, c.settings, {.rows = 1, .apart = true}) == one);
      for (const int grouped : {2, 3, 4, 8, 16})
        EXPECT_TRUE(ask(caches, x, c.settings, {.rows = grouped}) == one) << grouped << " rows, " << entries;
      for (int row = 0; row < rows; row += 4)
        EXPECT_TRUE(ask(caches, alone(x, row), c.settings) == one.row(row, rows)) << row << ' ' << entries;
      NsaQuestion given = x;
      given.chosen = one.chosen;
      EXPECT_TRUE(ask(caches, given, c.settings) == one) << "given, " << entries;
    }
}

// A row that shares another's choice reads that and what it always reads: those at hand, so that given the union is the same.
TEST_F(CudaNsa, SharesTheChoiceOfTheLongestPrefix) {
  const Case& c = kCases[0];
  const int entries = 6000, rows = 8;
  Caches caches(c, entries + rows);
  NsaQuestion x = chain(c, entries, rows, 5);
  const Answer exact = ask(caches, x, c.settings), shared = ask(caches, x, c.settings, {.shared = true});
  const size_t set = size_t(c.kv_heads * c.settings.sel_count), last = size_t(rows - 1) * set;
  ASSERT_TRUE(std::equal(exact.chosen.begin() + int64_t(last), exact.chosen.end(), shared.chosen.begin() + int64_t(last)));
  EXPECT_TRUE(shared.row(rows - 1, rows) == exact.row(rows - 1, rows));
  EXPECT_FALSE(shared.out == exact.out);
  x.chosen.assign(exact.chosen.size(), 0);
  for (size_t i = 0; i < x.chosen.size(); ++i) x.chosen[i] = exact.chosen[last + i % set];
  EXPECT_EQ(ask(caches, x, c.settings).out, shared.out);  // all rows stand in one block, which the set has
}

// Compressed keys that are all alike weigh alike: of the blocks that are not forced the first are chosen.
TEST_F(CudaNsa, ChoosesTheFirstOfEqualBlocks) {
  const Case& c = kCases[0];
  for (const int entries : {3000, 40000}) {  // 46 and 625 blocks
    Caches caches(c, entries + 1);
    std::ranges::fill(caches.compressed.values, uint16_t(0));
    caches.compressed.show();
    const Answer got = ask(caches, chain(c, entries, 1, 5), c.settings);
    Ints right;
    for (int block = 0; block < c.settings.sel_count - c.settings.local_blocks; ++block) right.push_back(block);
    for (int i = c.settings.local_blocks; i-- > 0;) right.push_back(entries / c.settings.sel_block - i);
    for (int kv = 0; kv < c.kv_heads; ++kv)
      EXPECT_TRUE(std::equal(right.begin(), right.end(), got.chosen.begin() + kv * c.settings.sel_count)) << entries;
  }
}

TEST_F(CudaNsa, GivesARowOfATreeTheBitsOfItsPathInAChain) {
  std::mt19937 random(7);
  // Rows, and how many of the first are a chain: a tree that stands beside a tile, one that is too large for that, one of whose
  // paths is too long.
  const std::pair<int, int> trees[] = {{20, 1}, {60, 1}, {44, 36}};
  for (const Case& c : kCases)
    for (const auto& [entries, tree_of] :
        {std::pair{13, 0}, {58, 1}, {58, 2}, {1020, 2}, {1020, 0}, {4090, 0}, {4090, 1}, {33000, 0}}) {
      const NsaShape& s = c.settings;
      const auto [rows, straight] = trees[tree_of];
      Caches caches(c, entries + rows, visible(s, entries) + rows + 1);
      NsaStore owned(c.kv_heads, c.dim, rows, 3);  // what rows complete, wherever they stand
      NsaQuestion x = chain(c, entries, rows, 9);
      x.parents.assign(rows, -1), x.owned.assign(rows, -1);
      for (int row = 1; row < rows; ++row) {
        const int parent = row < straight ? row - 1 : int(random() % uint32_t(row));
        x.parents[row] = parent, x.positions[row] = x.positions[parent] + 1;
      }
      for (int row = 0; row < rows; ++row)  // any row's compressed entry, in a place of its own
        if (visible(s, x.positions[row]) > visible(s, x.positions[row] - 1)) x.owned[row] = row;
      for (int kv = 0; kv < c.kv_heads; ++kv)
        for (int row = 0; row < rows; ++row)
          for (int part = 0; part < 2; ++part)
            x.owned_rows.insert(x.owned_rows.end(), owned.entry(kv, row, part), owned.entry(kv, row, part) + c.dim);
      caches.show();
      const Answer tree = ask(caches, x, s);
      for (const int grouped : {1, 16}) EXPECT_TRUE(ask(caches, x, s, {.rows = grouped}) == tree) << entries;
      for (int row = 0; row < rows; row += 3) {
        Caches path(c, entries + rows, visible(s, entries) + rows + 1);
        for (int at = row; at >= 0; at = x.parents[at])
          for (int kv = 0; kv < c.kv_heads; ++kv)
            for (int part = 0; part < 2; ++part) {
              std::copy_n(caches.raw.entry(kv, entries + at, part), c.dim, path.raw.entry(kv, x.positions[at], part));
              if (x.owned[at] >= 0)
                std::copy_n(owned.entry(kv, at, part), c.dim, path.compressed.entry(kv, visible(s, x.positions[at]) - 1, part));
            }
        path.show();
        EXPECT_TRUE(ask(path, alone(x, row), s) == tree.row(row, rows)) << "row " << row << " behind " << entries;
      }
    }
}

// The ops over stores of the backend: what is compressed is what Compressor makes of the same entries, and a tree's rows get the
// bits of their paths, entries that nodes own included.
class Stores {
 public:
  Stores(Commands& commands, const Case& c, int64_t entries)
      : geometry_{.dtype = DType::BF16, .layers = 2, .kv_heads = c.kv_heads, .head_dim = c.dim} {
    const int64_t num_pages = (entries + kPageLen - 1) / kPageLen;
    raw = CudaKvStore::make(commands, geometry_, num_pages), rows = CudaKvStore::make(commands, geometry_, num_pages);
    for (int32_t page = int32_t(num_pages); page-- > 0;) pages_.push_back(page);
    for (int i = 0; i < c.dim / 2; ++i) frequencies.push_back(float(std::pow(10000.0, -2.0 * i / c.dim)));
    const bool linear = c.settings.kind == NsaShape::Kind::Linear;
    const int64_t weights = c.kv_heads * c.settings.cmp_len * (linear ? int64_t(c.dim) * c.dim : 1);
    key = gaussian(weights, 2, linear ? 0.02f : 0.2f), value = gaussian(weights, 3, linear ? 0.02f : 0.2f);
    offset = gaussian(c.kv_heads * c.dim, 4, 0.5f);
    device_key = DeviceArray(key), device_value = DeviceArray(value);
    device_offset = DeviceArray(offset), device_frequencies = DeviceArray(frequencies);
    on_host = {&c.settings, key.data(), value.data(), offset.data(), frequencies.data(), 1.2f};
    on_device = {&c.settings, device_key.data(), device_value.data(), device_offset.data(), device_frequencies.data(), 1.2f};
  }
  View<const int32_t, 1> pages() const { return view(pages_); }
  // Entries of layer 1: [entry][kv_head][K, V].
  void set(int64_t entry, const Floats& kv) {
    const KvPlane plane = static_cast<CudaKvStore&>(*raw).plane(1);
    std::vector<uint16_t> row;
    for (int head = 0; head < geometry_.kv_heads; ++head) {
      row.clear();
      for (int i = 0; i < 2 * geometry_.head_dim; ++i) row.push_back(f32_to_bf16(kv[head * 2 * geometry_.head_dim + i]));
      std::byte* to = plane.keys + head * plane.head_bytes + pages_[entry / kPageLen] * plane.chunk_bytes +
          entry % kPageLen * 4 * geometry_.head_dim;
      HUNCH_CUDA_CHECK(copy_to_device(to, row.data(), row.size() * sizeof(uint16_t)));
    }
  }
  std::unique_ptr<KvStore> raw, rows;
  NsaLayer on_host, on_device;

 private:
  KvGeometry geometry_;
  Ints pages_;
  Floats key, value, offset, frequencies;
  DeviceArray<float> device_key, device_value, device_offset, device_frequencies;
};

Floats entry_of(const Case& c, uint32_t token, int64_t position) {
  return gaussian(c.kv_heads * 2 * c.dim, token * 7919 + uint32_t(position));
}

Floats NsaTest::attend(Stores& stores, const Case& c, const Floats& q, const Ints& positions, const Ints& parents) {
  const int64_t rows = std::ssize(positions), before = parents.empty() ? positions.back() + 1 : positions[0];
  DeviceArray<float> device_q(q), gates(Floats(rows * c.heads * 3, 0.3f)), out(q.size());
  const KvRef kv{stores.raw.get(), stores.pages()}, compressed{stores.rows.get(), stores.pages()};
  nsa.compress({.layer = 1, .nsa = stores.on_device, .kv = kv, .rows = compressed, .last = c.settings.rows_of(before)});
  NsaRun run{.num_rows = rows, .kv = kv, .rows = compressed};
  run.last = view(positions, rows), run.tree.parents = parents, run.tree.first_entry = positions[0];
  NsaAttentionArgs args{.layer = 1, .nsa = stores.on_device, .scale = 1 / std::sqrt(float(c.dim))};
  args.q = view(device_q, rows, c.heads, c.dim), args.gates = view(gates, rows, 3 * c.heads);
  args.out = view(out, rows, c.heads, c.dim), args.runs = std::span(&run, 1);
  nsa.enqueue(*commands, args);
  finish();
  return out.get();
}

TEST_F(CudaNsaOps, CompressAsTheHostDoes) {
  for (Case c : kCases)
    for (const auto kind : {NsaShape::Kind::Weighted, NsaShape::Kind::Linear})
      for (const bool before : {false, true}) {
        c.settings.kind = kind, c.settings.rope_before = before;
        const int64_t entries = 700;
        Stores stores(*commands, c, entries);
        for (int64_t e = 0; e < entries; ++e) stores.set(e, entry_of(c, 1, e));
        Floats q(c.heads * c.dim, 0.1f);
        attend(stores, c, q, {int32_t(entries - 1)});
        Compressor compressor;
        compressor.use(stores.on_host, c.dim);
        Floats k(c.dim), v = k, got_k = k, got_v = k;
        for (int64_t i = 0; i < c.settings.rows_of(entries); ++i)
          for (int head = 0; head < c.kv_heads; ++head) {
            std::vector<int64_t> list;
            for (int m = 0; m < c.settings.cmp_len; ++m) list.push_back(i * c.settings.cmp_stride + m);
            compressor.row(*stores.raw, 1, head, stores.pages(), list, i, k.data(), v.data());
            stores.rows->read(1, head, stores.pages(), i, got_k.data(), got_v.data());
            for (size_t d = 0; d < k.size(); ++d) {
              ASSERT_NEAR(got_k[d], k[d], 0.005 * std::abs(k[d]) + 1e-4)
                  << "row " << i << ", K " << d << (before ? ", rotated" : "");
              ASSERT_NEAR(got_v[d], v[d], 0.005 * std::abs(v[d]) + 1e-4) << "row " << i << ", V " << d;
            }
          }
      }
}

TEST_F(CudaNsaOps, GiveATreesRowsTheBitsOfTheirPaths) {
  std::mt19937 random(6);
  for (const Case& c : kCases)
    for (const int entries : {9, 60, 500}) {
      const int rows = 24;
      Stores stores(*commands, c, entries + rows + 1);
      for (int64_t e = 0; e < entries; ++e) stores.set(e, entry_of(c, 0, e));
      Ints parents{-1}, positions{entries};
      for (int row = 1; row < rows; ++row) {
        parents.push_back(std::max(0, row - 1 - int(random() % 3)));
        positions.push_back(positions[parents.back()] + 1);
      }
      for (int row = 0; row < rows; ++row) stores.set(entries + row, entry_of(c, uint32_t(row), positions[row]));
      const auto q = gaussian(rows * c.heads * c.dim, random());
      const auto tree = attend(stores, c, q, positions, parents);
      const int64_t width = c.heads * c.dim;
      for (int row = 0; row < rows; row += 5) {
        Stores path(*commands, c, entries + rows + 1);
        for (int64_t e = 0; e < entries; ++e) path.set(e, entry_of(c, 0, e));
        for (int at = row; at >= 0; at = parents[at]) path.set(positions[at], entry_of(c, uint32_t(at), positions[at]));
        const auto alone = attend(path, c, part_of(q, row * width, width), {positions[row]});
        EXPECT_TRUE(stands_at(alone, tree, row * width)) << "row " << row << " behind " << entries;
      }
    }
}

}
}
