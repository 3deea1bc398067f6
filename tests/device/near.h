// What tests of devices share: which there are, and how near two backends are, by a prompt's log-probabilities or by their
// rounds.
#pragma once

#include <cmath>

#include "../conformance/methods.h"

namespace hunch::test {

inline bool runs_here(std::string_view device) {
  const auto devices = accelerators();
  return std::ranges::find(devices, device) != devices.end();
}

// Skipped without the device. `late` (late_backend.cpp) stands for one where there is none.
class OnDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!runs_here(device_)) GTEST_SKIP() << "no device";
  }
  const std::string device_ = GetParam();
};

inline void expect_same_rounds(const std::vector<Generation>& runs, const std::string& what) {
  EXPECT_EQ(runs[0].tokens, runs[1].tokens) << what;
  EXPECT_EQ(runs[0].drafted_by_position, runs[1].drafted_by_position) << what;
  EXPECT_EQ(runs[0].accepted_by_position, runs[1].accepted_by_position) << what;
}

inline std::vector<float> prompt_logprobs(Engine& engine, Ints prompt) {
  auto asked = ask(std::move(prompt), 1);
  asked.sampling.prompt_logprobs = 0;
  std::vector<float> out;
  for (const TokenLogprob& token : generate_plain(engine, asked).prompt_logprobs) out.push_back(token.logprob);
  return out;
}

inline void expect_near(
    const std::vector<float>& a, const std::vector<float>& b, double most, double mean, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  double greatest = 0, sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double(a[i]) - double(b[i]));
    greatest = std::max(greatest, difference), sum += difference;
  }
  std::printf("%s: most %.4f, mean %.5f\n", what.c_str(), greatest, sum / double(a.size()));
  EXPECT_LT(greatest, most) << what;
  EXPECT_LT(sum / double(a.size()), mean) << what;
}

}
