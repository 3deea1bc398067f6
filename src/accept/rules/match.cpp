// match: a draft is kept iff it is the target's own choice at that position. The choice is a function of logits, request key and
// position, so the emitted stream is that of plain decoding, bit for bit, whoever drafted.
#include "accept/rule.h"

namespace hunch {
namespace {

class Match final : public AcceptanceRule {
 public:
  Guarantee guarantee() const override { return Guarantee::Stream; }
  bool needs_q() const override { return false; }

  void accept(const DraftTree& tree, int64_t, TargetProbs& p, Chance&, Verdict& out) const override {
    out.clear();
    for (int node = -1;;) {
      const int32_t own = p.choice(node + 1);
      int next = -1;
      for (int child = node + 1; child < tree.size && next < 0; ++child)
        if (tree.parents[size_t(child)] == node && tree.tokens(child) == own) next = child;
      if (next < 0) return void(out.next = own);
      out.path.push_back(next);
      out.tokens.push_back(own);
      node = next;
    }
  }
};

Result<std::unique_ptr<AcceptanceRule>> make_match(const AcceptanceRule::Setup&) {
  return std::unique_ptr<AcceptanceRule>(new Match);
}

const Register<AcceptanceRule> match{"match", "keep a draft iff it equals the target's own keyed choice: the same stream",
                                     make_match};

}  // namespace
}  // namespace hunch
