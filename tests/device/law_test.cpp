// Rule ratio keeps the target's law on a device: chi-square of four drafted tokens of many requests side by side, against the
// joint that the device's own log-probabilities say. (tests/law does so on the CPU.)

#include "../law/joint.h"
#include "near.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kTokens = 4, kChoices = 3;
using Path = Ints;

Request drawn(const Path& prompt, int64_t tokens) {
  auto request = ask(prompt, tokens, 1);
  request.sampling.top_k = kChoices;
  return request;
}

class DeviceLaw : public testing::TestWithParam<std::pair<const char*, int>> {};
INSTANTIATE_TEST_SUITE_P(On, DeviceLaw, testing::Values(std::pair("cuda", 20000), std::pair("late", 1000)),
    [](const auto& info) { return std::string(info.param.first); });

TEST_P(DeviceLaw, RatioKeepsTheJointOfFourTokens) {
  const auto [device, samples] = GetParam();
  if (!runs_here(device)) GTEST_SKIP() << "no device";
  auto engine = load({.model = tiny_path("qwen3-tied"), .device = device, .context_len = 256, .max_num_seqs = 64});
  const Path prompt = random_prompt(90, 256, 5);

  std::map<Path, double> joint = {{{}, 1.0}};
  for (int i = 0; i < kTokens; ++i) {
    std::map<Path, double> longer;
    for (const auto& [path, chance] : joint) {
      Path so_far = prompt;
      append(so_far, path);
      Request request = drawn(so_far, 1);
      request.sampling.logprobs = kChoices;
      const auto next = generate_plain(*engine, request);
      ASSERT_EQ(next.top.size(), 1u);
      double sum = 0;
      for (int j = 0; j < kChoices; ++j) sum += std::exp(double(next.top[0][j].logprob));
      for (int j = 0; j < kChoices; ++j) {
        Path one = path;
        one.push_back(next.top[0][j].id);
        longer[one] = chance * std::exp(double(next.top[0][j].logprob)) / sum;
      }
    }
    joint = longer;
  }

  std::map<Path, int> counts;
  Tally kept;
  for (int at = 0; at < samples;) {
    Streams streams;
    for (; streams.size() < 500; ++at) {
      Request request = drawn(prompt, kTokens);
      request.sampling.seed = at;
      guess(request, "self", 2);
      request.speculation.rule = "ratio";
      request.speculation.policy = "streamingllm", request.speculation.ratio = 0.7;
      streams.push_back(good(engine->submit(request)));
    }
    for (auto& stream : streams) {
      const auto run = good(stream->result());
      ++counts[run.tokens];
      kept.add(run);
    }
  }
  law::ChiSquare statistic;
  for (const auto& [path, chance] : joint) statistic.add(chance * samples, counts[path]);
  EXPECT_EQ(counts.size(), joint.size()) << "outside the support";
  statistic.expect_small();
  EXPECT_GT(double(kept.accepted), 0.1 * double(kept.drafted));
  EXPECT_LT(double(kept.accepted), 0.95 * double(kept.drafted)) << "drafts too good to tell";
}

}
}
