#include "engine/sampled_rows.h"

namespace hunch {

SampledRows::SampledRows(Backend& backend, int64_t vocab, int64_t max_rows)
    : backend_(backend), vocab_(vocab), max_rows_(max_rows), weighs_(backend.asynchronous()) {
  logits_ = backend.allocate(size_t(max_rows) * vocab * sizeof(float));
  tokens_ = backend.allocate(max_rows * sizeof(int32_t), Memory::Shared);
  positions_.resize(max_rows);
  chains_.reserve(max_rows);
}

void SampledRows::prepare(Reads reads) {
  if (reads == Reads::Choices) return;
  const bool weighs = weighs_ && reads == Reads::Weights;
  Buffer& probs = weighs ? device_probs_ : probs_;
  if (!probs) probs = backend_.allocate(size_t(max_rows_) * vocab_ * sizeof(float), weighs ? Memory::Spare : Memory::Shared);
  if (!weighs || weights_) return;
  weights_ = backend_.allocate(size_t(max_rows_) * 2 * sizeof(float), Memory::Shared);
  residuals_ = backend_.allocate(max_rows_ * sizeof(int32_t), Memory::Shared);
}

void SampledRows::sample(
    const Sequence& sequence, const DraftTree& tree, std::span<const int32_t> parents, int64_t first, Reads reads) {
  const int rows = tree.size + 1;
  const View<int32_t, 1> positions(positions_.data(), rows);
  positions(0) = int32_t(sequence.len());
  for (int row = 1; row < rows; ++row) positions(row) = positions(tree.parents[row - 1] + 1) + 1;
  const bool weighs = weighs_ && reads == Reads::Weights;
  View<float, 2> probs{};
  if (reads != Reads::Choices) probs = (weighs ? device_probs_ : probs_).view<float>(max_rows_, vocab_).slice(first, rows);
  backend_.sample({
      .logits = logits(first, rows),
      .params = sequence.sampling,
      .key = sequence.noise,
      .stream = NoiseStream::Target,
      .positions = positions,
      .tokens = tokens_.view<int32_t>(max_rows_).slice(first, rows),
      .probs = probs,
      .state = sequence.logit_state.get(),
      .first_row = 0,
      .drafts = tree.tokens,
      .parents = parents,
  });
  if (!weighs) return;
  chains_.push_back({
      .p = probs.slice(0, tree.size),
      .q = tree.q.slice(0, tree.size),
      .tokens = tree.tokens.slice(0, tree.size),
      .key = sequence.noise,
      .first_position = sequence.len(),
      .weights = weights_.view<float>(max_rows_, 2).slice(first, tree.size),
      .residuals = residuals_.view<int32_t>(max_rows_).slice(first, tree.size),
  });
}
}
