#include "api/token_tree.h"

#include <charconv>

#include "base/failure.h"
#include "draft/static_tree.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

constexpr size_t kMostNodes = 64;
constexpr int kMostRank = StaticTree::kMostRanks - 1;

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

}

Result<std::vector<std::vector<int>>> parse_token_tree(std::string_view name, std::string_view text) {
  Reader in(text);
  const auto broken = [&] {
    return usage_error(
        "{} must list ranks in 0..{} for each node, such as \"[(0,), (1,), (0, 0)]\"; it breaks at "
        "character {} of {}",
        name, kMostRank, in.at() + 1, excerpt(text));
  };
  std::vector<std::vector<int>> tree;
  if (!in.take("[(")) return broken();
  while (!in.take("])")) {
    std::vector<int> node;
    if (tree.size() == kMostNodes) return usage_error("{} has more than {} nodes", name, kMostNodes);
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
  if (const auto made = StaticTree::make(tree, int(kMostNodes)); !made.ok())
    return usage_error("{}: {}", name, made.error().message);
  return tree;
}

}
