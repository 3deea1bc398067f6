// JsonGuard: what every JSON text keeps: strings have no raw control characters, escapes are JSON's, those of surrogates in
// pairs. It stands beside the automaton of a grammar, which lets some of these through in strings of bounded length or of a
// format.
#pragma once

#include <cstdint>
#include <string_view>

namespace hunch {

class JsonGuard {
 public:
  using State = uint8_t;
  static constexpr State kOutside = 0, kInside = 1, kRefused = 255;  // of a string; the others are inside escapes

  // Behind one more byte.
  static State next(State state, uint8_t byte) {
    const uint8_t lower = byte | 0x20;
    const bool hex = (byte >= '0' && byte <= '9') || (lower >= 'a' && lower <= 'f');
    if (state >= kDigit1 && state <= kDigit4OfHigh && !hex) return kRefused;
    switch (state) {
      case kOutside: return byte == '"' ? kInside : byte >= 0x20 || is_blank(byte) ? kOutside : kRefused;
      case kInside: return byte == '"' ? kOutside : byte == '\\' ? kEscape : byte >= 0x20 ? kInside : kRefused;
      case kEscape: return byte == 'u' ? kDigit1 : kEscaped.find(char(byte)) < kEscaped.size() ? kInside : kRefused;
      case kDigit1: return lower == 'd' ? kDigit2OfD : kDigit2;
      case kDigit2OfD:  // D800..DBFF must be followed by one of DC00..DFFF, which stands nowhere else
        return byte < '8' ? kDigit3 : byte <= '9' || lower <= 'b' ? kDigit3OfHigh : kRefused;
      case kDigit2: return kDigit3;
      case kDigit3: return kDigit4;
      case kDigit4: return kInside;
      case kDigit3OfHigh: return kDigit4OfHigh;
      case kDigit4OfHigh: return kNeedsEscape;
      case kNeedsEscape: return byte == '\\' ? kNeedsU : kRefused;
      case kNeedsU: return byte == 'u' ? kNeedsD : kRefused;
      case kNeedsD: return lower == 'd' ? kNeedsLow : kRefused;
      case kNeedsLow: return lower >= 'c' && lower <= 'f' ? kDigit3 : kRefused;
      default: return kRefused;
    }
  }
  static State next(State state, std::string_view bytes) {
    for (size_t i = 0; i < bytes.size() && state != kRefused; ++i) state = next(state, uint8_t(bytes[i]));
    return state;
  }
  // Whether a token may be refused where it begins outside of escapes: few are, the others need no look.
  static bool suspicious(std::string_view token) {
    for (const char c : token)
      if (uint8_t(c) < 0x20 || c == '\\') return true;
    return false;
  }

 private:
  static constexpr std::string_view kEscaped = "\"\\/bfnrt";
  static bool is_blank(uint8_t byte) { return byte == '\t' || byte == '\n' || byte == '\r'; }
  static constexpr State kEscape = 2, kDigit1 = 3, kDigit2 = 4, kDigit2OfD = 5, kDigit3 = 6, kDigit4 = 7, kDigit3OfHigh = 8,
                         kDigit4OfHigh = 9, kNeedsEscape = 10, kNeedsU = 11, kNeedsD = 12, kNeedsLow = 13;
};

}
