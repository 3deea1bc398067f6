// What a device's steps teach the planner: each part its own time.
#include "../conformance/equality.h"
#include "engine/controller.h"

namespace hunch {
namespace {

using namespace test;

// Backend `late` says that nearly all of a round's time went before the mark between drafts and pass.
TEST(LateDevice, WhatDraftsInFlightTakeIsNotThePasss) {
  auto engine = tiny_engine("qwen3-tied", "late");
  const auto run = generate(*engine, self_drafting(random_prompt(170, 256, 4), 40, 0.3, 4, "vegas"));
  EXPECT_GT(run.drafted, 0);
  EXPECT_LT(run.milliseconds.verify, 0.1 * run.milliseconds.draft);
}

// Its controller, and how it is told of the same step again and again.
struct Controlled {
  void record(const StepReport& step, int times) {
    for (int i = 0; i < times; ++i) controller.record(step, {});
  }
  std::unique_ptr<Engine> engine = tiny_engine("qwen3-tied", "late");
  Controller controller{engine->parts()};
};

TEST(LateDevice, WhatMasksTakeIsNotThePasss) {
  Controlled late;
  StepReport step{.pass_ms = 10, .decodes = 2, .verify_rows = 2, .masks_ms = 4, .masked = 2, .masked_rows = 2, .entries = 200};
  for (const auto& [ms, own] : {std::pair{14.0, 10.0}, {10, 10}, {16, 12}, {9, 9}}) {
    step.pass_ms = ms;
    late.record(step, 200);
    EXPECT_NEAR(late.controller.plain_ms(step), own, 0.2);
  }
}

// There the host sees what a pass took, not what choosing entries took of it.
TEST(LateDevice, WhatLearningTakesIsNotThePasss) {
  Controlled late;
  StepReport step{.pass_ms = 10, .select_ms = 0.01, .decodes = 2, .verify_rows = 2, .entries = 200};
  late.record(step, 40);
  EXPECT_NEAR(late.controller.plain_ms(step), 10, 0.2);
  step.pass_ms = 14, step.learning = 2;
  late.record(step, 40);
  EXPECT_NEAR(late.controller.plain_ms(step), 10, 0.2);
  step.pass_ms = 8;  // more than it would take without
  late.record(step, 200);
  EXPECT_LT(late.controller.plain_ms(step), 8.5);
}

// The first passes of a kind load and launch kernels that a graph starts later.
TEST(LateDevice, WhatNewKernelsTakeIsNotWhatGuessesCost) {
  Controlled late;
  StepReport step{.pass_ms = 10, .decodes = 2, .verify_rows = 2, .entries = 200, .launched = 80};
  late.record(step, 40);
  EXPECT_NEAR(late.controller.plain_ms(step), 10, 0.2) << "plain steps are believed";
  step.pass_ms = 50, step.verify_rows = 4;
  late.record(step, 6);
  EXPECT_NEAR(late.controller.plain_ms(step), 10, 0.2);
  late.record(step, 60);  // so does a device whose lists are always new
  EXPECT_GT(late.controller.plain_ms(step), 11);
}

}
}
