// Precision classes of models with natively trained sparse attention: strict stays bit for bit; what shares or reuses a choice
// shares what the definition says, says so in its output, and leaves nothing for exact requests.
#include "backend/reference/reference_backend.h"
#include "engine/cost_table.h"
#include "engine/strategy_profile.h"
#include "methods.h"

namespace hunch {
namespace {

using namespace test;

// The reference, which also keeps what nsa_attention was asked.
struct Asked {
  int layer = 0;
  bool given = false, reads = false;
  std::vector<int64_t> rows, positions;      // of the pass, in order
  std::vector<std::vector<Ints>> own, read;  // [row][kv_head]: by the row's own scores, and read
};
std::vector<Asked>* kept_calls = nullptr;

class Recorder final : public ReferenceBackend {
 public:
  void nsa_attention(const NsaAttentionArgs& args) override {
    ReferenceBackend::nsa_attention(args);
    if (!kept_calls) return;
    const int64_t rows = args.q.extent[0], heads = args.runs[0].kv.store->kv_heads;
    NsaShape exact = *args.nsa.shape;
    exact.sel_count = sel_count;
    NsaAttentionArgs own = args;
    Ints lists(rows * heads * sel_count, -1);
    own.nsa.shape = &exact, own.given = false, own.out = {};
    own.chosen = View<int32_t, 3>(lists.data(), rows, heads, sel_count);
    ReferenceBackend::nsa_attention(own);
    Asked asked{.layer = args.layer, .given = args.given, .reads = args.out.data != nullptr};
    const auto listed = [](View<int32_t, 3> all, int64_t row) {
      std::vector<Ints> out;
      for (int64_t head = 0; all.data && head < all.extent[1]; ++head) {
        out.emplace_back();
        for (int64_t i = 0; i < all.extent[2]; ++i)
          if (all(row, head, i) >= 0) out.back().push_back(all(row, head, i));
      }
      return out;
    };
    for (const NsaRun& run : args.runs)
      for (int64_t row = 0; row < run.num_rows; ++row) {
        asked.rows.push_back(run.first_row + row), asked.positions.push_back(run.last(row));
        asked.own.push_back(listed(own.chosen, run.first_row + row));
        asked.read.push_back(listed(args.chosen, run.first_row + row));
      }
    kept_calls->push_back(std::move(asked));
  }
  int sel_count = 0;
};
int recorded_sel_count = 0;  // 0: there is no such backend, for whoever tries all of them

Result<std::unique_ptr<Backend>> make_recorder(const Backend::Setup&) {
  if (recorded_sel_count == 0) return Error{"for these tests only"};
  auto made = std::make_unique<Recorder>();
  made->sel_count = recorded_sel_count;
  return std::unique_ptr<Backend>(std::move(made));
}
const Register<Backend> recorder{"recorder", "the reference, and what it was asked", make_recorder};

Generation run_class(Engine& engine, Request request, const char* precision_class, const std::string& layers, int group_rows) {
  request.speculation.precision_class = precision_class;
  request.speculation.reuse_layers = layers, request.speculation.group_rows = group_rows;
  return generate(engine, request);
}

std::string all_layers_but_0(Engine& engine) {
  std::string out;
  for (int layer = 1; layer < shape_of(engine).layers; ++layer) out += fmt::format("{}{}", out.empty() ? "" : ",", layer);
  return out;
}

class Sharing : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, Sharing, testing::ValuesIn(nsa_models()), param_name);

TEST_P(Sharing, OfNothingIsStrictBitForBit) {
  for (const char* device : kHosts) {
    auto engine = tiny_engine(GetParam(), device, 2);
    auto request = ask(phrases(150, 40, 1), 60);
    request.sampling.logprobs = 2;
    for (const int tree : {0, 6}) {
      set_method(request, {"suffix", tree}, 4);
      const auto strict = generate(*engine, request);
      EXPECT_TRUE(strict.lossless && !strict.approximation.any());
      for (const auto& [name, group] : {std::pair("reuse", 4), std::pair("approx", 1), std::pair("approx-reuse", 1)}) {
        auto run = run_class(*engine, request, name, "none", group);
        EXPECT_FALSE(run.lossless) << name;  // whatever came of it, exactness was not asked for
        EXPECT_EQ(run.approximation.precision_class, name);
        EXPECT_EQ(run.approximation.shared_choices + run.approximation.reused_choices, 0) << name;
        EXPECT_GT(run.approximation.own_choices, 0) << name;
        run.lossless = true;
        expect_same_output(run, strict, fmt::format("{} {} tree {}", device, name, tree));
      }
    }
  }
}

// A row reuses its own choice, so that what is drafted beside it changes nothing: the class has one stream.
TEST_P(Sharing, ReuseHasOneStreamHoweverItIsDrafted) {
  int64_t accepted = 0;
  bool differs = false;
  for (const char* device : kHosts) {
    auto engine = load({.model = tiny_path(GetParam()), .device = device, .threads = 2, .context_len = 512, .max_draft = 32});
    auto request = ask(phrases(260, 40, 1), 80);
    const std::string layers = all_layers_but_0(*engine);
    const auto exact = generate_plain(*engine, request);
    auto plain = run_class(*engine, request, "reuse", layers, 1);
    EXPECT_FALSE(plain.lossless);
    EXPECT_EQ(plain.approximation.reused_choices, plain.approximation.own_choices * (shape_of(*engine).layers - 1));
    differs = differs || plain.tokens != exact.tokens || !same_bits(plain.logprobs, exact.logprobs);
    for (const auto& method : {Method{"ngram"}, Method{"suffix", 6}, Method{"random-trees", 20}}) {
      set_method(request, method, 5);
      auto run = run_class(*engine, request, "reuse", layers, 1);
      accepted += run.accepted;
      EXPECT_EQ(run.tokens, plain.tokens) << device << " " << method.proposer;
    }
  }
  EXPECT_GT(accepted, 5);
}

// Against the reference loop: with all rows in one group, one chooses, and every row reads that choice up to its own block, and
// its forced blocks.
TEST_P(Sharing, OfOneGroupReadsTheChoiceOfItsDeepestRow) {
  {
    auto engine = tiny_engine(GetParam(), "reference", 0, 64);
    recorded_sel_count = shape_of(*engine).nsa.sel_count;
  }
  auto engine = load({.model = tiny_path(GetParam()), .device = "recorder", .context_len = 512, .max_draft = 32});
  recorded_sel_count = 0;
  const NsaShape& shape = shape_of(*engine).nsa;
  auto request = ask(random_prompt(300, 256, 3), 12);
  guess(request, "random-trees", 6, 14);
  std::vector<Asked> calls;
  kept_calls = &calls;
  const auto run = run_class(*engine, request, "approx", "", 64);
  kept_calls = nullptr;
  EXPECT_EQ(run.approximation.shared_choices % shape_of(*engine).layers, 0);
  EXPECT_GT(run.approximation.shared_choices, 0);
  int64_t groups = 0, rows = 0, foreign = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Asked& read = calls[i];
    if (!read.given) continue;
    ASSERT_GT(i, 0u);
    const Asked& chose = calls[i - 1];
    ASSERT_FALSE(chose.given || chose.reads);
    ASSERT_EQ(chose.rows.size(), 1u);
    const size_t deepest = size_t(std::ranges::find(read.rows, chose.rows[0]) - read.rows.begin());
    ASSERT_LT(deepest, read.rows.size());
    EXPECT_EQ(read.positions[deepest], *std::ranges::max_element(read.positions));
    ++groups;
    for (size_t row = 0; row < read.rows.size(); ++row, ++rows)
      for (size_t head = 0; head < read.read[row].size(); ++head) {
        const int64_t own = read.positions[row] / shape.sel_block;
        Ints want;
        for (int32_t block = 0; block <= own; ++block) {
          const auto& chosen = read.own[deepest][head];
          const bool forced = block < shape.init_blocks || own - block < shape.local_blocks;
          if (forced || std::ranges::find(chosen, block) != chosen.end()) want.push_back(block);
        }
        EXPECT_EQ(read.read[row][head], want);
        foreign += want != read.own[row][head];
      }
  }
  EXPECT_GT(groups, 0);
  EXPECT_GT(rows, 2 * groups);
  EXPECT_GT(foreign, 0);

  // A layer that reuses reads, row by row, what the last choosing layer chose; prompts always choose.
  calls.clear();
  kept_calls = &calls;
  run_class(*engine, request, "reuse", all_layers_but_0(*engine), 1);
  kept_calls = nullptr;
  int64_t reused = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].given, calls[i].layer > 0 && calls[i].positions[0] >= 300);
    if (!calls[i].given) continue;
    const Asked& chose = calls[i - size_t(calls[i].layer)];
    ASSERT_EQ(chose.layer, 0);
    EXPECT_EQ(calls[i].read, chose.own);
    reused += calls[i].read != calls[i].own;
  }
  EXPECT_GT(reused, 0);
}

// The prompt of a lossy request is read exactly and may be shared, what it decodes may not.
TEST_P(Sharing, LeavesNothingForExactRequests) {
  const EngineOptions options{.model = tiny_path(GetParam()), .threads = 2, .context_len = 640};
  auto engine = load(options), fresh = load(options);
  auto request = ask(phrases(150, 40, 1), 200);
  set_method(request, {"suffix", 6}, 5);
  const auto lossy = run_class(*engine, request, "approx-reuse", all_layers_but_0(*engine), 8);
  auto longer = ask(request.prompt, 40);
  append(longer.prompt, lossy.tokens);
  const auto exact = generate(*engine, longer);
  EXPECT_GT(exact.reused_tokens, 0);
  EXPECT_LE(exact.reused_tokens, std::ssize(request.prompt));
  expect_same_output(exact, generate(*fresh, longer), "behind a lossy request");
  // An exact one leaves more than its prompt.
  EXPECT_GT(generate(*engine, longer).reused_tokens, std::ssize(request.prompt));
}

TEST_P(Sharing, IsCalibratedGreedilyAndStoredForItsModel) {
  auto engine = tiny_engine(GetParam(), "cpu", 2, 512);
  const int layers = shape_of(*engine).layers;
  const std::vector<Ints> texts = {phrases(300, 40, 1), phrases(330, 40, 2)};
  int evaluations = 0;
  auto found =
      good(calibrate_reuse(engine->parts(), texts, 64, [&](int done, int total) { return evaluations = done, done <= total; }));
  EXPECT_EQ(evaluations, 1 + layers * (layers - 1) / 2);
  ASSERT_EQ(int(found.steps.size()), layers - 1);
  EXPECT_EQ(found.tokens, 128);
  found.budget = 10;
  EXPECT_EQ(int(found.layers().size()), layers - 1);

  const auto path = testing::TempDir() + "/reuse-" + GetParam() + ".json";
  ASSERT_TRUE(write_atomically(path, found.to_json()).ok());
  auto with = load({.model = tiny_path(GetParam()), .context_len = 512, .reuse_schedule = path});
  ASSERT_TRUE(with->parts().reuse_layers);
  EXPECT_EQ(*with->parts().reuse_layers, found.layers());
  auto request = ask(phrases(260, 40, 1), 30);
  const auto named = run_class(*with, request, "reuse", "", 1);
  EXPECT_EQ(named.approximation.reuse_layers, found.layers());
  EXPECT_EQ(named.tokens, run_class(*with, request, "reuse", all_layers_but_0(*with), 1).tokens);

  const auto other = Engine::load({.model = tiny_path("qwen3-untied"), .context_len = 64, .reuse_schedule = path});
  expect_error(other, found.model.hash);
  auto foreign = tiny_engine("qwen3-untied", "cpu", 0, 64);
  expect_error(other, identity_of(*foreign->parts().checkpoint).hash);
  EXPECT_FALSE(ReuseSchedule::from_json(R"({"version":1})", found.model).ok());
  EXPECT_FALSE(calibrate_reuse(engine->parts(), texts, 400, [](int, int) { return true; }).ok());
}

TEST(SharingProfile, GuessesByRankedStrategiesAndGivesTheStreamOfItsClass) {
  const auto model = tiny_path("nsa-std");
  auto engine = load({.model = model, .context_len = 512});
  StrategyProfile profile{.model = identity_of(*engine->parts().checkpoint), .drafter = "suffix", .reuse_layers = {1}};
  // Of the first nothing is expected and nothing comes; the second expects what does not come.
  for (const char* name : {"strict", "reuse", "approx"})
    profile.rows.push_back({name, 0, 4096, {{3, 3, 1, 1, false, 0, 90}, {4, 9, 2, name[0] == 'a' ? 4 : 1, true, 0, 80}, {}}});
  const auto path = testing::TempDir() + "/strategies.json";
  ASSERT_TRUE(write_atomically(path, profile.to_json()).ok());
  auto with = load({.model = model, .context_len = 512, .strategies = path});
  auto request = ask(phrases(150, 40, 1), 120);
  set_method(request, {"none"}, 4);
  const auto plain = generate(*with, request), reused = run_class(*with, request, "reuse", "1", 1);
  set_method(request, {"profile"}, 0);
  const auto run = generate_same(*with, request, plain, "profile");
  EXPECT_GT(run.drafted, 0);
  EXPECT_EQ(run.strategy_changes, 2);
  EXPECT_EQ(run_class(*with, request, "reuse", "", 1).tokens, reused.tokens);
  const auto approx = run_class(*with, request, "approx", "", 1);
  EXPECT_EQ(approx.approximation.group_rows, 4);
  EXPECT_GT(approx.approximation.shared_choices, 0);
  request.speculation.precision_class = "approx-reuse", request.speculation.reuse_layers = "1";
  expect_error(with->generate(request), "no strategies of precision class approx-reuse");
}

TEST(SharingRefusals, SayWhatToDoInstead) {
  auto nsa = tiny_engine("nsa-std", "cpu", 0, 128);
  auto dense = tiny_engine("qwen3-untied", "cpu", 0, 128);
  const struct {
    Engine* engine;
    const char *precision_class, *layers, *says;
    int group = 4;
    const char* method = "none";
  } cases[] = {
      {dense.get(), "approx", "",
          "is for models with natively trained sparse attention, and this one (qwen3) has none: use strict"},
      {nsa.get(), "exact", "", "unknown precision class 'exact'; known: strict, reuse, approx, approx-reuse"},
      {nsa.get(), "reuse", "", "name a file of hunch tune --reuse-layers by --reuse-schedule, or the layers by --reuse-set"},
      {nsa.get(), "reuse", "0,1", "layer 0 always chooses"},
      {nsa.get(), "approx-reuse", "99", "there is no layer 99"},
      {nsa.get(), "reuse", "1,,2", "name them with commas"},
      {nsa.get(), "approx", "", "one choice serves 1 to 64 rows", 65},
      {nsa.get(), "strict", "", "name a file of hunch tune --profile by --strategies", 4, "profile"},
  };
  for (const auto& c : cases) {
    auto request = ask(random_prompt(20, 256, 1), 8);
    request.speculation.precision_class = c.precision_class, request.speculation.reuse_layers = c.layers;
    request.speculation.group_rows = c.group, request.speculation.proposer = c.method;
    expect_error(c.engine->generate(request), c.says);
  }
}

}
}
