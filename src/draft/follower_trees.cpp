// Trees of a Follower: what a level's choices add, and which nodes run next. Trees that share the target's noise try the
// likeliest tokens and keep the best of all (dynamic_tree.h); drawn ones keep what they drew (drawn_tree.h).

#include "draft/follower.h"

namespace hunch {

// Rows that a level may have: each needs an entry of its own, and room in the level's buffers.
int Follower::room_of_level(const Draft& draft) const {
  const Sequence& sequence = *draft.task->sequence;
  const int64_t entries = sequence.pages.capacity() - sequence.committed_len - draft.rows;
  return int(std::min<int64_t>({draft.widest, entries, level_rows_ / std::ssize(open_)}));
}

// The frontier's rows run next. Empty: the tree is done.
template <class Tree>
void Follower::go_on(Draft& draft, const Tree& tree, std::span<const int> frontier) {
  draft.level = int(frontier.size());
  for (const int at : frontier) {
    const auto& node = tree.node(at);
    row_tokens(draft.task->sequence->slot)(draft.rows++ - 1) = node.token;
    draft.parents.push_back(node.parent < 0 ? 0 : tree.node(node.parent).row);
  }
  draft.done = frontier.empty();
}

void Follower::take_tree(Draft& draft, int64_t row) {
  const DraftTask& task = *draft.task;
  const auto ranked = ranked_.view<int32_t>(level_rows_, kMostTried);
  const auto shares = shares_.view<float>(level_rows_, kMostTried);
  for (int i = 0; i < draft.level; ++i)
    draft.tree.try_children(
        draft.depth == 0 ? -1 : i, {&ranked(row + i, 0), size_t(draft.top_k)}, {&shares(row + i, 0), size_t(draft.top_k)});
  ++draft.depth;
  const bool deeper = draft.depth < draft.deepest;
  go_on(draft, draft.tree, deeper ? draft.tree.advance(room_of_level(draft), draft.rows) : std::span<const int>{});
  if (!draft.done) return;
  DraftTree& out = *task.tree;
  out.size = draft.tree.choose(task.limits.max_tokens, [&](int number, int32_t token, int parent) {
    out.tokens(number) = token;
    out.parents[number] = parent;
  });
}

void Follower::take_drawn(Draft& draft, int64_t row) {
  const DraftTask& task = *draft.task;
  DraftTree& out = *task.tree;
  const auto ranked = ranked_.view<int32_t>(level_rows_, kMostTried);
  const View<const float, 2> q = out.q;
  first_kept_.clear();
  for (int i = 0; i < draft.level; ++i) {
    const int sure = Confidence::class_of_law(q[draft.rows - draft.level + i]);
    draft.laws.push_back(uint8_t(sure));
    first_kept_.push_back(by_law_.kept(sure));
  }
  draft.drawn.plan(first_kept_);
  for (int i = 0; i < draft.level; ++i) draft.drawn.take(i, {&ranked(row + i, 0), size_t(draft.top_k)});
  ++draft.depth;
  go_on(draft, draft.drawn, draft.drawn.advance(room_of_level(draft), draft.rows));
  if (!draft.done) return;
  out.size = draft.drawn.size();
  out.laws.assign(out.size + 1, 0);
  for (int number = 0; number < out.size; ++number) {
    const DrawnTree::Node& node = draft.drawn.node(number);
    out.tokens(number) = node.token;
    out.parents[number] = node.parent;
    if (node.row > 0) out.laws[number + 1] = node.row;
  }
}

}
