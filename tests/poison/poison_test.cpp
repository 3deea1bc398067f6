// Tentative rows are never trusted (ARCHITECTURE.md, decision 3). K and V are overwritten with NaN wherever nothing final stands:
// everywhere before the start, in the tail between draft and verify (the pending token's entry included), behind the accepted
// length after each commit, and in the compact copy past its last final entry. Tokens and drafts must not change.

#include <numeric>

#include "../conformance/runs.h"
#include "tensor/test_view.h"

namespace hunch {
namespace {

using namespace test;

struct Outcome {
  Ints tokens;
  int64_t drafted = 0, accepted = 0;
  bool failed = false;
};

// NaN in every page of a store.
void poison_all(KvStore& store) {
  Ints pages(store.num_pages);
  std::iota(pages.begin(), pages.end(), 0);
  store.poison(view(pages), 0, store.num_pages * kPageLen);
}

void poison_tail(KvStore& store, Solo& step) {
  const Sequence& sequence = step.sequence();
  store.poison(sequence.pages.view(), sequence.committed_len, sequence.pages.capacity());
}

// The compact copy from the entry on where the next draft will stand.
void poison_copy(Solo& step) {
  if (!step.policy() || !step.policy()->compact_store()) return;
  const PassInfo info{
      .sequence = &step.sequence(), .draft = true, .first_position = step.sequence().committed_len, .num_rows = 1};
  for (int layer = 0; layer < step.policy()->compact_store()->layers; ++layer) {
    const Selection selection = step.policy()->select(layer, {}, info);
    if (selection.grain != Selection::Grain::Token) continue;
    selection.kv.store->poison(
        selection.kv.pages, selection.entry_of(step.sequence().committed_len), selection.kv.pages.extent[0] * kPageLen);
  }
}

struct Where {
  bool before = false, after_drafts = false, after_commit = false, copy = false;
};

Outcome run(Engine& engine, const Request& request, const Where& where) {
  Outcome out;
  KvStore& store = *engine.parts().store;
  if (where.before) poison_all(store);
  auto step = make_step(engine, request);
  if (where.before && step->policy() && step->policy()->compact_store()) poison_all(*step->policy()->compact_store());
  if (where.after_drafts) step->hot_loop().after_drafts = [&](Running&) { poison_tail(store, *step); };
  if (where.after_commit || where.copy)
    step->hot_loop().after_commit = [&](Running&) {
      if (where.after_commit) poison_tail(store, *step);
      if (where.copy) poison_copy(*step);
    };
  out.failed = !step->prefill(nullptr).ok();
  while (!out.failed && step->sequence().len() < step->sequence().max_len) out.failed = !step->round().ok();
  out.tokens = step->sequence().tokens;
  out.drafted = step->stats().drafted, out.accepted = step->stats().accepted;
  return out;
}

void expect_no_effect(const EngineOptions& options) {
  auto engine = load(options);
  std::vector<std::string> readings{"thinned"};  // by chosen blocks, of --verify drafts
  for (const auto& policy : Register<SparsePolicy>::all()) readings.emplace_back(policy.name);
  for (const std::string& name : readings)
    for (const char* rule : {"match", "ratio"}) {
      // Of quest two pages: one holds none that such a model looks at.
      auto request = self_drafting(random_prompt(150, 256, 21), 40, name == "quest" ? 0.15 : 0.05, 5);
      request.sampling.temperature = 0.8, request.speculation.rule = rule;
      if (name == "thinned") request.speculation.sparse = {.drafts = true, .ratio = 0.1, .dense_len = 16, .block = 8};
      else request.speculation.policy = name;
      const Outcome clean = run(*engine, request, {});
      ASSERT_FALSE(clean.failed);
      EXPECT_GT(clean.drafted, 0);
      EXPECT_GE(clean.accepted, 1) << name;
      const Where places[] = {
          {.before = true}, {.after_drafts = true}, {.after_commit = true}, {.copy = true}, {true, true, true, true}};
      for (size_t i = 0; i < std::size(places); ++i) {
        const Outcome poisoned = run(*engine, request, places[i]);
        SCOPED_TRACE(fmt::format("{} {} place {}", name, rule, i));
        EXPECT_FALSE(poisoned.failed);
        EXPECT_EQ(poisoned.tokens, clean.tokens);
        EXPECT_EQ(poisoned.accepted, clean.accepted);
        EXPECT_EQ(poisoned.drafted, clean.drafted);
      }
    }
}

TEST(Poison, ChangesNothingOnTheReferenceBackend) {
  for (const char* model : {"qwen3-tied", "qwen2-window", "llama", "mistral"})
    expect_no_effect({.model = tiny_path(model), .device = "reference", .context_len = 256});
}

TEST(Poison, ChangesNothingOnAnyInstructionSetAndKvType) {
  int turn = 0;
  for (const std::string& isa : available_isas())
    for (const char* kv : kKvTypes) {
      SCOPED_TRACE(isa + " " + kv);
      const char* model = turn++ % 2 ? "qwen2-window" : "qwen3-untied";
      expect_no_effect({.model = tiny_path(model), .isa = isa, .threads = 1 + turn % 2, .kv_dtype = kv, .context_len = 256});
    }
}

// Sparse attention of the model's own: compressed rows behind the committed length too.
TEST(Poison, ChangesNothingForModelsWithNativelyTrainedSparseAttention) {
  int turn = 0;
  for (const std::string& model : nsa_models())
    for (const char* device : {"reference", "cpu"}) {
      auto engine = load({.model = tiny_path(model), .device = device, .kv_dtype = kKvTypes[turn++ % 3], .context_len = 256});
      EngineParts& parts = engine->parts();
      auto request = ask(random_prompt(150, 256, 21), 40);
      for (size_t i = 100; i < 150; ++i) request.prompt[i] = request.prompt[i % 20];
      guess(request, "suffix", 5, 6);
      request.speculation.suffix_factor = 3;
      const auto tokens_of = [&](bool poisoned) {
        if (poisoned) poison_all(*parts.store), poison_all(*parts.compressed);
        auto step = make_step(*engine, request);
        const auto poison = [&](Running&) {
          poison_tail(*parts.store, *step);
          const NsaShape& nsa = parts.model->shape().nsa;
          const int64_t pages = parts.compressed->num_pages / parts.options.max_num_seqs;
          Ints own(pages);
          std::iota(own.begin(), own.end(), int32_t(step->sequence().slot * pages));
          parts.compressed->poison(view(own), nsa.rows_of(step->sequence().committed_len), pages * kPageLen);
        };
        if (poisoned) step->hot_loop().after_drafts = step->hot_loop().after_commit = poison;
        decode_to_the_end(*step);
        EXPECT_GT(step->stats().drafted, 0);
        return step->sequence().tokens;
      };
      EXPECT_EQ(tokens_of(true), tokens_of(false)) << model << " " << device;
    }
}

// The test of the test: an entry that is final does matter.
TEST(Poison, OfAFinalEntryIsNoticed) {
  auto engine = tiny_engine("qwen3-tied", "reference");
  auto step = make_step(*engine, ask(random_prompt(150, 256, 21), 40));
  ASSERT_TRUE(step->prefill(nullptr).ok());
  engine->parts().store->poison(step->sequence().pages.view(), 17, 18);
  EXPECT_FALSE(step->round().ok());
}

TEST(Poison, ChangesNothingForTheShippedModel) {
  auto engine = load({.model = wren_path(), .threads = 2, .context_len = 2560});
  auto request = ask(copying_prompt(engine->tokenizer(), 2048, 8), 60);
  request.speculation.proposer = "self", request.speculation.ratio = 0.02;
  const Outcome clean = run(*engine, request, {}), poisoned = run(*engine, request, {true, true, true, true});
  EXPECT_FALSE(poisoned.failed);
  EXPECT_GT(clean.accepted, clean.drafted / 2);
  EXPECT_EQ(poisoned.tokens, clean.tokens);
  EXPECT_EQ(poisoned.accepted, clean.accepted);
}

}
}
