#include "text/jinja/python_text.h"

#include <utf8proc.h>

namespace hunch::jinja {
namespace {

using enum CharClass;

utf8proc_category_t category(uint32_t code) { return utf8proc_category(utf8proc_int32_t(code)); }

bool is_alpha(uint32_t code) {
  const auto c = category(code);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}
bool is_upper(uint32_t code) { return utf8proc_isupper(utf8proc_int32_t(code)); }
bool is_lower(uint32_t code) { return utf8proc_islower(utf8proc_int32_t(code)); }
bool is_cased(uint32_t code) { return is_upper(code) || is_lower(code) || category(code) == UTF8PROC_CATEGORY_LT; }
bool is_superscript_digit(uint32_t code) {
  return code == 0xB2 || code == 0xB3 || code == 0xB9 || (code >= 0x2070 && code <= 0x2089 && code != 0x2071);
}

bool is_in(uint32_t code, CharClass wanted) {
  const auto c = category(code);
  const bool decimal = c == UTF8PROC_CATEGORY_ND, digit = decimal || is_superscript_digit(code);
  const bool numeric = digit || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
  switch (wanted) {
    case Alpha: return is_alpha(code);
    case Alnum: return is_alpha(code) || numeric;
    case Decimal: return decimal;
    case Digit: return digit;
    case Numeric: return numeric;
    case Space: return is_space(code);
    case Lower: return !is_cased(code) || is_lower(code);
    case Upper: return !is_cased(code) || is_upper(code);
    case Ascii: return code < 0x80;
  }
  return false;
}

void append_upper(uint32_t code, std::string& out) {
  if (code == 0xDF) out += "SS";  // the one of the characters that grow which common text has
  else append_utf8(uint32_t(utf8proc_toupper(utf8proc_int32_t(code))), out);
}
void append_lower(uint32_t code, std::string& out) { append_utf8(uint32_t(utf8proc_tolower(utf8proc_int32_t(code))), out); }
void append_title(uint32_t code, std::string& out) {
  if (code == 0xDF) out += "Ss";
  else append_utf8(uint32_t(utf8proc_totitle(utf8proc_int32_t(code))), out);
}

}

bool is_space(uint32_t code) { return (code >= 0x1C && code <= 0x1F) || is_white_space(code); }

size_t skip_space(std::string_view text, size_t from) {
  each_character(text.substr(from), [&](std::string_view character, uint32_t code) {
    if (!is_space(code)) return false;
    from += character.size();
    return true;
  });
  return from;
}

size_t space_at_end(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (uint8_t(text[begin]) & 0xC0) == 0x80) --begin;
    if (!is_space(utf8_step(text.substr(begin, end - begin)).code)) break;
    end = begin;
  }
  return end;
}

std::string with_case(std::string_view text, Case wanted) {
  std::string out;
  out.reserve(text.size());
  bool in_word = false;  // of Title: behind a cased character; of Capital: behind the first character
  each_character(text, [&](std::string_view, uint32_t code) {
    switch (wanted) {
      case Case::Lower: append_lower(code, out); break;
      case Case::Upper: append_upper(code, out); break;
      case Case::Swapped: is_upper(code) ? append_lower(code, out) : append_upper(code, out); break;
      case Case::Title:
        in_word ? append_lower(code, out) : append_title(code, out);
        in_word = is_cased(code);
        break;
      case Case::Capital:
        in_word ? append_lower(code, out) : append_title(code, out);
        in_word = true;
        break;
    }
    return true;
  });
  return out;
}

bool is_all(std::string_view text, CharClass wanted) {
  if (text.empty()) return wanted == Ascii;
  bool all = true, cased = false;
  each_character(text, [&](std::string_view, uint32_t code) {
    cased |= is_cased(code);
    return all = is_in(code, wanted);
  });
  return all && (cased || (wanted != Lower && wanted != Upper));
}

}
