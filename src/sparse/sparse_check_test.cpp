// What a sparse check reads and leaves out: chosen blocks against a plain softmax over them, channels by their union.
#include "sparse/sparse_check.h"

#include "base/test_results.h"
#include "tensor/test_view.h"

namespace hunch {
namespace {

using test::view;

constexpr int kHeads = 4, kKvHeads = 2, kDim = 16, kBlock = 8;

const BlockBudget kBudget{.ratio = 0.2, .dense_len = 16, .block = kBlock};

struct Noise {
  uint32_t n = 0;
  std::vector<float> operator()(int64_t rows, int heads, float scale = 1) {
    std::vector<float> out(rows * heads * kDim);
    for (float& x : out) x = scale * (float(noise_bits({.seed = 11}, NoiseStream::Target, 0, n++)) * 0x1p-31f - 1);
    return out;
  }
};

// A cache of one sequence, and checks of it.
struct Rig {
  Rig(const char* device, int layers, int64_t entries)
      : geometry{DType::F32, layers, kKvHeads, kDim},
        num_pages((entries + kPageLen - 1) / kPageLen),
        backend(test::good(Register<Backend>::find(device)->make({.threads = 2}))),
        store(backend->make_kv_store(geometry, num_pages)) {
    sequence.max_len = entries, sequence.pages = PageTable(entries);
    EXPECT_TRUE(sequence.pages.grow_to(entries, pool));
  }
  SparseCheck::Setup setup(CheckOptions options, int max_rows = 8) const {
    return {backend.get(), geometry, std::vector<int>(size_t(geometry.layers), 0), max_rows, std::move(options)};
  }
  KvRef own() const { return {store.get(), sequence.pages.view()}; }

  KvGeometry geometry;
  int64_t num_pages;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<KvStore> store;
  PagePool pool{num_pages};
  Sequence sequence;
};

// Rows of a chain behind `len` entries, attended through a check, equal a softmax over its blocks, the rest of the last block and
// the chain so far.
void expect_plain_softmax(const char* device, bool joint, int64_t len, int anchors_every) {
  constexpr int kRows = 3, kLayers = 4;
  Rig rig(device, kLayers, len + kRows);
  Backend& backend = *rig.backend;
  rig.sequence.committed_len = len;
  Noise noise;
  CheckOptions options{.attention = kBudget};
  options.attention->joint = joint;
  if (len == 127) options.attention->sinks = 6;  // more than the budget
  if (anchors_every > 1)
    for (int layer = 0; layer < kLayers; ++layer) options.anchors.push_back(layer % anchors_every == 0);
  SparseCheck check(rig.setup(options, kRows));
  Sequence shorter;
  shorter.max_len = 40;
  check.open(shorter);
  check.open(rig.sequence);
  int64_t entries_read = 0;
  std::vector<Ints> before;
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto k = noise(len + kRows, kKvHeads), v = noise(len + kRows, kKvHeads), q = noise(kRows, kHeads, 4);
    const auto keys = view(k, len + kRows, kKvHeads, kDim), values = view(v, len + kRows, kKvHeads, kDim),
               queries = view(q, kRows, kHeads, kDim);
    backend.store_kv({.layer = layer, .k = keys, .v = values, .kv = rig.own()});
    std::vector<float> out(q.size());
    const auto reading = check.select(layer, queries, rig.own(), len);
    ASSERT_EQ(reading.selection.grain, Selection::Grain::Token);
    if (layer % anchors_every != 0) { EXPECT_EQ(check.kept(), before); }
    before = check.kept();
    for (const Ints& blocks : before) EXPECT_TRUE(blocks.front() == 0 && blocks.back() == len / kBlock - 1);
    const int64_t first = reading.selection.entry_of(len);
    backend.store_kv({
        .layer = layer,
        .k = keys.slice(len, kRows),
        .v = values.slice(len, kRows),
        .kv = reading.selection.kv,
        .first_entry = first,
    });
    Ints last(kRows);
    for (int r = 0; r < kRows; ++r) last[r] = int32_t(first) + r;
    AttentionRun run{.num_rows = kRows, .kv = reading.selection.kv, .last = view(last, kRows)};
    run.head_first = reading.head_first;
    backend.attention({
        .layer = layer,
        .scale = 0.25f,
        .q = queries,
        .out = view(out, kRows, kHeads, kDim),
        .runs = std::span(&run, 1),
    });
    for (int r = 0; r < kRows; ++r)
      for (int head = 0; head < kHeads; ++head) {
        std::vector<int64_t> read;
        for (const int32_t b : before[head / 2])
          for (int64_t e = b * kBlock; e < (b + 1) * kBlock; ++e) read.push_back(e);
        for (int64_t e = len / kBlock * kBlock; e < len; ++e) read.push_back(e);
        if (r == 0 && head % 2 == 0) entries_read += std::ssize(read);
        for (int i = 0; i <= r; ++i) read.push_back(len + i);
        std::vector<double> sums(kDim);
        double total = 0;
        for (const int64_t e : read) {
          double logit = 0;
          for (int d = 0; d < kDim; ++d) logit += 0.25 * double(queries(r, head, d)) * double(keys(e, head / 2, d));
          total += std::exp(logit);
          for (int d = 0; d < kDim; ++d) sums[d] += std::exp(logit) * double(values(e, head / 2, d));
        }
        for (int d = 0; d < kDim; ++d)
          ASSERT_NEAR(out[(r * kHeads + head) * kDim + d], sums[d] / total, 2e-4)
              << device << " layer " << layer << " row " << r << " head " << head;
      }
  }
  EXPECT_EQ(check.counts().entries, kLayers * kKvHeads * len);
  EXPECT_EQ(check.counts().entries_read, entries_read);
  const int64_t budget = joint ? budget_blocks(kBudget, len, kKvHeads) : kKvHeads * budget_blocks(kBudget, len, 1);
  const int64_t forced = kKvHeads * (options.attention->sinks + recent_blocks(kBudget, kRows));
  const int64_t missing = -len & (kBlock - 1);  // of the last block, which counts like any other
  EXPECT_EQ(entries_read, kLayers * (std::max(budget, forced) * kBlock - kKvHeads * missing));
  EXPECT_TRUE(check.end_pass(kRows));
  EXPECT_FALSE(check.end_pass(kRows)) << "nothing since";
  EXPECT_EQ(check.counts().passes, 1);
}

TEST(SparseCheck, ReadsItsBlocksTheRestOfTheLastAndTheRowsOfTheStep) {
  for (const char* device : {"reference", "cpu"})
    for (const bool joint : {false, true})
      for (const int64_t len : {120, 127, 200, 1500})
        for (const int every : {1, 2}) expect_plain_softmax(device, joint, len, every);
}

// A round of drafts: what its first row chose serves the passes behind it, and no mean ever knows of a tentative key.
TEST(SparseCheck, DraftsReadWhatTheRoundsFirstRowChose) {
  for (const char* device : {"reference", "cpu"}) {
    constexpr int64_t kFirst = 120, kLater = 160, kEntries = 192;
    const Rig rig(device, 2, kEntries);
    const KvRef own = rig.own();
    Noise noise;
    const auto k = noise(kEntries, kKvHeads), q = noise(1, kHeads), other = noise(1, kHeads);
    const auto queries = view(q, 1, kHeads, kDim), others = view(other, 1, kHeads, kDim);
    const auto put = [&](int64_t first, int64_t count, float scale) {
      std::vector<float> rows(k.begin() + first * kKvHeads * kDim, k.begin() + (first + count) * kKvHeads * kDim);
      if (scale != 1)
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = scale * q[i % (kKvHeads * kDim)];
      const View<const float, 3> both = view(rows, count, kKvHeads, kDim);
      for (int layer = 0; layer < 2; ++layer)
        rig.backend->store_kv({.layer = layer, .k = both, .v = both, .kv = own, .first_entry = first});
    };
    const auto check = [&] {
      auto out = std::make_unique<SparseCheck>(rig.setup({.attention = kBudget, .drafts = true}));
      out->open(rig.sequence);
      return out;
    };
    put(0, kFirst, 1);
    put(kFirst, 4, 1000);  // tentative: a mean with one of these would be chosen by whoever asks
    const auto drafts = check();
    const auto root = drafts->select(0, queries, own, kFirst);
    const auto kept = drafts->kept();
    (void)drafts->select(1, others, own, kFirst);
    EXPECT_NE(drafts->kept(), kept) << "another layer and query";
    const auto step = drafts->select(0, others, own, kFirst, 2);
    ASSERT_EQ(step.selection.grain, Selection::Grain::Token);
    EXPECT_EQ(step.selection.entry_of(kFirst + 2), root.selection.entry_of(kFirst) + 2);
    EXPECT_EQ(step.selection.prefix, root.selection.prefix);
    std::vector<float> a(kDim), b(kDim), v(kDim);
    for (int head = 0; head < kKvHeads; ++head) {  // the copy is the root's still
      const auto& blocks = kept[head];             // all of them full
      int64_t at = step.selection.prefix - std::ssize(blocks) * kBlock;
      for (const int32_t block : blocks)
        for (int i = 0; i < kBlock; ++i, ++at) {
          step.selection.kv.store->read(0, head, step.selection.kv.pages, at, a.data(), v.data());
          rig.store->read(0, head, own.pages, block * kBlock + i, b.data(), v.data());
          EXPECT_EQ(a, b) << device << " head " << head << " block " << block;
        }
    }
    put(kFirst, kLater - kFirst, 1);
    auto both = q;  // the first row's query is asked
    both.insert(both.end(), other.begin(), other.end());
    (void)drafts->select(0, view(both, 2, kHeads, kDim), own, kLater);
    const auto fresh = check();
    (void)fresh->select(0, queries, own, kLater);
    EXPECT_EQ(drafts->kept(), fresh->kept()) << device;
    put(0, kLater, 2);  // another sequence: keys that are all alike
    drafts->open(rig.sequence);
    (void)drafts->select(0, queries, own, kLater);
    EXPECT_NE(drafts->kept(), fresh->kept()) << device;
  }
}

TEST(SparseCheck, WithoutRoomForItsListsAllIsRead) {
  const Rig rig("reference", 2, 256);
  const std::vector<float> zeros(256 * kKvHeads * kDim);
  const auto rows = view(zeros, 256, kKvHeads, kDim), q = view(zeros, 1, kHeads, kDim);
  rig.backend->store_kv({.layer = 1, .k = rows, .v = rows, .kv = rig.own()});
  auto setup = rig.setup({.attention = kBudget, .anchors = {1, 0}, .drafts = true}, 1);
  setup.window[0] = 16;
  SparseCheck check(setup);
  Sequence sequence;
  for (const bool room : {false, true, false}) {
    sequence.max_len = room ? 256 : int64_t(1) << 50;
    check.open(sequence);
    for (const int64_t len : {120, 200}) {
      EXPECT_EQ(check.select(0, q, rig.own(), len).selection.grain, Selection::Grain::All);
      EXPECT_EQ(check.select(1, q, rig.own(), len).selection.tail_first, room ? len : 0) << "its anchor did not choose";
    }
    EXPECT_EQ(check.end_pass(1), room);
  }
}

TEST(SparseCheck, LeavesOutChannelsThatAreSmallInEveryRow) {
  const Rig rig("reference", 2, 1);
  SparseCheck check(rig.setup({.thresholds = {0.05f, 0}}));
  const auto silu = [](float x) { return x / (1 + std::exp(-x)); };
  //               small in both, in one,  in none, exactly at it, negative and small
  std::vector<float> gate{0.01f, 0.02f, 1.0f, 0.5f, -0.05f,  //
      0.09f, 2.00f, 3.0f, 0.6f, -0.01f};
  const std::vector<float> was = gate;
  check.thin_channels(0, view(gate, 2, 5));
  for (size_t i = 0; i < gate.size(); ++i) {
    const bool small = std::fabs(silu(was[i % 5])) < 0.05f && std::fabs(silu(was[5 + i % 5])) < 0.05f;
    EXPECT_EQ(gate[i], small ? 0.0f : was[i]) << i;
  }
  EXPECT_EQ(check.counts().channels, 5);
  EXPECT_EQ(check.counts().channels_skipped, 2);
  EXPECT_EQ(check.counts().channel_rows, 10);
  EXPECT_EQ(check.counts().channel_rows_below, 5);
  EXPECT_TRUE(check.end_pass(2));
  // Drafts: every row by itself; what none reads counts as before.
  SparseCheck drafts(rig.setup({.thresholds = {0.05f, 0}, .drafts = true}));
  gate = was;
  drafts.thin_channels(0, view(gate, 2, 5));
  for (size_t i = 0; i < gate.size(); ++i) EXPECT_EQ(gate[i], std::fabs(silu(was[i])) < 0.05f ? 0.0f : was[i]) << i;
  EXPECT_EQ(drafts.counts().channels_skipped, 2);
  gate = was;
  check.thin_channels(1, view(gate, 2, 5));
  EXPECT_EQ(gate, was) << "a threshold of 0";
  EXPECT_FALSE(check.end_pass(2));
}

TEST(SparseCheck, LeavesOutExpertsByTheRuleOfTheirLayer) {
  const Rig rig("reference", 2, 1);
  ExpertRule rule{.mode = ExpertSkip::Graded, .most = 2, .renorm = true, .betas = {{0.9f, 0.1f, 2}, {0, 0, 0}}};
  SparseCheck check(rig.setup({.experts = rule}));
  for (const int layer : {0, 1}) {
    Ints ids{3, 5, 7, 9};
    std::vector<float> shares{1.0f, 0.6f, 0.3f, 0.1f};
    check.thin_experts(layer, view(ids, 1, 4), view(shares, 1, 4));
    EXPECT_EQ(ids[3], layer ? 9 : -1);
    EXPECT_FLOAT_EQ(shares[0], layer ? 1 : 2 / 1.9f);
  }
}

}
}
