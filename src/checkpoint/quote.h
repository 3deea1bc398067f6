// Names that come from a file, made safe for a message: control and non-ASCII bytes escaped, long names cut.
#pragma once

#include <string>
#include <string_view>

namespace hunch {

inline std::string quote(std::string_view name) {
  constexpr size_t kMost = 120;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : name.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) out += c;
    else out += std::string("\\x") + kHex[byte >> 4] + kHex[byte & 15];
  }
  return name.size() > kMost ? out + "..." : out;
}

}
