// For tests: dense views of what a container holds.
#pragma once

#include "tensor/view.h"

namespace hunch::test {

// In the shape given, slowest axis first; without one, all of it.
template <class Container, class... N>
auto view(Container& held, N... extents) {
  using T = std::remove_pointer_t<decltype(held.data())>;
  if constexpr (sizeof...(N) == 0) {
    return View<T, 1>(held.data(), held.size());
  } else {
    const View<T, sizeof...(N)> out(held.data(), extents...);
    HUNCH_CHECK(held.size() == 0 || size_t(out.size()) <= held.size());
    return out;
  }
}

}
