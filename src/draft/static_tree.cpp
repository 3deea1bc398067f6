#include "draft/static_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace hunch {
namespace {

// As Python writes a tuple.
std::string spelled(std::span<const int> path) {
  return fmt::format("({}{})", fmt::join(path, ", "), path.size() == 1 ? "," : "");
}

}

Result<StaticTree> StaticTree::make(std::span<const std::vector<int>> paths, int most_nodes) {
  if (std::ssize(paths) > most_nodes)
    return usage_error(
        fmt::format("a token tree of {} nodes: at most {} guesses a round are possible", paths.size(), most_nodes));
  for (const std::vector<int>& path : paths) {
    if (path.empty()) return usage_error("a node of the token tree is empty: it must be a list of ranks, such as (0, 1)");
    for (const int rank : path)
      if (rank < 0 || rank >= kMostRanks)
        return usage_error(
            fmt::format("node {} of the token tree: rank {} is outside [0, {}]", spelled(path), rank, kMostRanks - 1));
  }
  std::vector<std::vector<int>> sorted(paths.begin(), paths.end());
  std::ranges::sort(sorted, [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; });
  StaticTree tree;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const std::vector<int>& path = sorted[i];
    if (i > 0 && path == sorted[i - 1])
      return usage_error(fmt::format("node {} of the token tree is there twice", spelled(path)));
    const std::vector<int> before(path.begin(), path.end() - 1);
    const auto parent = std::find(sorted.begin(), sorted.begin() + i, before);
    if (!before.empty() && parent == sorted.begin() + i)
      return usage_error(fmt::format("node {} of the token tree has no parent: add {}", spelled(path), spelled(before)));
    tree.nodes_.push_back({before.empty() ? -1 : int32_t(parent - sorted.begin()), path.back(), int32_t(path.size())});
  }
  return tree;
}

// A node's next child is the most accurate rank that it does not have yet, so one candidate per node is all there is to compare.
void StaticTree::grow(View<const float, 2> accuracies, int nodes) {
  const int64_t depth = accuracies.extent[0], ranks = accuracies.extent[1];
  HUNCH_CHECK(ranks <= kMostRanks);
  by_worth_.resize(depth * ranks);
  for (int64_t h = 0; h < depth; ++h) {
    int32_t* const order = by_worth_.data() + h * ranks;
    for (int32_t c = 0; c < ranks; ++c) order[c] = c;
    std::sort(order, order + ranks, [&](int32_t a, int32_t b) {
      const float x = accuracies(h, a), y = accuracies(h, b);
      return x != y ? x > y : a < b;
    });
  }
  nodes_.clear();
  growing_.assign(1, {});
  while (int(nodes_.size()) < nodes) {
    float best = 0;
    int parent = -2;
    for (int at = -1; at < int(nodes_.size()); ++at) {
      const int64_t level = at < 0 ? 0 : nodes_[at].depth;
      const Growing& from = growing_[at + 1];
      if (level >= depth || from.children >= ranks) continue;
      const float value = from.value * accuracies(level, by_worth_[level * ranks + from.children]);
      if (value > best) best = value, parent = at;
    }
    if (parent == -2) return;
    const int32_t level = parent < 0 ? 0 : nodes_[parent].depth;
    Growing& from = growing_[parent + 1];
    nodes_.push_back({parent, by_worth_[level * ranks + from.children], level + 1});
    ++from.children;
    growing_.push_back({.value = best});
  }
}

int StaticTree::depth() const {
  int deepest = 0;
  for (const Node& node : nodes_) deepest = std::max(deepest, int(node.depth));
  return deepest;
}

int StaticTree::ranks() const {
  int most = 0;
  for (const Node& node : nodes_) most = std::max(most, int(node.rank) + 1);
  return most;
}

std::string StaticTree::text() const {
  std::vector<std::vector<int>> paths;
  std::vector<std::string> shown;
  for (const Node& node : nodes_) {
    paths.push_back(node.parent < 0 ? std::vector<int>{} : paths[node.parent]);
    paths.back().push_back(node.rank);
    shown.push_back(spelled(paths.back()));
  }
  return fmt::format("[{}]", fmt::join(shown, ", "));
}

}
