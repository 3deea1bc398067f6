// self: the target guesses its own next tokens while reading only what the policy selected (Vegas, section 3). Draft step j feeds
// the pending token or draft j - 1 at its true position and samples draft j; nothing is read on the host inside the loop.
#include <array>
#include <vector>

#include "draft/proposer.h"

namespace hunch {
namespace {

class Self final : public Proposer {
 public:
  explicit Self(const Setup& setup)
      : backend_(*setup.backend),
        target_(*setup.target),
        weights_(setup.draft_weights ? *setup.draft_weights : *setup.target),
        pass_(*setup.pass),
        policy_(setup.policy) {
    const ModelShape& shape = target_.shape();
    hidden_ = backend_.allocate(size_t(shape.hidden) * sizeof(float));
    logits_ = backend_.allocate(size_t(shape.vocab_size) * sizeof(float));
    row_ = backend_.allocate(2 * sizeof(int32_t));
  }

  void propose(std::span<const Sequence* const> sequences, std::span<const DraftLimits> limits,
               std::span<DraftTree> out) override {
    for (size_t i = 0; i < sequences.size(); ++i) {
      DraftTree& tree = out[i];
      tree.make_chain(limits[i].max_tokens);
      tree.law = limits[i].want_q ? DraftLaw::Given : DraftLaw::Noise;
      backend_.replay(uint64_t(limits[i].max_tokens), [&] {
        for (int step = 0; step < limits[i].max_tokens; ++step) draft(*sequences[i], tree, step);
      });
    }
  }

 private:
  void draft(const Sequence& sequence, DraftTree& tree, int step) {
    const ModelShape& shape = target_.shape();
    auto input = row_.view<int32_t>(2).slice(0, 1), position = row_.view<int32_t>(2).slice(1, 1);
    if (step == 0) input(0) = sequence.pending();
    const int64_t at = sequence.committed_len + step;
    const Segment segment{
        .phase = Segment::Phase::Draft, .sequence = &sequence, .first_position = at, .num_rows = 1, .policy = policy_};
    pass_.begin(step == 0 ? View<const int32_t, 1>(input) : View<const int32_t, 1>(tree.tokens).slice(step - 1, 1),
                std::span(&segment, 1));
    auto hidden = hidden_.view<float>(1, shape.hidden), logits = logits_.view<float>(1, shape.vocab_size);
    weights_.forward(pass_, hidden);
    weights_.logits(backend_, hidden, logits);
    position(0) = int32_t(at + 1);
    // Rule match wants the target's own noise, so that both choose alike; rule ratio wants a draft independent of every coin.
    const bool given = tree.law == DraftLaw::Given;
    backend_.sample({.logits = logits,
                     .params = sequence.sampling,
                     .key = sequence.noise,
                     .stream = given ? draft_stream(step) : NoiseStream::Target,
                     .positions = position,
                     .tokens = tree.tokens.slice(step, 1),
                     .probs = given ? tree.q.slice(step, 1) : View<float, 2>{}});
  }

  Backend& backend_;
  const Model& target_;
  const Model& weights_;
  Pass& pass_;
  SparsePolicy* policy_;
  Buffer hidden_, logits_, row_;
};

Result<std::unique_ptr<Proposer>> make_self(const Proposer::Setup& setup) { return std::unique_ptr<Proposer>(new Self(setup)); }

const Register<Proposer> self{"self", "the same model over selected entries of its own KV cache", make_self};

}  // namespace
}  // namespace hunch
