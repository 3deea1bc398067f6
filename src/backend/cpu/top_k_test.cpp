// top_k on every instruction set against the reference's sort: ties, signs, infinities, NaN, dilation.
#include "backend/ops/top_k.h"

#include "backend/cpu/kv_fixture.h"

namespace hunch {
namespace {

Ints select(Backend& backend, const Floats& scores, int sets, int64_t count, int spread, int sinks, int recent, int block = 1) {
  const int64_t n = std::ssize(scores) / sets;
  Ints index(sets * count * block, -1);
  TopKArgs args;
  args.scores = view(scores, sets, n);
  args.n = n, args.count = count, args.spread = spread, args.sinks = sinks, args.recent = recent;
  args.block = block, args.index = view(index, sets, count * block);
  backend.top_k(args);
  return index;
}

TEST(CpuTopK, EqualsASortOnRandomScoresTiesAndSpecialValues) {
  ReferenceBackend reference;
  std::mt19937 random(1);
  const float inf = INFINITY, nan = NAN;
  for (const std::string& isa : available_isas()) {
    const auto cpu = make_cpu(isa, 2);
    for (int trial = 0; trial < 400; ++trial) {
      const int64_t n = 1 + int64_t(random() % 700);
      const int sets = 1 + trial % 3, kind = trial % 5;
      Floats scores(n * sets);
      for (float& s : scores) {
        s = float(random()) / 4294967296.0f;
        if (kind == 1) s = float(random() % 5) * 0.25f;  // ties
        if (kind == 2) s = (float(random()) / 2147483648.0f - 1) * std::exp2(float(random() % 200) - 100);
        if (kind == 3) {
          const float special[] = {0.0f, -0.0f, inf, -inf, nan, -nan, 1.0f, -1.0f, 1e-42f};
          s = special[random() % 9];
        }
        if (kind == 4) s = 0.5f;
      }
      const int64_t count = 1 + int64_t(random() % uint32_t(n));
      const int sinks = trial % 4 == 0 ? int(random() % 9) : 0, recent = trial % 7 == 0 ? int(random() % 40) : 0;
      const int block = 1 + trial % 8;
      ASSERT_EQ(select(*cpu, scores, sets, count, 0, sinks, recent, block),
          select(reference, scores, sets, count, 0, sinks, recent, block))
          << isa << " trial " << trial << " n " << n << " count " << count;
    }
  }
}

// Of many scores a sample (every eighth) says which are looked at: here it sees all great ones, none, or every kind of them.
TEST(CpuTopK, EqualsASortWhateverASampleSees) {
  ReferenceBackend reference;
  std::mt19937 random(4);
  for (const std::string& isa : available_isas()) {
    const auto cpu = make_cpu(isa);
    for (int trial = 0; trial < 60; ++trial) {
      const int64_t n = 1024 + int64_t(random() % 3000), count = 1 + int64_t(random() % uint32_t(n / 2));
      const int great = trial % 4;
      Floats scores(n);
      for (size_t i = 0; i < scores.size(); ++i) {
        const bool is_great = great == 0 ? i % 8 == 0 : great == 1 ? i % 8 != 0 : random() % 9 == 0;
        scores[i] = float(random() % 1000) * (is_great ? 1.0f : great == 3 ? -1.0f : 1e-4f);
      }
      ASSERT_EQ(select(*cpu, scores, 1, count, 0, 4, 16), select(reference, scores, 1, count, 0, 4, 16))
          << isa << " trial " << trial;
    }
  }
}

TEST(CpuTopK, DilatesAsTheReferenceDoes) {
  ReferenceBackend reference;
  std::mt19937 random(2);
  for (const std::string& isa : available_isas()) {
    const auto cpu = make_cpu(isa);
    for (int spread : {1, 2, 3, 7, 8, 15, 16, 17, 40, 100})
      for (int64_t n : {1, 5, 16, 17, 64, 100, 777}) {
        Floats scores(n);
        for (float& s : scores) s = random() % 9 == 0 ? float(random()) / 4294967296.0f : 0.0f;
        const int64_t count = std::max<int64_t>(1, n / 5);
        ASSERT_EQ(select(*cpu, scores, 1, count, spread, 2, 3), select(reference, scores, 1, count, spread, 2, 3))
            << isa << " spread " << spread << " n " << n;
      }
  }
}

TEST(CpuTopK, WorksOnAMillionScores) {
  ReferenceBackend reference;
  auto scores = random_floats(1'000'003, 3);
  for (float& s : scores) s = s * s;
  const auto cpu = make_cpu("", 2);
  EXPECT_EQ(select(*cpu, scores, 1, 70'000, 16, 4, 64), select(reference, scores, 1, 70'000, 16, 4, 64));
}

TEST(CpuTopK, GivesTheFirstIndicesWhenAllScoresAreEqual) {
  for (const std::string& isa : available_isas()) {
    const auto index = select(*make_cpu(isa), Floats(500, 0.25f), 1, 123, 0, 0, 0);
    for (int i = 0; i < 123; ++i) ASSERT_EQ(index[i], i) << isa;
  }
}

}
}
