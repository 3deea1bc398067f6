// self: the target guesses its own next tokens while reading only what the policy selected (Vegas, section 3). Draft step j feeds
// the pending token or draft j - 1 of every sequence at its true position, all sequences in one pass, and samples draft j;
// nothing is read on the host inside the loop.
#include <algorithm>
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
        max_draft_(setup.max_draft),
        max_tasks_(setup.max_sequences) {
    const ModelShape& shape = target_.shape();
    hidden_ = backend_.allocate(size_t(max_tasks_) * size_t(shape.hidden) * sizeof(float));
    logits_ = backend_.allocate(size_t(max_tasks_) * size_t(shape.vocab_size) * sizeof(float));
    drawn_ = backend_.allocate(size_t(max_draft_ + 1) * size_t(max_tasks_) * sizeof(int32_t));
    positions_ = backend_.allocate(sizeof(int32_t));
    order_.reserve(size_t(max_tasks_));
    segments_.reserve(size_t(max_tasks_));
  }

  bool uses_policy() const override { return true; }

  void propose(std::span<const DraftTask> tasks) override {
    HUNCH_CHECK(int(tasks.size()) <= max_tasks_);
    order_.clear();
    for (const DraftTask& task : tasks) order_.push_back(&task);
    // Longest drafts first: the rows of a step are then the first ones of the step before, side by side.
    std::stable_sort(order_.begin(), order_.end(),
                     [](const DraftTask* a, const DraftTask* b) { return a->limits.max_tokens > b->limits.max_tokens; });
    for (const DraftTask* task : order_) {
      task->tree->make_chain(task->limits.max_tokens);
      task->tree->law = task->limits.want_q ? DraftLaw::Given : DraftLaw::Noise;
    }
    const int steps = order_.empty() ? 0 : order_[0]->limits.max_tokens;
    backend_.replay(uint64_t(steps), [&] {
      auto pending = drawn(0);
      for (size_t i = 0; i < order_.size(); ++i) pending(int64_t(i)) = order_[i]->sequence->pending();
      for (int step = 0; step < steps; ++step) draft(step);
    });
    for (size_t i = 0; i < order_.size(); ++i)
      for (int node = 0; node < order_[i]->tree->size; ++node) order_[i]->tree->tokens(node) = drawn(node + 1)(int64_t(i));
  }

 private:
  // Tokens that enter step `step`, one per task in order_.
  View<int32_t, 1> drawn(int step) { return drawn_.view<int32_t>(max_draft_ + 1, max_tasks_)[step]; }

  void draft(int step) {
    const ModelShape& shape = target_.shape();
    segments_.clear();
    for (const DraftTask* task : order_) {
      if (task->limits.max_tokens <= step) break;
      segments_.push_back({.phase = Segment::Phase::Draft,
                           .sequence = task->sequence,
                           .first_position = task->sequence->committed_len + step,
                           .num_rows = 1,
                           .policy = task->policy,
                           .round_row = step});
    }
    const int64_t rows = int64_t(segments_.size());
    pass_.begin(View<const int32_t, 1>(drawn(step)).slice(0, rows), segments_);
    auto hidden = hidden_.view<float>(rows, shape.hidden), logits = logits_.view<float>(rows, shape.vocab_size);
    weights_.forward(pass_, hidden);
    weights_.logits(backend_, hidden, logits);
    for (int64_t row = 0; row < rows; ++row) sample(step, row, View<const float, 2>(logits).slice(row, 1));
  }

  // Rule match wants the target's own noise, so that both choose alike; rule ratio wants a draft independent of every coin.
  void sample(int step, int64_t row, View<const float, 2> logits) {
    const Sequence& sequence = *order_[size_t(row)]->sequence;
    DraftTree& tree = *order_[size_t(row)]->tree;
    auto position = positions_.view<int32_t>(1);
    position(0) = int32_t(sequence.committed_len + step + 1);
    const bool given = tree.law == DraftLaw::Given;
    View<const int32_t, 1> drafts(&drawn(1)(row), step);
    drafts.stride[0] = max_tasks_;
    backend_.sample({.logits = logits,
                     .params = sequence.sampling,
                     .key = sequence.noise,
                     .stream = given ? draft_stream(step) : NoiseStream::Target,
                     .positions = position,
                     .tokens = drawn(step + 1).slice(row, 1),
                     .probs = given ? tree.q.slice(step, 1) : View<float, 2>{},
                     .state = sequence.logit_state.get(),
                     .first_row = step,
                     .drafts = drafts});
  }

  Backend& backend_;
  const Model& target_;
  const Model& weights_;
  Pass& pass_;
  int max_draft_, max_tasks_;
  Buffer hidden_, logits_, drawn_, positions_;
  std::vector<const DraftTask*> order_;
  std::vector<Segment> segments_;
};

Result<std::unique_ptr<Proposer>> make_self(const Proposer::Setup& setup) { return std::unique_ptr<Proposer>(new Self(setup)); }

const Register<Proposer> self{"self", "the same model over selected entries of its own KV cache", make_self};

}  // namespace
}  // namespace hunch
