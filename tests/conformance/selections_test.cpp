// What every registered policy promises of its selections, after each round: as many entries as the budget says, ascending,
// without repeats, all from before the last verify pass; and pages that come back.
#include "equality.h"

namespace hunch {
namespace {

using namespace test;

// How many entries the selection was chosen from: all before the verify pass, but vegas chooses whole blocks, quest pages while
// drafting, and snapkv chose once, before the last rows of the prompt.
int64_t chosen_from(Solo& step, int64_t first_row) {
  const std::string& policy = step.running().plan.policy_name;
  const PolicyOptions& options = step.running().plan.policy;
  if (policy == "snapkv") return step.sequence().prompt_len - step.policy()->prompt_rows();
  if (policy == "vegas") return first_row / options.block * options.block;
  if (policy == "quest") return first_row / options.page * options.page;
  return first_row;
}

void expect_sound(Solo& step, int64_t first_row, const PolicyOptions& options, const std::string& what) {
  SparsePolicy& policy = *step.policy();
  if (!policy.compact_store()) return;
  const PassInfo info{
      .sequence = &step.sequence(), .draft = true, .first_position = step.sequence().committed_len, .num_rows = 1};
  for (int layer = 0; layer < policy.compact_store()->layers; ++layer) {
    const Selection selection = policy.select(layer, {}, info);
    if (selection.grain != Selection::Grain::Token) continue;
    EXPECT_EQ(selection.tail_first, chosen_from(step, first_row)) << what;
    const int64_t count = (kept_entries(options, selection.tail_first) + selection.block - 1) / selection.block * selection.block;
    EXPECT_EQ(selection.prefix, count) << what;
    const auto selected = policy.selected(step.sequence().slot, layer);
    ASSERT_EQ(selected.extent[1], count) << what;
    for (int64_t set = 0; set < selected.extent[0]; ++set)
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_LT(selected(set, i), selection.tail_first) << what;
        EXPECT_GT(selected(set, i), i > 0 ? selected(set, i - 1) : -1) << what;
      }
  }
}

TEST(Selections, AreOfTheBudgetAscendingAndWithinThePrefix) {
  for (const char* model : {"qwen3-tied", "qwen2-window", "llama"})
    for (const char* device : kHosts)
      for (const auto& part : Register<SparsePolicy>::all())
        for (const char* rows : {"all", "last"}) {
          auto engine = tiny_engine(model, device, 1);
          auto request = self_drafting(random_prompt(150, 256, 31), 40, 0.07, 4, part.name);
          request.speculation.rows = rows;
          auto plan = good(plan_request(request, {}, 64));
          auto step = make_step(*engine, request);
          ASSERT_TRUE(step->prefill(nullptr).ok());
          const PolicyOptions options = plan.policy;
          const auto what = fmt::format("{} {} {} rows {}", model, device, part.name, rows);
          expect_sound(*step, 148, options, what);
          while (step->sequence().len() < step->sequence().max_len) {
            const int64_t first_row = step->sequence().committed_len;
            const int64_t rounds = step->stats().rounds;
            ASSERT_TRUE(step->round().ok());
            if (step->stats().rounds > rounds) expect_sound(*step, first_row, options, what);
          }
          EXPECT_GT(step->stats().drafted, 0);
          step.reset();
          EXPECT_EQ(engine->parts().pool->num_free(), engine->parts().pool->num_pages()) << what;
        }
}

TEST(Selections, OfStreamingLlmAreTheFirstAndTheLastPositions) {
  auto engine = tiny_engine("qwen3-tied", "reference");
  auto request = self_drafting(random_prompt(150, 256, 31), 40, 0.01, 4, "streamingllm");
  request.speculation.min_tokens = 10;
  auto step = make_step(*engine, request);
  ASSERT_TRUE(step->prefill(nullptr).ok());
  const auto selected = step->policy()->selected(0, 1);
  Ints got(&selected(0, 0), &selected(0, 0) + selected.extent[1]);
  EXPECT_EQ(got, (Ints{0, 1, 2, 3, 142, 143, 144, 145, 146, 147}));
}

}
}
