// View<T, Rank>: a borrowed strided array (pointer, extents, strides in elements), passed by value; owns nothing.
// Unlike std::span it has a rank and strides; unlike std::mdspan (C++23) it is 40 lines.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "base/check.h"

namespace hunch {

template <class T, int Rank>
struct View {
  T* data = nullptr;
  std::array<int64_t, Rank> extent{};
  std::array<int64_t, Rank> stride{};  // stride[Rank-1] is 1 unless said otherwise

  View() = default;
  template <class... N>
  requires(sizeof...(N) == Rank) explicit View(T* data, N... extents)
      : data(data), extent{int64_t(extents)...} {  // dense, slowest axis first
    int64_t step = 1;
    for (int i = Rank - 1; i >= 0; --i) stride[i] = step, step *= extent[i];
  }
  operator View<const T, Rank>() const requires(!std::is_const_v<T>) {
    View<const T, Rank> v;
    v.data = data, v.extent = extent, v.stride = stride;
    return v;
  }

  template <class... N>
  requires(sizeof...(N) == Rank) T& operator()(N... index) const {
    const std::array<int64_t, Rank> at{int64_t(index)...};
    int64_t offset = 0;
    for (int i = 0; i < Rank; ++i) {
      HUNCH_DCHECK(at[i] >= 0 && at[i] < extent[i]);
      offset += at[i] * stride[i];
    }
    return data[offset];
  }
  // The sub-array at `index` of the slowest axis.
  View<T, Rank - 1> operator[](int64_t index) const requires(Rank > 1) {
    HUNCH_DCHECK(index >= 0 && index < extent[0]);
    View<T, Rank - 1> v;
    v.data = data + index * stride[0];
    for (int i = 1; i < Rank; ++i) v.extent[i - 1] = extent[i], v.stride[i - 1] = stride[i];
    return v;
  }
  // Elements [first, first + count) of the slowest axis.
  View slice(int64_t first, int64_t count) const {
    HUNCH_DCHECK(first >= 0 && count >= 0 && first + count <= extent[0]);
    View v = *this;
    v.data += first * stride[0];
    v.extent[0] = count;
    return v;
  }
  int64_t size() const {
    int64_t n = 1;
    for (int64_t e : extent) n *= e;
    return n;
  }
};

}
