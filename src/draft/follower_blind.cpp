// Chains of a Follower on a device: nobody waits for a choice.
#include <algorithm>

#include "draft/follower.h"

namespace hunch {

// On a device chains run blind: the choice of a level is the input of the next without the host in between, each level is one
// unit of work, and nobody waits. They are as long as was asked for: whether going on pays would have to be read first.
void Follower::run_blind() {
  std::stable_sort(open_.begin(), open_.end(), [](const Draft* a, const Draft* b) { return a->deepest > b->deepest; });
  auto levels = levels_.view<int32_t>(max_draft_, level_rows_);  // [level][draft] tokens that come out
  size_t open = open_.size();
  const auto of = [&](const Buffer& buffer) {
    return buffer ? buffer.view<float>(level_rows_, width_).slice(0, int64_t(open)) : View<float, 2>{};
  };
  for (int level = 0; level < open_[0]->deepest; ++level) {
    while (open_[open - 1]->deepest <= level) --open;
    const int64_t rows = int64_t(open);
    backend_.replay([&] {
      if (level == 0) {
        first_rows();
      } else {
        segments_.clear();
        for (size_t i = 0; i < open; ++i) {
          const Sequence& sequence = *open_[i]->task->sequence;
          segments_.push_back({.phase = Segment::Phase::Verify,
                               .sequence = &sequence,
                               .first_position = sequence.committed_len + level,
                               .num_rows = 1,
                               .first = seats_[size_t(sequence.slot)].first});
        }
        pass_->begin(levels[level - 1].slice(0, rows), segments_);
        if (featured()) backend_.copy_rows({.from = of(came_), .to = of(next_)});
        net_->forward(*pass_, of(next_), of(came_), of(heads_));
      }
      const View<const float, 2> logits = logits_of(rows);
      for (int64_t i = 0; i < rows; ++i) {
        open_[size_t(i)]->depth = level;
        sample(*open_[size_t(i)], logits.slice(i, 1), i, levels[level].slice(i, 1));
      }
    });
  }
  for (size_t i = 0; i < open_.size(); ++i) {
    DraftTree& tree = *open_[i]->task->tree;
    tree.make_chain(open_[i]->deepest);
    tree.passes = tree.size;
    open_[i]->stored = tree.size - 1;
    View<const int32_t, 1> column(&levels(0, int64_t(i)), tree.size);
    column.stride[0] = level_rows_;
    backend_.copy_tokens({.from = column, .to = tree.tokens.slice(0, tree.size)});
    tree.in_flight = true;
  }
}

}  // namespace hunch
