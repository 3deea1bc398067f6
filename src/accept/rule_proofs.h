// What the proofs of the rules share: laws of sequences as tables, and a chance and a target that walk every outcome with its
// exact weight. Probabilities are multiples of 1/64, so that fp32 rows and their sums are exact.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "accept/exact_walk.h"
#include "accept/rule.h"
#include "tensor/test_view.h"

namespace hunch::test {

using Tokens = std::vector<int32_t>;
using Row = std::vector<float>;                 // probabilities
using Law = std::function<Row(const Tokens&)>;  // of the next token, given the tokens before

class WalkedChance final : public Chance {
 public:
  explicit WalkedChance(Walk& walk) : walk_(walk) {}
  bool below(double p, double q, int64_t, int) override {
    const double accept = p > 0 && q > 0 ? std::min(1.0, p / q) : 0.0;
    return walk_.branch({accept, 1 - accept}) == 0;
  }
  int32_t residual(View<const float, 1> p, View<const float, 1> q, int64_t) override {
    return draw(p.extent[0], [&](int64_t i) { return std::max(0.0, double(p(i)) - double(q(i))); });
  }
  int32_t without(View<const float, 1> p, int32_t token, int64_t) override {
    return draw(p.extent[0], [&](int64_t i) { return i == token ? 0.0 : double(p(i)); });
  }
  int32_t among(View<const double, 1> weights, int64_t) override {
    return draw(weights.extent[0], [&](int64_t i) { return weights(i); });
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
      Tokens path = paths[tree.parents[node] + 1];
      path.push_back(tree.tokens(node));
      paths.push_back(path);
    }
    for (const Tokens& path : paths) rows_.push_back(law(path));
  }
  int32_t choice(int row) override {
    const Row& p = rows_[row];
    return walk_.branch({p.begin(), p.end()});
  }
  View<const float, 1> row(int row) override { return view(rows_[row]); }

 private:
  Walk& walk_;
  std::vector<Row> rows_;
};

// Adds `weight` times the target's law of all continuations of `tokens` to length `len`.
inline void complete(const Law& p, Tokens tokens, size_t len, double weight, std::map<Tokens, double>& joint) {
  if (weight == 0) return;
  if (tokens.size() == len) return void(joint[tokens] += weight);
  const Row row = p(tokens);
  for (size_t next = 0; next < row.size(); ++next) {
    Tokens longer = tokens;
    longer.push_back(int32_t(next));
    complete(p, longer, len, weight * double(row[next]), joint);
  }
}

// What the rule says of a tree at position 10 on this walk.
inline Verdict walked(const AcceptanceRule& rule, Walk& walk, const Law& p, const DraftTree& tree) {
  WalkedChance chance(walk);
  WalkedTarget target(walk, p, tree);
  Verdict verdict;
  rule.accept(tree, 10, target, chance, verdict);
  return verdict;
}
inline Tokens emitted_by(const Verdict& verdict) {
  Tokens emitted = verdict.tokens;
  emitted.push_back(verdict.next);
  return emitted;
}

// A tree with its buffers. What is derived from it fills tokens, parents and the rows of q, then calls finish().
struct OwnTree {
  OwnTree() = default;
  OwnTree(const OwnTree&) = delete;
  void finish(DraftLaw law, size_t vocab) {
    tree.size = int(tokens.size()), tree.law = law;
    tree.tokens = view(tokens);
    tree.q = view(q, q.size() / vocab, vocab);
  }

  Tokens tokens;
  std::vector<float> q;
  DraftTree tree;
};

// A law that differs by position and by the token before: row (position + 2 last) of a table, in 64ths.
inline Law law_of(std::vector<std::vector<int>> sixtyfourths) {
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

inline std::vector<Pair> pairs() {
  const auto broad = law_of({{10, 20, 30, 4}, {1, 1, 31, 31}, {16, 16, 16, 16}, {40, 8, 8, 8}, {5, 50, 4, 5}});
  const auto other = law_of({{30, 4, 10, 20}, {20, 20, 20, 4}, {1, 2, 3, 58}, {8, 40, 8, 8}});
  const auto holes = law_of({{0, 32, 32, 0}, {64, 0, 0, 0}, {0, 0, 1, 63}, {21, 0, 22, 21}});
  const auto other_holes = law_of({{32, 32, 0, 0}, {0, 16, 48, 0}, {0, 0, 63, 1}});
  return {
      {"different", 4, broad, other},
      {"equal", 4, broad, broad},
      {"zeros in p", 4, holes, other},
      {"zeros in q", 4, broad, holes},
      {"zeros in both", 4, holes, other_holes},
      {"disjoint", 4, law_of({{32, 32, 0, 0}, {1, 63, 0, 0}}), law_of({{0, 0, 32, 32}, {0, 0, 63, 1}})},
      {"point masses", 3, law_of({{64, 0, 0}, {0, 64, 0}, {0, 0, 64}}), law_of({{64, 0, 0}, {0, 0, 64}, {0, 64, 0}})},
      {"three tokens", 3, law_of({{30, 30, 4}, {2, 60, 2}}), law_of({{4, 30, 30}, {21, 21, 22}, {62, 1, 1}})},
  };
}

inline std::unique_ptr<AcceptanceRule> make_rule(std::string_view name, int64_t vocab) {
  return Register<AcceptanceRule>::find(name)->make({.vocab = vocab}).value();
}

// body(rule, pair), each with a rule of its own.
template <class Body>
void for_every_lossless_rule(Body&& body) {
  for (const auto& part : Register<AcceptanceRule>::all())
    for (const Pair& pair : pairs()) {
      auto rule = part.make({.vocab = int64_t(pair.vocab)});
      ASSERT_TRUE(rule.ok());
      SCOPED_TRACE(std::string(part.name) + ", " + pair.name);
      if ((*rule)->guarantee() != Guarantee::Lossy) body(**rule, pair);
    }
}

inline void expect_law(const std::map<Tokens, double>& got, const Law& p, size_t len) {
  std::map<Tokens, double> wanted;
  complete(p, {}, len, 1, wanted);
  for (const auto& [tokens, weight] : wanted) EXPECT_NEAR(got.contains(tokens) ? got.at(tokens) : 0, weight, 1e-14);
  for (const auto& [tokens, weight] : got) EXPECT_TRUE(wanted.contains(tokens)) << "weight " << weight << " outside p";
}

}
