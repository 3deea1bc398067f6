// Rules on the device: the rows that backend/ops/logit_patch.h makes, bit for bit, as a request goes on.
#include "backend/cuda/rules.h"

#include <cmath>

#include "backend/cuda/commands_fixture.h"
#include "backend/cuda/spare_memory.h"
#include "backend/ops/logit_patch.h"

namespace hunch {
namespace {

using namespace test;

struct EveryThird final : TokenMask {  // allows ids that are 0 mod 3 behind an even number of drafts, else every other word
  explicit EveryThird(int64_t vocab) : words_(size_t(vocab + 31) / 32) {}
  Row after(std::span<const int32_t> path) override {
    for (size_t i = 0; i < words_.size(); ++i)
      words_[i] = path.size() % 2 ? i % 2 ? ~0u : 0u : i % 3 == 0 ? 0x49249249u : 0x92492492u;
    return {.words = words_.data()};
  }
  void append(int32_t) override {}
  void reset() override {}

 private:
  std::vector<uint32_t> words_;
};

std::vector<LogitRules> rules(int64_t vocab) {
  const auto last = int32_t(vocab - 1);
  return {
      {.repetition = 1.3f},
      {.presence = 0.6f, .frequency = -0.4f},
      {.repetition = 0.7f, .presence = -1, .frequency = 0.3f, .bias = {{3, 2.5f}, {last, -200}, {3, 0.1f}, {5, -1}}},
      {.bias = {{0, 1}, {7, kBanBias}}, .min_tokens = 4, .end_ids = {1, 2}},
      {.repetition = 1.1f, .allowed = {1, 4, 9, last}},
      {.bad_words = {{2}, {4, 5}, {4, 5, 6}}},
  };
}

using CudaRules = CommandsTest<>;

TEST_F(CudaRules, GiveTheRowsOfTheHost) {
  constexpr int64_t kRows = 6;
  std::mt19937 random(3);
  RuledRows ruled;
  const Buffer shared = pinned_memory(kRows * sizeof(int32_t));
  auto* const drafts = static_cast<int32_t*>(shared.data());
  for (const int64_t vocab : {11, 1000, 40007})
    for (const bool masked : {false, true})
      for (LogitRules& rule : rules(vocab)) {
        LogitState state(rule, vocab);
        if (masked) state.take_mask(std::make_unique<EveryThird>(vocab));
        const auto token = [&] { return int32_t(random() % uint32_t(std::min<int64_t>(vocab, 12))); };
        Ints prompt(40);
        for (int32_t& id : prompt) id = token();
        // New prompts, and more tokens than are noted, make the device start anew.
        for (const int committed : {-1, 0, 1, 3, 0, 130, -1, 2, 300, 5}) {
          if (committed < 0) state.reset(prompt.data(), std::ssize(prompt));
          for (int i = 0; i < committed; ++i) state.append(token());
          auto logits = gaussian(kRows * vocab, random(), 3);
          logits[1] = NAN, logits[size_t(vocab) + 2] = -INFINITY;
          for (int i = 0; i < kRows - 1; ++i) drafts[i] = token();
          if (!state.reads_drafts()) drafts[2] = -1;
          const Ints parents = {-1, 0, 1, 1, 3, 0};
          for (const bool tree : {false, true}) {
            SampleArgs args{.logits = view(logits, kRows, vocab), .state = &state};
            args.drafts = View<const int32_t, 1>(drafts, kRows - 1);
            if (tree) args.parents = parents;
            args.blind = random() % 2;
            LogitPatch patch;
            patch.reserve(vocab, kRows);
            const DeviceArray<float> there(logits);
            SampleArgs device = args;
            device.logits.data = there.data();
            if (!ruled.has_room(device)) ruled.enqueue(*commands);
            const SampleArgs got = ruled.add(*commands, device);
            ASSERT_EQ(got.state, nullptr);
            ruled.enqueue(*commands);
            finish();
            Floats rows(logits.size());
            HUNCH_CUDA_CHECK(cudaMemcpy(rows.data(), got.logits.data, rows.size() * sizeof(float), cudaMemcpyDeviceToHost));
            for (int64_t r = 0; r < kRows; ++r)
              ASSERT_EQ(std::memcmp(rows.data() + r * vocab, patch.apply(args, r), vocab * sizeof(float)), 0)
                  << "row " << r << " of " << vocab << " ids, " << committed << " committed, "
                  << (masked ? "masked" : "unmasked");
          }
        }
      }
}

}
}
