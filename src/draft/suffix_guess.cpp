#include "draft/suffix_guess.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace hunch {
namespace {

// Counts of tree and tail together.
class Counts {
 public:
  Counts(const SuffixTree& tree, std::span<const int32_t> tail) : tree_(tree), tail_(tail) {}

  struct Place {  // of a string
    SuffixTree::Place in_tree;
    bool is_in_tree = true;
    uint64_t starts = 0;  // bit i: the string stands at i in the tail
    int len = 0;
  };
  // Of the context's last `match` tokens.
  Place matched(std::span<const int32_t> context, int match, uint64_t starts) const {
    Place place{.starts = starts, .len = match};
    place.is_in_tree = tree_.walk(place.in_tree, context.last(match));
    return place;
  }

  Place step(Place place, int32_t token) const {
    place.is_in_tree = place.is_in_tree && tree_.step(place.in_tree, token);
    place.starts = followed_by(place, token);
    ++place.len;
    return place;
  }
  int32_t count(const Place& place) const {
    return (place.is_in_tree ? tree_.count(place.in_tree) : 0) + std::popcount(place.starts);
  }

  // The most frequent next token, the lowest id among equals. What the tail does not raise cannot overtake the tree's own best.
  SuffixTree::Next best(const Place& place) const {
    SuffixTree::Next best = place.is_in_tree ? tree_.best(place.in_tree) : SuffixTree::Next{};
    if (best.count > 0) best.count += std::popcount(followed_by(place, best.token));
    each_in_tail(place, [&](SuffixTree::Next next) {
      if (place.is_in_tree) next.count += tree_.count_after(place.in_tree, next.token);
      if (next.count > best.count || (next.count == best.count && next.token < best.token)) best = next;
    });
    return best;
  }
  template <class Visit>
  void each_next(const Place& place, Visit&& visit) const {
    if (place.is_in_tree)
      tree_.each_next(place.in_tree, [&](SuffixTree::Next next) {
        next.count += std::popcount(followed_by(place, next.token));
        visit(next);
      });
    each_in_tail(place, [&](SuffixTree::Next next) {
      if (!place.is_in_tree || tree_.count_after(place.in_tree, next.token) == 0) visit(next);
    });
  }

 private:
  uint64_t followed_by(const Place& place, int32_t token) const {
    uint64_t out = 0;
    for (uint64_t left = place.starts; left != 0; left &= left - 1) {
      const size_t at = std::countr_zero(left) + place.len;
      if (at < tail_.size() && tail_[at] == token) out |= left & -left;
    }
    return out;
  }
  // Next tokens that the tail has, each once, with the tail's counts.
  template <class Visit>
  void each_in_tail(const Place& place, Visit&& visit) const {
    for (uint64_t left = place.starts; left != 0;) {
      const size_t at = std::countr_zero(left) + place.len;
      if (at >= tail_.size()) return;  // so do all later ones
      const uint64_t same = followed_by(place, tail_[at]);
      visit(SuffixTree::Next{tail_[at], std::popcount(same)});
      left &= ~same;
    }
  }

  const SuffixTree& tree_;
  std::span<const int32_t> tail_;
};

SuffixGuess follow_chain(const Counts& counts, Counts::Place place, int limit, double min_probability) {
  SuffixGuess guess;
  double probability = 1;
  while (guess.size < limit) {
    const auto next = counts.best(place);
    if (next.count == 0) break;
    probability *= double(next.count) / double(counts.count(place));
    if (probability < min_probability) break;
    guess.tokens[guess.size] = next.token, guess.parents[guess.size] = guess.size - 1;
    guess.score += probability;
    if (++guess.size < limit) place = counts.step(place, next.token);
  }
  return guess;
}

// The `limit` most probable nodes: the best of the frontier joins the tree, its children join the frontier, which is kept sorted
// and cut at `limit`.
SuffixGuess grow_tree(const Counts& counts, const Counts::Place& matched, int limit, int max_depth, double min_probability) {
  struct Candidate {
    double probability = 0;
    int parent = -1, depth = 1;
    int32_t token = -1;
    Counts::Place before;
  };
  std::array<Candidate, kMaxSuffixDepth> frontier;
  int size = 0;
  const auto precedes = [](const Candidate& a, const Candidate& b) {
    if (a.probability != b.probability) return a.probability > b.probability;
    return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
  };
  SuffixGuess guess;
  const auto add_children = [&](const Counts::Place& place, int parent, int depth, double probability) {
    const double share = probability / double(counts.count(place));
    const int room = limit - guess.size;
    counts.each_next(place, [&](SuffixTree::Next next) {
      const Candidate made{share * next.count, parent, depth, next.token, place};
      if (made.probability < min_probability) return;
      int at = std::min(size, room);
      while (at > 0 && precedes(made, frontier[at - 1])) --at;
      if (at >= room) return;
      size = std::min(size + 1, room);
      std::move_backward(frontier.begin() + at, frontier.begin() + size - 1, frontier.begin() + size);
      frontier[at] = made;
    });
  };
  if (limit > 0 && max_depth > 0) add_children(matched, -1, 1, 1);
  while (guess.size < limit && size > 0) {
    const Candidate taken = frontier[0];
    std::move(frontier.begin() + 1, frontier.begin() + size, frontier.begin());
    --size;
    const int node = guess.size++;
    guess.tokens[node] = taken.token, guess.parents[node] = taken.parent;
    guess.score += taken.probability;
    if (guess.size < limit && taken.depth < max_depth)
      add_children(counts.step(taken.before, taken.token), node, taken.depth + 1, taken.probability);
  }
  return guess;
}

}

SuffixGuess guess_by_suffix(
    const SuffixTree& tree, std::span<const int32_t> tail, std::span<const int32_t> context, const SuffixSearch& search) {
  HUNCH_CHECK(search.depth <= kMaxSuffixDepth && int(tail.size()) < kMaxSuffixDepth);
  const Counts counts(tree, tail);
  // [match] bit i: so many last tokens stand at i in the tail.
  std::array<uint64_t, kMaxSuffixDepth> starts{};
  for (size_t end = 1; end <= tail.size(); ++end)
    for (size_t len = 1; len <= std::min(end, context.size()) && tail[end - len] == context[context.size() - len]; ++len)
      starts[len] |= uint64_t(1) << (end - len);
  const auto matched = [&](int match) { return counts.matched(context, match, starts[match]); };
  // The longest match that goes on, as shorter ones do.
  int longest = 0;
  for (int beyond = std::min(search.depth - 1, int(context.size())) + 1; beyond - longest > 1;) {
    const int match = longest + std::min((beyond - longest) / 2, longest + 1);
    if (counts.best(matched(match)).count > 0) longest = match;
    else beyond = match;
  }
  std::array<int, kMaxSuffixDepth> limits{}, order{};  // by match; tokens granted, each of which scores 1 at most
  for (int match = 1; match <= longest; ++match) {
    const double most = std::floor(match * search.factor + search.offset + 1e-6);
    int& limit = limits[match];
    limit = int(std::clamp(most, 0.0, double(std::clamp(search.max_tokens, 0, kMaxSuffixDepth))));
    if (!search.branch) limit = std::min({limit, search.max_depth, search.depth - match});
    order[match - 1] = match;
  }
  // Those that may score most come first: where text repeats itself, no other is followed.
  const auto last = order.begin() + longest;
  std::sort(order.begin(), last, [&](int a, int b) { return limits[a] > limits[b]; });
  SuffixGuess best;
  int best_match = 0;  // of equals the longest
  // Matches of one count stand in the same places and go on alike: the first has the most tokens.
  std::array<int32_t, kMaxSuffixDepth> followed;
  int num_followed = 0;
  for (const int match : std::span(order.begin(), last)) {
    const int limit = limits[match];
    if (limit < best.score || (limit == best.score && match < best_match)) continue;
    const auto place = matched(match);
    if (!search.branch) {
      const int32_t count = counts.count(place);
      const auto end = followed.begin() + num_followed;
      if (std::find(followed.begin(), end, count) != end) continue;
      followed[num_followed++] = count;
    }
    const auto guess = search.branch ? grow_tree(counts, place, limit, search.max_depth, search.min_probability)
                                     : follow_chain(counts, place, limit, search.min_probability);
    if (guess.score > best.score || (guess.score == best.score && match > best_match)) best = guess, best_match = match;
  }
  return best;
}

}
