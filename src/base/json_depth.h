// Depth of a JSON text before it is parsed: copying or walking a parsed value recurses, so untrusted files are bounded first.
#pragma once

#include <string_view>

namespace hunch {

inline bool nested_deeper_than(std::string_view text, int most) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > most) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

inline constexpr int kMostJsonDepth = 64;

}
