// Weighed drafts: the reference's probabilities and residuals, for laws of many and of few ids.
#include "backend/cuda/weigh.h"

#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;

constexpr int64_t kNodes = 12;

// Rows as sample() makes them, of a spread of logits and how many ids are left; the first is the same in every set, the second
// empty.
Floats laws(int64_t vocab, int top_k, uint32_t seed) {
  Floats logits = gaussian(kNodes * vocab, seed, 2), probs(logits.size());
  const auto same = gaussian(vocab, 77, 2);
  std::ranges::copy(same, logits.begin());
  Ints tokens(kNodes), positions(kNodes);
  SampleArgs args{.logits = view(logits, kNodes, vocab), .params = {1, top_k, 1, 0}};
  args.positions = view(positions, kNodes), args.tokens = view(tokens, kNodes);
  args.probs = view(probs, kNodes, vocab);
  ReferenceBackend().sample(args);
  std::fill_n(probs.begin() + vocab, vocab, 0.0f);
  return probs;
}

using CudaWeighDrafts = CommandsTest<>;

TEST_F(CudaWeighDrafts, GivesProbabilitiesAndResidualsOfTheReference) {
  for (const int64_t vocab : {1, 3, 64, 1001, 32000, 151936})
    for (const int top_k : {0, 1, 5, 300}) {
      const Floats p = laws(vocab, top_k, 4), q = laws(vocab, top_k, top_k == 5 ? 4 : 9);  // once the same
      Ints tokens(kNodes);
      for (int64_t i = 0; i < kNodes; ++i) {  // likely ones, and one that was not drawn
        const auto row = q.begin() + i * vocab;
        tokens[i] = i == 5 ? -1 : int32_t(std::max_element(row, row + vocab) - row);
      }
      Floats weights(2 * kNodes);
      Ints residuals(kNodes);
      const auto args_of = [&](const auto& p_at, const auto& q_at, const auto& tokens_at, auto& weights_at, auto& out) {
        return WeighDraftsArgs{.p = view(p_at, kNodes, vocab),
            .q = view(q_at, kNodes, vocab),
            .tokens = view(tokens_at),
            .key = {0x0123456789abcdef, 5},
            .first_position = 40,
            .weights = view(weights_at, kNodes, 2),
            .residuals = view(out)};
      };
      const WeighDraftsArgs here = args_of(p, q, tokens, weights, residuals);
      ReferenceBackend().weigh_drafts(std::span(&here, 1));

      const DeviceArray<float> p_there(p), q_there(q);
      const DeviceArray<int32_t> tokens_there(tokens);
      DeviceArray<float> weights_there(weights.size());
      DeviceArray<int32_t> residuals_there(residuals.size());
      const WeighDraftsArgs there = args_of(p_there, q_there, tokens_there, weights_there, residuals_there);
      const WeighDraftsArgs halves[] = {there, there};  // two chains of one call do not meet
      enqueue_weigh_drafts(*commands, halves);
      finish();
      EXPECT_EQ(weights_there.get(), weights) << vocab << " " << top_k;
      EXPECT_EQ(residuals_there.get(), residuals) << vocab << " " << top_k;
      EXPECT_EQ(residuals[1], -1);
    }
}

}
}
