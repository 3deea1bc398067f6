// Buffer: owns memory of one backend; only moves. Arena: scratch of one pass, handed out by bumping a pointer and reset by the
// owner between passes; nothing allocates inside a step.
#pragma once

#include <cstddef>
#include <utility>

#include "base/check.h"
#include "tensor/view.h"

namespace hunch {

class Buffer {
 public:
  using Free = void (*)(void* data, size_t bytes);
  Buffer() = default;
  Buffer(void* data, size_t bytes, Free free) : data_(data), bytes_(bytes), free_(free) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_), std::swap(bytes_, other.bytes_), std::swap(free_, other.free_);
    return *this;
  }
  ~Buffer() {
    if (data_) free_(data_, bytes_);
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }
  template <class T, class... N>
  View<T, sizeof...(N)> view(N... extents) const {
    View<T, sizeof...(N)> v(static_cast<T*>(data_), extents...);
    HUNCH_CHECK(v.size() * sizeof(T) <= bytes_);
    return v;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Free free_ = nullptr;
};

class Arena {
 public:
  explicit Arena(Buffer memory) : memory_(std::move(memory)) {}
  // Uninitialised, aligned to 64 bytes, valid until reset().
  template <class T, class... N>
  View<T, sizeof...(N)> take(N... extents) {
    View<T, sizeof...(N)> v(reinterpret_cast<T*>(static_cast<std::byte*>(memory_.data()) + used_), extents...);
    used_ += (v.size() * sizeof(T) + 63) / 64 * 64;
    HUNCH_CHECK(used_ <= memory_.bytes());
    return v;
  }
  void reset(size_t mark = 0) { used_ = mark; }
  size_t mark() const { return used_; }

 private:
  Buffer memory_;
  size_t used_ = 0;
};

}
