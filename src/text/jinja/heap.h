// Heap: memory of one compiled template or one rendering. Nothing in it is destroyed singly: values can be copied as pointers,
// and no depth of nesting can overflow a destructor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace hunch::jinja {

class Heap {
 public:
  explicit Heap(size_t limit_bytes) : limit_(limit_bytes) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // T's destructor never runs: whatever it owns must lie in resource().
  template <class T, class... Args>
  T* make(Args&&... args) {
    used_ += sizeof(T);
    return new (memory_.allocate(sizeof(T), alignof(T))) T{std::forward<Args>(args)...};
  }
  template <class T>
  std::span<T> copy(const std::vector<T>& items) {
    if (items.empty()) return {};
    used_ += items.size() * sizeof(T);
    T* out = static_cast<T*>(memory_.allocate(items.size() * sizeof(T), alignof(T)));
    for (size_t i = 0; i < items.size(); ++i) new (out + i) T(items[i]);
    return {out, items.size()};
  }
  std::string_view copy(std::string_view bytes) {
    if (bytes.empty()) return {};
    used_ += bytes.size();
    char* out = static_cast<char*>(memory_.allocate(bytes.size(), 1));
    std::ranges::copy(bytes, out);
    return {out, bytes.size()};
  }
  std::pmr::memory_resource* resource() { return &memory_; }
  // Of containers that use resource() themselves.
  void count(size_t bytes) { used_ += bytes; }
  bool full() const { return used_ > limit_; }

 private:
  std::pmr::monotonic_buffer_resource memory_;
  size_t used_ = 0, limit_;
};

}
