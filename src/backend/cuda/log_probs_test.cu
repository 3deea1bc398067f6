// Log-probabilities on the device against the reference.
#include "backend/cuda/log_probs.h"

#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;

constexpr float kInf = INFINITY, kNan = NAN;

struct Result {
  Floats values, top_values;
  Ints top_ids;
};

struct CudaLogProbs : HopperTest {
  Result on_device(const Floats& logits, int64_t rows, int64_t vocab, const Ints& ids, int count) {
    DeviceArray<float> x(logits), values(Floats(rows, -5.0f)), top_values(Floats(rows * count, -5.0f));
    DeviceArray<int32_t> wanted(ids), top_ids(Ints(rows * count, -5));
    enqueue_log_probs(*commands,
        {view(x, rows, vocab), view(wanted, rows), view(values, rows), count, view(top_ids, rows, count),
            view(top_values, rows, count)});
    finish();
    return {values.get(), top_values.get(), top_ids.get()};
  }
};

void expect_same(const Floats& got, const Floats& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i])) << i;
    if (std::isinf(want[i])) { ASSERT_EQ(got[i], want[i]) << i; }
    if (std::isfinite(want[i])) { ASSERT_NEAR(got[i], want[i], 1e-6 * std::max(1.0, std::abs(double(want[i])))) << i; }
  }
}

TEST_F(CudaLogProbs, EqualTheReferenceInAnyCompany) {
  for (const int64_t vocab : {1, 3, 50, 1001, 5003, 151936}) {
    for (const int count : {0, 1, 20, 1500, 2100}) {
      if (vocab > 10000 && count > 1500) continue;
      const int64_t rows = 6;
      std::mt19937 random(uint32_t(vocab) + 7);
      auto logits = gaussian(rows * vocab, random(), 3);
      for (int64_t i = 0; i < vocab; ++i) logits[vocab + i] = float(random() % 3);  // ties
      logits[2 * vocab + vocab / 2] = kNan;
      for (int64_t i = 0; i < vocab; ++i) logits[3 * vocab + i] = i % 3 ? -kInf : 1.5f;
      for (int64_t i = 0; i < vocab; ++i) logits[4 * vocab + i] = -kInf;
      Ints ids;
      for (int64_t r = 0; r < rows; ++r) ids.push_back(int32_t(random() % uint32_t(vocab)));
      Result want{Floats(rows, 0.0f), Floats(rows * count, 0.0f), Ints(rows * count, 0)};
      reference.log_probs({view(logits, rows, vocab), view(ids, rows), view(want.values, rows), count,
          view(want.top_ids, rows, count), view(want.top_values, rows, count)});
      const Result got = on_device(logits, rows, vocab, ids, count);
      expect_same(got.values, want.values);
      expect_same(got.top_values, want.top_values);
      ASSERT_EQ(got.top_ids, want.top_ids);
      const Result alone = on_device(part_of(logits, 5 * vocab, vocab), 1, vocab, {ids.back()}, count);
      ASSERT_EQ(alone.values[0], got.values.back());
      if (count > 0) ASSERT_TRUE(stands_at(alone.top_values, got.top_values, 5 * count));
    }
  }
}

}
}
