// What Python's str knows about characters: white space, case, classes. Over UTF-8, by Unicode's tables (utf8proc).
// Used by the lexer, the filters and the methods of strings.
#pragma once

#include "text/unicode.h"

namespace hunch::jinja {

bool is_space(uint32_t code);  // str.isspace()
// Byte where the white space after `from` ends, and where that before the end of `text` begins.
size_t skip_space(std::string_view text, size_t from);
size_t space_at_end(std::string_view text);

enum class Case : uint8_t { Lower, Upper, Title, Capital, Swapped };
std::string with_case(std::string_view text, Case wanted);

enum class CharClass : uint8_t { Alpha, Alnum, Decimal, Digit, Numeric, Space, Lower, Upper, Ascii };
// str.isalpha() and its like: false for the empty text (but true for Ascii).
bool is_all(std::string_view text, CharClass wanted);

// Calls f(character as bytes, its code) for each character; stops where f returns false.
template <class F>
void each_character(std::string_view text, F&& f) {
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (!f(text.substr(0, step.length), step.code)) return;
    text.remove_prefix(step.length);
  }
}

}
