// ratio: keep draft x with probability min(1, p(x) / q(x)), else emit a sample of the residual max(0, p - q) (Leviathan et al.,
// 2022; Chen et al., 2023). The output has exactly the target's distribution for any q, if x was really drawn from q. Drafts that
// nobody drew (law Point, chains and trees) have no q: the target's own token is drawn and the child that equals it kept.
#include "accept/own_token.h"
#include "accept/rule.h"

namespace hunch {
namespace {

class Ratio final : public AcceptanceRule {
 public:
  Guarantee guarantee() const override { return Guarantee::Distribution; }
  bool needs_q() const override { return true; }
  bool takes_branches() const override { return true; }

  void accept(const DraftTree& tree, int64_t first, TargetProbs& target, Chance& chance, Verdict& out) const override {
    // Drafts made with the target's own noise are neither: what they are kept for would depend on it.
    HUNCH_CHECK(tree.size == 0 || tree.law != DraftLaw::Noise);
    out.clear();
    if (tree.law == DraftLaw::Point) return follow_own_tokens(tree, target, out);
    int row = 0;
    for (int node = tree.child(-1); node >= 0; node = tree.child(node)) {
      const View<const float, 1> p = target.row(row), q = View<const float, 2>(tree.q)[node];
      const int32_t x = tree.tokens(node);
      const int64_t position = first + int64_t(out.path.size());
      // An id of -1 means that the draft row had no valid number: nothing was drawn, the target decides alone.
      if (x < 0) break;
      if (!chance.below(p(x), q(x), position)) return void(out.next = chance.residual(p, q, position));
      out.path.push_back(node);
      out.tokens.push_back(x);
      row = node + 1;
    }
    out.next = target.choice(row);
  }
};

Result<std::unique_ptr<AcceptanceRule>> make_ratio(const AcceptanceRule::Setup&) {
  return std::unique_ptr<AcceptanceRule>(new Ratio);
}

const Register<AcceptanceRule> ratio{"ratio", "Leviathan's rule with the residual: the same distribution", make_ratio};

}  // namespace
}  // namespace hunch
