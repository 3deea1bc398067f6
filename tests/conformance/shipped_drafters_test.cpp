// The drafters in models/ with their model: plain decoding's stream in every shape of guesses, greedy and drawn; and as right as
// trained ones are, so that a file gone wrong, a tap or a row mistaken cannot hide behind exactness.
#include "methods.h"

namespace hunch {
namespace {

using namespace test;

struct Shipped {
  const char *file, *method;
  double least;  // share of first guesses that are kept, of those on the text below
};
constexpr Shipped kShipped[] = {
    {"wren-34m-eagle3.gguf", "eagle3", 0.5},
    {"wren-34m-draft.gguf", "draft_model", 0.35},
    {"wren-34m-medusa.gguf", "medusa", 0.2},
};

class ShippedDrafter : public testing::TestWithParam<Shipped> {
 protected:
  std::unique_ptr<Engine> engine() const {
    const auto path = tree_path() + "/models/" + GetParam().file;
    return load({.model = wren_path(), .threads = 2, .context_len = 1024, .drafters = {{.path = path}}});
  }
};
INSTANTIATE_TEST_SUITE_P(
    All, ShippedDrafter, testing::ValuesIn(kShipped), [](const auto& info) { return std::string(info.param.method); });

TEST_P(ShippedDrafter, GivesThePlainStreamInEveryShapeAndIsOftenRight) {
  auto engine = this->engine();
  const auto prompt = copying_prompt(engine->tokenizer(), 640, 4);
  int64_t first = 0, kept = 0;
  for (const double temperature : {0.0, 0.8}) {
    auto request = ask(prompt, 80, temperature);
    const auto plain = generate_plain(*engine, request);
    for (const int shape : {0, 1, 2}) {
      SpeculationOptions& o = request.speculation;
      o = {.proposer = GetParam().method, .rule = "match"};
      if (shape < 2) o.num_tokens = 4;
      if (shape == 1) o.tree_tokens = 8, o.tree_top_k = 4;
      if (shape == 2) o.token_tree = {{0}, {1}, {2}, {0, 0}, {0, 1}, {1, 0}, {0, 0, 0}};
      const auto run = generate_same(*engine, request, plain, fmt::format("T {} shape {}", temperature, shape));
      EXPECT_GT(run.accepted, 0);
      EXPECT_LT(run.accepted, run.drafted);
      if (shape == 0 && temperature == 0) first = run.drafted_by_position.at(0), kept = run.accepted_by_position.at(0);
    }
  }
  fmt::print("{}: {} of {} first guesses kept\n", GetParam().method, kept, first);
  EXPECT_GE(double(kept), GetParam().least * double(first));
}

}
}
