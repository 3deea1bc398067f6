// The planner against the best fixed choice and against plain decoding, in simulations.
#include "engine/planner_sim.h"
#include "engine/planner_testing.h"

namespace hunch {
namespace {

using namespace sim;

double none(int64_t) { return 0; }
std::vector<Text> texts() {
  return {
      {"good", [](int, int i, int64_t) { return i == 0 ? 0.93 : 0.91; }, none},
      {"middling", [](int, int, int64_t) { return 0.75; }, none},
      {"prose", [](int, int i, int64_t) { return i == 0 ? 0.55 : 0.5; }, none},
      {"hopeless", [](int, int, int64_t) { return 0.0; }, none},
      {"misleading", [](int, int, int64_t) { return 0.0; }, [](int64_t) { return 1.0; }},
      {"copy", [](int arm, int, int64_t) { return arm == kNgram ? 0.92 : 0.9; }, [](int64_t) { return 0.8; }},
      {"wrong matches", [](int arm, int, int64_t) { return arm == kNgram ? 0.0 : 0.9; }, [](int64_t) { return 1.0; }},
      {"alternating", [](int, int, int64_t t) { return t / 128 % 2 ? 0.3 : 0.92; },
          [](int64_t t) { return t / 128 % 2 ? 0.5 : 0.3; }},
  };
}

std::vector<Arm> arms() { return {test::self_arm(0.85), {.name = "ngram", .prior_acceptance = 0.6}}; }

class Simulation : public testing::TestWithParam<int> {};

// 5 % bounds the mean over machines, contexts and batches; single cells may reach kWorst (at short contexts, where a few per cent
// are hard to tell from none, and where texts change within a run).
TEST_P(Simulation, IsNearTheBestFixedChoiceAndNeverBelowPlainDecoding) {
  constexpr double kMean = 0.05, kWorst = 0.18, kColdMean = 0.08, kPlain = 0.97;
  const Text text = texts()[GetParam()];
  double warm_sum = 0, cold_sum = 0, count = 0;
  for (const double slope : {0.2, 1.0, 2.0})
    for (const double context : {64.0, 4096.0, 28672.0})
      for (const int batch : {1, 4, 16}) {
        if (batch > 1 && slope != 1.0) continue;
        const sim::Setup setup{{slope}, text, context, batch};
        const Cell cell = measure(setup, test::small_priors(), arms(), {1, 2, 3, 4, 5, 7, 10, 13}, 4);
        SCOPED_TRACE(description(setup, cell));
        EXPECT_LE(cell.regret(cell.warm), kWorst);
        EXPECT_GE(cell.plain / cell.cold, kPlain);
        EXPECT_GE(cell.plain / cell.warm, kPlain);
        warm_sum += cell.regret(cell.warm), cold_sum += cell.regret(cell.cold), ++count;
      }
  EXPECT_LE(warm_sum / count, kMean);
  EXPECT_LE(cold_sum / count, kColdMean);
  RecordProperty("warm_regret", std::to_string(warm_sum / count));
  RecordProperty("cold_regret", std::to_string(cold_sum / count));
}

INSTANTIATE_TEST_SUITE_P(Planner, Simulation, testing::Range(0, int(texts().size())),
    [](const auto& which) { return test_name(texts()[which.param]); });

}
}
