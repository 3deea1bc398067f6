// All characters of the alphabet lie below U+0144, so a spelling is one- and two-byte UTF-8 only.
#include "text/byte_alphabet.h"

#include <array>

#include "text/unicode.h"

namespace hunch {
namespace {

constexpr bool stands_for_itself(int b) {
  return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

struct Alphabet {
  std::array<uint16_t, 256> code_of{};
  std::array<int16_t, 0x144> byte_of{};
};

constexpr Alphabet make_alphabet() {
  Alphabet a;
  for (int16_t& b : a.byte_of) b = -1;
  int others = 0;
  for (int b = 0; b < 256; ++b) {
    a.code_of[b] = uint16_t(stands_for_itself(b) ? b : 0x100 + others++);
    a.byte_of[a.code_of[b]] = int16_t(b);
  }
  return a;
}

constexpr Alphabet kAlphabet = make_alphabet();

}

bool append_spelt_bytes(std::string_view spelling, std::string& out) {
  const size_t before = out.size();
  for (size_t i = 0; i < spelling.size(); ++i) {
    uint32_t code = uint8_t(spelling[i]);
    if (code >= 0x80) {
      const bool two_bytes = code >= 0xC2 && code <= 0xC5 && i + 1 < spelling.size() && (uint8_t(spelling[i + 1]) & 0xC0) == 0x80;
      code = two_bytes ? (code & 0x1F) << 6 | (uint8_t(spelling[++i]) & 0x3F) : kAlphabet.byte_of.size();
    }
    if (code >= kAlphabet.byte_of.size() || kAlphabet.byte_of[code] < 0) {
      out.resize(before);
      return false;
    }
    out += char(kAlphabet.byte_of[code]);
  }
  return true;
}

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (const char b : bytes) append_utf8(kAlphabet.code_of[uint8_t(b)], out);
  return out;
}

}
