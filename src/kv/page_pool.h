// PagePool: which pages of a KvStore are free, and how many hold each of the others. The lowest id is taken first, so that a
// sequence's pages stream. No page left is no error: the caller refuses, waits or preempts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

#include "base/check.h"

namespace hunch {

class PagePool {
 public:
  // Keeps pages that nobody holds any more, for those who may want their contents again.
  class Keeper {
   public:
    virtual ~Keeper() = default;
    virtual bool keeps(int32_t page) const = 0;      // asked when the last holder lets go; true: the page stays the keeper's
    virtual std::optional<int32_t> surrender() = 0;  // a kept page that nobody holds, now free; empty: none
  };

  explicit PagePool(int64_t num_pages) : holders_(size_t(num_pages), 0), generations_(size_t(num_pages), 0) {
    for (int64_t page = 0; page < num_pages; ++page) free_.push(int32_t(page));
  }
  void set_keeper(Keeper* keeper) { keeper_ = keeper; }

  // A page that nobody holds, with one holder now. Kept pages are given up only when no other is free.
  std::optional<int32_t> take() {
    std::optional<int32_t> page;
    if (!free_.empty()) {
      page = free_.top();
      free_.pop();
    } else if (keeper_) {
      page = keeper_->surrender();
      if (page) --kept_;
    }
    if (page) holders_[*page] = 1, ++generations_[*page];
    return page;
  }
  // One holder more, of a page that is held or kept.
  void share(int32_t page) {
    if (holders_[index(page)]++ == 0) --kept_;
  }
  void give_back(int32_t page) {
    HUNCH_CHECK(holders_[index(page)] > 0);
    if (--holders_[page] > 0) return;
    if (keeper_ && keeper_->keeps(page)) ++kept_;
    else free_.push(page);
  }
  // A kept page that the keeper lets go for good.
  void put_free(int32_t page) {
    HUNCH_CHECK(holders_[index(page)] == 0);
    --kept_;
    free_.push(page);
  }
  int holders(int32_t page) const { return holders_[index(page)]; }
  // How often the page was taken: what was noted of its contents holds as long as this does not change.
  uint32_t generation(int32_t page) const { return generations_[index(page)]; }
  int64_t num_kept() const { return kept_; }  // by the keeper alone
  // Pages that take() can give; a kept one may have to wait for those that continue it.
  int64_t num_free() const { return std::ssize(free_) + kept_; }
  int64_t num_pages() const { return std::ssize(holders_); }

 private:
  size_t index(int32_t page) const {
    HUNCH_CHECK(page >= 0 && size_t(page) < holders_.size());
    return size_t(page);
  }
  std::vector<int32_t> holders_;
  std::vector<uint32_t> generations_;
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free_;
  Keeper* keeper_ = nullptr;
  int64_t kept_ = 0;
};

}
