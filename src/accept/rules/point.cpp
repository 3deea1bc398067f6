// point: every draft is taken for a point mass, however it was found: keep draft x with probability p(x), else emit a sample of p
// without x. Exact for any draft made without the target's noise, and never reads q: for drafters whose q cannot be trusted, and
// as a control of ratio, which keeps more of the drafts that were sampled. Of a branching tree it follows first children.
#include "accept/rule.h"

namespace hunch {
namespace {

class Point final : public AcceptanceRule {
 public:
  Guarantee guarantee() const override { return Guarantee::Distribution; }
  bool needs_q() const override { return true; }  // keeps drafters from the target's noise

  void accept(const DraftTree& tree, int64_t first, TargetProbs& target, Chance& chance, Verdict& out) const override {
    HUNCH_CHECK(tree.size == 0 || tree.law != DraftLaw::Noise);
    out.clear();
    int row = 0;
    for (int node = tree.child(-1); node >= 0; node = tree.child(node)) {
      const View<const float, 1> p = target.row(row);
      const int32_t x = tree.tokens(node);
      const int64_t position = first + std::ssize(out.path);
      if (x < 0) break;  // the draft row had no valid number: the target decides alone
      if (!chance.below(p(x), 1, position, 0)) return void(out.next = chance.without(p, x, position));
      out.path.push_back(node);
      out.tokens.push_back(x);
      row = node + 1;
    }
    out.next = target.choice(row);
  }
};

Result<std::unique_ptr<AcceptanceRule>> make_point(const AcceptanceRule::Setup&) {
  return std::unique_ptr<AcceptanceRule>(new Point);
}

const Register<AcceptanceRule> point{
    "point", "keep a draft with the target's probability of it: the same distribution", make_point};

}
}
