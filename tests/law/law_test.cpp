// The output keeps the target's law: chi-square on the joint distribution of three tokens, through the production loop (joint.h).
// V = 5, N = 200,000, alpha = 1e-4, fixed seeds.
#include "joint.h"

namespace hunch {
namespace {

using namespace law;
using namespace test;

// A whole run under a key of noise, after `change` of its plan.
std::unique_ptr<Solo> decoded(EngineParts& parts, const Request& request, int key, const Change& change = {}) {
  auto plan = plan_request(request, {}, 64).value();
  plan.noise.seed = key;
  if (change) change(plan);
  auto step = Solo::make(parts, plan, request).value();
  decode_to_the_end(*step);
  return step;
}

class RatioLaw : public testing::TestWithParam<std::tuple<const char*, int, int>> {};

void expect_acceptance(const Outcome& run, double least) {
  const double acceptance = double(run.accepted) / run.drafted;
  EXPECT_GT(acceptance, least);
  EXPECT_LT(acceptance, 0.9);
}

TEST_P(RatioLaw, KeepsTheJointOfThreeTokens) {
  const auto [device, sampling, gamma] = GetParam();
  const Sampling& s = kSamplings[sampling];
  const Outcome run = sample_joint(far_tables, device, toy_request(gamma, "ratio", s));
  expect_law(run, exact_joint(random_rows(1), s));
  expect_acceptance(run, 0.2);
}

std::string case_name(const testing::TestParamInfo<RatioLaw::ParamType>& info) {
  const auto [device, sampling, gamma] = info.param;
  return test_name(fmt::format("{}_{}_gamma{}", device, kSamplings[sampling].name, gamma));
}

INSTANTIATE_TEST_SUITE_P(Reference, RatioLaw,
    testing::Combine(testing::Values("reference"), testing::Range(0, 5), testing::Values(1, 2, 3, 5)), case_name);
INSTANTIATE_TEST_SUITE_P(
    Cpu, RatioLaw, testing::Combine(testing::Values("cpu"), testing::Values(0, 3), testing::Values(2)), case_name);

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
const Register<Proposer> fixed{"fixed", "a function of the tokens, for tests", make_proposer<Fixed>};

class RuleLaw : public testing::TestWithParam<std::tuple<const char*, const char*, int>> {};

TEST_P(RuleLaw, KeepsTheJointForDraftsOfEveryKind) {
  const auto [rule, proposer, gamma] = GetParam();
  const Sampling& s = kSamplings[1];
  Request request = toy_request(gamma, rule, s);
  request.speculation.proposer = proposer;
  const Outcome run = sample_joint(far_tables, "reference", request);
  expect_law(run, exact_joint(random_rows(1), s));
  expect_acceptance(run, 0.05);
}

std::string rule_case_name(const testing::TestParamInfo<RuleLaw::ParamType>& info) {
  const auto [rule, proposer, gamma] = info.param;
  return fmt::format("{}_{}_gamma{}", rule, proposer, gamma);
}
INSTANTIATE_TEST_SUITE_P(Point, RuleLaw,
    testing::Combine(testing::Values("point"), testing::Values("fixed", "self"), testing::Values(3)), rule_case_name);
// suffix learns from the outputs of the runs before; cascade mixes deterministic drafts with sampled ones; rows of staged draw
// behind guesses.
INSTANTIATE_TEST_SUITE_P(Ratio, RuleLaw,
    testing::Combine(testing::Values("ratio"), testing::Values("fixed", "suffix", "cascade", "staged"), testing::Values(3)),
    rule_case_name);

TEST(Law, MatchEmitsThePlainStreamForEveryLookUpWhateverItsSettings) {
  for (const char* proposer : {"ngram", "suffix", "cascade", "staged"}) {
    auto parts = toy::make_parts(far_tables(), "reference", kPositions);
    Tally kept;
    for (int key = 0; key < 240; ++key) {
      Request request = toy_request(1 + key % 5, "match", kSamplings[key % 5]);
      Ints streams[2];
      for (const bool speculate : {false, true}) {
        request.speculation.proposer = speculate ? proposer : "none";
        const auto step = decoded(*parts, request, key, [&](RequestPlan& plan) {
          plan.proposing = kEager;
          plan.proposing.ngram_min = 1 + key % 3, plan.proposing.ngram_max = 3;
        });
        streams[speculate] = step->sequence().tokens;
        kept.add(step->stats());
      }
      ASSERT_EQ(streams[0], streams[1]) << proposer << ", key " << key;
    }
    kept.expect_kept_and_dropped(proposer);
  }
}

// A selection has seen the rejected rows of the round before, so q may depend on what was drafted at the same position earlier:
// drafts by the same noise again would be no samples of it.
TEST(Law, RatioKeepsItWhereTheDrafterLearnsFromRejectedDrafts) {
  const Sampling& s = kSamplings[1];
  expect_law(sample_joint(learning_tables, "reference", toy_request(5, "ratio", s)), exact_joint(random_rows(1), s));
}

TEST(Law, MatchEmitsThePlainStreamForEverySampling) {
  for (const char* device : kHosts)
    for (const Sampling& s : kSamplings)
      for (const int gamma : {1, 2, 3, 5}) {
        auto parts = toy::make_parts(far_tables(), device, kPositions);
        Request request = toy_request(gamma, "match", s);
        int64_t drafted = 0, accepted = 0;  // first positions only
        for (int key = 0; key < 500; ++key) {
          Ints streams[2];
          for (const bool speculate : {false, true}) {
            request.speculation.proposer = speculate ? "self" : "none";
            const auto step = decoded(*parts, request, key);
            streams[speculate] = step->sequence().tokens;
            const Generation& stats = step->stats();
            if (stats.drafted_by_position.empty()) continue;
            drafted += stats.drafted_by_position[0], accepted += stats.accepted_by_position[0];
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
  for (const char* device : kHosts)
    for (const char* rule : {"match", "ratio"})
      for (const bool draft_too : {false, true}) {
        const auto broken = [plain = table_of(target)](int64_t position, int32_t token, float* logits) {
          plain(position, token, logits);
          if (position == 6) logits[2] = NAN;
        };
        auto parts = toy::make_parts({kVocab, broken, draft_too ? toy::Table(broken) : table_of(target)}, device, kPositions);
        const Request request = toy_request(3, rule, kSamplings[1]);
        const auto step = good(Solo::make(*parts, good(plan_request(request, {}, 64)), request));
        ASSERT_TRUE(step->prefill(nullptr).ok());
        Result<Solo::Emitted> last = Solo::Emitted{};
        for (int i = 0; i < kPositions && last.ok(); ++i) last = step->round();
        ASSERT_FALSE(last.ok()) << device << " " << rule;
        for (const char* part : {"numerical_error", "position 7"}) expect_error(last, part);
      }
}

}
}
