// Lexer of templates: jinja2's tokens and white space rules with trim_blocks and lstrip_blocks. Called by the parser.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "text/jinja/heap.h"

namespace hunch::jinja {

inline constexpr size_t kMaxTemplateBytes = size_t(1) << 20;

enum class TokenKind : uint8_t {
  Data,
  VariableBegin,
  VariableEnd,
  BlockBegin,
  BlockEnd,
  Name,
  String,
  Integer,
  Float,
  Sign,
  End
};
using enum TokenKind;

struct Token {
  TokenKind kind;
  int line;
  std::string_view text;  // of Data, Name, Sign and numbers: as written; of a String: without quotes, escapes undone
};

// Errors: "chat template line 3: ...".
// The last token is End. What tokens point to lies in `heap`. `source` is UTF-8.
Result<std::vector<Token>> tokenize(std::string_view source, Heap& heap);
Error at_line(int line, std::string_view what);

}
