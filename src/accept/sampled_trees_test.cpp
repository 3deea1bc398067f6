// Trees whose nodes were drawn: children without replacement from their parent's q, of any width, numbered breadth or depth
// first. Rules that take them keep the target's law exactly: every draw, coin and residual is walked with its exact weight. What
// bends the law is here too, so that it is known to be seen.
#include <fmt/format.h>

#include "accept/rule_proofs.h"
#include "draft/drawn_tree.h"

namespace hunch {
namespace {

using namespace test;

// How many children a node is to have at most: by the ranks of the nodes on its path (0: drawn first), and their tokens.
using Width = std::function<int(const std::vector<int>& ranks, const Tokens& path)>;

// One of what is left of a law; -1 where nothing is.
int32_t draw_of(Walk& walk, std::vector<double> left) {
  double mass = 0;
  for (const double x : left) mass += x;
  if (mass == 0) return -1;
  for (double& x : left) x /= mass;
  return walk.branch(left);
}

struct SampledTree : OwnTree {
  struct How {
    bool depth_first = false;
    bool with_replacement = false;  // a token may come twice among siblings
    bool sorted = false;            // siblings numbered by token, not in the order drawn
    bool stops = false;             // no sibling behind token 1
  };

  SampledTree(Walk& walk, const Law& law, size_t vocab, const Width& width, const How& how) {
    grow(walk, law, width, how, 0);
    for (size_t row = 1; !how.depth_first && row < paths.size(); ++row) grow(walk, law, width, how, row);
    for (size_t row = 0; row < tokens.size(); ++row) {
      const Row of_row = law(paths[row]);
      q.insert(q.end(), of_row.begin(), of_row.end());
    }
    finish(DraftLaw::Given, vocab);
  }

  void grow(Walk& walk, const Law& law, const Width& width, const How& how, size_t row) {
    const Row of_row = law(paths[row]);
    std::vector<double> left(of_row.begin(), of_row.end());
    const int children = width(ranks[row], paths[row]);
    Tokens drawn;
    for (int rank = 0; rank < children; ++rank) {
      if (how.stops && !drawn.empty() && drawn.back() == 1) break;
      const int32_t token = draw_of(walk, left);
      if (token < 0) break;
      drawn.push_back(token);
      if (!how.with_replacement) left[token] = 0;
    }
    if (how.sorted) std::ranges::sort(drawn);
    for (size_t rank = 0; rank < drawn.size(); ++rank) {
      paths.push_back(paths[row]), paths.back().push_back(drawn[rank]);
      ranks.push_back(ranks[row]), ranks.back().push_back(int(rank));
      tokens.push_back(drawn[rank]);
      tree.parents.push_back(int32_t(row) - 1);
      if (how.depth_first) grow(walk, law, width, how, paths.size() - 1);
    }
  }

  std::vector<Tokens> paths{{}};            // of rows
  std::vector<std::vector<int>> ranks{{}};  // of rows
};

struct Emitted {
  std::map<Tokens, double> joint;
  double kept = 0;  // nodes a round
};

Emitted joint_of(
    const Pair& pair, const Width& width, int depth, const SampledTree::How& how = {}, std::string_view rule_name = "ratio") {
  const auto rule = make_rule(rule_name, pair.vocab);
  Emitted out;
  Walk::all([&](Walk& walk) {
    SampledTree sampled(walk, pair.q, pair.vocab, width, how);
    const Verdict verdict = walked(*rule, walk, pair.p, sampled.tree);
    out.kept += walk.weight() * double(verdict.path.size());
    complete(pair.p, emitted_by(verdict), size_t(depth) + 1, walk.weight(), out.joint);
  });
  return out;
}

// Five tokens, far from each other.
Pair five() {
  return {"five tokens", 5, law_of({{20, 3, 21, 18, 2}, {1, 30, 2, 11, 20}, {12, 13, 13, 13, 13}, {2, 2, 20, 20, 20}}),
      law_of({{2, 28, 10, 4, 20}, {30, 1, 11, 2, 20}, {40, 6, 6, 6, 6}, {20, 20, 20, 2, 2}, {1, 1, 1, 1, 60}})};
}

std::vector<Pair> pairs_and_five() {
  std::vector<Pair> all = pairs();
  all.push_back(five());
  return all;
}

Width flat(int children) {
  return [children](const std::vector<int>& ranks, const Tokens&) { return ranks.empty() ? children : 0; };
}
// Two levels: as many children as `of_rank` says for the node of that rank.
Width two_levels(std::vector<int> of_rank) {
  return [of_rank](const std::vector<int>& ranks, const Tokens&) {
    return ranks.empty() ? int(of_rank.size()) : ranks.size() == 1 ? of_rank[ranks[0]] : 0;
  };
}

TEST(SampledTrees, KeepTheTargetLawForUpToThreeChildren) {
  for (const char* name : {"ratio", "point"})
    for (const Pair& pair : pairs_and_five()) {
      double kept = 0;
      for (int children = 1; children <= 3; ++children) {
        SCOPED_TRACE(fmt::format("{}, {}, {} children", name, pair.name, children));
        const Emitted got = joint_of(pair, flat(children), 1, {}, name);
        expect_law(got.joint, pair.p, 2);
        EXPECT_GE(got.kept, kept - 1e-12) << "another child costs nothing";
        kept = got.kept;
      }
    }
}

TEST(SampledTrees, KeepTheTargetLawOverTwoLevelsHoweverTheyAreNumbered) {
  for (const Pair& pair : pairs_and_five())
    for (const bool depth_first : {false, true})
      for (const auto& shape : {std::vector<int>{1, 1}, {2, 1}, {0, 2}, {2}}) {
        if (pair.vocab == 5 && shape.size() == 2 && shape[0] == 2) continue;  // as good as the smaller ones, and slow
        SCOPED_TRACE(fmt::format("{}, {} and {}{}", pair.name, shape.size(), shape[0], depth_first ? ", depth first" : ""));
        const Emitted got = joint_of(pair, two_levels(shape), 2, {.depth_first = depth_first});
        expect_law(got.joint, pair.p, 3);
      }
}

// Going on may depend on what was drawn: the next level is drawn anew. The number of its children may, too.
TEST(SampledTrees, KeepTheTargetLawWhereTheNextLevelDependsOnWhatWasDrawn) {
  for (const Pair& pair : pairs_and_five()) {
    SCOPED_TRACE(pair.name);
    const Width width = [](const std::vector<int>& ranks, const Tokens& path) {
      return ranks.empty() ? 2 : ranks.size() == 1 ? path[0] % 3 : 0;
    };
    expect_law(joint_of(pair, width, 2).joint, pair.p, 3);
  }
}

// The trees of learned drafters: draft/drawn_tree.h decides from the laws of a level's nodes, then draws. With DraftTree::laws,
// as the rows of q are those of the nodes that went on.
struct GrownTree : OwnTree {
  GrownTree(Walk& walk, const Law& law, size_t vocab, int nodes, int depth, int most) {
    drawn.reserve(nodes, depth);
    drawn.begin(nodes, depth, 3, 0.5f);
    std::vector<Tokens> level{{}};
    for (int rows = 1; !level.empty();) {
      std::vector<float> first_kept;
      for (const Tokens& path : level) {
        const Row of_row = law(path);
        q.insert(q.end(), of_row.begin(), of_row.end());
        first_kept.push_back(*std::ranges::max_element(of_row));
      }
      drawn.plan(first_kept);
      for (size_t i = 0; i < level.size(); ++i) {
        const Row of_row = law(level[i]);
        std::vector<double> left(of_row.begin(), of_row.end());
        int32_t draws[3] = {-1, -1, -1};
        for (int nth = 0; nth < drawn.children(int(i)); ++nth) {
          if ((draws[nth] = draw_of(walk, left)) < 0) break;
          left[draws[nth]] = 0;
        }
        drawn.take(int(i), draws);
      }
      const auto frontier = drawn.advance(most, rows);
      rows += int(frontier.size());
      level.clear();
      for (int node : frontier) {
        level.emplace_back();
        for (; node >= 0; node = drawn.node(node).parent) level.back().insert(level.back().begin(), drawn.node(node).token);
      }
    }
    tree.laws.assign(drawn.size() + 1, 0);
    for (int i = 0; i < drawn.size(); ++i) {
      tokens.push_back(drawn.node(i).token), tree.parents.push_back(drawn.node(i).parent);
      if (drawn.node(i).row > 0) tree.laws[size_t(i) + 1] = drawn.node(i).row;
    }
    finish(DraftLaw::Given, vocab);
  }

  DrawnTree drawn;
};

TEST(SampledTrees, KeepTheTargetLawInTheShapesOfLearnedDrafters) {
  struct How {
    int nodes, depth, most;
  };
  for (const Pair& pair : pairs_and_five())
    for (const How& how : {How{1, 1, 1}, How{3, 1, 3}, How{3, 2, 1}, How{4, 2, 2}, How{5, 3, 1}}) {
      if (pair.vocab == 5 && how.nodes > 4) continue;  // slow, and no other claim
      SCOPED_TRACE(fmt::format("{}, {} nodes in {}", pair.name, how.nodes, how.depth));
      const auto rule = make_rule("ratio", pair.vocab);
      std::map<Tokens, double> joint;
      Walk::all([&](Walk& walk) {
        GrownTree grown(walk, pair.q, pair.vocab, how.nodes, how.depth, how.most);
        const Tokens emitted = emitted_by(walked(*rule, walk, pair.p, grown.tree));
        complete(pair.p, emitted, size_t(how.depth) + 1, walk.weight(), joint);
      });
      expect_law(joint, pair.p, size_t(how.depth) + 1);
    }
}

TEST(SampledTrees, KeepTheTargetLawWhereASiblingDependsOnTheChildrenBeforeIt) {
  for (const Pair& pair : pairs_and_five()) {
    SCOPED_TRACE(pair.name);
    expect_law(joint_of(pair, flat(3), 1, {.stops = true}).joint, pair.p, 2);
  }
}

TEST(SampledTrees, OneOfAllTokensIsAlwaysKept) {
  const Pair pair = five();
  EXPECT_NEAR(joint_of(pair, flat(5), 1).kept, 1, 1e-12);
}

// A drafter that draws with replacement breaks the contract. What it drew twice counts once, and nothing is lost.
TEST(SampledTrees, ATokenDrawnAgainCountsAsNotDrawn) {
  for (const Pair& pair : pairs_and_five())
    for (int children = 2; children <= 3; ++children) {
      SCOPED_TRACE(pair.name);
      expect_law(joint_of(pair, flat(children), 1, {.with_replacement = true}).joint, pair.p, 2);
    }
}

double distance(const std::map<Tokens, double>& got, const Law& p, size_t len) {
  std::map<Tokens, double> wanted;
  complete(p, {}, len, 1, wanted);
  double sum = 0;
  for (const auto& [tokens, weight] : wanted) sum += std::abs(weight - (got.contains(tokens) ? got.at(tokens) : 0)) / 2;
  return sum;
}

TEST(SampledTrees, ChildrenInAnotherOrderThanDrawnBendTheLaw) {
  const Pair pair = five();
  EXPECT_GT(distance(joint_of(pair, flat(2), 1, {.sorted = true}).joint, pair.p, 2), 0.01);
}

// Why a sampled child may not be dropped for its own probability: what is left is no sample of q.
TEST(SampledTrees, AChildDroppedForWhatItIsBendsTheLaw) {
  const Row p{0.4f, 0.3f, 0.2f, 0.1f}, q{0.1f, 0.5f, 0.3f, 0.1f};
  const Pair pair{"pruned", 4, [p](const Tokens&) { return p; }, [q](const Tokens&) { return q; }};
  const auto rule = make_rule("ratio", pair.vocab);
  std::vector<double> law(4);
  Walk::all([&](Walk& walk) {
    SampledTree sampled(walk, pair.q, 4, flat(1), {});
    if (q[sampled.tokens[0]] < 0.2f) sampled.tree.size = 0;
    const Tokens emitted = emitted_by(walked(*rule, walk, pair.p, sampled.tree));
    law[emitted[0]] += walk.weight();
  });
  const double bent[] = {0.38, 0.36, 0.24, 0.02};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(law[i], bent[i], 1e-6);
}

// Hand-made rows. The target never answers for itself except at the leaf or where nothing was drawn.
struct Rows : OwnTree {
  explicit Rows(Row p_, Row q_, Tokens tokens_) : p(std::move(p_)) {
    q = std::move(q_), tokens = std::move(tokens_);
    tree.parents.assign(tokens.size(), -1);
    q.resize(p.size() * tokens.size(), 0);
    finish(DraftLaw::Given, p.size());
  }

  class Target final : public TargetProbs {
   public:
    explicit Target(const Row& p) : p_(p) {}
    int32_t choice(int) override { return 3; }
    View<const float, 1> row(int) override { return view(p_); }

   private:
    const Row& p_;
  };
  Verdict decide(uint64_t seed) {
    Target target(p);
    KeyedChance chance({.seed = seed});
    Verdict verdict;
    make_rule("ratio", std::ssize(p))->accept(tree, 5, target, chance, verdict);
    return verdict;
  }

  Row p;
};

TEST(SampledTrees, EmitNothingThatTheTargetExcludesAndKeepNothingThatTheDrafterExcludes) {
  const float tiny = 1e-30f;
  struct Case {
    Row p, q;
    Tokens tokens;
  };
  const Case cases[] = {
      {{0, 0.5f, 0.5f, 0}, {1, 0, 0, 0}, {0, 1}},                        // q is exhausted by its first child
      {{0, 0.5f, 0.5f, 0}, {1 - tiny, tiny, 0, 0}, {0, 1, 2}},           // the second had next to nothing
      {{0, 1, 0, 0}, {0.5f, 0, 0.25f, 0.25f}, {0, 2, 3}},                // disjoint
      {{0, 0.3f, 0.7f, 0}, {0.6f, 0.12f, 0.28f, 0}, {0, 1, 2}},          // p' equals q'
      {{0, 0.27f, 0.63f, 0}, {0, 0.3f, 0.7f, 0}, {1, 2}},                // rounding, made large: nothing left after the first
      {{0, 0.3f, 0.7f, 0}, {0.25f, 0.25f, 0.25f, 0.25f}, {0, 0, 0, 3}},  // drawn again and again
      {{0, 0.3f, 0.7f, 0}, {0.25f, 0.25f, 0.25f, 0.25f}, {0, -1, 3}},    // an id that is none
  };
  for (const Case& c : cases)
    for (uint64_t seed = 0; seed < 3000; ++seed) {
      Rows rows(c.p, c.q, c.tokens);
      const Verdict verdict = rows.decide(seed);
      const int32_t emitted = verdict.tokens.empty() ? verdict.next : verdict.tokens[0];
      ASSERT_TRUE(emitted >= 0 && c.p[emitted] > 0) << emitted;
      ASSERT_TRUE(verdict.path.empty() || c.q[emitted] > 0) << emitted;
    }
}

TEST(SampledTrees, ARowWithoutValidNumbersIsReported) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rows none({0, 0, 0, 0}, {0.25f, 0.25f, 0.25f, 0.25f}, {0, 1, 2});
    EXPECT_EQ(none.decide(seed).next, -1);
    EXPECT_TRUE(none.decide(seed).path.empty());
  }
}

TEST(SampledTrees, WhereNothingWasDrawnTheTargetDecidesAlone) {
  Rows rows({0.25f, 0.25f, 0.25f, 0.25f}, {0, 0, 0, 0}, {-1, -1});
  EXPECT_EQ(rows.decide(1).next, 3);
}

}
}
