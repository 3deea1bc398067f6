// Selection on the device: the reference's indices, every one.
#include "backend/cuda/top_k.h"

#include <random>

#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;

constexpr float kInf = INFINITY, kNan = NAN;

enum class Kind { Uniform, Wide, Ties, Signed, Odd, Equal, Heaps, OneNan };
using enum Kind;
constexpr Kind kKinds[] = {Uniform, Wide, Ties, Signed, Odd, Equal, Heaps, OneNan};

Floats scores_of(Kind kind, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(0, 1);
  std::normal_distribution<float> normal(0, 3);
  Floats out(count);
  float heap = 1;
  for (float& x : out) {
    if (kind == OneNan) x = &x - out.data() == ptrdiff_t(count / 2 + seed % 64) ? kNan : std::exp(normal(random));
    if (kind == Heaps) {  // neighbours are alike, the end is great
      if (random() % 400 == 0) heap = std::exp(normal(random));
      x = heap * unit(random) * (&x - out.data() > ptrdiff_t(count - count / 16) ? 8.0f : 1.0f);
    }
    if (kind == Uniform) x = unit(random);
    if (kind == Wide) x = std::exp(4 * normal(random));
    if (kind == Ties) x = float(random() % 5) * 0.25f;
    if (kind == Signed) x = normal(random);
    if (kind == Equal) x = 0.5f;
    if (kind == Odd) {
      const uint32_t what = random() % 16;
      x = what == 0 ? kNan : what == 1 ? kInf : what == 2 ? -0.0f : what == 3 ? 0.0f : unit(random);
    }
  }
  return out;
}

struct Set {
  Kind kind;
  int64_t n, count;
  int spread = 0, sinks = 0, recent = 0;
  int64_t sets = 1, pitch = 0;  // pitch: elements between rows beyond n
  int block = 1;
};
// Blocks of one entry, of eight, of three.
void mix_blocks(std::vector<Set>& all) {
  for (size_t i = 0; i < all.size(); ++i) all[i].block = i % 3 == 0 ? 1 : i % 3 == 1 ? 8 : 3;
}

struct CudaTopK : HopperTest {
  // All of them in one launch, against the reference one by one.
  void expect_reference(const std::vector<Set>& all) {
    std::vector<DeviceArray<float>> scores;
    std::vector<DeviceArray<int32_t>> lists;
    std::vector<Floats> values;
    std::vector<TopKArgs> calls;
    uint32_t seed = 1;
    for (const Set& set : all) {
      const int64_t stride = set.n + set.pitch;
      values.push_back(scores_of(set.kind, size_t(set.sets * stride), seed++));
      scores.emplace_back(values.back());
      lists.emplace_back(Ints(set.sets * set.count * set.block, -1));
      calls.push_back({.scores = view(scores.back(), set.sets, stride),
          .n = set.n,
          .count = set.count,
          .spread = set.spread,
          .sinks = set.sinks,
          .recent = set.recent,
          .block = set.block,
          .index = view(lists.back(), set.sets, set.count * set.block)});
    }
    enqueue_top_k(*commands, calls);
    finish();
    for (size_t i = 0; i < all.size(); ++i) {
      Ints want(all[i].sets * all[i].count * all[i].block);
      TopKArgs args = calls[i];
      args.scores.data = values[i].data();
      args.index.data = want.data();
      reference.top_k(args);
      const Ints got = lists[i].get();
      for (size_t j = 0; j < want.size(); ++j)
        ASSERT_EQ(got[j], want[j]) << "entry " << j << " of " << all[i].count << ", n " << all[i].n << ", kind "
                                   << int(all[i].kind) << ", spread " << all[i].spread << ", set " << i;
    }
  }
};

TEST_F(CudaTopK, ChoosesWhatTheReferenceChooses) {
  for (const bool many : {false, true}) {
    std::vector<Set> all;
    for (const int64_t n : {1, 2, 3, 127, 128, 129, 1000, 4099, 20000})
      for (const Kind kind : kKinds)
        for (const int64_t count : {int64_t(1), (n + 13) / 14, n - n / 3, n})
          all.push_back({kind, n, count, 0, int(n % 5), int(n % 9), 1 + n % 2, n % 4});
    mix_blocks(all);
    if (many) {
      expect_reference(all);
    } else {
      for (size_t i = 0; i < all.size(); i += 13)
        expect_reference({all.begin() + int64_t(i), all.begin() + int64_t(std::min(i + 7, all.size()))});
    }
  }
}

TEST_F(CudaTopK, SpreadsForwardBitForBit) {
  std::vector<Set> all;
  for (const int spread : {1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 16, 17, 22, 29, 31, 32})
    for (const Kind kind : {Uniform, Wide, Ties, Odd})
      for (const int64_t n : {7, 130, 1029, 2500, 9000}) all.push_back({kind, n, (n + 9) / 10, spread, 2, 3, 1, n % 3});
  expect_reference(all);
  expect_reference({all.begin(), all.begin() + 15});
  // Farther than registers reach; together with near ones.
  std::vector<Set> far;
  for (const int spread : {33, 100, 1024, 5})
    for (const Kind kind : {Uniform, Odd})
      for (const int64_t n : {50, 3001}) far.push_back({kind, n, n / 4, spread, 1, 2, 2, 1});
  expect_reference(far);
}

TEST_F(CudaTopK, ReadsAgainWhatItCannotHold) {
  // Few sets: 393,216 entries are held; many: 131,072.
  expect_reference({{Uniform, 131072, 9175, 16, 4, 64}, {Wide, 420001, 30000, 16, 4, 64, 1, 3}, {Ties, 400000, 77777}});
  expect_reference({{Uniform, 1000003, 70000, 7, 4, 64}});
  std::vector<Set> all(18, Set{Uniform, 3000, 100, 16});
  all[3] = {Wide, 131072, 9175, 16, 4, 64};
  all[7] = {Odd, 150000, 60000, 16, 4, 64};
  all[11] = {Equal, 300001, 100000, 0, 4, 64};
  all[12] = {Signed, 262144, 2000, 0, 0, 0, 1, 1};
  mix_blocks(all);
  expect_reference(all);
}

// Enough sets for one block each: short sets, long ones, both together, and those that no block can do alone among them.
TEST_F(CudaTopK, ChoosesTheSameSetBySet) {
  for (const int spread : {16, 0}) {
    std::vector<Set> all;
    for (const Kind kind : {Uniform, Wide, Heaps})
      for (const int64_t n : {4096, 6275, 10240, 17923})
        all.push_back({kind, n, n * 7 / 100, spread, 4, 64, 12, (4 - n % 4) % 4});
    for (const Kind kind : kKinds)
      for (const int64_t n : {900, 4480, 4484, 13442})
        all.push_back({kind, n, n / 14, spread, int(n % 5), int(n % 9), 3, (4 - n % 4) % 4});
    all.push_back({Uniform, 5001, 300, spread, 4, 64, 3});             // some not aligned
    all.push_back({Uniform, 5000, 300, spread, 200, 200, 3});          // more ends than entries chosen
    all.push_back({Wide, 5000, 300, spread == 16 ? 5 : 16, 0, 0, 3});  // another spread
    all.push_back({Wide, 8192, 7000, spread, 4, 64, 3});               // nearly all
    all.push_back({Wide, 8192, 1, spread, 0, 0, 3});
    mix_blocks(all);
    expect_reference(all);
    std::vector<Set> longer;
    for (const Kind kind : {Uniform, Wide, Heaps})
      for (const int64_t n : {40960, 60004}) longer.push_back({kind, n, n * 7 / 100, spread, 4, 64, 8});
    longer.push_back({Heaps, 131072, 9175, spread, 4, 64, 3});
    longer.push_back({Wide, 131072, 9175, spread, 4, 64, 3});
    longer.push_back({Wide, 200000, 14000, spread, 4, 64});
    longer.push_back({Uniform, 10240, 717, spread, 4, 64, 90});
    expect_reference(longer);
  }
}

// Sets that a block's memory holds, few rows of them and many.
TEST_F(CudaTopK, ChoosesBlocksOfEntriesABlockASet) {
  for (const int64_t n : {39, 1280, 3584, 8192, 8193, 16384, 20000, 49152})
    for (const int spread : {2, 0, 16}) {
      std::vector<Set> all;
      for (const Kind kind : kKinds) all.push_back({kind, n, (n * 3 + 99) / 100, spread, 1, int(n % 9), 14, n % 4, 8});
      all.push_back({Ties, n / 2, n / 2, spread, 0, 0, 3, 0, 8});
      expect_reference(all);
    }
}

TEST_F(CudaTopK, RepeatsManySetsAsOneGraph) {
  for (int64_t n = 4100; n < 4100 + 4 * (Commands::kRecordAt + 4); n += 4) expect_reference({{Wide, n, n / 14, 16, 4, 8, 140}});
  EXPECT_EQ(commands->counters().graph_launches, 4u);
}

TEST_F(CudaTopK, RepeatsAsOneGraph) {
  for (int64_t n = 1000; n < 1004 + Commands::kRecordAt; ++n) expect_reference({{Uniform, n, n / 9, 16, 4, 8, 20}});
  EXPECT_EQ(commands->counters().graph_launches, 4u);
}

}
}
