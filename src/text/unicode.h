// The bits of Unicode that tokenizing needs: UTF-8 steps, NFC, and the two classes that added tokens' flags speak of.
// Used by Tokenizer, AddedTokens and Detokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hunch {

// The byte at which `text` stops being UTF-8 (overlong forms, surrogates and values above U+10FFFF count), or nothing.
std::optional<size_t> first_invalid_utf8(std::string_view text);

// What stands at the beginning of `bytes` (not empty), by the rules of Unicode's table 3-7.
struct Utf8Step {
  enum class Kind { Character, Broken, Unfinished };
  Kind kind;
  size_t length;      // of the character, of the maximal broken part, or of what is there of an unfinished character; at least 1
  uint32_t code = 0;  // of a Character
};
Utf8Step utf8_step(std::string_view bytes);

void append_utf8(uint32_t code, std::string& out);

// Appends NFC of valid UTF-8. O(n log n) also for long runs of combining marks.
void append_nfc(std::string_view text, std::string& out);

bool is_white_space(uint32_t code);  // Unicode's White_Space
bool is_word(uint32_t code);         // alphabetic, mark, decimal digit, connector punctuation, join control: \w of UTS 18

// The same question about the last or first character of valid UTF-8; false for empty text.
bool ends_with_word(std::string_view text);
bool starts_with_word(std::string_view text);
size_t white_space_at_end(std::string_view text);  // bytes of white space
size_t white_space_at_start(std::string_view text);

}
