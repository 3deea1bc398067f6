// Usage errors with values in their words. A header of its own: few need a formatter.
#pragma once

#include <fmt/format.h>

#include "base/result.h"

namespace hunch {

template <class... Args>
requires(sizeof...(Args) > 0) Error usage_error(fmt::format_string<Args...> words, Args&&... args) {
  return usage_error(fmt::format(words, std::forward<Args>(args)...));
}

}
