#include "draft/suffix_tree.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace hunch {

void SuffixTree::reserve(int64_t tokens) {
  const size_t ring = size_t(std::bit_ceil(uint64_t(std::max<int64_t>(tokens, 1))));
  if (ring <= text_.size()) return;
  std::vector<int32_t> text(ring);
  for (size_t back = 1; back <= std::min<size_t>(text_.size(), end_); ++back)
    text[(end_ - back) & (ring - 1)] = token_at(end_ - back);
  text_ = std::move(text);
  // A suffix adds at most a leaf and the split above it.
  nodes_.reserve(2 * ring + 2);
  table_.assign(4 * ring, kNone);
  std::vector<bool> is_free(nodes_.size(), false);
  for (int32_t node = free_; node >= 0; node = nodes_[node].next) is_free[node] = true;
  for (size_t node = 1; node < nodes_.size(); ++node)
    if (!is_free[node]) put(int32_t(node));
}

void SuffixTree::insert(uint32_t at, int len) {
  int32_t node = 0;
  ++nodes_[0].count;
  for (int done = 0; done < len;) {
    int32_t child = table_[bucket(node, token_at(at + done))];
    if (child < 0) {
      child = new_node();
      nodes_[child].text = at + done;
      nodes_[child].len = len - done;
      nodes_[child].count = 1;
      link(node, child);
      return;
    }
    int used = 1;
    const Node& edge = nodes_[child];
    const int most = std::min(edge.len, len - done);
    while (used < most && token_at(edge.text + used) == token_at(at + done + used)) ++used;
    if (used < edge.len) child = split(child, used);
    ++nodes_[child].count;
    if (forgets_ == Forgets::Oldest) nodes_[child].text = at + done;
    raised(child);
    node = child, done += used;
  }
}

void SuffixTree::erase(uint32_t at, int len) {
  // Every inserted suffix ends where a node ends: down to that node, then up again.
  int32_t node = 0;
  for (int done = 0; done < len; done += nodes_[node].len) {
    node = table_[bucket(node, token_at(at + done))];
    HUNCH_CHECK(node > 0 && nodes_[node].len <= len - done);
  }
  while (node > 0) {
    const int32_t parent = nodes_[node].parent;
    --nodes_[node].count;
    if (nodes_[node].count == 0) {
      unlink(node);
      nodes_[node].next = free_;
      free_ = node, ++num_free_;
      lowered(parent, node);
    } else {
      lowered(parent, node);
      const int32_t child = nodes_[node].first_child;
      if (child >= 0 && nodes_[child].next < 0 && nodes_[child].count == nodes_[node].count) merge_with_only_child(node);
    }
    node = parent;
  }
  --nodes_[0].count;
}

bool SuffixTree::step(Place& place, int32_t token) const {
  const Node& node = nodes_[place.node];
  if (place.used < node.len) {
    if (token_at(node.text + place.used) != token) return false;
    ++place.used;
    return true;
  }
  if (node.first_child < 0) return false;
  const int32_t child = table_[bucket(place.node, token)];
  if (child < 0) return false;
  place = {child, 1};
  return true;
}

bool SuffixTree::walk(Place& place, std::span<const int32_t> tokens) const {
  for (size_t i = 0; i < tokens.size();) {
    if (!step(place, tokens[i++])) return false;
    const Node& node = nodes_[place.node];
    for (; place.used < node.len && i < tokens.size(); ++place.used, ++i)
      if (token_at(node.text + place.used) != tokens[i]) return false;
  }
  return true;
}

void SuffixTree::take(int32_t child) {
  uint64_t hole = bucket(nodes_[child].parent, token_at(nodes_[child].text));
  HUNCH_CHECK(table_[hole] == child);
  // Later entries of the run move up, so that no search meets a hole before its end.
  const uint64_t mask = table_.size() - 1;
  for (uint64_t at = (hole + 1) & mask; table_[at] >= 0; at = (at + 1) & mask) {
    const Node& node = nodes_[table_[at]];
    if (((at - home(node.parent, token_at(node.text))) & mask) < ((at - hole) & mask)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = kNone;
}

int32_t SuffixTree::new_node() {
  if (free_ >= 0) {
    const int32_t node = free_;
    free_ = nodes_[node].next, --num_free_;
    nodes_[node] = Node{};
    return node;
  }
  HUNCH_CHECK(nodes_.size() < nodes_.capacity());
  nodes_.emplace_back();
  return int32_t(nodes_.size()) - 1;
}

void SuffixTree::link(int32_t parent, int32_t child) {
  Node &above = nodes_[parent], &node = nodes_[child];
  node.parent = parent, node.previous = kNone, node.next = above.first_child;
  if (above.first_child >= 0) nodes_[above.first_child].previous = child;
  above.first_child = child;
  put(child);
  raised(child);
}

void SuffixTree::unlink(int32_t child) {
  take(child);
  const Node& node = nodes_[child];
  if (node.previous >= 0) nodes_[node.previous].next = node.next;
  else nodes_[node.parent].first_child = node.next;
  if (node.next >= 0) nodes_[node.next].previous = node.previous;
}

void SuffixTree::swap_in(int32_t old_child, int32_t new_child) {
  const Node& old = nodes_[old_child];
  table_[bucket(old.parent, token_at(old.text))] = new_child;
  Node& node = nodes_[new_child];
  node.parent = old.parent, node.previous = old.previous, node.next = old.next;
  if (node.previous >= 0) nodes_[node.previous].next = new_child;
  else nodes_[node.parent].first_child = new_child;
  if (node.next >= 0) nodes_[node.next].previous = new_child;
  if (nodes_[node.parent].best == old_child) nodes_[node.parent].best = new_child;
}

bool SuffixTree::precedes(int32_t a, int32_t b) const {
  const Node &x = nodes_[a], &y = nodes_[b];
  return x.count != y.count ? x.count > y.count : token_at(x.text) < token_at(y.text);
}

void SuffixTree::raised(int32_t child) {
  const int32_t parent = nodes_[child].parent;
  int32_t& best = nodes_[parent].best;
  if (parent > 0 && (best < 0 || precedes(child, best))) best = child;
}

// The first `used` tokens of a node's label become a node of their own, above it.
int32_t SuffixTree::split(int32_t lower, int32_t used) {
  const int32_t upper = new_node();
  nodes_[upper].text = nodes_[lower].text;
  nodes_[upper].len = used;
  nodes_[upper].count = nodes_[lower].count;
  swap_in(lower, upper);
  nodes_[lower].text += used;
  nodes_[lower].len -= used;
  link(upper, lower);
  return upper;
}

// The tokens before a label are those of the labels above it, in the same text.
void SuffixTree::merge_with_only_child(int32_t upper) {
  const int32_t lower = nodes_[upper].first_child;
  take(lower);
  swap_in(upper, lower);
  nodes_[lower].text -= nodes_[upper].len;
  nodes_[lower].len += nodes_[upper].len;
  nodes_[upper].next = free_;
  free_ = upper, ++num_free_;
}

}
