// none: no guesses; every step is a verify pass with an empty tree, which is plain decoding.
#include "draft/proposer.h"

namespace hunch {
namespace {

class None final : public Proposer {
 public:
  bool drafts() const override { return false; }
  void propose(std::span<const DraftTask> tasks) override {
    for (const DraftTask& task : tasks) task.tree->size = 0;
  }
};

Proposer::Made make_none(const Proposer::Setup&) { return std::unique_ptr<Proposer>(new None); }

const Register<Proposer> none{"none", "plain decoding", make_none};

}
}
