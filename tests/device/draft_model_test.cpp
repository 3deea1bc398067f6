// A draft model on a device: it is right where it reads what the target reads, in blind chains and, under another numbering,
// level by level.
#include "../conformance/renumbered.h"
#include "near.h"

namespace hunch {
namespace {

using namespace test;

class DeviceDraftModel : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(On, DeviceDraftModel, testing::Values("cuda", "late"), param_name);

TEST_P(DeviceDraftModel, IsRightUnderAnyPaddingAndNumbering) {
  struct {
    const char *name, *mode;
    std::vector<int> ids;
    int columns;
  } const cases[] = {{"dev_same", "same", same_ids(), 260}, {"dev_padded", "same", same_ids(), 272},
      {"dev_turned", "intersection", turned_ids(), 288}};
  for (const auto& c : cases) {
    EngineOptions options =
        with_draft_model("qwen3-tied", renumbered("qwen3-tied", c.name, c.ids, c.columns), GetParam(), c.mode);
    options.chunk_len = 50;
    auto engine = load(options);
    Tally kept;
    for (const int prompt_len : {40, 190, 190})  // the last begins with pages of the one before
      for (const auto& [temperature, rule] : {std::pair{0.0, "match"}, {0.8, "match"}, {0.8, "ratio"}}) {
        const Request request = drafting(random_prompt(prompt_len, 256, 5), 40, 4, temperature, rule);
        const auto run = generate(*engine, request);
        kept.add(run);
        if (rule[0] == 'm') { EXPECT_EQ(run.tokens, plain_stream(*engine, request)) << c.name << " T " << temperature; }
      }
    EXPECT_GT(kept.drafted, 200) << c.name;
    EXPECT_EQ(kept.accepted, kept.drafted) << c.name;
  }
}

TEST_P(DeviceDraftModel, GrowsTheTreesOfTheReferenceUnderAnyNumbering) {
  for (const bool turned : {false, true}) {
    const std::string draft = turned ? renumbered("qwen3-tied", "dev_tree", turned_ids(), 288) : tiny_path("qwen3-tied");
    for (const double temperature : {0.0, 0.8})
      for (const int depth : {3, 6}) {
        std::vector<Generation> runs;
        for (const char* device : {"reference", GetParam()}) {
          auto engine = load(with_draft_model("qwen3-tied", draft, device, turned ? "intersection" : "same"));
          Request request = drafting(random_prompt(50 + 21 * depth, 256, 5), 60, depth, temperature);
          request.speculation.tree_tokens = 24, request.speculation.tree_top_k = 4;
          runs.push_back(generate(*engine, request));
          EXPECT_EQ(runs.back().tokens, plain_stream(*engine, request)) << device;
        }
        const auto what = fmt::format("turned {} T {} depth {}", turned, temperature, depth);
        if (device_ == "late") {
          EXPECT_EQ(runs[0].drafted, runs[1].drafted) << what;
          expect_same_rounds(runs, what);
        }
      }
  }
}

TEST_P(DeviceDraftModel, WaitsForItsIdsWhereTheyGoThroughInPieces) {
  auto options = with_draft_model("qwen3-tied", tiny_path("qwen3-tied"), GetParam());
  options.max_num_seqs = 6, options.chunk_len = 66, options.max_num_batched_tokens = 400;  // 466 rows of a pass of drafts
  options.max_draft = 64;
  auto engine = load(options);
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(drafting(random_prompt(66, 256, i), 50, 1 + i % 7, i % 2 ? 0.8 : 0));
  for (const Generation& run : generate_together(*engine, requests)) {
    EXPECT_GT(run.drafted, 0);
    EXPECT_EQ(run.accepted, run.drafted);
  }
}

}
}
