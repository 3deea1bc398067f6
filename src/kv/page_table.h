// PageTable: the pages of one sequence, in order. Entry e lives in page e / kPageLen.
#pragma once

#include "backend/ops/kv.h"
#include "kv/page_pool.h"

namespace hunch {

class PageTable {
 public:
  // Room for `max_entries` without reallocation: views of the table stay valid for the sequence's life.
  explicit PageTable(int64_t max_entries = 0) { pages_.reserve((max_entries + kPageLen - 1) / kPageLen); }

  // Owns pages for entries [0, entries) afterwards; false if the pool ran out (pages taken so far stay owned).
  bool grow_to(int64_t entries, PagePool& pool) {
    while (std::ssize(pages_) * kPageLen < entries) {
      const auto page = pool.take();
      if (!page) return false;
      HUNCH_CHECK(pages_.size() < pages_.capacity());
      pages_.push_back(*page);
    }
    return true;
  }
  // Starts with pages that hold entries of an equal beginning (already counted as held by this table).
  void adopt(const std::vector<int32_t>& pages) {
    HUNCH_CHECK(pages_.empty() && pages.size() <= pages_.capacity());
    pages_.assign(pages.begin(), pages.end());
  }
  // Gives back whole pages past entry `entries`.
  void release_past(int64_t entries, PagePool& pool) {
    while (!pages_.empty() && int64_t(pages_.size() - 1) * kPageLen >= entries) {
      pool.give_back(pages_.back());
      pages_.pop_back();
    }
  }
  int32_t page_of(int64_t entry) const { return pages_[entry / kPageLen]; }
  int64_t num_pages() const { return std::ssize(pages_); }
  int64_t capacity() const { return std::ssize(pages_) * kPageLen; }
  View<const int32_t, 1> view() const { return View<const int32_t, 1>(pages_.data(), pages_.size()); }

 private:
  std::vector<int32_t> pages_;
};

}
