// Every registered lossless rule keeps the target's law: proved by walking every branch of draft, coin, residual and target
// choice with its exact weight (Leviathan et al., 2022, appendix A.1 says why it must hold). Trees of sampled nodes have a test
// of their own (sampled_trees_test.cpp).
#include <fmt/format.h>

#include <limits>
#include <numeric>
#include <set>

#include "accept/rule_proofs.h"
#include "base/test_results.h"

namespace hunch {
namespace {

using namespace test;

struct Chain {
  Tokens tokens;
  std::vector<float> q;
  DraftTree tree;
};

Chain make_chain(const Tokens& drafts, const std::vector<Row>& q, size_t vocab, DraftLaw law) {
  Chain chain;
  chain.tokens = drafts;
  for (const Row& row : q) chain.q.insert(chain.q.end(), row.begin(), row.end());
  chain.tree.parents.resize(drafts.size());
  chain.tree.make_chain(int(drafts.size()));
  chain.tree.law = law;
  chain.tree.tokens = view(chain.tokens);
  chain.tree.q = view(chain.q, q.size(), vocab);
  return chain;
}

// The law of the first gamma + 1 emitted tokens, if later rounds follow the target.
std::map<Tokens, double> emitted_law(const AcceptanceRule& rule, const Law& p, const Law& q, size_t vocab, int gamma) {
  std::map<Tokens, double> joint;
  Walk::all([&](Walk& walk) {
    Tokens drafts;
    std::vector<Row> rows;
    for (int i = 0; i < gamma; ++i) {
      rows.push_back(q(drafts));
      drafts.push_back(walk.branch({rows.back().begin(), rows.back().end()}));
    }
    const Chain chain = make_chain(drafts, rows, vocab, rule.needs_q() ? DraftLaw::Given : DraftLaw::Point);
    const Tokens emitted = emitted_by(walked(rule, walk, p, chain.tree));
    complete(p, emitted, size_t(gamma) + 1, walk.weight(), joint);
  });
  return joint;
}

TEST(Rules, KeepTheTargetLawForEveryDraftOfUpToThree) {
  for_every_lossless_rule([](const AcceptanceRule& rule, const Pair& pair) {
    for (int gamma = 1; gamma <= 3; ++gamma) {
      SCOPED_TRACE("gamma " + std::to_string(gamma));
      expect_law(emitted_law(rule, pair.p, pair.q, pair.vocab, gamma), pair.p, size_t(gamma) + 1);
    }
  });
}

// A tree whose every inner node has the `width` most likely tokens of q as children: what Medusa and EAGLE draft. q rows are
// filled in, so that a rule that mistakes the children for samples of q goes wrong rather than down.
struct TopTree : OwnTree {
  TopTree(const Law& law, size_t vocab, int width, int depth) {
    std::vector<Tokens> paths{{}};
    for (size_t parent = 0; parent < paths.size(); ++parent) {
      if (int(paths[parent].size()) == depth) continue;
      const Row row = law(paths[parent]);
      Tokens order(vocab);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::greater{}, [&](int32_t token) { return row[token]; });
      for (int child = 0; child < width; ++child) {
        paths.push_back(paths[parent]);
        paths.back().push_back(order[child]);
        tokens.push_back(order[child]);
        q.insert(q.end(), row.begin(), row.end());
        tree.parents.push_back(int32_t(parent) - 1);
      }
    }
    finish(DraftLaw::Point, vocab);
  }
};

TEST(Rules, KeepTheTargetLawForDeterministicTreesWhateverTheirWidth) {
  for_every_lossless_rule([](const AcceptanceRule& rule, const Pair& pair) {
    for (const auto& [width, depth] : {std::pair(1, 1), {1, 2}, {1, 3}, {2, 1}, {2, 2}, {3, 1}, {3, 2}, {2, 3}}) {
      SCOPED_TRACE(fmt::format("{} wide, {} deep", width, depth));
      TopTree top(pair.q, pair.vocab, width, depth);
      std::map<Tokens, double> joint;
      double kept = 0;
      Walk::all([&](Walk& walk) {
        const Verdict verdict = walked(rule, walk, pair.p, top.tree);
        kept += walk.weight() * double(verdict.path.size());
        complete(pair.p, emitted_by(verdict), size_t(depth) + 1, walk.weight(), joint);
      });
      expect_law(joint, pair.p, size_t(depth) + 1);
      if (depth > 1) continue;
      // Nobody can keep more of a deterministic tree than the target's probability of its children.
      double most = 0;
      for (int child = 0; child < (rule.takes_branches() ? width : 1); ++child) most += double(pair.p({})[top.tokens[child]]);
      EXPECT_NEAR(kept, most, 1e-12);
    }
  });
}

// Rounds may mix laws, each tree has one: a deterministic chain where the context was seen before, a sampled one elsewhere.
TEST(Rules, KeepTheTargetLawWhereTheLawOfTheTreeDependsOnTheContext) {
  for_every_lossless_rule([](const AcceptanceRule& rule, const Pair& pair) {
    if (!rule.needs_q()) return;
    std::map<Tokens, double> joint;
    Walk::all([&](Walk& walk) {
      Tokens emitted;
      for (int round = 0; round < 2; ++round) {
        const Law p = [&](const Tokens& after) {
          Tokens all = emitted;
          all.insert(all.end(), after.begin(), after.end());
          return pair.p(all);
        };
        Verdict verdict;
        if ((emitted.empty() ? 0 : emitted.back()) % 2 == round) {
          verdict = walked(rule, walk, p, TopTree(pair.q, pair.vocab, 2, 1).tree);
        } else {
          const Row row = pair.q({});
          const Chain chain = make_chain({walk.branch({row.begin(), row.end()})}, {row}, pair.vocab, DraftLaw::Given);
          verdict = walked(rule, walk, p, chain.tree);
        }
        const Tokens round_emitted = emitted_by(verdict);
        emitted.insert(emitted.end(), round_emitted.begin(), round_emitted.end());
      }
      complete(pair.p, emitted, 4, walk.weight(), joint);
    });
    expect_law(joint, pair.p, 4);
  });
}

TEST(Rules, RatioAcceptsAsOftenAsTheOverlapOfBothLaws) {  // sum min(p, q), the best any rule can do for one token
  const auto rule = make_rule("ratio", 4);
  const Pair pair = pairs()[0];
  double accepted = 0, overlap = 0;
  Walk::all([&](Walk& walk) {
    const Row q = pair.q({});
    const Tokens drafts{walk.branch({q.begin(), q.end()})};
    Chain chain = make_chain(drafts, {q}, pair.vocab, DraftLaw::Given);
    const Verdict verdict = walked(*rule, walk, pair.p, chain.tree);
    accepted += walk.weight() * double(verdict.tokens.size());
  });
  for (size_t i = 0; i < pair.vocab; ++i) overlap += double(std::min(pair.p({})[i], pair.q({})[i]));
  EXPECT_NEAR(accepted, overlap, 1e-12);
}

// A target that answers from a list.
class Listed final : public TargetProbs {
 public:
  explicit Listed(Tokens choices) : choices_(std::move(choices)) {}
  int32_t choice(int row) override { return choices_[row]; }
  View<const float, 1> row(int) override { return {}; }

 private:
  Tokens choices_;
};

TEST(Match, EmitsTheTargetsChoicesUpToTheFirstDifference) {
  const auto rule = make_rule("match", 4);
  struct Case {
    Tokens drafts, choices, accepted;
    int32_t next;
  };
  const Case cases[] = {
      {{}, {7}, {}, 7},  // plain decoding
      {{5, 6}, {5, 6, 7}, {5, 6}, 7}, {{5, 6}, {5, 9, 7}, {5}, 9},
      {{4, 9, 7}, {5, 9, 7, 1}, {}, 5},  // later rows follow a dead token
      {{5, 6}, {5, -1, 7}, {5}, -1},     // no valid number
      {{5, -1}, {5, -1, 7}, {5}, -1},    // nor of the draft
  };
  for (const Case& c : cases) {
    Chain chain = make_chain(c.drafts, {}, 0, DraftLaw::Noise);
    Listed target(c.choices);
    KeyedChance chance({});
    Verdict verdict;
    rule->accept(chain.tree, 3, target, chance, verdict);
    EXPECT_EQ(verdict.tokens, c.accepted);
    EXPECT_EQ(verdict.next, c.next);
    EXPECT_EQ(verdict.path.size(), c.accepted.size());
  }
}

TEST(Match, FollowsTheChildThatEqualsTheChoice) {
  const auto rule = make_rule("match", 4);
  // Nodes 0 and 1 are children of the root, 2 and 3 of node 1.
  Chain chain = make_chain({5, 6, 8, 9}, {}, 0, DraftLaw::Noise);
  chain.tree.parents = {-1, -1, 1, 1};
  Listed target({6, 0, 9, 0, 4});  // rows: root, node 0, node 1, node 2, node 3
  KeyedChance chance({});
  Verdict verdict;
  rule->accept(chain.tree, 3, target, chance, verdict);
  EXPECT_EQ(verdict.path, (std::vector<int>{1, 3}));
  EXPECT_EQ(verdict.tokens, (Tokens{6, 9}));
  EXPECT_EQ(verdict.next, 4);
}

constexpr int kPositions = 20000;
// Of so many draws those of chance p, within 4.5 standard deviations.
void expect_share(int count, double p, const std::string& what = "") {
  EXPECT_NEAR(double(count) / kPositions, p, 4.5 * std::sqrt(p * (1 - p) / kPositions)) << what;
}

TEST(KeyedChance, AcceptsWithProbabilityPOverQ) {
  KeyedChance chance({.seed = 5});
  for (const double p : {0.1, 0.25, 0.5, 0.9}) {
    int accepted = 0;
    for (int position = 0; position < kPositions; ++position) accepted += chance.below(p / 2, 0.5, position, 0);
    expect_share(accepted, p);
  }
}

TEST(KeyedChance, NeverAcceptsWhatEitherLawExcludesAndAlwaysWhatTheTargetLikesBetter) {
  KeyedChance chance({.seed = 6});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int position = 0; position < 10000; ++position) {
    for (const auto& [p, q] : {std::pair(0.0, 0.5), {0.5, 0.0}, {0.0, 0.0}, {nan, 0.5}})
      EXPECT_FALSE(chance.below(p, q, position, 0)) << p << " " << q;
    for (const double p : {0.5, 0.6}) EXPECT_TRUE(chance.below(p, 0.5, position, 0)) << p;
  }
}

TEST(KeyedChance, DrawsTheResidualInProportionToWhatTheDraftLacks) {
  KeyedChance chance({.seed = 7});
  const Row p{0.4f, 0.3f, 0.2f, 0.1f}, q{0.1f, 0.5f, 0.1f, 0.3f};  // lacks 0.3 and 0.1
  std::vector<int> counts(4);
  for (int position = 0; position < kPositions; ++position) ++counts[chance.residual(view(p), view(q), position)];
  EXPECT_EQ(counts[1], 0);
  EXPECT_EQ(counts[3], 0);
  expect_share(counts[0], 0.75);
}

TEST(KeyedChance, DrawsATokenByItsWeight) {
  KeyedChance chance({.seed = 13});
  const std::vector<double> weights{0.6, 0, 0.2, 1.2}, nothing{0, 0};
  std::vector<int> counts(4);
  for (int position = 0; position < kPositions; ++position) ++counts[chance.among(view(weights, 4), position)];
  EXPECT_EQ(counts[1], 0);
  expect_share(counts[0], 0.3);
  expect_share(counts[3], 0.6);
  EXPECT_EQ(chance.among(view(nothing, 2), 3), -1);
}

TEST(KeyedChance, FlipsACoinOfItsOwnForEverySibling) {
  KeyedChance chance({.seed = 14});
  int both[4][4] = {};
  for (int position = 0; position < kPositions; ++position)
    for (int a = 0; a < 4; ++a)
      for (int b = 0; b < 4; ++b)
        both[a][b] += chance.below(0.25, 0.5, position, 3 * a) && chance.below(0.25, 0.5, position, 3 * b);
  for (int a = 0; a < 4; ++a)
    for (int b = 0; b < 4; ++b) expect_share(both[a][b], a == b ? 0.5 : 0.25, fmt::format("{} {}", a, b));
}

TEST(KeyedChance, DrawsAnyTokenButTheRejectedOne) {
  KeyedChance chance({.seed = 12});
  const Row p{0.4f, 0.3f, 0.2f, 0.1f}, certain{0, 1, 0};
  std::vector<int> counts(4);
  for (int position = 0; position < kPositions; ++position) ++counts[chance.without(view(p), 0, position)];
  EXPECT_EQ(counts[0], 0);
  expect_share(counts[1], 0.5);
  expect_share(counts[3], 1 / 6.0);
  EXPECT_EQ(chance.without(view(certain), 1, 3), 1);  // rounding alone can have rejected it
}

TEST(KeyedChance, FallsBackToTheTargetWhereTheResidualVanishes) {
  KeyedChance chance({.seed = 8});
  const Row p{0, 0.25f, 0.75f}, nothing{0, 0, 0};
  std::set<int32_t> seen;
  for (int position = 0; position < 1000; ++position) seen.insert(chance.residual(view(p), view(p), position));
  EXPECT_EQ(seen, (std::set<int32_t>{1, 2}));
  EXPECT_EQ(chance.residual(view(nothing), view(p), 3), -1);  // a row without valid numbers
}

TEST(KeyedChance, IsAFunctionOfKeyAndPositionAlone) {
  const Row p{0.5f, 0.5f}, q{0, 0};
  KeyedChance a({.seed = 9}), again({.seed = 9}), other({.seed = 10}), sample({.seed = 9, .sample = 1});
  int differs_by_seed = 0, differs_by_sample = 0, differs_by_position = 0;
  for (int position = 0; position < 1000; ++position) {
    EXPECT_EQ(a.below(0.25, 0.5, position, 0), again.below(0.25, 0.5, position, 0));
    EXPECT_EQ(a.residual(view(p), view(q), position), again.residual(view(p), view(q), position));
    differs_by_seed += a.below(0.25, 0.5, position, 0) != other.below(0.25, 0.5, position, 0);
    differs_by_sample += a.below(0.25, 0.5, position, 0) != sample.below(0.25, 0.5, position, 0);
    differs_by_position += a.below(0.25, 0.5, position, 0) != a.below(0.25, 0.5, position + 1, 0);
  }
  for (const int count : {differs_by_seed, differs_by_sample, differs_by_position}) EXPECT_NEAR(count, 500, 80);
}

TEST(KeyedChance, ItsCoinsAndResidualsAreIndependent) {
  // Given that the coin falls low, the residual must still be fair.
  const Row p{0.5f, 0.5f}, q{0, 0};
  KeyedChance chance({.seed = 11});
  int low = 0, first = 0;
  for (int position = 0; position < kPositions; ++position)
    if (chance.below(0.1, 0.5, position, 0)) ++low, first += chance.residual(view(p), view(q), position) == 0;
  ASSERT_GT(low, 3000);
  EXPECT_NEAR(double(first) / low, 0.5, 4.5 * 0.5 / std::sqrt(low));
}

}
}
