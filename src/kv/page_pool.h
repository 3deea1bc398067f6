// PagePool: which pages of a KvStore are free. Pages are taken lowest id first, so that a sequence's pages stream.
// No free page is an answer, not an error: the caller refuses, waits or preempts.
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
  explicit PagePool(int64_t num_pages) : num_pages_(num_pages) {
    for (int64_t page = 0; page < num_pages; ++page) free_.push(int32_t(page));
  }
  std::optional<int32_t> take() {
    if (free_.empty()) return std::nullopt;
    const int32_t page = free_.top();
    free_.pop();
    return page;
  }
  void give_back(int32_t page) {
    HUNCH_CHECK(page >= 0 && page < num_pages_ && num_free() < num_pages_);
    free_.push(page);
  }
  int64_t num_free() const { return int64_t(free_.size()); }
  int64_t num_pages() const { return num_pages_; }

 private:
  int64_t num_pages_;
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free_;
};

}  // namespace hunch
