// SuffixTree: counts of all substrings up to a depth, as a path-compressed trie of suffixes. The core of suffix decoding
// (proposers/suffix.cpp).
//
// The tree knows the suffixes that were inserted and not erased. count(w) is how many of them begin with w; it is constant along
// an edge, so a place inside one has one continuation. Labels point into a ring of tokens, at the newest text that runs through
// them, so that texts may go oldest first once their suffixes are erased; or at the oldest, so that the last suffixes may.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hunch {

class SuffixTree {
 public:
  enum class Forgets { Oldest, Newest };
  explicit SuffixTree(Forgets forgets = Forgets::Oldest) : forgets_(forgets) {}
  // Memory for texts of `tokens` tokens: kBytesPerToken each, tokens rounded up to a power of two. Grows; never forgets.
  void reserve(int64_t tokens);
  static constexpr int64_t kBytesPerToken = 96;
  int64_t bytes() const {
    return int64_t(text_.capacity() * sizeof(int32_t) + nodes_.capacity() * sizeof(Node) + table_.capacity() * sizeof(int32_t));
  }
  int64_t capacity() const { return std::ssize(text_); }  // tokens

  // Text positions count all tokens ever appended; those in [end() - capacity(), end()) can be read.
  uint32_t end() const { return end_; }
  int32_t token_at(uint32_t position) const { return text_[position & (text_.size() - 1)]; }
  void append(int32_t token) { text_[end_++ & (text_.size() - 1)] = token; }
  // Back to an end in a tree that forgets the newest, all that reached beyond it erased.
  void cut(uint32_t end) { end_ = end; }
  // The suffix of `len` tokens at `at`, all of them appended.
  void insert(uint32_t at, int len);
  void erase(uint32_t at, int len);  // was inserted

  // A string that some suffix begins with; the default is the empty one.
  struct Place {
    int32_t node = 0;  // the node whose edge the string ends on
    int32_t used = 0;  // tokens of its label that belong to the string
  };
  struct Next {
    int32_t token = -1, count = 0;
  };
  // Makes the string one token longer; false (and no change) if no suffix begins with that.
  bool step(Place&, int32_t token) const;
  bool walk(Place&, std::span<const int32_t> tokens) const;  // the same token by token, as far as it goes
  int32_t count(const Place& place) const { return nodes_[place.node].count; }
  int32_t count_after(Place place, int32_t token) const { return step(place, token) ? count(place) : 0; }
  // The most frequent next token, the lowest id among equals; count 0 if the string ends here. Not of the empty string.
  Next best(const Place& place) const {
    const Node& node = nodes_[place.node];
    if (place.used < node.len) return {token_at(node.text + place.used), node.count};
    if (node.best < 0) return {};
    return {token_at(nodes_[node.best].text), nodes_[node.best].count};
  }
  // visit(Next) for every next token, in no particular order.
  template <class Visit>
  void each_next(const Place& place, Visit&& visit) const {
    const Node& node = nodes_[place.node];
    if (place.used < node.len) return visit(Next{token_at(node.text + place.used), node.count});
    for (int32_t child = node.first_child; child >= 0; child = nodes_[child].next)
      visit(Next{token_at(nodes_[child].text), nodes_[child].count});
  }

  int64_t num_nodes() const { return std::ssize(nodes_) - num_free_; }  // the root included

 private:
  struct Node {
    uint32_t text = 0;  // where the label stands
    int32_t len = 0, count = 0;
    int32_t parent = -1, first_child = -1, next = -1, previous = -1;  // siblings form a list
    int32_t best = -1;  // the most frequent child; not kept for the root, which has too many and is never asked
  };
  static constexpr int32_t kNone = -1;

  uint64_t home(int32_t parent, int32_t token) const {
    uint64_t x = uint64_t(uint32_t(parent)) << 32 | uint32_t(token);
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDu;  // the finaliser of MurmurHash3
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53u;
    return (x ^ (x >> 33)) & (table_.size() - 1);
  }
  // of the child, or the empty one where it belongs
  uint64_t bucket(int32_t parent, int32_t token) const {
    uint64_t at = home(parent, token);
    for (;; at = (at + 1) & (table_.size() - 1)) {
      const int32_t child = table_[at];
      if (child < 0) return at;
      if (nodes_[child].parent == parent && token_at(nodes_[child].text) == token) return at;
    }
  }
  void put(int32_t child) {
    table_[bucket(nodes_[child].parent, token_at(nodes_[child].text))] = child;
  }                          // into the table, by its parent and label
  void take(int32_t child);  // out of it
  int32_t new_node();
  void link(int32_t parent, int32_t child);  // as a child and into the table
  void unlink(int32_t child);
  void swap_in(int32_t old_child, int32_t new_child);  // at the same place of the tree, with the same first token
  bool precedes(int32_t a, int32_t b) const;           // count descending, token ascending
  void raised(int32_t child);
  void lowered(int32_t parent, int32_t child) {
    Node& above = nodes_[parent];
    if (parent == 0 || above.best != child) return;
    above.best = above.first_child;
    for (int32_t other = above.first_child; other >= 0; other = nodes_[other].next)
      if (precedes(other, above.best)) above.best = other;
  }
  int32_t split(int32_t node, int32_t used);
  void merge_with_only_child(int32_t node);

  Forgets forgets_;
  std::vector<int32_t> text_;                       // ring; a power of two
  std::vector<Node> nodes_ = std::vector<Node>(1);  // 0: the root
  std::vector<int32_t> table_;  // open addressing: child by parent and first token; twice the nodes, a power of two
  int32_t free_ = kNone;        // list of free nodes, by `next`
  int64_t num_free_ = 0;
  uint32_t end_ = 0;
};

}
