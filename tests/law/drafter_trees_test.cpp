// Trees of learned drafters keep the target's law under rule ratio: chi-square through the production loop (joint.h), with the
// Follower around a network that is the far drafter's table.
#include "draft/follower.h"
#include "joint.h"

namespace hunch {
namespace {

using namespace law;

// Takes tokens alone, as a draft model does; its hidden state says which token stood where.
class TableNet final : public DraftNet {
 public:
  TableNet() : table_(table_of(far_from(random_rows(1), 2))) {
    shape_.vocab_size = kVocab, shape_.hidden = 2, shape_.ffn = 1, shape_.context_len = kPositions;
    shape_.layers = 1, shape_.heads = 1, shape_.kv_heads = 1, shape_.head_dim = 16;
  }
  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return 0; }
  bool takes_features() const override { return false; }
  void forward(Pass& pass, View<const float, 2>, View<float, 2>, View<float, 2> hidden) const override {
    for (int64_t row = 0; row < pass.num_rows(); ++row)
      hidden(row, 0) = float(pass.ids()(row)), hidden(row, 1) = float(pass.positions()(row));
  }
  void logits(Backend&, View<const float, 2> hidden, View<float, 2> logits) const override {
    for (int64_t row = 0; row < hidden.extent[0]; ++row)
      table_(int64_t(hidden(row, 1)), int32_t(hidden(row, 0)), &logits(row, 0));
  }

 private:
  ModelShape shape_;
  toy::Table table_;
};

// A Follower that moved in by itself: its sequences are shorter than a page.
class Moved final : public Proposer {
 public:
  explicit Moved(const Setup& setup) : follower_(setup, std::make_unique<TableNet>()) {
    KvGeometry geometry = *follower_.needs().kv;
    geometry.dtype = DType::F32;
    follower_.move_in(
        {.kv = setup.backend->make_kv_store(geometry, 1), .pool = &pool_, .max_rows = 65, .context_len = kPositions});
  }
  bool passes() const override { return true; }
  bool draws() const override { return true; }
  void open(const Sequence& sequence) override { follower_.open(sequence); }
  void propose(std::span<const DraftTask> tasks) override { follower_.propose(tasks); }
  void observe(const Sequence& sequence, const Verdict& verdict) override { follower_.observe(sequence, verdict); }
  void close(Slot slot) override { follower_.close(slot); }

 private:
  PagePool pool_{1};
  Follower follower_;
};
const Register<Proposer> table_net{
    "table_net",
    "for tests",
    [](const Proposer::Setup& setup) -> Result<std::unique_ptr<Proposer>> { return std::unique_ptr<Proposer>(new Moved(setup)); },
};

struct Case {
  const char* name;
  int sampling, gamma, tree, top_k;
  bool shaped = false;
  const char* device = "reference";
};
constexpr Case kCases[] = {{"one_level", 1, 1, 2, 3}, {"small", 1, 2, 3, 2}, {"wide", 1, 3, 9, 3}, {"T_0_7", 0, 2, 5, 3},
    {"top_k", 2, 2, 5, 4}, {"top_p", 3, 2, 5, 4}, {"min_p", 4, 2, 5, 4}, {"shaped", 1, 2, 0, 3, true},
    {"cpu", 1, 2, 5, 3, false, "cpu"}};
class DrafterTrees : public testing::TestWithParam<Case> {};

TEST_P(DrafterTrees, KeepTheJointOfThreeTokens) {
  const Case& c = GetParam();
  const Sampling& s = kSamplings[c.sampling];
  Request request = toy_request(c.gamma, "ratio", s);
  request.speculation.proposer = "table_net";
  request.speculation.tree_tokens = c.tree, request.speculation.tree_top_k = c.top_k;
  const auto change = [&](RequestPlan& plan) {
    if (!c.shaped) return;
    const std::vector<std::vector<int>> paths{{0}, {1}, {0, 0}, {0, 1}, {1, 0}, {1, 2}};
    plan.token_tree = StaticTree::make(paths, 16).value();
    plan.gamma = plan.token_tree.depth(), plan.nodes = plan.token_tree.size();
  };
  const auto tables = [] {
    const Rows target = random_rows(1);
    return toy::Tables{kVocab, table_of(target), table_of(target)};
  };
  const Outcome run = sample_joint(tables, c.device, request, change);
  expect_law(run, exact_joint(random_rows(1), s));
  EXPECT_GT(run.beside, kSamples / 10) << "it does not branch";
  EXPECT_LT(run.accepted, run.drafted);
}

INSTANTIATE_TEST_SUITE_P(
    All, DrafterTrees, testing::ValuesIn(kCases), [](const auto& info) { return std::string(info.param.name); });

}
}
