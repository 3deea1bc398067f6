#include "api/call_json.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace hunch {
namespace {

constexpr size_t kMostKeyBytes = 256;  // of keys and names; the longest that clients accept is 64

std::string unescaped(const std::string& written) {
  const auto parsed = nlohmann::json::parse('"' + written + '"', nullptr, false);
  return parsed.is_string() ? parsed.get<std::string>() : written;
}

}

size_t CallJson::feed(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && !over()) take(text[at++]);
  return at;
}

std::string CallJson::take_arguments() { return std::exchange(arguments_, {}); }

void CallJson::begin_string() {
  in_string_ = true;
  if (depth_ != 1) return;
  text_.clear();
  if (expect_ == Expect::Key) part_ = Part::Key;
  else if (expect_ == Expect::Value && key_ == "name") part_ = Part::Name;
  else if (expect_ == Expect::Value && argument_key()) part_ = Part::QuotedArguments, arguments_begun_ = true;
  else part_ = Part::None;
}

void CallJson::end_string() {
  in_string_ = false;
  if (depth_ != 1) return;
  if (part_ == Part::Key) key_ = unescaped(text_), expect_ = Expect::Colon;
  else expect_ = Expect::Comma;
  if (part_ == Part::Name) name_ = unescaped(text_), broken_ = name_.empty();
  if (part_ == Part::QuotedArguments) arguments_ += unescaped(text_);
  part_ = Part::None;
}

void CallJson::take(char c) {
  const bool inside = part_ == Part::Arguments;
  if (inside) arguments_ += c;
  if (in_string_) {
    if (!escaped_ && c == '"') return end_string();
    escaped_ = !escaped_ && c == '\\';
    if (inside || part_ == Part::None) return;
    text_ += c;
    if (part_ != Part::QuotedArguments && text_.size() > kMostKeyBytes) broken_ = true;
    return;
  }
  switch (c) {
    case '"': return begin_string();
    case '{':
    case '[':
      if (depth_ == 0 && c == '[') broken_ = true;
      if (depth_ == 1 && expect_ == Expect::Value && argument_key() && !arguments_begun_)
        part_ = Part::Arguments, arguments_begun_ = true, arguments_ += c;
      ++depth_;
      return;
    case '}':
    case ']':
      if (--depth_ == 1) part_ = Part::None, expect_ = Expect::Comma;
      closed_ = depth_ <= 0;
      return;
    case ':':
      if (depth_ == 1) expect_ = Expect::Value;
      return;
    case ',':
      if (depth_ == 1) expect_ = Expect::Key;
      return;
    case '<': broken_ = true; return;  // a mark of the template: the object was left unfinished
    default:
      if (depth_ == 0 && c != ' ' && c != '\n' && c != '\t' && c != '\r') broken_ = true;
  }
}

}
