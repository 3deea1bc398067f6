#include "text/dialects.h"

#include <algorithm>
#include <cctype>

namespace hunch {
namespace {

// Behind the end of the class or string that begins at `at`.
size_t end_of(std::string_view text, size_t at, char end) {
  for (++at; at < text.size() && text[at] != end;) at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

}

std::string plain_ebnf(std::string_view gbnf) {
  std::string out;
  bool begins = false;  // an alternative, in which nothing stands yet
  const auto of_name = [&](size_t at) {
    return at < gbnf.size() && (std::isalnum(static_cast<unsigned char>(gbnf[at])) || gbnf[at] == '_' || gbnf[at] == '-');
  };
  for (size_t at = 0; at < gbnf.size();) {
    const char c = gbnf[at];
    if (c == '#' || std::isspace(static_cast<unsigned char>(c))) {
      const size_t end = c == '#' ? std::min(gbnf.find('\n', at), gbnf.size()) : at + 1;
      out += gbnf.substr(at, end - at), at = end;
      continue;
    }
    if (begins && (c == '|' || c == ')')) out += "\"\" ";
    begins = c == '|' || c == '(' || c == '=';
    if (c == '"' || c == '[') {
      const size_t end = end_of(gbnf, at, c == '"' ? '"' : ']');
      for (; at < end; ++at) {
        const bool escape = gbnf[at] == '\\' && at + 1 < end;
        if (!escape || c != '"' || (gbnf[at + 1] != '[' && gbnf[at + 1] != ']')) out += gbnf[at];
        if (escape) out += gbnf[++at];
      }
    } else if (c == '.' && !of_name(at + 1) && (at == 0 || !of_name(at - 1))) {
      out += "[\\x00-\\U0010ffff]", ++at;
    } else {
      out += c, ++at;
      const size_t next = gbnf.find_first_not_of(" \t\r\n", at);
      if (c == '{' && next != gbnf.npos && gbnf[next] == ',') out += '0';
    }
  }
  return begins ? out + " \"\"" : out;
}

std::string plain_regex(std::string_view regex) {
  std::string out;
  for (size_t at = 0; at < regex.size();) {
    const char c = regex[at];
    const std::string_view part = regex.substr(at, c == '[' ? end_of(regex, at, ']') - at : c == '\\' ? 2 : 1);
    out += c == '.' ? std::string_view("[^\\n]") : part;
    at += part.size();
  }
  return out;
}

}
