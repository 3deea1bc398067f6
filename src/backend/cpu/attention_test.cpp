// Attention on every instruction set: the reference's values, and a row's bits whatever else is in the pass.
#include "backend/ops/attention.h"

#include "backend/cpu/kv_fixture.h"

namespace hunch {
namespace {

TEST(CpuAttention, EqualsReferenceForEveryTypeAndHeadShape) {
  for (DType dtype : kKvTypes)
    for (int dim : {16, 24, 64, 80, 128})
      for (int group : {1, 2, 4, 8}) {
        const KvShape shape{dtype, group == 8 ? 1 : 2, group, dim};
        expect_reference(1, shape, chunk(shape, 198, 5));
      }
}

TEST(CpuAttention, EqualsReferenceAroundTileBlockAndSplitEdges) {
  for (DType dtype : kKvTypes)
    for (int64_t len : {1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 1023, 1024, 1025, 1089, 2049}) {
      const KvShape shape{dtype, 1, 2, 24};
      expect_reference(2, shape, chunk(shape, len - 1, 1));
      if (len > 20) expect_reference(2, shape, chunk(shape, len - 20, 20));
    }
}

TEST(CpuAttention, EqualsReferenceWithinWindows) {
  for (DType dtype : kKvTypes)
    for (int window : {1, 2, 63, 64, 65, 200, 1024, 1500}) {
      const KvShape shape{dtype, 1, 2, 32};
      expect_reference(2, shape, chunk(shape, 2190, 10, 5, window));
      expect_reference(2, shape, chunk(shape, 0, 150, 5, window));
    }
}

// Sinks far below, about and far above what the keys say; rows in one split and in several, cut by rows and by splits.
TEST(CpuAttention, EqualsReferenceWithSinks) {
  for (DType dtype : kKvTypes)
    for (int64_t len : {1, 70, 1025, 2200})
      for (const int64_t rows : {1, 5, 150}) {
        if (rows > len) continue;
        const KvShape shape{dtype, 2, 2, 32};
        for (const int window : {0, 65}) {
          AttendRequest request = chunk(shape, len - rows, rows, 5, window);
          request.sinks = {-200, 0.5f, 3, 60};
          expect_reference(2, shape, request);
        }
      }
}

TEST(CpuAttention, ASinkTakesItsShareOfTheWeight) {
  for (const std::string& isa : all_backends()) {
    const auto backend = make_backend(isa, 1);
    const KvShape shape{DType::F32, 1, 3, 16};
    const KvCase kv(*backend, shape, 9);
    AttendRequest request = chunk(shape, 4, 1, 5, 1);  // one entry: its share is a sigmoid
    const AttendResult plain = attend_one(*backend, kv, request);
    request.sinks = {plain.lse[0] - 1, plain.lse[1] + 2, 1e4f};
    const AttendResult with = attend_one(*backend, kv, request);
    for (size_t head = 0; head < 3; ++head) {
      const double sink = request.sinks[head], own = plain.lse[head], share = 1 / (1 + std::exp(sink - own));
      for (size_t d = 0; d < 16; ++d)
        EXPECT_NEAR(with.out[head * 16 + d], share * double(plain.out[head * 16 + d]), 2e-6) << isa << " head " << head;
      const double lse = std::max(sink, own) + std::log1p(std::exp(-std::abs(sink - own)));
      EXPECT_NEAR(with.lse[head], lse, 1e-6 * (1 + std::abs(lse))) << isa;
    }
    request.first = 5;  // nothing is left to read
    const AttendResult nothing = attend_one(*backend, kv, request);
    for (const float x : nothing.out) EXPECT_EQ(x, 0);
    for (size_t head = 0; head < 3; ++head) EXPECT_EQ(nothing.lse[head], request.sinks[head]) << isa;
  }
}

TEST(CpuAttention, ReadsWideHeadsAndManyRows) {
  const KvShape wide{DType::BF16, 1, 1, 512}, odd{DType::F16, 1, 3, 48}, seven{DType::BF16, 1, 7, 64};
  expect_reference(2, wide, chunk(wide, 125, 5));
  expect_reference(2, odd, chunk(odd, 0, 300));
  expect_reference(2, seven, chunk(seven, 291, 9));
}

// Every key and query at the greatest code, of one sign, and all weights alike: the greatest sums of integers there can be.
TEST(CpuAttention, NeverOverflowsWithHeadsOfCodes) {
  ReferenceBackend reference;
  for (const auto& [isa, dtype] : every_store())
    for (int dim : {16, 256, 512, 528, kMaxCodedDim})
      for (float sign : {1.0f, -1.0f}) {
        if (!is_coded(dtype)) continue;
        const auto cpu = make_cpu(isa);
        const KvShape shape{dtype, 1, 1, dim};
        const KvCase expected_kv(reference, shape, 70), kv(*cpu, shape, 70);
        const Floats ones(70 * dim, 1.0f);
        const View<const float, 3> rows(ones.data(), 70, 1, dim);
        reference.store_kv({0, rows, rows, expected_kv.ref(), 0});
        cpu->store_kv({0, rows, rows, kv.ref(), 0});
        AttendRequest request = chunk(shape, 69, 1);
        for (float& x : request.q) x = sign;
        const AttendResult expected = attend_one(reference, expected_kv, request), got = attend_one(*cpu, kv, request);
        EXPECT_NEAR(got.lse[0], expected.lse[0], 1e-5f * std::fabs(expected.lse[0])) << isa << " dim " << dim;
        EXPECT_LE(distance(got.out, expected.out), 1e-4f) << isa << " dim " << dim;
      }
}

// One row alone, against the same row in passes of every form.
TEST(CpuAttention, GivesARowTheSameBitsAloneInVerifyAndInPromptChunks) {
  for (const auto& [isa, dtype] : every_store())
    for (int window : {0, 70, 1010}) {
      const KvShape shape{dtype, 1, 4, 24};
      const auto one_thread = make_cpu(isa, 1), two_threads = make_cpu(isa, 2), three_threads = make_cpu(isa, 3);
      const int64_t len = 1080, first = 990;  // rows on both sides of a split's end
      const KvCase kv(*one_thread, shape, len);
      const AttendRequest all = chunk(shape, first, len - first, 3, window);
      AttendResult alone;
      for (int64_t r = 0; r < len - first; ++r) {
        const AttendResult row = attend_one(*one_thread, kv, rows_of(all, r, 1, shape));
        append(alone.out, row.out), append(alone.lse, row.lse);
      }
      const std::pair<Backend*, std::vector<int64_t>> passes[] = {
          {one_thread.get(), {2, 3, 4, 5, 8, 16, 33, 64}}, {two_threads.get(), {8, 32, 90}}, {three_threads.get(), {50, 90}}};
      for (const auto& [backend, sizes] : passes)
        for (int64_t size : sizes)
          for (int64_t r = 0; r < len - first; r += size) {
            const int64_t rows = std::min(size, len - first - r);
            const AttendResult part = attend_one(*backend, kv, rows_of(all, r, rows, shape));
            ASSERT_TRUE(stands_at(part.out, alone.out, r * shape.width()))
                << isa << " " << shape.name() << " chunks of " << size << " at row " << r << " window " << window;
            ASSERT_TRUE(stands_at(part.lse, alone.lse, r * shape.heads()));
          }
    }
}

TEST(CpuAttention, GivesARowTheSameBitsBesideOtherSequences) {
  for (const auto& [isa, dtype] : every_store()) {
    const KvShape shape{dtype, 2, 4, 24};
    const auto backend = make_cpu(isa, 3);
    const KvCase a(*backend, shape, 1300, 1), b(*backend, shape, 70, 2), c(*backend, shape, 2100, 3);
    const AttendRequest ra = chunk(shape, 1292, 8, 4), rb = chunk(shape, 0, 70, 5), rc = chunk(shape, 2099, 1, 6, 500);
    const auto together = attend_together(*backend, {&a, &b, &c}, {ra, rb, rc});
    EXPECT_TRUE(same_bits(together[0].out, attend_one(*backend, a, ra).out)) << isa;
    EXPECT_TRUE(same_bits(together[1].out, attend_one(*backend, b, rb).out)) << isa;
    EXPECT_TRUE(same_bits(together[2], attend_one(*backend, c, rc))) << isa;
  }
}

TEST(CpuAttention, GivesTheSameBitsWithAnotherPageTable) {
  for (const auto& [isa, dtype] : every_store()) {
    const KvShape shape{dtype, 1, 2, 64};
    const auto backend = make_cpu(isa, 2);
    const KvCase shuffled(*backend, shape, 700, 1);
    KvCase straight(*backend, shape, 700, 1);
    std::ranges::sort(straight.table);
    for (int64_t e = 0; e < 700; ++e) {
      Floats k(64), v(64);
      shuffled.store->read(0, 0, shuffled.pages(), e, k.data(), v.data());
      backend->store_kv({0, view(k, 1, 1, 64), view(v, 1, 1, 64), straight.ref(), e});
    }
    const AttendRequest request = chunk(shape, 692, 8);
    EXPECT_TRUE(same_bits(attend_one(*backend, shuffled, request).out, attend_one(*backend, straight, request).out)) << isa;
  }
}

// Entries outside a row's range hold NaN in one store and numbers in the other.
TEST(CpuAttention, NeverLetsAMaskedEntryChangeABit) {
  for (const auto& [isa, dtype] : every_store())
    for (int64_t last : {0, 1, 62, 63, 64, 77, 1023, 1024, 1040, 1041})
      for (int window : {0, 1, 20, 65}) {
        const KvShape shape{dtype, 1, 2, 24};
        const auto backend = make_cpu(isa);
        const KvCase numbers(*backend, shape, 1100, 1), poisoned(*backend, shape, 1100, 1);
        const AttendRequest request = chunk(shape, last, 1, 7, window);
        poisoned.store->poison(poisoned.pages(), last + 1, 1100);
        if (window) poisoned.store->poison(poisoned.pages(), 0, std::max<int64_t>(0, last + 1 - window));
        const AttendResult a = attend_one(*backend, numbers, request), b = attend_one(*backend, poisoned, request);
        ASSERT_FALSE(std::isnan(a.out[0]) || std::isnan(a.lse[0]));
        ASSERT_TRUE(same_bits(a, b)) << isa << " " << shape.name() << " last " << last << " window " << window;
      }
}

// A later row that reads a NaN entry must not leak it into the earlier rows of its tile.
TEST(CpuAttention, KeepsAnEarlierRowCleanOfWhatLaterRowsRead) {
  for (const auto& [isa, dtype] : every_store()) {
    const KvShape shape{dtype, 1, 2, 32};
    const auto backend = make_cpu(isa);
    const KvCase clean(*backend, shape, 110, 1), poisoned(*backend, shape, 110, 1);
    const AttendRequest request = chunk(shape, 100, 8);
    poisoned.store->poison(poisoned.pages(), 105, 110);
    const AttendResult a = attend_one(*backend, clean, request), b = attend_one(*backend, poisoned, request);
    const size_t width = shape.width();
    EXPECT_TRUE(same_bits(a.out.data(), b.out.data(), 5 * width)) << isa;
    EXPECT_TRUE(std::isnan(b.out[5 * width])) << isa;
  }
}

TEST(CpuAttention, SurvivesLogitsOfAnySize) {
  for (const std::string& isa : available_isas()) {
    const KvShape shape{DType::F32, 1, 1, 16};
    ReferenceBackend reference;
    const auto cpu = make_cpu(isa);
    const KvCase expected_kv(reference, shape, 1200), kv(*cpu, shape, 1200);
    AttendRequest request = chunk(shape, 1199, 1);
    for (float& x : request.q) x *= 300;  // logits of about +-1000
    const AttendResult expected = attend_one(reference, expected_kv, request), got = attend_one(*cpu, kv, request);
    EXPECT_LE(distance(got.out, expected.out), 2e-3f) << isa;  // fp32 logits near 1000 carry 6e-5 each
    EXPECT_LE(std::fabs(got.lse[0] - expected.lse[0]), 1e-3f) << isa;
  }
}

TEST(CpuAttention, CountsEveryBlockOncePerKvHead) {
  const auto cpu = make_cpu("", 2);
  const KvShape shape{DType::BF16, 2, 2, 64};
  const KvCase kv(*cpu, shape, 1100);
  const uint64_t before = cpu->counters().kv_bytes;
  attend_one(*cpu, kv, chunk(shape, 1090, 8));
  EXPECT_EQ(cpu->counters().kv_bytes - before,
      uint64_t(2 * 18 * 64 * 64 * 2 * 2));  // heads, blocks, entries, dims, K and V, bytes
}

TEST(CpuKvStore, MovesEntriesBitByBit) {
  for (const auto& [isa, dtype] : every_store()) {
    const KvShape shape{dtype, 2, 1, 24, 2};
    const auto cpu = make_cpu(isa);
    const KvCase kv(*cpu, shape, 140, 5), before(*cpu, shape, 140, 5);
    const std::vector<int64_t> from = {66, 69, 130}, to = {63, 66, 67};
    cpu->move_kv({kv.ref(), from, to});
    const auto source = [&](int, int64_t e) {
      const auto moved = std::ranges::find(to, e);
      return moved == to.end() ? e : from[moved - to.begin()];
    };
    expect_entries(kv, 60, 75, before, source, isa);
  }
}

TEST(CpuKvStore, ReadsBackWhatTheReferenceRounds) {
  ReferenceBackend reference;
  for (const auto& [isa, dtype] : every_store()) {
    const KvShape shape{dtype, 2, 1, 24, 2};
    const auto cpu = make_cpu(isa, 2);
    const KvCase expected(reference, shape, 333), got(*cpu, shape, 333);
    expect_entries(got, 0, 333, expected, isa);
  }
}

TEST(CpuKvStore, CodesZeroTinyAndNonFiniteRowsAsTheReference) {
  constexpr float inf = INFINITY, nan = NAN;
  const std::vector<Floats> rows = {{0, 0, 0}, {-0.0f, 0, 1e-40f}, {1e-31f, -5e-32f, 0}, {1e-29f, -5e-30f, 3e-30f},
      {3e38f, -1e38f, 2.5f}, {1, inf, 2}, {nan, 1, 2}, {127, -0.5f, 1.5f}};
  ReferenceBackend reference;
  for (const auto& [isa, dtype] : every_store()) {
    if (!is_coded(dtype)) continue;
    const auto cpu = make_cpu(isa);
    const KvShape shape{dtype, 1, 1, 3};
    const KvCase expected(reference, shape, 1), got(*cpu, shape, 1);
    for (size_t i = 0; i < rows.size(); ++i) {
      const View<const float, 3> row(rows[i].data(), 1, 1, 3);
      reference.store_kv({0, row, row, expected.ref(), int64_t(i)});
      cpu->store_kv({0, row, row, got.ref(), int64_t(i)});
      const auto a = expected.entry(0, 0, int64_t(i)), b = got.entry(0, 0, int64_t(i));
      for (size_t d = 0; d < 6; ++d)
        EXPECT_TRUE(a[d] == b[d] || (std::isnan(a[d]) && std::isnan(b[d]))) << isa << " row " << i << ": " << a[d] << " " << b[d];
      EXPECT_EQ(std::isnan(b[0]), i == 5 || i == 6) << isa;
    }
  }
}

// Ties, the least steps, the greatest code and what lies past it, and NaN; attention sees it too.
TEST(CpuKvStore, RoundsToFp8AsTheReference) {
  constexpr float inf = INFINITY, nan = NAN;
  Floats values = {
      0, -0.0f, 0x1p-10f, 0x1.000002p-10f, 0x1.8p-9f, -0x1p-9f, 448, 463, 464, 465, 1e30f, inf, -inf, 1e-40f, nan, -nan};
  for (int code = 0; code < 127; ++code) {  // every value, the middles between them and their neighbours
    const float x = f8_to_f32(uint8_t(code)), middle = code < 126 ? (x + f8_to_f32(uint8_t(code + 1))) / 2 : x;
    for (float y : {x, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, inf)})
      values.push_back(y), values.push_back(-y);
  }
  const int64_t dim = 16, rows = std::ssize(values) / dim;
  ReferenceBackend reference;
  for (const std::string& isa : available_isas()) {
    const auto cpu = make_cpu(isa);
    const KvShape shape{DType::F8_E4M3, 1, 1, int(dim)};
    const KvCase expected(reference, shape, 0), got(*cpu, shape, 0);
    for (const float scale : {1.0f, kTestScales[0].k, kTestScales[0].v}) {
      Floats scaled = values;
      for (float& x : scaled) x *= scale;
      const View<const float, 3> all(scaled.data(), rows, 1, dim);
      reference.store_kv({0, all, all, expected.ref(), 0}), cpu->store_kv({0, all, all, got.ref(), 0});
      for (int64_t row = 0; row < rows; ++row) {
        const auto a = expected.entry(0, 0, row), b = got.entry(0, 0, row);
        for (size_t d = 0; d < a.size(); ++d)
          EXPECT_TRUE((a[d] == b[d] && std::signbit(a[d]) == std::signbit(b[d])) || (std::isnan(a[d]) && std::isnan(b[d])))
              << isa << " " << scaled[size_t(row * dim) + d % size_t(dim)] << ": " << a[d] << " " << b[d];
      }
      const AttendResult result = attend_one(*cpu, got, chunk(shape, 0, 1));
      for (size_t d = 0; d < size_t(dim); ++d) EXPECT_TRUE(std::isnan(result.out[d])) << isa;  // row 0 holds NaN in K
    }
  }
}

TEST(CpuKvStore, StoresRowsOneByOneAsTogether) {
  for (const auto& [isa, dtype] : every_store()) {
    const KvShape shape{dtype, 1, 1, 20};
    const auto cpu = make_cpu(isa, 2);
    const KvCase together(*cpu, shape, 130, 4);
    KvCase single(*cpu, shape, 0, 4);
    single.store = cpu->make_kv_store(geometry_of(shape), 5);
    single.table = {4, 1, 3};
    const auto k = random_floats(130 * 20, 5), v = random_floats(130 * 20, 6);
    const auto row = [](const Floats& all, int64_t e) { return View<const float, 3>(&all[e * 20], 1, 1, 20); };
    for (int64_t e = 129; e >= 0; --e) cpu->store_kv({0, row(k, e), row(v, e), single.ref(), e});
    expect_entries(single, 0, 130, together, isa);
  }
}

}
}
