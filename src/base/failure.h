// Errors with values in their messages: failure("{}: larger than {} bytes", file, most).
#pragma once

#include <fmt/format.h>

#include "base/result.h"

namespace hunch {

template <class... T>
Error failure(fmt::format_string<T...> text, T&&... values) {
  return {fmt::format(text, std::forward<T>(values)...)};
}

// Errors about one thing: `about()` gives what all of them begin with.
template <class About>
struct Failing {
  About about;
  template <class... T>
  Error operator()(fmt::format_string<T...> what, T&&... values) const {
    return failure("{}: {}", about(), fmt::format(what, std::forward<T>(values)...));
  }
};
template <class About>
Failing(About) -> Failing<About>;

template <class First, class... Rest>
Error usage_error(fmt::format_string<First, Rest...> text, First&& first, Rest&&... rest) {
  return usage_error(fmt::format(text, std::forward<First>(first), std::forward<Rest>(rest)...));
}

}
