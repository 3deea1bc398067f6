// utf8proc holds the tables; the ordering of combining marks is ours, because utf8proc's is quadratic.
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace hunch {
namespace {

// Allowed range of the second byte by the first; the later ones are always 80..BF. Unicode, table 3-7.
struct Lead {
  size_t length;
  uint8_t low, high;
};

Lead lead_of(uint8_t b) {
  if (b < 0x80) return {1, 0, 0};
  if (b < 0xC2) return {0, 0, 0};
  if (b < 0xE0) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (b < 0xF0) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b < 0xF4) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (uint8_t(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

int combining_class(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

// NFC of one run that no character outside can interact with. `codes` is scratch.
void append_nfc_run(std::string_view run, std::vector<utf8proc_int32_t>& codes, std::string& out) {
  codes.clear();
  for (size_t at = 0; at < run.size();) {
    const Utf8Step step = utf8_step(run.substr(at));
    HUNCH_CHECK(step.kind == Utf8Step::Kind::Character);
    at += step.length;
    utf8proc_int32_t parts[32];  // the longest canonical decomposition has 4 code points
    int boundary = 0;
    const auto count = utf8proc_decompose_char(
        utf8proc_int32_t(step.code), parts, 32, utf8proc_option_t(UTF8PROC_COMPOSE | UTF8PROC_STABLE), &boundary);
    HUNCH_CHECK(count > 0 && count <= 32);
    codes.insert(codes.end(), parts, parts + count);
  }
  for (size_t at = 0; at < codes.size();) {  // canonical ordering: stable by class within each run of non-starters
    size_t end = at;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    if (end - at > 1)
      std::stable_sort(
          codes.begin() + at, codes.begin() + end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    at = end + 1;
  }
  const auto composed = utf8proc_normalize_utf32(
      codes.data(), utf8proc_ssize_t(codes.size()), utf8proc_option_t(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  HUNCH_CHECK(composed >= 0);
  for (utf8proc_ssize_t i = 0; i < composed; ++i) append_utf8(uint32_t(codes[i]), out);
}

}

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (uint8_t(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::Kind::Character) return at;
    at += step.length;
  }
  return {};
}

Utf8Step utf8_step(std::string_view bytes) {
  const uint8_t first = uint8_t(bytes[0]);
  const Lead lead = lead_of(first);
  if (lead.length == 1) return {Utf8Step::Kind::Character, 1, first};
  if (lead.length == 0) return {Utf8Step::Kind::Broken, 1};
  uint32_t code = first & (0x7Fu >> lead.length);
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Step::Kind::Unfinished, i};
    const uint8_t b = uint8_t(bytes[i]);
    if (b < (i == 1 ? lead.low : 0x80) || b > (i == 1 ? lead.high : 0xBF)) return {Utf8Step::Kind::Broken, i};
    code = code << 6 | (b & 0x3F);
  }
  return {Utf8Step::Kind::Character, lead.length, code};
}

void append_utf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += char(code);
    return;
  }
  if (code < 0x800) {
    out += char(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    out += char(0xE0 | code >> 12);
    out += char(0x80 | (code >> 6 & 0x3F));
  } else {
    out += char(0xF0 | code >> 18);
    out += char(0x80 | (code >> 12 & 0x3F));
    out += char(0x80 | (code >> 6 & 0x3F));
  }
  out += char(0x80 | (code & 0x3F));
}

// An ASCII character never joins what precedes it, so runs [ASCII] [non-ASCII]* are independent. A run changes only if it holds
// a code point from U+0300 on (lead byte from CC on): all below are in NFC already and never reordered.
void append_nfc(std::string_view text, std::string& out) {
  std::vector<utf8proc_int32_t> codes;
  size_t copied = 0;
  for (size_t at = 0; at < text.size();) {
    if (uint8_t(text[at]) < 0x80) {
      ++at;
      continue;
    }
    size_t end = at;
    bool may_change = false;
    for (; end < text.size() && uint8_t(text[end]) >= 0x80; ++end) may_change |= uint8_t(text[end]) >= 0xCC;
    if (may_change) {
      const size_t begin = at > 0 ? at - 1 : 0;  // the ASCII character before may take a mark
      out.append(text, copied, begin - copied);
      append_nfc_run(text.substr(begin, end - begin), codes, out);
      copied = end;
    }
    at = end;
  }
  out.append(text, copied);
}

bool is_white_space(uint32_t code) {
  return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
      (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
      code == 0x3000;
}

bool is_word(uint32_t code) {
  switch (utf8proc_category(utf8proc_int32_t(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
  }
  // Join controls, and the symbols that Unicode calls alphabetic: circled and squared letters.
  return code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
      (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

bool ends_with_word(std::string_view text) { return !text.empty() && is_word(utf8_step(text.substr(last_character(text))).code); }

bool starts_with_word(std::string_view text) { return !text.empty() && is_word(utf8_step(text).code); }

size_t white_space_at_end(std::string_view text) {
  size_t kept = text.size();
  while (kept > 0) {
    const size_t at = last_character(text.substr(0, kept));
    if (!is_white_space(utf8_step(text.substr(at)).code)) break;
    kept = at;
  }
  return text.size() - kept;
}

size_t white_space_at_start(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (!is_white_space(step.code)) break;
    at += step.length;
  }
  return at;
}

}
