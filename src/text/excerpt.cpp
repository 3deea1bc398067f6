#include "text/excerpt.h"

#include <fmt/format.h>

#include "text/unicode.h"

namespace hunch {

std::string excerpt(std::string_view text, size_t characters) {
  std::string out = "\"";
  while (!text.empty() && characters-- > 0) {
    const Utf8Step step = utf8_step(text);
    const uint8_t first = uint8_t(text[0]);
    if (step.kind == Utf8Step::Kind::Character && step.code >= 0x20 && (step.code < 0x7F || step.code >= 0xA0)) {
      out += text.substr(0, step.length);
    } else if (first == '\n' || first == '\t' || first == '\r') {
      out += first == '\n' ? "\\n" : first == '\t' ? "\\t" : "\\r";
    } else {
      for (const char byte : text.substr(0, step.length)) out += fmt::format("\\x{:02X}", uint8_t(byte));
    }
    text.remove_prefix(step.length);
  }
  return out + (text.empty() ? "\"" : "...\"");
}

}
