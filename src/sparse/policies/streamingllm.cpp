// streamingllm: the first `sinks` positions and the last ones of the prefix (Xiao et al., 2023). Needs no scores; one list for
// all layers and heads, made anew each time a pass that reads all ends.
#include "sparse/draft_copy.h"

namespace hunch {
namespace {

class StreamingLlm final : public CopyingPolicy {
 public:
  explicit StreamingLlm(const Setup& setup) : CopyingPolicy(setup, 1), sinks_(setup.options.sinks) {}

  void learn(int layer, const PassInfo& info, const Observation& seen) override {
    if (info.draft) return;
    const Slot slot = info.sequence->slot;
    if (!copy_.begin(slot, info.first_position) || !copy_.selects(layer)) return;
    copy_.choose_ends(layer, slot, sinks_);
    copy_.copy(layer, slot, info.first_position + info.num_rows, seen.kv);
  }
  void committed(const Sequence& sequence, const Commit& commit) override {
    copy_.close_up(sequence.slot, commit.first, commit.rows);
  }
  bool refresh(const Sequence& sequence, const KvRef& own) override {
    // The newest committed entry is the tail; the pending token's row is the first to join it.
    const PassInfo info{.sequence = &sequence, .first_position = sequence.committed_len - 1, .num_rows = 1};
    for (int layer = 0; layer < copy_.num_layers(); ++layer) learn(layer, info, {.kv = own});
    return true;
  }

 private:
  int sinks_;
};

const Register<SparsePolicy> streamingllm{"streamingllm", "the first positions and the last ones", make_policy<StreamingLlm>};

}
}
