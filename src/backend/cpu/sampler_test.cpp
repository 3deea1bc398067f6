// Sampling of the cpu backend: the reference's tokens and probabilities, whatever the filters and however many ids survive.

#include <numeric>

#include "backend/cpu/test_backends.h"
#include "backend/test_inputs.h"

namespace hunch {
namespace {

constexpr float kInf = INFINITY, kNan = NAN;
constexpr NoiseKey kKey{0x0123456789abcdef, 5};

struct Sampled {
  Ints tokens;
  Floats probs;
  Ints seconds;
  Floats leads;
  Ints ranked;  // [row][k]
  Floats shares;
};

// Rows of `logits` at consecutive positions from first_position on.
Sampled sample(Backend& backend, const Floats& logits, int64_t vocab, const SamplingParams& params, int32_t first_position = 0,
    bool want_probs = true, int64_t k = 0) {
  const int64_t rows = std::ssize(logits) / vocab;
  Ints positions(rows);
  std::iota(positions.begin(), positions.end(), first_position);
  Sampled out{Ints(rows, -2), Floats(want_probs ? logits.size() : 0, -1.0f), Ints(rows, -2), Floats(rows, -1.0f)};
  SampleArgs args{view(logits, rows, vocab), params, kKey, NoiseStream::Draft, view(positions, rows), view(out.tokens, rows)};
  if (want_probs) args.probs = view(out.probs, rows, vocab);
  args.seconds = view(out.seconds, rows), args.leads = view(out.leads, rows);
  if (k > 0) {
    out.ranked.assign(rows * k, -2), out.shares.assign(rows * k, -1.0f);
    args.ranked = view(out.ranked, rows, k), args.shares = view(out.shares, rows, k);
  }
  backend.sample(args);
  return out;
}

Floats gaussian(int64_t n, float spread, uint32_t seed = 4) { return test::gaussian(n, seed, spread); }

class CpuSample : public testing::TestWithParam<std::string> {
 protected:
  // What a backend samples, and what the reference does.
  template <class... Args>
  std::pair<Sampled, Sampled> both(Backend& backend, const Args&... args) {
    return {sample(backend, args...), sample(reference_, args...)};
  }
  std::unique_ptr<Backend> cpu_ = make_cpu(GetParam(), 1);
  ReferenceBackend reference_;
};
INSTANTIATE_TEST_SUITE_P(Isa, CpuSample, testing::ValuesIn(available_isas()), backend_name);

TEST_P(CpuSample, ChoosesTheTokensOfTheReference) {
  const auto cpu = make_cpu(GetParam(), 2);
  for (const int64_t vocab : {1, 2, 15, 16, 17, 63, 65, 257, 1000, 5003}) {
    const auto logits = gaussian(vocab * 12, 2.5f);
    for (const SamplingParams& params : kParams) {
      const auto [got, want] = both(*cpu, logits, vocab, params);
      ASSERT_EQ(got.tokens, want.tokens) << "vocabulary " << vocab << ", set " << &params - kParams;
      ASSERT_EQ(got.seconds, want.seconds) << "vocabulary " << vocab << ", set " << &params - kParams;
      for (size_t r = 0; r < want.leads.size(); ++r) {
        ASSERT_EQ(std::isinf(got.leads[r]), want.seconds[r] < 0);
        if (want.seconds[r] >= 0) { ASSERT_NEAR(got.leads[r], want.leads[r], 1e-4); }
        ASSERT_NE(want.seconds[r], want.tokens[r]);
      }
      for (size_t i = 0; i < want.probs.size(); ++i) {
        ASSERT_EQ(got.probs[i] > 0, want.probs[i] > 0) << "id " << i << " of " << vocab << ", set " << &params - kParams;
        ASSERT_NEAR(got.probs[i], want.probs[i], 1e-6 * want.probs[i] + 1e-12);
      }
    }
  }
}

TEST_P(CpuSample, GivesSecondsAndLeadsEachWithoutTheOther) {
  const auto cpu = make_cpu(GetParam(), 2);
  const int64_t vocab = 300, rows = 12;
  const auto logits = gaussian(vocab * rows, 2.5f);
  for (Backend* backend : {cpu.get(), static_cast<Backend*>(&reference_)})
    for (const SamplingParams& params : kParams) {
      const Sampled both = sample(*backend, logits, vocab, params);
      Ints tokens(rows, -7), seconds(rows, -7), positions(rows, 0);
      Floats leads(rows, -7);
      std::iota(positions.begin(), positions.end(), 0);
      SampleArgs args{view(logits, rows, vocab), params, kKey, NoiseStream::Draft, view(positions, rows), view(tokens, rows)};
      args.leads = view(leads, rows);
      backend->sample(args);
      ASSERT_TRUE(same_bits(leads, both.leads));
      args.leads = {}, args.seconds = view(seconds, rows);
      backend->sample(args);
      ASSERT_EQ(seconds, both.seconds);
    }
}

TEST_P(CpuSample, RanksTheIdsOfTheReference) {
  const auto cpu = make_cpu(GetParam(), 2);
  for (const int64_t vocab : {1, 2, 17, 65, 257, 1000, 5003})
    for (const int64_t k : {1, 2, 10, 64}) {
      const auto logits = gaussian(vocab * 6, 2.5f, uint32_t(k));
      for (const SamplingParams& params : kParams) {
        const auto [got, want] = both(*cpu, logits, vocab, params, 3, true, k);
        const auto where = [&](size_t i) {
          return testing::Message() << "rank " << i << " of " << k << ", vocabulary " << vocab << ", set " << &params - kParams;
        };
        for (size_t i = 0; i < want.ranked.size(); ++i) {
          ASSERT_EQ(got.ranked[i], want.ranked[i]) << where(i);
          ASSERT_NEAR(got.shares[i], want.shares[i], 1e-5 * want.shares[i] + 1e-30) << where(i);
          if (i % size_t(k) == 0) { ASSERT_EQ(got.ranked[i], got.tokens[i / size_t(k)]) << where(i); }
          if (i % size_t(k) == 1) { ASSERT_EQ(got.ranked[i], got.seconds[i / size_t(k)]) << where(i); }
        }
        // Asking for ranks changes nothing else.
        const Sampled plain = sample(*cpu, logits, vocab, params, 3);
        ASSERT_EQ(plain.tokens, got.tokens);
        ASSERT_EQ(plain.seconds, got.seconds);
        ASSERT_TRUE(same_bits(plain.leads, got.leads));
        ASSERT_TRUE(same_bits(plain.probs, got.probs));
      }
    }
}

TEST_P(CpuSample, RanksEqualsByIdAndLeavesOutWhatIsImpossible) {
  std::mt19937 random(8);
  for (const int64_t vocab : {20, 700, 3000})
    for (const float odd : {0.0f, kInf, -kInf, kNan})
      for (const int64_t many : {int64_t(1), vocab - 5, vocab}) {
        Floats logits(vocab);
        for (float& x : logits) x = float(random() % 4);
        for (int64_t i = 0; i < many; ++i) logits[vocab - 1 - i] = odd;
        for (const SamplingParams& params : kParams) {
          const auto [got, want] = both(*cpu_, logits, vocab, params, 0, false, 12);
          ASSERT_EQ(got.ranked, want.ranked) << vocab << " ids, " << many << " of them " << odd << ", set " << &params - kParams;
          for (size_t i = 0; i < 12; ++i) ASSERT_NEAR(got.shares[i], want.shares[i], 1e-5 * want.shares[i]) << i;
        }
      }
}

TEST_P(CpuSample, KeepsTheOrderOfTheReferenceAmongEqualLogits) {
  std::mt19937 random(8);
  for (const int64_t vocab : {40, 700, 3000}) {
    Floats logits(vocab);
    for (float& x : logits) x = float(random() % 4);  // a quarter of the ids share each value
    for (const SamplingParams& params : kParams) {
      const auto [got, want] = both(*cpu_, logits, vocab, params);
      ASSERT_EQ(got.tokens, want.tokens);
      for (size_t i = 0; i < want.probs.size(); ++i)
        ASSERT_EQ(got.probs[i] > 0, want.probs[i] > 0) << "id " << i << " of " << vocab;
    }
  }
}

// Most ids are skipped because their noise cannot make them win: the winners must be those of all the noise.
TEST_P(CpuSample, FindsTheWinnerAmongThousandsOfDraws) {
  constexpr int64_t kVocab = 700;
  for (const float spread : {0.0f, 0.5f, 2.0f, 8.0f}) {
    const auto logits = gaussian(kVocab * 800, spread);
    for (const SamplingParams& params : {SamplingParams{1, 0, 1, 0}, SamplingParams{1, 640, 1, 0}}) {
      const auto [got, want] = both(*cpu_, logits, kVocab, params, 0, false);
      ASSERT_EQ(got.tokens, want.tokens) << "spread " << spread;
    }
  }
  // A distance that overflows, met before anything was reached.
  Floats far(kVocab, -3e38f);
  far.back() = 3e38f;
  EXPECT_EQ(sample(*cpu_, far, kVocab, {1, 0, 1, 0}).tokens[0], kVocab - 1);
}

TEST_P(CpuSample, ReachesTopPExactlyAmongManyEquals) {
  const Floats logits(2048, 1.5f);
  for (const float top_p : {0.5f, 0.75f, 0.25f}) {
    const Sampled sampled = sample(*cpu_, logits, 2048, {1, 0, top_p, 0});
    for (size_t i = 0; i < 2048; ++i) ASSERT_EQ(sampled.probs[i] > 0, float(i) < 2048 * top_p) << i;
  }
}

TEST_P(CpuSample, HandlesInfinitiesAndNanLikeTheReference) {
  for (const int64_t vocab : {20, 1100}) {
    for (const float odd : {kInf, -kInf, kNan}) {
      for (const int64_t many : {int64_t(1), vocab - 1, vocab}) {
        auto logits = gaussian(vocab, 1);
        for (int64_t i = 0; i < many; ++i) logits[vocab - 1 - i] = odd;
        for (const SamplingParams& params : kParams) {
          const auto [got, want] = both(*cpu_, logits, vocab, params);
          ASSERT_EQ(got.tokens, want.tokens) << vocab << " ids, " << many << " of them " << odd << ", set " << &params - kParams;
          for (size_t i = 0; i < want.probs.size(); ++i) ASSERT_NEAR(got.probs[i], want.probs[i], 1e-6);
        }
      }
    }
  }
}

TEST_P(CpuSample, GivesARowTheSameTokenAndRanksInAnyCompany) {
  constexpr int64_t kVocab = 1500, kRows = 40;
  const auto logits = gaussian(kVocab * kRows, 2);
  const auto one = make_cpu(GetParam(), 1), three = make_cpu(GetParam(), 3);
  for (const int64_t best : {0, 9})
    for (const SamplingParams& params : kParams) {
      const Sampled all = sample(*three, logits, kVocab, params, 0, true, best);
      for (int64_t r = 0; r < kRows; ++r) {
        const auto row = part_of(logits, r * kVocab, kVocab);
        const Sampled alone = sample(*one, row, kVocab, params, int32_t(r), true, best);
        ASSERT_EQ(alone.tokens[0], all.tokens[r]);
        ASSERT_TRUE(stands_at(alone.probs, all.probs, r * kVocab));
        ASSERT_EQ(alone.ranked, part_of(all.ranked, r * best, best));
        ASSERT_TRUE(stands_at(alone.shares, all.shares, r * best));
        ASSERT_EQ(sample(*one, row, kVocab, params, int32_t(r), false, best).tokens, alone.tokens);
      }
    }
}

TEST_P(CpuSample, DrawsTheNoiseOfTheDefinition) {
  const auto kernels = choose_kernels(GetParam());
  ASSERT_TRUE(kernels.ok());
  const NoiseKey key{0xfedcba9876543210, 77};
  SampleRow row;
  row.seed = key.seed, row.sample = key.sample, row.stream = uint32_t(NoiseStream::Residual), row.position = 31337;
  alignas(64) float noise[64];
  double sum = 0, greatest = 0;
  for (int64_t first = 0; first < 64 * 1500; first += 64) {
    kernels.value()->rows.noise(row, first, noise);
    for (int64_t i = 0; i < 64; ++i) {
      const double u = uniform(key, NoiseStream::Residual, row.position, uint32_t(first + i)), exact = -std::log(-std::log(u));
      ASSERT_NEAR(noise[i], exact, 1e-6 * std::max(1.0, std::abs(exact))) << "id " << first + i;
      sum += noise[i], greatest = std::max(greatest, exact);
    }
  }
  EXPECT_NEAR(sum / (64 * 1500), 0.5772, 0.02);  // Euler's constant is the mean of the law
  EXPECT_GT(greatest, 9);                        // the tail was seen
}

}
}
