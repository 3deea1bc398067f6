// Equality: counts what runs of one configuration drafted and kept, and compares every stream with plain decoding's.
#pragma once

#include <map>

#include "runs.h"

namespace hunch::test {

struct Sampled {
  const char* name;
  double temperature;
  int top_k;
  double top_p;
};
inline constexpr Sampled kSampled[] = {{"greedy", 0, 0, 1}, {"T 0.8", 0.8, 0, 1}, {"T 1, top-k 40, top-p 0.95", 1, 40, 0.95}};

inline void set_sampling(Request& request, int which) {
  const Sampled& s = kSampled[which % 3];
  request.sampling = {
      .temperature = s.temperature, .top_p = s.top_p, .min_p = 0.0, .top_k = s.top_k, .seed = 40u + uint64_t(which % 3)};
}

// Plain streams are made once per engine, prompt and sampling: an Equality is for one such set.
class Equality : public Tally {
 public:
  explicit Equality(Engine& engine) : engine_(engine) {}

  void expect_plain_stream(Request request, int sampling, const std::string& what) {
    set_sampling(request, sampling);
    const auto key = std::make_pair(sampling % 3, request.prompt.size());
    auto& plain = plain_[key];
    if (plain.empty()) plain = plain_stream(engine_, request);
    const Generation run = generate_by("self", engine_, request);
    add(run);
    EXPECT_TRUE(run.lossless);
    EXPECT_GT(run.drafted, 0) << what;
    ASSERT_EQ(run.tokens.size(), plain.size()) << what;
    const auto differs = std::mismatch(plain.begin(), plain.end(), run.tokens.begin()).first - plain.begin();
    ASSERT_EQ(run.tokens, plain) << what << ", " << kSampled[sampling % 3].name << ": first differs at token " << differs;
  }
  double acceptance() const { return double(accepted) / std::max<int64_t>(1, drafted); }
  int64_t rejected() const { return drafted - accepted; }
  void expect_mostly_kept(const std::string& what = "") const {
    EXPECT_GT(acceptance(), 0.5) << what;
    EXPECT_GE(rejected(), 1) << what;
  }
  // Starts the counts anew.
  void reset() { drafted = accepted = 0; }

 private:
  Engine& engine_;
  std::map<std::pair<int, size_t>, Ints> plain_;
};

inline constexpr int kGammas[] = {1, 2, 4, 7, 15};
inline constexpr double kRatios[] = {0.01, 0.03, 0.07, 0.3, 1.0};

}
