// Sampling on the device: the reference's tokens, seconds and supports.
#include "backend/cuda/sample.h"

#include <numeric>

#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;

constexpr float kInf = INFINITY, kNan = NAN;

struct Sampled {
  Ints tokens, seconds, ranked;  // ranked: [row][k]
  Floats probs, leads, shares;
};

SampleArgs args_of(const float* logits, int64_t rows, int64_t vocab, const SamplingParams& params, const int32_t* positions) {
  return {.logits = View<const float, 2>(logits, rows, vocab),
      .params = params,
      .key = {0x0123456789abcdef, 5},
      .stream = NoiseStream::Draft,
      .positions = View<const int32_t, 1>(positions, rows)};
}

Ints positions_from(int32_t first, int64_t rows) {
  Ints positions(rows);
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

Sampled by_reference(
    const Floats& logits, int64_t vocab, const SamplingParams& params, int32_t first_position = 0, int64_t k = 0) {
  const int64_t rows = std::ssize(logits) / vocab;
  const auto positions = positions_from(first_position, rows);
  Sampled out{Ints(size_t(rows)), Ints(size_t(rows)), Ints(size_t(rows * k)), Floats(logits.size()), Floats(size_t(rows)),
      Floats(size_t(rows * k))};
  SampleArgs args = args_of(logits.data(), rows, vocab, params, positions.data());
  args.tokens = view(out.tokens, rows), args.seconds = view(out.seconds, rows);
  args.leads = view(out.leads, rows), args.probs = view(out.probs, rows, vocab);
  if (k > 0) args.ranked = view(out.ranked, rows, k), args.shares = view(out.shares, rows, k);
  ReferenceBackend().sample(args);
  return out;
}

Floats gaussian(int64_t n, float spread, uint32_t seed = 4) { return test::gaussian(n, seed, spread); }

struct CudaSample : HopperTest {
  // `k`: ranks in place of seconds and leads.
  Sampled on_device(const Floats& logits, int64_t vocab, const SamplingParams& params, int32_t first_position = 0,
      bool want_probs = true, int64_t k = 0) {
    const int64_t rows = std::ssize(logits) / vocab;
    DeviceArray<float> x(logits), probs(want_probs ? logits.size() : 0), leads(rows), shares(rows * k);
    DeviceArray<int32_t> tokens(rows), seconds(rows), ranked(rows * k);
    if (want_probs) HUNCH_CUDA_CHECK(cudaMemset(probs.data(), 0xff, logits.size() * 4));
    const auto positions = positions_from(first_position, rows);
    SampleArgs args = args_of(x.data(), rows, vocab, params, positions.data());
    args.tokens = view(tokens, rows);
    if (want_probs) args.probs = view(probs, rows, vocab);
    if (k > 0) args.ranked = view(ranked, rows, k), args.shares = view(shares, rows, k);
    else args.seconds = view(seconds, rows), args.leads = view(leads, rows);
    enqueue_sample(*commands, args);
    finish();
    return {tokens.get(), seconds.get(), ranked.get(), probs.get(), leads.get(), shares.get()};
  }
  void expect_reference(const Floats& logits, int64_t vocab, const SamplingParams& params, int32_t position) {
    const Sampled got = on_device(logits, vocab, params, position), want = by_reference(logits, vocab, params, position);
    const auto where = [&](size_t i) {
      return testing::Message() << "at " << i << ", vocabulary " << vocab << ", temperature " << params.temperature << ", top_k "
                                << params.top_k << ", top_p " << params.top_p << ", min_p " << params.min_p;
    };
    for (size_t r = 0; r < want.tokens.size(); ++r) {
      if (want.leads[r] >= 1e-4f || params.temperature == 0) ASSERT_EQ(got.tokens[r], want.tokens[r]) << where(r);
      else ASSERT_TRUE(got.tokens[r] == want.tokens[r] || got.tokens[r] == want.seconds[r]) << where(r);
      if (got.tokens[r] == want.tokens[r]) ASSERT_EQ(got.seconds[r], want.seconds[r]) << where(r);
      ASSERT_EQ(std::isinf(got.leads[r]), std::isinf(want.leads[r])) << where(r);
      if (std::isfinite(want.leads[r])) ASSERT_NEAR(got.leads[r], want.leads[r], 1e-4) << where(r);
    }
    for (size_t i = 0; i < want.probs.size(); ++i) {
      if (want.probs[i] > 1e-38f || got.probs[i] > 1e-38f)
        ASSERT_EQ(got.probs[i] > 0, want.probs[i] > 0) << where(i) << " probs " << got.probs[i] << " " << want.probs[i];
      ASSERT_NEAR(got.probs[i], want.probs[i], 1e-5 * double(want.probs[i]) + 1e-37) << where(i);
    }
  }
  void expect_reference(const Floats& logits, int64_t vocab, int32_t position = 0) {  // whatever the filters
    for (const SamplingParams& params : kParams) {
      expect_reference(logits, vocab, params, position);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_F(CudaSample, GivesLeadsWithoutSeconds) {
  const int64_t vocab = 1000, rows = 6;
  const auto logits = gaussian(vocab * rows, 2.5f);
  for (const SamplingParams& params : kParams) {
    const Sampled both = on_device(logits, vocab, params);
    const DeviceArray<float> x(logits);
    DeviceArray<float> leads(rows);
    DeviceArray<int32_t> tokens(rows);
    const auto positions = positions_from(0, rows);
    SampleArgs args = args_of(x.data(), rows, vocab, params, positions.data());
    args.tokens = view(tokens, rows), args.leads = view(leads, rows);
    enqueue_sample(*commands, args);
    finish();
    ASSERT_TRUE(same_bits(leads.get(), both.leads));
  }
}

TEST_F(CudaSample, ChoosesTheTokensOfTheReference) {
  for (const int64_t vocab : {1, 2, 15, 32, 63, 65, 257, 1000, 5003}) expect_reference(gaussian(vocab * 12, 2.5f), vocab);
}

TEST_F(CudaSample, ChoosesTheTokensOfTheReferenceInLargeVocabularies) {
  for (const int64_t vocab : {151936, 262144, 128007})
    expect_reference(gaussian(vocab * 3, 1.0f + float(vocab % 3)), vocab, 100000);
}

TEST_F(CudaSample, KeepsTheOrderOfTheReferenceAmongEqualLogits) {
  std::mt19937 random(8);
  for (const int64_t vocab : {40, 700, 3000, 20000}) {
    Floats logits(vocab * 2);
    for (float& x : logits) x = float(random() % 4) - 1;  // a quarter of the ids share each value
    expect_reference(logits, vocab);
  }
}

TEST_F(CudaSample, FindsTheWinnerAmongThousandsOfDraws) {
  for (const float spread : {0.0f, 0.5f, 2.0f, 8.0f})
    for (const SamplingParams& params : {SamplingParams{1, 0, 1, 0}, SamplingParams{1, 640, 1, 0}}) {
      expect_reference(gaussian(700 * 800, spread), 700, params, 0);
      if (HasFatalFailure()) return;
    }
  Floats far(700, -3e38f);
  far.back() = 3e38f;
  EXPECT_EQ(on_device(far, 700, {1, 0, 1, 0}).tokens[0], 699);
}

TEST_F(CudaSample, ReachesTopPExactlyAmongManyEquals) {
  for (const int64_t vocab : {512, 2048, 16384})
    for (const float top_p : {0.5f, 0.75f, 0.25f}) {
      const Sampled sampled = on_device(Floats(vocab, 1.5f), vocab, {1, 0, top_p, 0});
      for (int64_t i = 0; i < vocab; ++i) ASSERT_EQ(sampled.probs[i] > 0, float(i) < float(vocab) * top_p) << i;
    }
}

TEST_F(CudaSample, HandlesInfinitiesAndNanLikeTheReference) {
  for (const int64_t vocab : {20, 1100})
    for (const float odd : {kInf, -kInf, kNan})
      for (const int64_t many : {int64_t(1), vocab - 1, vocab}) {
        auto logits = gaussian(vocab, 1);
        for (int64_t i = 0; i < many; ++i) logits[vocab - 1 - i] = odd;
        for (const SamplingParams& params : kParams) {
          const Sampled got = on_device(logits, vocab, params), want = by_reference(logits, vocab, params);
          const auto where = testing::Message()
              << vocab << " ids, " << many << " of them " << odd << ", set " << &params - kParams;
          ASSERT_EQ(got.tokens, want.tokens) << where;
          ASSERT_EQ(got.seconds, want.seconds) << where;
          for (size_t i = 0; i < want.probs.size(); ++i) ASSERT_NEAR(got.probs[i], want.probs[i], 1e-6);
        }
      }
}

TEST_F(CudaSample, GivesARowTheSameBitsInAnyCompany) {
  constexpr int64_t kVocab = 5001, kRows = 40;
  const auto logits = gaussian(kVocab * kRows, 2);
  for (const SamplingParams& params : kParams) {
    const Sampled all = on_device(logits, kVocab, params);
    for (int64_t r = 0; r < kRows; r += 3) {
      const Floats row = part_of(logits, r * kVocab, kVocab);
      const Sampled alone = on_device(row, kVocab, params, int32_t(r));
      ASSERT_EQ(alone.tokens[0], all.tokens[r]);
      ASSERT_TRUE(stands_at(alone.probs, all.probs, r * kVocab));
      ASSERT_TRUE(stands_at(alone.leads, all.leads, r));
      ASSERT_EQ(on_device(row, kVocab, params, int32_t(r), false).tokens, alone.tokens);
    }
  }
}

TEST_F(CudaSample, RanksTheIdsOfTheReference) {
  std::mt19937 random(8);
  for (const int64_t vocab : {1, 2, 17, 65, 1000, 5003, 151936})
    for (const int64_t k : {1, 10, 64})
      for (const bool equals : {false, true})
        for (const SamplingParams& params : kParams) {
          auto logits = gaussian(vocab * 3, 2.5f, uint32_t(k));
          if (equals)
            for (float& x : logits) x = float(random() % 4) - 1;
          if (vocab > 64) logits[5] = -kInf, logits[vocab + 3] = kInf, logits[2 * vocab + 1] = kNan;
          const Sampled got = on_device(logits, vocab, params, 0, false, k), want = by_reference(logits, vocab, params, 0, k);
          for (size_t i = 0; i < want.ranked.size(); ++i) {
            ASSERT_EQ(got.ranked[i], want.ranked[i])
                << "rank " << i << " of " << k << ", vocabulary " << vocab << ", set " << &params - kParams;
            ASSERT_NEAR(got.shares[i], want.shares[i], 1e-5 * want.shares[i] + 1e-30);
            if (i % size_t(k) == 0) ASSERT_EQ(got.ranked[i], got.tokens[i / size_t(k)]);
          }
        }
}

TEST_F(CudaSample, GivesRanksTheSameBitsInAnyCompany) {
  constexpr int64_t kVocab = 5000, kRows = 9, kBest = 12;
  const auto logits = gaussian(kVocab * kRows, 2);
  for (const SamplingParams& params : kParams) {
    const Sampled all = on_device(logits, kVocab, params, 0, false, kBest);
    for (int64_t r = 0; r < kRows; ++r) {
      const Floats row = part_of(logits, r * kVocab, kVocab);
      const Sampled alone = on_device(row, kVocab, params, int32_t(r), false, kBest);
      ASSERT_EQ(alone.ranked, part_of(all.ranked, r * kBest, kBest));
      ASSERT_TRUE(stands_at(alone.shares, all.shares, r * kBest));
    }
  }
}

TEST_F(CudaSample, TakesManyCallsInOneLaunch) {
  constexpr int64_t kVocab = 3000;
  const int64_t calls = int64_t(std::size(kParams));
  const auto logits = gaussian(kVocab * 2 * calls, 2);
  DeviceArray<float> x(logits);
  DeviceArray<int32_t> tokens(2 * calls);
  std::vector<SampleArgs> all;
  const Ints positions{7, 9};
  for (int64_t i = 0; i < calls; ++i) {
    all.push_back(args_of(x.data() + i * 2 * kVocab, 2, kVocab, kParams[i], positions.data()));
    all.back().key.seed = uint64_t(i);
    all.back().tokens = View<int32_t, 1>(tokens.data() + 2 * i, 2);
  }
  enqueue_sample(*commands, all);
  finish();
  EXPECT_EQ(commands->counters().kernels, 1u);
  const auto got = tokens.get();
  for (int64_t i = 0; i < calls; ++i) {
    Ints want(2);
    SampleArgs args = all[i];
    args.logits.data = logits.data() + i * 2 * kVocab, args.tokens.data = want.data();
    reference.sample(args);
    EXPECT_EQ(got[2 * i], want[0]) << i;
    EXPECT_EQ(got[2 * i + 1], want[1]) << i;
  }
}

}
}
