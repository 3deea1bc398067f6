#include "cli/token_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "text/excerpt.h"

namespace hunch {
namespace {

constexpr size_t kMostNodes = 64;
constexpr int kMostRank = 63;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool take(std::string_view any_of) {
    skip_blanks();
    if (at_ == text_.size() || any_of.find(text_[at_]) == any_of.npos) return false;
    ++at_;
    return true;
  }
  bool take_rank(int& rank) {
    skip_blanks();
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), rank);
    if (error != std::errc() || rank < 0 || rank > kMostRank) return false;
    at_ = size_t(end - text_.data());
    return true;
  }
  bool ended() {
    skip_blanks();
    return at_ == text_.size();
  }
  size_t at() const { return at_; }

 private:
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  std::string_view text_;
  size_t at_ = 0;
};

std::string node_text(const std::vector<int>& node) {
  return node.size() == 1 ? fmt::format("({},)", node[0]) : fmt::format("({})", fmt::join(node, ", "));
}

}  // namespace

Result<TokenTree> parse_token_tree(std::string_view name, std::string_view text) {
  Reader in(text);
  const auto broken = [&] {
    return usage_error(
        fmt::format("{} must list ranks in 0..{} for each node, such as \"[(0,), (1,), (0, 0)]\"; it breaks at "
                    "character {} of {}",
                    name, kMostRank, in.at() + 1, excerpt(text)));
  };
  TokenTree tree;
  if (!in.take("[(")) return broken();
  while (!in.take("])")) {
    std::vector<int> node;
    if (tree.size() == kMostNodes) return usage_error(fmt::format("{} has more than {} nodes", name, kMostNodes));
    if (!in.take("[(")) return broken();
    while (!in.take("])")) {
      int rank = 0;
      if (!in.take_rank(rank)) return broken();
      node.push_back(rank);
      in.take(",");
    }
    if (node.empty()) return broken();
    tree.push_back(std::move(node));
    in.take(",");
  }
  if (tree.empty() || !in.ended()) return broken();
  std::sort(tree.begin(), tree.end(),
            [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; });
  for (size_t i = 0; i < tree.size(); ++i) {
    if (i > 0 && tree[i] == tree[i - 1])
      return usage_error(fmt::format("{}: node {} stands there twice", name, node_text(tree[i])));
    const std::vector<int> parent(tree[i].begin(), tree[i].end() - 1);
    if (!parent.empty() && std::find(tree.begin(), tree.end(), parent) == tree.end())
      return usage_error(fmt::format("{}: node {} has no parent {}", name, node_text(tree[i]), node_text(parent)));
  }
  return tree;
}

std::string token_tree_text(const TokenTree& tree) {
  std::string out;
  for (const auto& node : tree) out += (out.empty() ? "" : ", ") + node_text(node);
  return "[" + out + "]";
}

}  // namespace hunch
