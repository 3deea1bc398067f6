// Blocks of a sparse check on hand-made cases: budgets of equation 6, choices, means.
#include "sparse/block_choice.h"

#include "base/test_results.h"
#include "tensor/test_view.h"

namespace hunch {
namespace {

using Sets = std::vector<Ints>;

Sets chosen(std::vector<std::vector<float>> rows, int64_t budget, int sinks, int recent, bool joint) {
  std::vector<float> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  Sets out;
  choose_blocks(
      View<const float, 2>(flat.data(), rows.size(), rows[0].size()), std::ssize(rows[0]), budget, sinks, recent, joint, out);
  return out;
}

TEST(BlockBudget, IsThePapersEquationSix) {
  const BlockBudget b{.ratio = 0.1, .dense_len = 4096, .block = 64};
  EXPECT_EQ(budget_blocks(b, 4096, 8), 64 * 8) << "no eviction up to L0";
  EXPECT_EQ(budget_blocks(b, 8192, 1), 71);   // (4096 x 0.1 + 4096) / 64 = 70.4
  EXPECT_EQ(budget_blocks(b, 8192, 8), 564);  // 563.2: the factor H
  EXPECT_EQ(budget_blocks({.ratio = 1, .dense_len = 64, .block = 64}, 1000, 1), 16) << "all";
  EXPECT_EQ(budget_blocks({.ratio = 0.07, .dense_len = 0, .block = 1}, 300, 1), 21) << "as the decimal it was written as";
  // s_a = (1 - rho)(1 - L0 / L): 8K 0.45, 16K 0.675, 32K 0.79, 64K 0.84.
  for (const auto& [len, sparsity] : {std::pair(8192, 0.45), {16384, 0.675}, {32768, 0.7875}, {65536, 0.84375}})
    EXPECT_NEAR(1 - double(budget_blocks(b, len, 1)) * 64 / len, sparsity, 64.0 / len) << len;
  EXPECT_EQ(recent_blocks(b, 1), 2);
  EXPECT_EQ(recent_blocks(b, 64), 2);
  EXPECT_EQ(recent_blocks(b, 65), 3);
}

TEST(BlockChoice, KeepsForcedBlocksInsideTheBudget) {
  const std::vector<float> scores{0, 9, 1, 8, 2, 7, 0, 0};
  EXPECT_EQ(chosen({scores}, 5, 1, 2, false), (Sets{{0, 1, 3, 6, 7}}));
  EXPECT_EQ(chosen({scores}, 3, 1, 2, false), (Sets{{0, 6, 7}}));
  EXPECT_EQ(chosen({scores}, 1, 1, 2, false), (Sets{{0, 6, 7}})) << "never left out";
  EXPECT_EQ(chosen({scores}, 8, 1, 2, false), (Sets{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(chosen({scores}, 2, 5, 5, false), (Sets{{0, 1, 2, 3, 4, 5, 6, 7}})) << "forced ones overlap";
}

TEST(BlockChoice, SharesAJointBudgetAmongHeadsByScore) {
  const std::vector<float> loud{0, 9, 8, 7, 6, 0}, quiet{0, 1, 3, 2, 0, 0};
  EXPECT_EQ(chosen({loud, quiet}, 4, 1, 1, false), (Sets{{0, 1, 2, 5}, {0, 2, 3, 5}}));
  EXPECT_EQ(chosen({loud, quiet}, 8, 1, 1, true), (Sets{{0, 1, 2, 3, 4, 5}, {0, 5}}));
  EXPECT_EQ(chosen({loud, quiet}, 9, 1, 1, true), (Sets{{0, 1, 2, 3, 4, 5}, {0, 2, 5}}));
}

TEST(BlockChoice, BreaksTiesDownwardsAndRanksNaNLowest) {
  const float nan = NAN;
  EXPECT_EQ(chosen({{0, 1, 1, 1, 1, 0}}, 4, 1, 1, false), (Sets{{0, 1, 2, 5}}));
  EXPECT_EQ(chosen({{0, nan, -5, -6, nan, 0}}, 4, 1, 1, false), (Sets{{0, 2, 3, 5}}));
  EXPECT_EQ(chosen({{0, nan, -5, -6, nan, 0}}, 5, 1, 1, false), (Sets{{0, 1, 2, 3, 5}}));
  EXPECT_EQ(chosen({{0, 1, 1, 0}, {0, 1, 1, 0}}, 6, 1, 1, true), (Sets{{0, 1, 3}, {0, 1, 3}}));
}

TEST(BlockMeans, ScoreAsTheMeansOfProductsWithCommittedKeys) {
  constexpr int kHeads = 4, kKvHeads = 2, kDim = 24, kBlock = 8, kLayers = 2;
  for (const char* device : {"reference", "cpu"})
    for (const DType type : {DType::F32, DType::BF16}) {
      const auto backend = test::good(Register<Backend>::find(device)->make({.threads = 1}));
      const KvGeometry geometry{type, kLayers, kKvHeads, kDim};
      const auto store = backend->make_kv_store(geometry, 2);
      const Ints pages{1, 0};
      const KvRef kv{store.get(), test::view(pages)};
      std::vector<float> rows(100 * kKvHeads * kDim), query(kHeads * kDim);
      uint32_t n = 0;
      const auto noise = [&] { return float(noise_bits({.seed = 3}, NoiseStream::Target, 0, n++)) * 0x1p-31f - 1; };
      for (float& x : rows) x = noise();
      for (float& x : query) x = noise();
      const View<const float, 3> k = test::view(rows, 100, kKvHeads, kDim);
      for (int layer = 0; layer < kLayers; ++layer) backend->store_kv({.layer = layer, .k = k, .v = k, .kv = kv});
      BlockMeans means;
      means.open(*backend, geometry, kBlock, 12);
      for (const int64_t blocks : {1, 2, 9}) {  // entries behind them are tentative: they change nothing
        for (int layer = 0; layer < kLayers; ++layer) means.extend(layer, kv, blocks);
        for (const bool most : {false, true}) {
          std::vector<float> out(kKvHeads * blocks);
          const auto scores = test::view(out, kKvHeads, blocks);
          means.score(1, test::view(query, kHeads, kDim), most, blocks, scores);
          for (int head = 0; head < kKvHeads; ++head)
            for (int64_t b = 0; b < blocks; ++b) {
              double each[2] = {};
              std::vector<float> key(kDim), value(kDim);
              for (int64_t e = b * kBlock; e < (b + 1) * kBlock; ++e) {
                store->read(1, head, kv.pages, e, key.data(), value.data());
                for (int g = 0; g < 2; ++g)
                  for (int d = 0; d < kDim; ++d) each[g] += double(query[(head * 2 + g) * kDim + d]) * double(key[d]) / kBlock;
              }
              const double wanted = most ? std::max(each[0], each[1]) : (each[0] + each[1]) / 2;
              EXPECT_NEAR(scores(head, b), wanted, type == DType::F32 ? 1e-5 : 0.02) << device << " " << blocks << " " << b;
            }
        }
      }
    }
}

}
}
