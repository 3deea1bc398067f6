// The output keeps the target's law: chi-square on the joint distribution of three tokens, through the production loop (proposer,
// rule, keyed noise, sampler, commit). The chain is of first order and differs by position; the drafter is far from the target
// (about three of four drafts are kept), since a near one hides faults. V = 5, N = 200,000, alpha = 1e-4, fixed seeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <thread>

#include "engine/toy_parts.h"

namespace hunch {
namespace {

constexpr int kVocab = 5, kCells = kVocab * kVocab * kVocab, kFirst = 2;  // the joint is that of positions 2, 3 and 4
constexpr int kSamples = 200000, kPositions = 16;

// Probabilities [position][token before][token]: Dirichlet(0.9) with a floor of 0.01, from keyed noise.
struct Rows {
  std::array<std::array<std::array<double, kVocab>, kVocab>, kPositions> p;
};

Rows random_rows(uint64_t seed) {
  Rows rows;
  for (int position = 0; position < kPositions; ++position)
    for (int before = 0; before < kVocab; ++before) {
      auto& row = rows.p[size_t(position)][size_t(before)];
      double total = 0;
      for (int token = 0; token < kVocab; ++token) {
        const double u = uniform({.seed = seed}, NoiseStream::Target, uint32_t(position), uint32_t(before * kVocab + token));
        total += row[size_t(token)] = std::pow(-std::log(u), 1.3);  // heavier than exponential, as a Dirichlet below 1
      }
      for (double& x : row) x = 0.01 + 0.95 * x / total;
    }
  return rows;
}

// Far, but not foreign: a mixture of the target with another law.
Rows far_from(const Rows& target, uint64_t seed) {
  Rows rows = random_rows(seed);
  for (size_t i = 0; i < kPositions; ++i)
    for (size_t j = 0; j < kVocab; ++j)
      for (size_t k = 0; k < kVocab; ++k) rows.p[i][j][k] = 0.4 * target.p[i][j][k] + 0.6 * rows.p[i][j][k];
  return rows;
}

toy::Table table_of(const Rows& rows) {
  return [rows](int64_t position, int32_t token, float* logits) {
    for (int i = 0; i < kVocab; ++i)
      logits[i] = position == 0 ? (i == 0 ? 0.f : -100.f) : float(std::log(rows.p[size_t(position)][size_t(token)][size_t(i)]));
  };
}

struct Sampling {
  const char* name;
  double temperature = 1, top_p = 1, min_p = 0;
  int top_k = 0;
};
constexpr Sampling kSamplings[] = {
    {"T 0.7", 0.7}, {"T 1", 1}, {"top-k 3", 1, 1, 0, 3}, {"top-p 0.8", 1, 0.8}, {"min-p 0.2", 1, 1, 0.2}};

// The processed law in double precision, written from the contract: T, min-p, top-k, top-p.
std::array<double, kVocab> processed(std::array<double, kVocab> p, const Sampling& s) {
  for (double& x : p) x = std::pow(x, 1 / s.temperature);
  const double best = *std::max_element(p.begin(), p.end());
  for (double& x : p) x = x < s.min_p * best ? 0 : x;
  std::array<int, kVocab> order;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[size_t(a)] > p[size_t(b)]; });
  if (s.top_k > 0)
    for (int i = s.top_k; i < kVocab; ++i) p[size_t(order[size_t(i)])] = 0;
  const double all = std::accumulate(p.begin(), p.end(), 0.0);
  double mass = 0;
  for (const int i : order) {
    if (mass >= s.top_p * all) p[size_t(i)] = 0;
    mass += p[size_t(i)];
  }
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
  return p;
}

std::array<double, kCells> exact_joint(const Rows& target, const Sampling& s) {
  std::array<double, kCells> joint{};
  const auto a = processed(target.p[1][0], s);
  for (int x = 0; x < kVocab; ++x) {
    const auto b = processed(target.p[2][size_t(x)], s);
    for (int y = 0; y < kVocab; ++y) {
      const auto c = processed(target.p[3][size_t(y)], s);
      for (int z = 0; z < kVocab; ++z) joint[size_t((x * kVocab + y) * kVocab + z)] = a[size_t(x)] * b[size_t(y)] * c[size_t(z)];
    }
  }
  return joint;
}

struct Outcome {
  std::array<int64_t, kCells> counts{};
  int64_t drafted = 0, accepted = 0;
};

Request toy_request(int gamma, const char* rule, const Sampling& s) {
  Request request = toy::request({0}, gamma, rule);
  request.sampling.temperature = s.temperature, request.sampling.top_p = s.top_p;
  request.sampling.min_p = s.min_p, request.sampling.top_k = s.top_k;
  return request;
}

// Look-ups that find something in five tokens.
const ProposerOptions kEager{.ngram_min = 1, .ngram_max = 2, .suffix_cached_requests = 20, .suffix_factor = 3};

// Three tokens after the first (a certain one) for keys [first, last).
Outcome sample_joint(EngineParts& parts, const Request& request, int first, int last) {
  Outcome run;
  auto plan = plan_request(request, {}, 64);
  HUNCH_CHECK(plan.ok());
  for (int key = first; key < last; ++key) {
    plan->noise = {.seed = uint64_t(key) * 0x9E3779B97F4A7C15u + 12345};
    plan->proposing = kEager;
    auto step = Solo::make(parts, *plan, request);
    HUNCH_CHECK(step.ok() && step.value()->prefill(nullptr).ok());
    Sequence& sequence = step.value()->sequence();
    while (sequence.len() < kFirst + 3) HUNCH_CHECK(step.value()->round().ok());
    const int32_t* t = &sequence.tokens[kFirst];
    ++run.counts[size_t((t[0] * kVocab + t[1]) * kVocab + t[2])];
    run.drafted += step.value()->stats().drafted, run.accepted += step.value()->stats().accepted;
  }
  return run;
}

// `make_tables` is called once per thread: tables may have state.
Outcome sample_joint(const std::function<toy::Tables()>& make_tables, const char* device, const Request& request) {
  Outcome halves[2];
  std::vector<std::thread> threads;
  for (int half = 0; half < 2; ++half)
    threads.emplace_back([&, half] {
      auto parts = toy::make_parts(make_tables(), device, kPositions);
      halves[half] = sample_joint(*parts, request, half * kSamples / 2, (half + 1) * kSamples / 2);
    });
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < kCells; ++i) halves[0].counts[i] += halves[1].counts[i];
  halves[0].drafted += halves[1].drafted, halves[0].accepted += halves[1].accepted;
  return halves[0];
}

// Pearson's chi-square with cells of expectation below 5 pooled; the limit by Wilson and Hilferty's approximation.
void expect_law(const Outcome& run, const std::array<double, kCells>& joint) {
  double statistic = 0, rare_wanted = 0, rare_got = 0;
  int cells = 0;
  for (size_t i = 0; i < kCells; ++i) {
    const double wanted = joint[i] * kSamples, got = double(run.counts[i]);
    if (wanted == 0) {
      EXPECT_EQ(run.counts[i], 0) << "outside the support: cell " << i;
    } else if (wanted < 5) {
      rare_wanted += wanted, rare_got += got;
    } else {
      statistic += (got - wanted) * (got - wanted) / wanted;
      ++cells;
    }
  }
  if (rare_wanted > 0) statistic += (rare_got - rare_wanted) * (rare_got - rare_wanted) / rare_wanted, ++cells;
  const double df = cells - 1, z = 3.719, a = 2 / (9 * df);  // alpha = 1e-4
  EXPECT_LT(statistic, df * std::pow(1 - a + z * std::sqrt(a), 3)) << df << " degrees of freedom";
}

class RatioLaw : public testing::TestWithParam<std::tuple<const char*, int, int>> {};

TEST_P(RatioLaw, KeepsTheJointOfThreeTokens) {
  const auto [device, sampling, gamma] = GetParam();
  const Rows target = random_rows(1), drafter = far_from(target, 2);
  const Sampling& s = kSamplings[sampling];
  const Outcome run = sample_joint(
      [&] {
        return toy::Tables{kVocab, table_of(target), table_of(drafter)};
      },
      device, toy_request(gamma, "ratio", s));
  expect_law(run, exact_joint(target, s));
  const double acceptance = double(run.accepted) / double(run.drafted);
  EXPECT_GT(acceptance, 0.2);
  EXPECT_LT(acceptance, 0.9);
}

std::string case_name(const testing::TestParamInfo<RatioLaw::ParamType>& info) {
  std::string name = std::string(std::get<0>(info.param)) + "_" + kSamplings[std::get<1>(info.param)].name + "_gamma" +
                     std::to_string(std::get<2>(info.param));
  for (char& c : name)
    if (!std::isalnum(uint8_t(c))) c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Reference, RatioLaw,
                         testing::Combine(testing::Values("reference"), testing::Range(0, 5), testing::Values(1, 2, 3, 5)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Cpu, RatioLaw, testing::Combine(testing::Values("cpu"), testing::Values(0, 3), testing::Values(2)),
                         case_name);

// Drafts that nobody drew: a function of the committed tokens, as look-ups make them.
class Fixed final : public Proposer {
 public:
  void propose(std::span<const DraftTask> tasks) override {
    for (const DraftTask& task : tasks) {
      const Sequence& sequence = *task.sequence;
      task.tree->make_chain(std::min(task.limits.max_tokens, 1 + int(sequence.len() + sequence.pending()) % 5));
      task.tree->law = DraftLaw::Point;
      for (int node = 0; node < task.tree->size; ++node)
        task.tree->tokens(node) = int32_t((2 * sequence.pending() + sequence.len() + 3 * node) % kVocab);
    }
  }
};
const Register<Proposer> fixed{
    "fixed", "a function of the tokens, for tests",
    [](const Proposer::Setup&) -> Result<std::unique_ptr<Proposer>> { return std::unique_ptr<Proposer>(new Fixed); }};

class RuleLaw : public testing::TestWithParam<std::tuple<const char*, const char*, int>> {};

TEST_P(RuleLaw, KeepsTheJointForDraftsOfEveryKind) {
  const auto [rule, proposer, gamma] = GetParam();
  const Rows target = random_rows(1), drafter = far_from(target, 2);
  const Sampling& s = kSamplings[1];
  Request request = toy_request(gamma, rule, s);
  request.speculation.proposer = proposer;
  const Outcome run = sample_joint(
      [&] {
        return toy::Tables{kVocab, table_of(target), table_of(drafter)};
      },
      "reference", request);
  expect_law(run, exact_joint(target, s));
  const double acceptance = double(run.accepted) / double(run.drafted);
  EXPECT_GT(acceptance, 0.05);
  EXPECT_LT(acceptance, 0.9);
}

std::string rule_case_name(const testing::TestParamInfo<RuleLaw::ParamType>& info) {
  return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param) + "_gamma" +
         std::to_string(std::get<2>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Point, RuleLaw,
                         testing::Combine(testing::Values("point"), testing::Values("fixed", "self"), testing::Values(3)),
                         rule_case_name);
// suffix learns from the outputs of the runs before; cascade mixes deterministic drafts with sampled ones.
INSTANTIATE_TEST_SUITE_P(Ratio, RuleLaw,
                         testing::Combine(testing::Values("ratio"), testing::Values("fixed", "suffix", "cascade"),
                                          testing::Values(3)),
                         rule_case_name);

TEST(Law, MatchEmitsThePlainStreamForEveryLookUpWhateverItsSettings) {
  const Rows target = random_rows(1), drafter = far_from(target, 2);
  for (const char* proposer : {"ngram", "suffix", "cascade"}) {
    auto parts = toy::make_parts({kVocab, table_of(target), table_of(drafter)}, "reference", kPositions);
    int64_t drafted = 0, accepted = 0;
    for (int key = 0; key < 240; ++key) {
      Request request = toy_request(1 + key % 5, "match", kSamplings[key % 5]);
      std::vector<int32_t> streams[2];
      for (const bool speculate : {false, true}) {
        request.speculation.proposer = speculate ? proposer : "none";
        auto plan = plan_request(request, {}, 64);
        ASSERT_TRUE(plan.ok());
        plan->noise.seed = uint64_t(key);
        plan->proposing = kEager;
        plan->proposing.ngram_min = 1 + key % 3, plan->proposing.ngram_max = 3;
        auto step = Solo::make(*parts, *plan, request);
        ASSERT_TRUE(step.ok() && step.value()->prefill(nullptr).ok());
        Sequence& sequence = step.value()->sequence();
        while (sequence.len() < sequence.max_len) ASSERT_TRUE(step.value()->round().ok());
        streams[speculate] = sequence.tokens;
        drafted += step.value()->stats().drafted, accepted += step.value()->stats().accepted;
      }
      ASSERT_EQ(streams[0], streams[1]) << proposer << ", key " << key;
    }
    EXPECT_GT(accepted, 0) << proposer;
    EXPECT_LT(accepted, drafted) << proposer;
  }
}

// A selection has seen the rejected rows of the round before, so q may depend on what was drafted at the same position earlier.
// Drafts that used the same noise again would then not be samples of their q.
TEST(Law, RatioKeepsItWhereTheDrafterLearnsFromRejectedDrafts) {
  const Rows target = random_rows(1), drafter = far_from(target, 2);
  const Sampling& s = kSamplings[1];
  const auto tables = [&] {
    auto seen = std::make_shared<std::array<int, kPositions>>();
    toy::Tables made{kVocab, table_of(target), {}};
    made.on_verify = [seen](int64_t position, int32_t token) {
      if (position == 0) seen->fill(-1);
      (*seen)[size_t(position)] = token;
    };
    made.drafter = [seen, plain = table_of(drafter)](int64_t position, int32_t token, float* logits) {
      plain(position, token, logits);
      const int before = position + 1 < kPositions ? (*seen)[size_t(position) + 1] : -1;
      if (before >= 0) logits[before] += 2;
    };
    return made;
  };
  expect_law(sample_joint(tables, "reference", toy_request(5, "ratio", s)), exact_joint(target, s));
}

TEST(Law, MatchEmitsThePlainStreamForEverySampling) {
  const Rows target = random_rows(1), drafter = far_from(target, 2);
  for (const char* device : {"reference", "cpu"})
    for (const Sampling& s : kSamplings)
      for (const int gamma : {1, 2, 3, 5}) {
        auto parts = toy::make_parts({kVocab, table_of(target), table_of(drafter)}, device, kPositions);
        Request request = toy_request(gamma, "match", s);
        int64_t drafted = 0, accepted = 0;  // first positions only
        for (int key = 0; key < 500; ++key) {
          std::vector<int32_t> streams[2];
          for (const bool speculate : {false, true}) {
            request.speculation.proposer = speculate ? "self" : "none";
            auto plan = plan_request(request, {}, 64);
            ASSERT_TRUE(plan.ok());
            plan->noise.seed = uint64_t(key);
            auto step = Solo::make(*parts, *plan, request);
            ASSERT_TRUE(step.ok() && step.value()->prefill(nullptr).ok());
            Sequence& sequence = step.value()->sequence();
            while (sequence.len() < sequence.max_len) ASSERT_TRUE(step.value()->round().ok());
            streams[speculate] = sequence.tokens;
            drafted += step.value()->stats().drafted_by_position.empty() ? 0 : step.value()->stats().drafted_by_position[0];
            accepted += step.value()->stats().accepted_by_position.empty() ? 0 : step.value()->stats().accepted_by_position[0];
          }
          ASSERT_EQ(streams[0], streams[1]) << device << ", " << s.name << ", gamma " << gamma << ", key " << key;
        }
        EXPECT_GT(accepted, drafted / 2) << "the drafter does not share the target's noise";
        EXPECT_LT(accepted, drafted);
      }
}

// The plain stream itself is a sample of the target: without this, equal streams would prove nothing.
TEST(Law, PlainDecodingKeepsTheJoint) {
  const Rows target = random_rows(1);
  for (const Sampling& s : {kSamplings[0], kSamplings[3]}) {
    Request request = toy_request(1, "match", s);
    request.speculation.proposer = "none";
    expect_law(sample_joint(
                   [&] {
                     return toy::Tables{kVocab, table_of(target), {}};
                   },
                   "reference", request),
               exact_joint(target, s));
  }
}

TEST(Law, ARowOfNanEndsTheRequestWithAnErrorThatNamesThePosition) {
  const Rows target = random_rows(1);
  for (const char* device : {"reference", "cpu"})
    for (const char* rule : {"match", "ratio"})
      for (const bool draft_too : {false, true}) {
        const auto broken = [plain = table_of(target)](int64_t position, int32_t token, float* logits) {
          plain(position, token, logits);
          if (position == 6) logits[2] = std::numeric_limits<float>::quiet_NaN();
        };
        auto parts = toy::make_parts({kVocab, broken, draft_too ? toy::Table(broken) : table_of(target)}, device, kPositions);
        const Request request = toy_request(3, rule, kSamplings[1]);
        auto plan = plan_request(request, {}, 64);
        ASSERT_TRUE(plan.ok());
        auto step = Solo::make(*parts, *plan, request);
        ASSERT_TRUE(step.ok() && step.value()->prefill(nullptr).ok());
        Result<Solo::Emitted> last = Solo::Emitted{};
        for (int i = 0; i < kPositions && last.ok(); ++i) last = step.value()->round();
        ASSERT_FALSE(last.ok()) << device << " " << rule;
        EXPECT_NE(last.error().message.find("numerical error"), std::string::npos);
        EXPECT_NE(last.error().message.find("position 7"), std::string::npos) << last.error().message;
      }
}

}  // namespace
}  // namespace hunch
