// PrefixCache: pages of known beginnings of tokens, which requests that begin alike share. A page enters when all its entries are
// committed, under the chain of all tokens up to its end; it leaves, least recently used first, when the pool needs it and nobody
// holds it. Shared pages are full, so nobody writes to them.
//
// Tokens are compared, not only their hash: equal output is a promise, not a probability.
#pragma once

#include <list>
#include <unordered_map>

#include "kv/sequence.h"

namespace hunch {

class PrefixCache final : public PagePool::Keeper {
 public:
  explicit PrefixCache(PagePool& pool);

  // The longest run of known pages that `tokens` begin with, at most `max_entries` entries; every page has the caller as a holder
  // now. Only pages that were published under the same salt (any bytes) are found.
  std::vector<int32_t> find(std::span<const int32_t> tokens, int64_t max_entries, std::string_view salt = {});

  // How much of a sequence is known, and where its next page goes: {} at first, after a find() {the entries found}; publish()
  // moves it on.
  struct Published {
    int64_t entries = 0;
    int32_t page = -1;         // the known page that ends there: the sequence's own, or another one with the same beginning
    uint64_t number = 0;       // of that page's stay, which ends where it is given up
    int64_t next_attempt = 0;  // committed entries before which there is nothing to look for
  };
  // Makes the whole committed pages from there on known. Called after every step: it costs what was committed since.
  void publish(const Sequence& sequence, Published& so_far);

  // Forgets everything; pages that are held stay their holders'.
  void clear();

  bool keeps(int32_t page) const override { return by_page_[page] != nullptr; }
  std::optional<int32_t> surrender() override;

  // Pages that were hashed and looked for since the beginning.
  int64_t pages_sought() const { return pages_sought_; }

 private:
  struct Node {
    uint64_t number = 0;     // counts up over all that ever were
    uint64_t chain = 0;      // hash of all tokens up to this page's end
    Node* before = nullptr;  // the page before it; null: the first
    int32_t page = -1;
    int children = 0;  // known pages that continue this one: it cannot leave before them
    std::vector<int32_t> tokens;
    std::string salt;  // of a first page; those behind it are found through it alone
    std::list<Node>::iterator self;
  };
  Node* lookup(const Node* before, uint64_t chain, std::span<const int32_t> tokens, std::string_view salt) const;
  Node* end_of(const Sequence&, const Published&) const;
  void remove(Node* node);

  PagePool& pool_;
  std::list<Node> nodes_;  // least recently used first
  std::unordered_multimap<uint64_t, Node*> by_chain_;
  std::vector<Node*> by_page_;
  uint64_t last_number_ = 0;
  mutable int64_t pages_sought_ = 0;
};

}
