// Ops that run on the host for devices without clusters: what they leave in device memory is what the reference says.
#include "backend/cuda/host_ops.h"

#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;

constexpr int64_t kRows = 3, kVocab = 500;

Floats gaussian(size_t n) { return test::gaussian(int64_t(n), 3, 2); }

class HostOpsTest : public CommandsTest<> {
 protected:
  const Floats values = gaussian(kRows * kVocab);
  const View<const float, 2> on_host{view(values, kRows, kVocab)};
  HostOps ops;
};

TEST_F(HostOpsTest, ChooseTheEntriesOfTheReference) {
  const DeviceArray<float> scores(values);
  const DeviceArray<int32_t> index(kRows * 40);
  Ints want(kRows * 40);
  TopKArgs args{.scores = on_host, .n = 450, .count = 40, .sinks = 2, .recent = 3};
  args.index = view(want, kRows, 40);
  reference.top_k(args);
  args.scores = view(scores, kRows, kVocab), args.index = view(index, kRows, 40);
  ops.top_k(*commands, args);
  EXPECT_EQ(index.get(), want);
}

TEST_F(HostOpsTest, SampleTheTokensOfTheReference) {
  const DeviceArray<float> logits(values), probs(kRows * kVocab);
  const DeviceArray<int32_t> tokens(kRows);
  const Ints positions = {5, 6, 7};
  Ints want_tokens(kRows);
  Floats want_probs(kRows * kVocab);
  SampleArgs args{.logits = on_host, .key = {.seed = 9}, .positions = view(positions, kRows)};
  args.tokens = view(want_tokens, kRows), args.probs = view(want_probs, kRows, kVocab);
  reference.sample(args);
  args.logits = view(logits, kRows, kVocab);
  args.tokens = view(tokens, kRows), args.probs = view(probs, kRows, kVocab);
  ops.sample(*commands, args);
  EXPECT_EQ(tokens.get(), want_tokens);
  EXPECT_EQ(probs.get(), want_probs);
}

TEST_F(HostOpsTest, LookUpTheLogProbabilitiesOfTheReference) {
  const DeviceArray<float> logits(values), found(kRows), top_values(kRows * 4);
  const Ints ids = {1, 499, 77};
  const DeviceArray<int32_t> wanted(ids), top_ids(kRows * 4);
  Floats want_values(kRows), want_top(kRows * 4);
  Ints want_ids(kRows * 4);
  LogProbsArgs args{.logits = on_host, .ids = view(ids, kRows), .count = 4};
  args.values = view(want_values, kRows);
  args.top_ids = view(want_ids, kRows, 4), args.top_values = view(want_top, kRows, 4);
  reference.log_probs(args);
  args.logits = view(logits, kRows, kVocab), args.ids = view(wanted, kRows);
  args.values = view(found, kRows);
  args.top_ids = view(top_ids, kRows, 4), args.top_values = view(top_values, kRows, 4);
  ops.log_probs(*commands, args);
  EXPECT_EQ(found.get(), want_values);
  EXPECT_EQ(top_ids.get(), want_ids);
  EXPECT_EQ(top_values.get(), want_top);
}

}
}
