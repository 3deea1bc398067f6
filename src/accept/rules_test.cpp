// Every registered lossless rule keeps the target's law: proved by walking every branch of draft, coin, residual and target
// choice with its exact weight (Leviathan et al., 2022, appendix A.1 says why it must hold). Probabilities are multiples of 1/64,
// so that fp32 rows and the sums are exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "accept/exact_walk.h"
#include "accept/rule.h"

namespace hunch {
namespace {

using Tokens = std::vector<int32_t>;
using Row = std::vector<float>;                 // probabilities
using Law = std::function<Row(const Tokens&)>;  // of the next token, given the tokens before

class WalkedChance final : public Chance {
 public:
  explicit WalkedChance(Walk& walk) : walk_(walk) {}
  bool below(double p, double q, int64_t) override {
    const double accept = p > 0 && q > 0 ? std::min(1.0, p / q) : 0.0;
    return walk_.branch({accept, 1 - accept}) == 0;
  }
  int32_t residual(View<const float, 1> p, View<const float, 1> q, int64_t) override {
    return draw(p.extent[0], [&](int64_t i) { return std::max(0.0, double(p(i)) - double(q(i))); });
  }
  int32_t without(View<const float, 1> p, int32_t token, int64_t) override {
    return draw(p.extent[0], [&](int64_t i) { return i == token ? 0.0 : double(p(i)); });
  }

 private:
  template <class Weight>
  int32_t draw(int64_t tokens, Weight&& weight_of) {
    std::vector<double> weights;
    double total = 0;
    for (int64_t i = 0; i < tokens; ++i) total += weights.emplace_back(weight_of(i));
    for (double& weight : weights) weight /= total;
    return walk_.branch(weights);
  }

  Walk& walk_;
};

// The target's rows of one tree: row 0 follows nothing, row i + 1 the path to node i.
class WalkedTarget final : public TargetProbs {
 public:
  WalkedTarget(Walk& walk, const Law& law, const DraftTree& tree) : walk_(walk) {
    std::vector<Tokens> paths{{}};
    for (int node = 0; node < tree.size; ++node) {
      Tokens path = paths[size_t(tree.parents[size_t(node)] + 1)];
      path.push_back(tree.tokens(node));
      paths.push_back(path);
    }
    for (const Tokens& path : paths) rows_.push_back(law(path));
  }
  int32_t choice(int row) override {
    const Row& p = rows_[size_t(row)];
    return walk_.branch(std::vector<double>(p.begin(), p.end()));
  }
  View<const float, 1> row(int row) override {
    return View<const float, 1>(rows_[size_t(row)].data(), rows_[size_t(row)].size());
  }

 private:
  Walk& walk_;
  std::vector<Row> rows_;
};

struct Chain {
  std::vector<int32_t> tokens;
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
  chain.tree.tokens = View<int32_t, 1>(chain.tokens.data(), chain.tokens.size());
  chain.tree.q = View<float, 2>(chain.q.data(), q.size(), vocab);
  return chain;
}

// Adds `weight` times the target's law of all continuations of `tokens` to length `len`.
void complete(const Law& p, Tokens tokens, size_t len, double weight, std::map<Tokens, double>& joint) {
  if (weight == 0) return;
  if (tokens.size() == len) return void(joint[tokens] += weight);
  const Row row = p(tokens);
  for (size_t next = 0; next < row.size(); ++next) {
    Tokens longer = tokens;
    longer.push_back(int32_t(next));
    complete(p, longer, len, weight * double(row[next]), joint);
  }
}

// The law of the first gamma + 1 emitted tokens, if later rounds follow the target.
std::map<Tokens, double> emitted_law(const AcceptanceRule& rule, const Law& p, const Law& q, size_t vocab, int gamma) {
  std::map<Tokens, double> joint;
  Walk::all([&](Walk& walk) {
    Tokens drafts;
    std::vector<Row> rows;
    for (int i = 0; i < gamma; ++i) {
      rows.push_back(q(drafts));
      drafts.push_back(walk.branch(std::vector<double>(rows.back().begin(), rows.back().end())));
    }
    Chain chain = make_chain(drafts, rows, vocab, rule.needs_q() ? DraftLaw::Given : DraftLaw::Point);
    WalkedChance chance(walk);
    WalkedTarget target(walk, p, chain.tree);
    Verdict verdict;
    rule.accept(chain.tree, 10, target, chance, verdict);
    Tokens emitted = verdict.tokens;
    emitted.push_back(verdict.next);
    complete(p, emitted, size_t(gamma) + 1, walk.weight(), joint);
  });
  return joint;
}

// A law that differs by position and by the token before: row (position + 2 last) of a table, in 64ths.
Law law_of(std::vector<std::vector<int>> sixtyfourths) {
  return [sixtyfourths](const Tokens& before) {
    const size_t at = before.size() + (before.empty() ? 0 : 2 * size_t(before.back()));
    Row row;
    for (const int part : sixtyfourths[at % sixtyfourths.size()]) row.push_back(float(part) / 64);
    return row;
  };
}

struct Pair {
  const char* name;
  size_t vocab;
  Law p, q;
};

std::vector<Pair> pairs() {
  const auto broad = law_of({{10, 20, 30, 4}, {1, 1, 31, 31}, {16, 16, 16, 16}, {40, 8, 8, 8}, {5, 50, 4, 5}});
  const auto other = law_of({{30, 4, 10, 20}, {20, 20, 20, 4}, {1, 2, 3, 58}, {8, 40, 8, 8}});
  const auto holes = law_of({{0, 32, 32, 0}, {64, 0, 0, 0}, {0, 0, 1, 63}, {21, 0, 22, 21}});
  const auto other_holes = law_of({{32, 32, 0, 0}, {0, 16, 48, 0}, {0, 0, 63, 1}});
  return {{"different", 4, broad, other},
          {"equal", 4, broad, broad},
          {"zeros in p", 4, holes, other},
          {"zeros in q", 4, broad, holes},
          {"zeros in both", 4, holes, other_holes},
          {"disjoint", 4, law_of({{32, 32, 0, 0}, {1, 63, 0, 0}}), law_of({{0, 0, 32, 32}, {0, 0, 63, 1}})},
          {"point masses", 3, law_of({{64, 0, 0}, {0, 64, 0}, {0, 0, 64}}), law_of({{64, 0, 0}, {0, 0, 64}, {0, 64, 0}})},
          {"three tokens", 3, law_of({{30, 30, 4}, {2, 60, 2}}), law_of({{4, 30, 30}, {21, 21, 22}, {62, 1, 1}})}};
}

void expect_law(const std::map<Tokens, double>& got, const Law& p, size_t len) {
  std::map<Tokens, double> wanted;
  complete(p, {}, len, 1, wanted);
  for (const auto& [tokens, weight] : wanted) EXPECT_NEAR(got.contains(tokens) ? got.at(tokens) : 0, weight, 1e-12);
  for (const auto& [tokens, weight] : got) EXPECT_TRUE(wanted.contains(tokens)) << "weight " << weight << " outside p";
}

TEST(Rules, KeepTheTargetLawForEveryDraftOfUpToThree) {
  for (const auto& part : Register<AcceptanceRule>::all()) {
    auto rule = part.make({});
    ASSERT_TRUE(rule.ok());
    if ((*rule)->guarantee() == Guarantee::Lossy) continue;
    for (const Pair& pair : pairs())
      for (int gamma = 1; gamma <= 3; ++gamma) {
        SCOPED_TRACE(std::string(part.name) + ", " + pair.name + ", gamma " + std::to_string(gamma));
        expect_law(emitted_law(**rule, pair.p, pair.q, pair.vocab, gamma), pair.p, size_t(gamma) + 1);
      }
  }
}

// A tree whose every inner node has the `width` most likely tokens of q as children: what Medusa and EAGLE draft. q rows are
// filled in, so that a rule that mistakes the children for samples of q goes wrong rather than down.
struct TopTree {
  TopTree(const Law& law, size_t vocab, int width, int depth) {
    std::vector<Tokens> paths{{}};
    for (size_t parent = 0; parent < paths.size(); ++parent) {
      if (int(paths[parent].size()) == depth) continue;
      const Row row = law(paths[parent]);
      std::vector<int32_t> order(vocab);
      for (size_t i = 0; i < vocab; ++i) order[i] = int32_t(i);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[size_t(a)] > row[size_t(b)]; });
      for (int child = 0; child < width; ++child) {
        paths.push_back(paths[parent]);
        paths.back().push_back(order[size_t(child)]);
        tokens.push_back(order[size_t(child)]);
        q.insert(q.end(), row.begin(), row.end());
        tree.parents.push_back(int32_t(parent) - 1);
      }
    }
    tree.size = int(tokens.size());
    tree.law = DraftLaw::Point;
    tree.tokens = View<int32_t, 1>(tokens.data(), tokens.size());
    tree.q = View<float, 2>(q.data(), tokens.size(), vocab);
  }
  TopTree(const TopTree&) = delete;

  Tokens tokens;
  std::vector<float> q;
  DraftTree tree;
};

TEST(Rules, KeepTheTargetLawForDeterministicTreesWhateverTheirWidth) {
  for (const auto& part : Register<AcceptanceRule>::all()) {
    auto rule = part.make({});
    ASSERT_TRUE(rule.ok());
    if ((*rule)->guarantee() == Guarantee::Lossy) continue;
    for (const Pair& pair : pairs())
      for (const auto& [width, depth] : {std::pair(1, 1), {1, 2}, {1, 3}, {2, 1}, {2, 2}, {3, 1}, {3, 2}, {2, 3}}) {
        SCOPED_TRACE(std::string(part.name) + ", " + pair.name + ", " + std::to_string(width) + " wide, " +
                     std::to_string(depth) + " deep");
        TopTree top(pair.q, pair.vocab, width, depth);
        std::map<Tokens, double> joint;
        double kept = 0;
        Walk::all([&](Walk& walk) {
          WalkedChance chance(walk);
          WalkedTarget target(walk, pair.p, top.tree);
          Verdict verdict;
          (*rule)->accept(top.tree, 10, target, chance, verdict);
          kept += walk.weight() * double(verdict.path.size());
          Tokens emitted = verdict.tokens;
          emitted.push_back(verdict.next);
          complete(pair.p, emitted, size_t(depth) + 1, walk.weight(), joint);
        });
        expect_law(joint, pair.p, size_t(depth) + 1);
        if (depth > 1) continue;
        // Nobody can keep more of a deterministic tree than the target's probability of its children.
        double most = 0;
        for (int child = 0; child < ((*rule)->takes_branches() ? width : 1); ++child)
          most += double(pair.p({})[size_t(top.tokens[size_t(child)])]);
        EXPECT_NEAR(kept, most, 1e-12);
      }
  }
}

// Rounds may mix laws, each tree has one: a deterministic chain where the context was seen before, a sampled one elsewhere.
TEST(Rules, KeepTheTargetLawWhereTheLawOfTheTreeDependsOnTheContext) {
  for (const auto& part : Register<AcceptanceRule>::all()) {
    auto rule = part.make({});
    ASSERT_TRUE(rule.ok());
    if ((*rule)->guarantee() == Guarantee::Lossy || !(*rule)->needs_q()) continue;
    for (const Pair& pair : pairs()) {
      SCOPED_TRACE(std::string(part.name) + ", " + pair.name);
      std::map<Tokens, double> joint;
      Walk::all([&](Walk& walk) {
        Tokens emitted;
        for (int round = 0; round < 2; ++round) {
          const Law p = [&](const Tokens& after) {
            Tokens all = emitted;
            all.insert(all.end(), after.begin(), after.end());
            return pair.p(all);
          };
          const Law q = [&](const Tokens& after) { return pair.q(after); };
          WalkedChance chance(walk);
          Verdict verdict;
          if ((emitted.empty() ? 0 : emitted.back()) % 2 == round) {
            TopTree top(q, pair.vocab, 2, 1);
            WalkedTarget target(walk, p, top.tree);
            (*rule)->accept(top.tree, 10, target, chance, verdict);
          } else {
            const Row row = q({});
            Chain chain =
                make_chain({walk.branch(std::vector<double>(row.begin(), row.end()))}, {row}, pair.vocab, DraftLaw::Given);
            WalkedTarget target(walk, p, chain.tree);
            (*rule)->accept(chain.tree, 10, target, chance, verdict);
          }
          emitted.insert(emitted.end(), verdict.tokens.begin(), verdict.tokens.end());
          emitted.push_back(verdict.next);
        }
        complete(pair.p, emitted, 4, walk.weight(), joint);
      });
      expect_law(joint, pair.p, 4);
    }
  }
}

TEST(Rules, RatioAcceptsAsOftenAsTheOverlapOfBothLaws) {  // sum min(p, q), the best any rule can do for one token
  const auto rule = Register<AcceptanceRule>::find("ratio")->make({});
  ASSERT_TRUE(rule.ok());
  const Pair pair = pairs()[0];
  double accepted = 0, overlap = 0;
  Walk::all([&](Walk& walk) {
    const Row q = pair.q({});
    const Tokens drafts{walk.branch(std::vector<double>(q.begin(), q.end()))};
    Chain chain = make_chain(drafts, {q}, pair.vocab, DraftLaw::Given);
    WalkedChance chance(walk);
    WalkedTarget target(walk, pair.p, chain.tree);
    Verdict verdict;
    rule.value()->accept(chain.tree, 0, target, chance, verdict);
    accepted += walk.weight() * double(verdict.tokens.size());
  });
  for (size_t i = 0; i < pair.vocab; ++i) overlap += double(std::min(pair.p({})[i], pair.q({})[i]));
  EXPECT_NEAR(accepted, overlap, 1e-12);
}

// A target that answers from a list.
class Listed final : public TargetProbs {
 public:
  explicit Listed(Tokens choices) : choices_(std::move(choices)) {}
  int32_t choice(int row) override { return choices_[size_t(row)]; }
  View<const float, 1> row(int) override { return {}; }

 private:
  Tokens choices_;
};

TEST(Match, EmitsTheTargetsChoicesUpToTheFirstDifference) {
  const auto rule = Register<AcceptanceRule>::find("match")->make({});
  ASSERT_TRUE(rule.ok());
  struct Case {
    Tokens drafts, choices, accepted;
    int32_t next;
  };
  const Case cases[] = {
      {{}, {7}, {}, 7},  // plain decoding
      {{5, 6}, {5, 6, 7}, {5, 6}, 7},
      {{5, 6}, {5, 9, 7}, {5}, 9},
      {{4, 9, 7}, {5, 9, 7, 1}, {}, 5},  // later rows follow a dead token
      {{5, 6}, {5, -1, 7}, {5}, -1},     // no valid number
  };
  for (const Case& c : cases) {
    Chain chain = make_chain(c.drafts, {}, 0, DraftLaw::Noise);
    Listed target(c.choices);
    KeyedChance chance({});
    Verdict verdict;
    rule.value()->accept(chain.tree, 3, target, chance, verdict);
    EXPECT_EQ(verdict.tokens, c.accepted);
    EXPECT_EQ(verdict.next, c.next);
    EXPECT_EQ(verdict.path.size(), c.accepted.size());
  }
}

TEST(Match, FollowsTheChildThatEqualsTheChoice) {
  const auto rule = Register<AcceptanceRule>::find("match")->make({});
  ASSERT_TRUE(rule.ok());
  // Nodes 0 and 1 are children of the root, 2 and 3 of node 1.
  Chain chain = make_chain({5, 6, 8, 9}, {}, 0, DraftLaw::Noise);
  chain.tree.parents = {-1, -1, 1, 1};
  Listed target({6, 0, 9, 0, 4});  // rows: root, node 0, node 1, node 2, node 3
  KeyedChance chance({});
  Verdict verdict;
  rule.value()->accept(chain.tree, 3, target, chance, verdict);
  EXPECT_EQ(verdict.path, (std::vector<int>{1, 3}));
  EXPECT_EQ(verdict.tokens, (Tokens{6, 9}));
  EXPECT_EQ(verdict.next, 4);
}

View<const float, 1> view(const Row& row) { return View<const float, 1>(row.data(), row.size()); }

TEST(KeyedChance, AcceptsWithProbabilityPOverQ) {
  KeyedChance chance({.seed = 5});
  for (const double p : {0.1, 0.25, 0.5, 0.9}) {
    int accepted = 0;
    for (int position = 0; position < 20000; ++position) accepted += chance.below(p / 2, 0.5, position);
    EXPECT_NEAR(accepted / 20000.0, p, 4.5 * std::sqrt(p * (1 - p) / 20000));
  }
}

TEST(KeyedChance, NeverAcceptsWhatEitherLawExcludesAndAlwaysWhatTheTargetLikesBetter) {
  KeyedChance chance({.seed = 6});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int position = 0; position < 10000; ++position) {
    EXPECT_FALSE(chance.below(0, 0.5, position));
    EXPECT_FALSE(chance.below(0.5, 0, position));
    EXPECT_FALSE(chance.below(0, 0, position));
    EXPECT_FALSE(chance.below(nan, 0.5, position));
    EXPECT_TRUE(chance.below(0.5, 0.5, position));
    EXPECT_TRUE(chance.below(0.6, 0.5, position));
  }
}

TEST(KeyedChance, DrawsTheResidualInProportionToWhatTheDraftLacks) {
  KeyedChance chance({.seed = 7});
  const Row p{0.4f, 0.3f, 0.2f, 0.1f}, q{0.1f, 0.5f, 0.1f, 0.3f};  // lacks 0.3 and 0.1
  std::vector<int> counts(4);
  for (int position = 0; position < 20000; ++position) ++counts[size_t(chance.residual(view(p), view(q), position))];
  EXPECT_EQ(counts[1], 0);
  EXPECT_EQ(counts[3], 0);
  EXPECT_NEAR(counts[0] / 20000.0, 0.75, 4.5 * std::sqrt(0.75 * 0.25 / 20000));
}

TEST(KeyedChance, DrawsAnyTokenButTheRejectedOne) {
  KeyedChance chance({.seed = 12});
  const Row p{0.4f, 0.3f, 0.2f, 0.1f}, certain{0, 1, 0};
  std::vector<int> counts(4);
  for (int position = 0; position < 20000; ++position) ++counts[size_t(chance.without(view(p), 0, position))];
  EXPECT_EQ(counts[0], 0);
  EXPECT_NEAR(counts[1] / 20000.0, 0.5, 4.5 * 0.5 / std::sqrt(20000));
  EXPECT_NEAR(counts[3] / 20000.0, 1 / 6.0, 4.5 * 0.38 / std::sqrt(20000));
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
    EXPECT_EQ(a.below(0.25, 0.5, position), again.below(0.25, 0.5, position));
    EXPECT_EQ(a.residual(view(p), view(q), position), again.residual(view(p), view(q), position));
    differs_by_seed += a.below(0.25, 0.5, position) != other.below(0.25, 0.5, position);
    differs_by_sample += a.below(0.25, 0.5, position) != sample.below(0.25, 0.5, position);
    differs_by_position += a.below(0.25, 0.5, position) != a.below(0.25, 0.5, position + 1);
  }
  for (const int count : {differs_by_seed, differs_by_sample, differs_by_position}) EXPECT_NEAR(count, 500, 80);
}

TEST(KeyedChance, ItsCoinsAndResidualsAreIndependent) {
  // Given that the coin falls low, the residual must still be fair.
  const Row p{0.5f, 0.5f}, q{0, 0};
  KeyedChance chance({.seed = 11});
  int low = 0, first = 0;
  for (int position = 0; position < 20000; ++position)
    if (chance.below(0.1, 0.5, position)) ++low, first += chance.residual(view(p), view(q), position) == 0;
  ASSERT_GT(low, 3000);
  EXPECT_NEAR(double(first) / low, 0.5, 4.5 * 0.5 / std::sqrt(low));
}

}  // namespace
}  // namespace hunch
