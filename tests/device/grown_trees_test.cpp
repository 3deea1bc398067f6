// Trees of a learned drafter that nobody waits for (draft/follower_blind.cpp) against those that the host grows level by level:
// the same nodes, for several sequences at once. The network is little but attention: all keys on the path weigh alike, so that
// one wrong ancestor changes the likeliest tokens.
#include "draft/follower.h"

#include <fmt/format.h>

#include "draft/test_drafts.h"
#include "model/shape_only.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kVocab = 500, kHidden = 32, kMaxDraft = 48, kSeats = 3;

ModelShape shape_of_all() {
  return {.family = "toy",
      .vocab_size = kVocab,
      .hidden = kHidden,
      .ffn = 8,
      .layers = 2,
      .heads = 2,
      .kv_heads = 1,
      .head_dim = kHidden / 2,
      .context_len = 4096};
}

// Two layers of attention with queries of zero: means over what a row reads. With features, those are added.
class Means final : public DraftNet {
 public:
  Means(Backend& backend, bool featured)
      : featured_(featured),
        table_(backend.random_weight(DType::F32, kVocab, kHidden, 1)),
        output_(backend.random_weight(DType::F32, kVocab, kHidden, 2)),
        mix_(backend.random_weight(DType::F32, kHidden, kHidden, 3)),
        zeros_(backend.constant(std::vector<float>(kHidden, 0.0f))) {}
  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return 0; }
  bool takes_features() const override { return featured_; }
  int64_t scratch_floats() const override { return 4 * kHidden; }
  void fuse(Backend& backend, Arena&, const TargetRows& rows, int64_t first, int64_t count, View<float, 2> out) const override {
    backend.copy_rows({.from = rows.hidden.slice(first, count), .to = out});
  }
  void forward(Pass& pass, View<const float, 2> features, View<float, 2> recycled, View<float, 2> hidden) const override {
    Backend& backend = pass.backend();
    Arena& arena = pass.arena();
    const int64_t rows = pass.num_rows();
    const auto x = arena.take<float>(rows, kHidden), q = arena.take<float>(rows, kHidden), out = arena.take<float>(rows, kHidden);
    backend.embed({.ids = pass.ids(), .table = table_.get(), .out = x});
    const auto add = [&](View<const float, 2> from) {
      const Product product{mix_.get(), nullptr, x};
      backend.matmul({.x = from, .products = std::span(&product, 1), .accumulate = true});
    };
    if (featured_) add(features);
    backend.copy_rows({.from = zeros_.view<const float>(1, kHidden), .to = q});
    const auto heads = [&](const View<float, 2>& of, int64_t count) { return View<float, 3>(of.data, rows, count, kHidden / 2); };
    const auto kv = [&](const View<float, 2>& of, int64_t part) {
      View<float, 3> half(of.data + part * (kHidden / 2), rows, 1, kHidden / 2);
      half.stride[0] = kHidden;
      return half;
    };
    for (int layer = 0; layer < 2; ++layer) {
      pass.attend(layer, {.q = heads(q, 2), .k = kv(x, 0), .v = kv(x, 1), .out = heads(out, 2)});
      add(out);
    }
    backend.copy_rows({.from = x, .to = hidden});
    if (featured_) backend.copy_rows({.from = x, .to = recycled});
  }
  void logits(Backend& backend, View<const float, 2> hidden, View<float, 2> logits) const override {
    const Product product{output_.get(), nullptr, logits};
    backend.matmul({.x = hidden, .products = std::span(&product, 1)});
  }

 private:
  ModelShape shape_ = shape_of_all();
  bool featured_;
  std::unique_ptr<Weight> table_, output_, mix_;
  Buffer zeros_;
};

// The trees that a backend's follower grows for the same sequences over some rounds.
std::vector<std::string> grown(const char* device, bool featured, double temperature) {
  std::vector<std::string> out;
  auto backend = Register<Backend>::find(device)->make({}).value();
  ShapeOnly target{shape_of_all()};
  Follower follower(Proposer::Setup{.backend = backend.get(), .target = &target, .max_draft = kMaxDraft, .max_sequences = kSeats},
      std::make_unique<Means>(*backend, featured));
  PagePool pool(64);
  KvGeometry geometry = *follower.needs().kv;
  geometry.dtype = DType::F32;
  follower.move_in({.kv = backend->make_kv_store(geometry, 64), .pool = &pool, .max_rows = 300, .context_len = 4096});
  std::vector<float> states(300 * kHidden);
  for (size_t i = 0; i < states.size(); ++i) states[i] = float(i * 2654435761u % 1000) / 900;
  const Buffer hidden = backend->constant(states);
  std::vector<Sequence> sequences;
  std::vector<std::unique_ptr<Tree>> trees;
  const auto follow = [&](Sequence& s, int64_t first, int64_t more = -1) {
    EXPECT_TRUE(s.pages.grow_to(s.committed_len + 1 + kMaxDraft, pool));
    TargetRows rows{.sequence = &s,
        .first_position = first,
        .first_row = first % 7,
        .count = s.committed_len - first,
        .hidden = hidden.view<const float>(300, kHidden)};
    if (more >= 0 && backend->asynchronous()) {  // the pass had rows that did not stay
      rows.count += more;
      follower.preview(std::span(&rows, 1));
      rows.count -= more;
    }
    follower.follow(std::span(&rows, 1));
    EXPECT_TRUE(backend->synchronize().ok());
  };
  for (int slot = 0; slot < kSeats; ++slot) {
    Dice dice(slot + 5);
    sequences.push_back(sequence_of(random_stream(60 + 33 * slot, kVocab, dice), slot));
    Sequence& s = sequences.back();
    s.pages = PageTable(4096);
    s.sampling = {.temperature = float(temperature), .top_k = 0, .top_p = 1, .min_p = temperature > 0 ? 0.9f : 0.0f};
    s.noise.seed = slot;
    const int64_t committed = std::exchange(s.committed_len, 0);
    follower.open(s);
    s.committed_len = committed;
    follow(s, 0);
    trees.push_back(std::make_unique<Tree>(kMaxDraft));
  }
  constexpr int kWaits[kSeats][2] = {{2, 9}, {39, 34}, {55, 55}};
  for (int round = 0; round < 7; ++round) {
    std::vector<DraftTask> tasks;  // of a slot in two rounds, somebody else drafts: its rows wait
    const auto idle = [&](int slot) { return round / 2 % kSeats == slot; };
    for (int slot = 0; slot < kSeats; ++slot)
      if (!idle(slot))
        tasks.push_back({.sequence = &sequences[slot],
            .limits = {.max_tokens = 10 + 13 * ((round + slot) % 3),
                .max_depth = 1 + (2 * slot + round) % 7,
                .may_branch = true,
                .tree_top_k = 2 + 3 * ((slot + round) % 4)},
            .tree = &trees[slot]->tree});
    follower.propose(tasks);
    for (int slot = 0; slot < kSeats; ++slot) {
      Sequence& s = sequences[slot];
      const DraftTree& tree = trees[slot]->tree;
      auto text = fmt::format("round {} slot {}, {} passes:", round, slot, tree.passes);
      for (int node = 0; !idle(slot) && node < tree.size; ++node)
        text += fmt::format(" {}<{}", tree.tokens(node), tree.parents[node]);
      out.push_back(text);
      // The next rows, as if a path had been kept.
      const int64_t first = s.committed_len, kept = idle(slot) ? kWaits[slot][round % 2] : (round + slot) % 3;
      for (int64_t i = 0; i <= kept; ++i) s.tokens.push_back(int32_t((i * 31 + round * 7 + slot) % kVocab));
      s.committed_len += kept + 1;
      follower.observe(s, {});
      follow(s, first, (round + 2 * slot) % 4 - 1);
    }
  }
  return out;
}

TEST(LateDevice, GrowsTheTreesOfTheReferenceNodeByNode) {
  for (const bool featured : {false, true})
    for (const double temperature : {0.0, 1.0}) {
      const auto host = grown("reference", featured, temperature), device = grown("late", featured, temperature);
      ASSERT_EQ(host.size(), device.size());
      for (size_t i = 0; i < host.size(); ++i) EXPECT_EQ(device[i], host[i]) << "features " << featured << " T " << temperature;
      EXPECT_NE(host[0], host[kSeats]);
    }
}

}
}
