// The definitions of the ops against cases worked out by hand.

#include "backend/reference/reference_backend.h"
#include "backend/test_inputs.h"
#include "tensor/test_view.h"

namespace hunch {
namespace {

using test::tensor_of, test::view;

constexpr float kNan = NAN;

TEST(Reference, MultipliesAddsTheBiasAndAccumulates) {
  ReferenceBackend backend;
  const auto weight = backend.load_weight(tensor_of({1, 2, 3, -1, 0, 2}, 2));
  const Floats x = {1, 1, 1, 0, 2, -1}, bias = {0.5f, -10};
  Floats out(4, 100);
  const Product products[] = {{weight.get(), bias.data(), view(out, 2, 2)}};
  backend.matmul({view(x, 2, 3), products});
  EXPECT_EQ(out, (Floats{6.5f, -9, 1.5f, -12}));
  backend.matmul({view(x, 2, 3), products, true});
  EXPECT_EQ(out, (Floats{13, -18, 3, -24}));
  EXPECT_EQ(backend.counters().weight_bytes, 2 * 6 * sizeof(float));
}

TEST(Reference, EmbedsRowsOfTheTable) {
  ReferenceBackend backend;
  const auto table = backend.load_weight(tensor_of({1, 2, 3, 4, 5, 6}, 3));
  const Ints ids = {2, 0};
  Floats out(4);
  backend.embed({view(ids, 2), table.get(), view(out, 2, 2)});
  EXPECT_EQ(out, (Floats{5, 6, 1, 2}));
}

TEST(Reference, NormalisesByTheRootMeanSquareInPlace) {
  ReferenceBackend backend;
  Floats x = {3, 4};
  const Floats weight = {1, 2};
  backend.norm({view(x, 1, 2), weight.data(), 0, view(x, 1, 2)});
  EXPECT_FLOAT_EQ(x[0], 3 / std::sqrt(12.5f));
  EXPECT_FLOAT_EQ(x[1], 8 / std::sqrt(12.5f));
}

TEST(Reference, GatesWithTheSigmoidLinearUnit) {
  ReferenceBackend backend;
  Floats gate = {0, std::log(3.0f), -1000}, up = {5, 2, 1};
  backend.gate({view(gate, 1, 3), view(up, 1, 3), view(gate, 1, 3)});
  EXPECT_EQ(gate[0], 0);
  EXPECT_FLOAT_EQ(gate[1], std::log(3.0f) * 0.75f * 2);
  EXPECT_EQ(gate[2], 0);
  // Onto what is there, all rows times the same one.
  Floats sum = {7, 1, -2, 0.5f}, two = {std::log(3.0f), 0, 0, std::log(3.0f)};
  backend.gate({view(two, 2, 2), test::strided<const float>(up.data(), 2, 2, 0), view(sum, 2, 2), false, true});
  EXPECT_FLOAT_EQ(sum[0], 7 + std::log(3.0f) * 0.75f * 5);
  EXPECT_FLOAT_EQ(sum[1], 1);
  EXPECT_FLOAT_EQ(sum[2], -2);
  EXPECT_FLOAT_EQ(sum[3], 0.5f + std::log(3.0f) * 0.75f * 2);
}

TEST(Reference, RotatesThePairsOfBothConventions) {
  ReferenceBackend backend;
  const Ints position = {3};
  const Floats frequency = {float(M_PI / 6), 0};  // a quarter turn, none
  Floats cos_sin(4);
  const View<float, 3> angles(cos_sin.data(), 1, 2, 2);
  backend.rope_angles({view(position, 1), view(frequency, 2), 2, angles});
  EXPECT_NEAR(cos_sin[0], 0, 1e-6);
  EXPECT_FLOAT_EQ(cos_sin[1], 2);  // the magnitude
  EXPECT_FLOAT_EQ(cos_sin[2], 2);
  Floats x = {1, 10, 2, 20, 7};  // the last element lies past the rotated part
  const auto rotated = view(x, 1, 1, 5);
  backend.rope({rotated, angles, RopePairs::Halves});  // (1, 2) turns, (10, 20) doubles
  const Floats halves = {-4, 20, 2, 40, 7};
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(x[i], halves[i], 1e-5);
  x = {1, 10, 2, 20, 7};
  backend.rope({rotated, angles, RopePairs::Neighbours});  // (1, 10) turns, (2, 20) doubles
  const Floats neighbours = {-20, 2, 4, 40, 7};
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(x[i], neighbours[i], 1e-5);
}

// One layer, one KV head of width 2, keys (k, 0) and values (v, 1) in pages 1 and 0.
struct OneHead {
  ReferenceBackend backend;
  std::unique_ptr<KvStore> store = backend.make_kv_store({DType::F32, 1, 1, 2}, 2);
  Ints pages = {1, 0};
  KvRef kv{store.get(), view(pages, 2)};
  void put(int64_t entry, float k, float v) {
    const Floats key = {k, 0}, value = {v, 1};
    backend.store_kv({0, view(key, 1, 1, 2), view(value, 1, 1, 2), kv, entry});
  }
  // Rows up to entries `last`: q and out [rows][2].
  void attend(AttentionRun& run, const Floats& q, const Ints& last, Floats& out, Floats& lse, float scale = 1) {
    const int rows = int(last.size());
    run.num_rows = rows, run.kv = kv, run.last = view(last);
    backend.attention(
        {.scale = scale, .q = view(q, rows, 1, 2), .out = view(out, rows, 1, 2), .lse = view(lse, rows, 1), .runs = {&run, 1}});
  }
};

TEST(Reference, AttendsWithSoftmaxWeightsInsideTheWindow) {
  OneHead head;
  head.put(0, kNan, kNan);  // outside of every row's window
  head.put(1, 0, 8);
  head.put(2, std::log(3.0f), 16);
  head.put(3, kNan, kNan);  // newer than every row's last entry
  const Floats q = {1, 5, 2, 5};
  const Ints last = {1, 2};
  Floats out(4), lse(2);
  AttentionRun run{.window = 2};
  head.put(0, 0, 0);  // row 0 looks back to entry 0
  head.attend(run, q, last, out, lse, 0.5f);
  EXPECT_FLOAT_EQ(out[0], 4);  // two equal keys
  EXPECT_FLOAT_EQ(out[2], 0.25f * 8 + 0.75f * 16);
  EXPECT_FLOAT_EQ(out[3], 1);
  EXPECT_FLOAT_EQ(lse[0], std::log(2.0f));
  EXPECT_FLOAT_EQ(lse[1], std::log(4.0f));
}

TEST(Reference, ReadsNothingBeforeTheRunsFirstEntry) {
  OneHead head;
  head.put(0, kNan, kNan);
  head.put(1, kNan, kNan);
  head.put(2, 0, 8);
  head.put(3, std::log(3.0f), 16);
  const Floats q = {1, 5, 1, 5, 1, 5};
  const Ints last = {1, 2, 3};
  Floats out(6, kNan), lse(3, kNan);
  AttentionRun run{.first = 2};
  for (int window : {0, 3}) {  // a window that reaches further back changes nothing
    run.window = window;
    head.attend(run, q, last, out, lse);
    EXPECT_EQ(out[0], 0);
    EXPECT_EQ(out[1], 0);
    EXPECT_EQ(lse[0], -INFINITY);
    EXPECT_FLOAT_EQ(out[2], 8);
    EXPECT_FLOAT_EQ(out[4], 0.25f * 8 + 0.75f * 16);
    EXPECT_FLOAT_EQ(lse[2], std::log(4.0f));
  }
}

TEST(Reference, LetsARowOfATreeReadThePrefixItsAncestorsAndItself) {
  OneHead head;
  head.put(0, 0, 8);                // the prefix
  head.put(1, 0, 16);               // row 0
  head.put(2, kNan, kNan);          // row 1, a child of row 0 that nobody below it reads
  head.put(3, std::log(2.0f), 32);  // row 2, another child
  head.put(4, std::log(4.0f), 64);  // row 3, the child of row 2
  const Floats q = {1, 0, 1, 0};
  const Ints last = {2, 3}, parents = {-1, 0, 0, 2};
  Floats out(4), lse(2);
  AttentionRun run;
  run.tree = {parents, 2, 1};  // rows 2 and 3
  head.attend(run, q, last, out, lse);
  EXPECT_FLOAT_EQ(out[0], (8 + 16 + 2 * 32) / 4.0f);
  EXPECT_FLOAT_EQ(lse[0], std::log(4.0f));
  EXPECT_FLOAT_EQ(out[2], (8 + 16 + 2 * 32 + 4 * 64) / 8.0f);
  run.window = 2;  // of the chain's tokens: rows 2 and 3 alone
  head.attend(run, q, last, out, lse);
  EXPECT_FLOAT_EQ(out[2], (2 * 32 + 4 * 64) / 6.0f);
}

TEST(Reference, ReadsASelectionInPlace) {
  OneHead head;
  head.put(0, kNan, kNan);  // not selected
  head.put(1, 0, 8);
  head.put(2, kNan, kNan);
  head.put(3, std::log(2.0f), 16);
  head.put(4, kNan, kNan);
  head.put(70, std::log(4.0f), 32);  // the tail
  head.put(71, std::log(8.0f), 64);
  head.put(72, kNan, kNan);
  const Floats q = {1, 0, 1, 0};
  const Ints last = {2, 3}, index = {1, 3};  // of the run's entries 1, 3, 70, 71
  Floats out(4), lse(2);
  AttentionRun run;
  run.index = view(index, 1, 2), run.tail_first = 70;
  head.attend(run, q, last, out, lse);
  EXPECT_FLOAT_EQ(out[0], (8 + 2 * 16 + 4 * 32) / 7.0f);
  EXPECT_FLOAT_EQ(out[2], (8 + 2 * 16 + 4 * 32 + 8 * 64) / 15.0f);
  EXPECT_FLOAT_EQ(lse[1], std::log(15.0f));
  run.window = 3;  // of the run's entries
  head.attend(run, q, last, out, lse);
  EXPECT_FLOAT_EQ(out[2], (2 * 16 + 4 * 32 + 8 * 64) / 14.0f);
}

TEST(Reference, ScoresKeysByLogitAndByWeight) {
  OneHead head;
  head.put(0, 1, 0), head.put(1, -2, 0);
  const Floats q = {1, 0, 3, 0, 100, 0};  // the third row is not used
  const std::vector<uint8_t> used = {1, 1, 0};
  const Floats lse = {1, 2, 0};
  Floats out(2);
  ScoreKeysArgs args{.q = view(q, 3, 1, 2), .kv = head.kv};
  args.scores = {ScoreMetric::Logit, ScoreCombine::Sum, view(used), view(lse, 3, 1), 2, 1, view(out, 1, 2)};
  head.backend.score_keys(args);
  EXPECT_EQ(out, (Floats{4, -8}));
  args.scores.combine = ScoreCombine::Max;
  head.backend.score_keys(args);
  EXPECT_EQ(out, (Floats{3, -2}));
  args.scores.metric = ScoreMetric::Weight;
  head.backend.score_keys(args);
  EXPECT_EQ(out[0], 1);  // exp(3 - 2) is cut at 1
  EXPECT_FLOAT_EQ(out[1], std::exp(-3.0f));
}

TEST(Reference, StoresEightBitRowsWithAScaleEach) {
  ReferenceBackend backend;
  const auto store = backend.make_kv_store({DType::Q8_0, 1, 1, 4}, 1);
  const Ints pages = {0};
  const KvRef kv{store.get(), view(pages, 1)};
  const Floats k = {254, -2, 1, 3}, v = {-12.7f, 0.04f, 0.06f, 12.7f};
  backend.store_kv({0, view(k, 1, 1, 4), view(v, 1, 1, 4), kv, 5});
  Floats key(4), value(4);
  store->read(0, 0, kv.pages, 5, key.data(), value.data());
  EXPECT_EQ(key, (Floats{254, -2, 0, 4}));  // steps of 2, halves to even
  const Floats steps = {-12.7f, 0, 0.1f, 12.7f};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(value[i], steps[i], 1e-6);
  store->poison(kv.pages, 5, 6);
  store->read(0, 0, kv.pages, 5, key.data(), value.data());
  EXPECT_TRUE(std::isnan(key[3]) && std::isnan(value[0]));
  EXPECT_EQ(store->bytes, size_t(kPageLen * 2 * (4 + 4)));
}

TEST(Reference, StoresFp8RowsByElementWithTheScaleOfTheLayer) {
  ReferenceBackend backend;
  const KvScale scales[] = {{1, 1}, {2, 0.25f}};
  const KvGeometry geometry{DType::F8_E4M3, 2, 1, 4, scales};
  const auto store = backend.make_kv_store(geometry, 1);
  const Ints pages = {0};
  const KvRef kv{store.get(), view(pages, 1)};
  const Floats x = {17, -19, 500, 0x1p-10f};
  const View<const float, 3> row(x.data(), 1, 1, 4);
  Floats k(4), v(4);
  for (int layer = 0; layer < 2; ++layer) backend.store_kv({layer, row, row, kv, 5});
  store->read(0, 0, kv.pages, 5, k.data(), v.data());
  EXPECT_EQ(k, (Floats{16, -20, 448, 0}));  // steps of 2 from 16 on, ties to even; the greatest; half the least
  EXPECT_EQ(v, k);
  store->read(1, 0, kv.pages, 5, k.data(), v.data());
  EXPECT_EQ(k, (Floats{16, -20, 512, 0}));         // 8.5 is 8; 250 is 256
  EXPECT_EQ(v, (Floats{16, -20, 112, 0x1p-10f}));  // the greatest is a quarter of 448
  store->poison(kv.pages, 5, 6);
  store->read(1, 0, kv.pages, 5, k.data(), v.data());
  EXPECT_TRUE(std::isnan(k[3]) && std::isnan(v[0]));
  EXPECT_EQ(store->bytes, size_t(kPageLen * 2 * 2 * 4));  // half of bf16, no more
}

TEST(Reference, StoresRoundedRowsAndGathersTheirBits) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F8_E4M3}) {
    ReferenceBackend backend;
    const auto from = backend.make_kv_store({dtype, 2, 2, 1}, 3), to = backend.make_kv_store({dtype, 2, 2, 1}, 2);
    const Ints pages = {2, 0}, to_pages = {1};
    const View<const int32_t, 1> table(pages.data(), 2), to_table(to_pages.data(), 1);
    const KvRef source{from.get(), table}, target{to.get(), to_table};
    Floats k(70 * 2), v(70 * 2);
    for (size_t i = 0; i < k.size(); ++i) k[i] = 1 + float(i) / 777, v[i] = -k[i];
    backend.store_kv({1, view(k, 70, 2, 1), view(v, 70, 2, 1), source, 0});
    const auto rounded = [&](float x) {
      if (dtype == DType::F8_E4M3) return f8_to_f32(f32_to_f8(x));
      return dtype == DType::F32 ? x : dtype == DType::F16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
    };
    const Ints index = {3, 65, 0, 64};  // head 0: 3 and 65, head 1: 0 and 64
    GatherKvArgs args{1, source, target, view(index, 2, 2), 68, 70};
    backend.gather_kv(args);
    const std::vector<std::vector<int64_t>> expected = {{3, 65, 68, 69}, {0, 64, 68, 69}};
    for (int head = 0; head < 2; ++head) {
      for (int64_t i = 0; i < 4; ++i) {
        float key = 0, value = 0;
        to->read(1, head, to_table, i, &key, &value);
        const size_t entry = size_t(expected[head][i]) * 2 + size_t(head);
        EXPECT_EQ(key, rounded(k[entry]));
        EXPECT_EQ(value, rounded(v[entry]));
      }
    }
    from->poison(table, 64, 65);
    float key = 0, value = 0;
    from->read(1, 0, table, 64, &key, &value);
    EXPECT_TRUE(std::isnan(key) && std::isnan(value));
    from->read(1, 0, table, 65, &key, &value);
    EXPECT_EQ(key, rounded(k[130]));
    EXPECT_EQ(from->bytes, 3 * backend.kv_page_bytes({dtype, 2, 2, 1}));
  }
}

Ints select(const Floats& scores, int64_t count, int spread = 0, int sinks = 0, int recent = 0, int block = 1) {
  ReferenceBackend backend;
  Ints index(count * block);
  const int64_t n = std::ssize(scores);
  backend.top_k({view(scores, 1, n), n, count, spread, sinks, recent, block, view(index, 1, count * block)});
  return index;
}

TEST(Reference, SelectsTheBestEntriesTiesToTheLowerIndex) {
  EXPECT_EQ(select({1, 5, 5, 5, 2}, 2), (Ints{1, 2}));
  EXPECT_EQ(select({kNan, 0.0f, -0.0f, -1}, 3), (Ints{1, 2, 3}));
  EXPECT_EQ(select({kNan, kNan, -5}, 2), (Ints{0, 2}));
  EXPECT_EQ(select({1, 9, 8, 7, 1}, 3, 0, 1, 1), (Ints{0, 1, 4}));
  EXPECT_EQ(select({1, 9, 8, 7}, 2, 0, 0, 1, 3), (Ints{3, 4, 5, 9, 10, 11})) << "entries of blocks";
}

TEST(Reference, DilatesScoresForwardWithDecay) {
  // 100 spreads to 98, 96.04, 94.1 behind it; 95 at index 5 stands between them.
  EXPECT_EQ(select({0, 100, 0, 0, 0, 95, 0}, 4, 3), (Ints{1, 2, 3, 5}));
  EXPECT_EQ(select({0, 100, 0, 0, 0, 94, 0}, 4, 3), (Ints{1, 2, 3, 4}));
  EXPECT_EQ(select({0, 100, 0, 0, 0, 0, 0}, 4, 2), (Ints{0, 1, 2, 3}));
}

}
}
