// ratio: keep draft x with probability min(1, p(x) / q(x)), else emit a sample of the residual max(0, p - q) (Leviathan et al.,
// 2022; Chen et al., 2023). The output has exactly the target's distribution for any q, if x was really drawn from q. Siblings,
// drawn from q without replacement, are tried in turn against what the refused ones left of both (Miao et al., 2023; Jeon et al.,
// 2024). Drafts that nobody drew (law Point, chains and trees) have no q: the target's own token is drawn and the child that
// equals it kept.
#include "accept/own_token.h"
#include "accept/rule.h"
#include "accept/sibling_laws.h"

namespace hunch {
namespace {

class Ratio final : public AcceptanceRule {
 public:
  explicit Ratio(int64_t vocab) : laws_(vocab) {}
  Guarantee guarantee() const override { return Guarantee::Distribution; }
  bool needs_q() const override { return true; }
  Reads reads(const DraftTree& tree) const override {
    if (tree.law != DraftLaw::Given) return Reads::Choices;
    return tree.branches() || !tree.laws.empty() ? Reads::Rows : Reads::Weights;
  }
  bool takes_branches() const override { return true; }

  void accept(const DraftTree& tree, int64_t first, TargetProbs& target, Chance& chance, Verdict& out) const override {
    // Drafts made with the target's own noise are neither: what they are kept for would depend on it.
    HUNCH_CHECK(tree.size == 0 || tree.law != DraftLaw::Noise);
    out.clear();
    if (tree.law == DraftLaw::Point) return follow_own_tokens(tree, target, out);
    int row = 0;
    for (int node = tree.child(-1); node >= 0; node = tree.child(node)) {
      const int32_t x = tree.tokens(node);
      const int64_t position = first + std::ssize(out.path);
      // An id of -1 means that the draft row had no valid number: nothing was drawn, the target decides alone.
      if (x < 0) break;
      if (!chance.below(target.p(row, x), target.q(tree, row, x), position, 0)) {
        if (tree.sibling(node) < 0) return void(out.next = target.residual(tree, row, position, chance));
        laws_.begin(target.row(row), target.law(tree, row));
        node = try_siblings(tree, node, position, chance);
        if (node < 0) return void(out.next = chance.among(laws_.target(), position));
      }
      out.path.push_back(node);
      out.tokens.push_back(tree.tokens(node));
      row = node + 1;
    }
    out.next = target.choice(row);
  }

 private:
  // The first child was refused. The sibling that is kept, or -1; laws_ is what the refused ones left.
  int try_siblings(const DraftTree& tree, int node, int64_t position, Chance& chance) const {
    laws_.refuse(tree.tokens(node));
    for (int rank = 1; (node = tree.sibling(node)) >= 0; ++rank) {
      const int32_t x = tree.tokens(node);
      // Excluded by q': nothing more could be drawn, or a token was drawn again. It counts as not drawn.
      if (x < 0 || !(laws_.q(x) > 0)) continue;
      if (chance.below(laws_.p(x), laws_.q(x), position, rank)) return node;
      laws_.refuse(x);
    }
    return -1;
  }

  mutable SiblingLaws laws_;  // scratch of one accept()
};

Result<std::unique_ptr<AcceptanceRule>> make_ratio(const AcceptanceRule::Setup& setup) {
  return std::unique_ptr<AcceptanceRule>(new Ratio(setup.vocab));
}

const Register<AcceptanceRule> ratio{"ratio", "Leviathan's rule with the residual: the same distribution", make_ratio};

}
}
