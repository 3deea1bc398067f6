// match: a draft is kept iff it is the target's own choice at that position. The choice is a function of logits, request key and
// position, so the emitted stream is that of plain decoding, bit for bit, whoever drafted.
#include "accept/own_token.h"
#include "accept/rule.h"

namespace hunch {
namespace {

class Match final : public AcceptanceRule {
 public:
  Guarantee guarantee() const override { return Guarantee::Stream; }
  bool needs_q() const override { return false; }
  bool takes_branches() const override { return true; }

  void accept(const DraftTree& tree, int64_t, TargetProbs& p, Chance&, Verdict& out) const override {
    out.clear();
    follow_own_tokens(tree, p, out);
  }
};

Result<std::unique_ptr<AcceptanceRule>> make_match(const AcceptanceRule::Setup&) {
  return std::unique_ptr<AcceptanceRule>(new Match);
}

const Register<AcceptanceRule> match{
    "match", "keep a draft iff it equals the target's own keyed choice: the same stream", make_match};

}
}
