// One pass: text up to the next tag, the tag's tokens, and what the tag's signs make of the white space around it.
#include "text/jinja/lexer.h"

#include "base/failure.h"
#include "text/excerpt.h"
#include "text/jinja/python_text.h"
#include "text/jinja/value.h"

namespace hunch::jinja {
namespace {

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")",
    "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// \r\n, \r and \n are line ends; the last one of the template does not count.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

// Python's "unicode-escape" of the ASCII form: a character beyond ASCII is its own escape there.
class Unescaper {
 public:
  explicit Unescaper(std::string_view in) : in_(in) {}

  // Nothing on success; else what is wrong.
  std::string run(std::string& out) {
    while (at_ < in_.size()) {
      if (in_[at_] != '\\') {
        out += in_[at_++];
        continue;
      }
      ++at_;  // a string never ends with a single backslash
      const char c = in_[at_++];
      if (const size_t plain = std::string_view("abfnrtv\\'\"").find(c); plain != std::string_view::npos) {
        out += "\a\b\f\n\r\t\v\\'\""[plain];
      } else if (c == '\n') {
        continue;
      } else if (c >= '0' && c <= '7') {
        uint32_t code = uint32_t(c - '0');
        for (int i = 0; i < 2 && at_ < in_.size() && in_[at_] >= '0' && in_[at_] <= '7'; ++i)
          code = code * 8 + uint32_t(in_[at_++] - '0');
        append_utf8(code, out);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        uint32_t code = 0;
        if (!hex(c == 'x' ? 2 : c == 'u' ? 4 : 8, code)) return fmt::format("the escape \\{} needs more hexadecimal digits", c);
        if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return fmt::format("no character has the code {:x}", code);
        append_utf8(code, out);
      } else if (c == 'N') {
        return "the escape \\N{...} is not supported";
      } else if (uint8_t(c) >= 0x80) {
        const Utf8Step step = utf8_step(in_.substr(at_ - 1));
        out += step.code < 0x100  ? fmt::format("\\x{:02x}", step.code)
            : step.code < 0x10000 ? fmt::format("\\u{:04x}", step.code)
                                  : fmt::format("\\U{:08x}", step.code);
        at_ += step.length - 1;
      } else {
        (out += '\\') += c;
      }
    }
    return {};
  }

 private:
  bool hex(int digits, uint32_t& code) {
    for (; digits > 0; --digits, ++at_) {
      if (at_ >= in_.size()) return false;
      const char c = char(in_[at_] | 0x20);
      if (!is_digit(in_[at_]) && (c < 'a' || c > 'f')) return false;
      code = code * 16 + uint32_t(is_digit(in_[at_]) ? in_[at_] - '0' : c - 'a' + 10);
    }
    return true;
  }

  std::string_view in_;
  size_t at_ = 0;
};

class Lexer {
 public:
  Lexer(std::string_view source, Heap& heap) : in_(source), heap_(heap) {}

  Status run() {
    while (at_ < in_.size()) HUNCH_OK(root());
    push(End, in_.size(), 0);
    return {};
  }
  std::vector<Token> take() { return std::move(tokens_); }

 private:
  // Lines are counted as the tokens go by: their places never go back.
  int line_of(size_t at) {
    line_ += int(std::count(in_.begin() + counted_, in_.begin() + ptrdiff_t(std::max(at, counted_)), '\n'));
    counted_ = std::max(at, counted_);
    return line_;
  }
  void push(TokenKind kind, size_t begin, size_t length) {
    const int line = line_of(begin);
    tokens_.push_back({kind, line, in_.substr(begin, length)});
  }
  Error error(std::string_view what) { return at_line(line_of(std::min(at_, in_.size())), what); }
  bool here(std::string_view text) const { return in_.substr(at_, text.size()) == text; }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  // Text [at_, end) before a tag with this sign behind its opening.
  void data(size_t end, char sign, bool variable) {
    std::string_view text = in_.substr(at_, end - at_);
    if (sign == '-') {
      text = text.substr(0, space_at_end(text));
    } else if (sign != '+' && !variable) {
      const size_t newline = text.rfind('\n');
      const size_t start = newline == in_.npos ? 0 : newline + 1;
      if ((start > 0 || line_starting_) && skip_space(text, start) == text.size()) text = text.substr(0, start);
    }
    if (!text.empty()) push(Data, at_, text.size());
  }

  // Moves behind a closing tag of `length` bytes at `at`; what stands before it says how much white space goes with it.
  void close(size_t at, size_t length, char sign, bool trims) {
    at_ = at + length;
    if (sign == '-') at_ = skip_space(in_, at_);
    else if (sign != '+' && trims && peek() == '\n') ++at_;
    line_starting_ = at_ > 0 && in_[at_ - 1] == '\n';
  }

  Status root() {
    size_t tag = at_;
    while ((tag = in_.find('{', tag)) != in_.npos && tag + 1 < in_.size() && in_[tag + 1] != '%' && in_[tag + 1] != '#' &&
        in_[tag + 1] != '{')
      ++tag;
    if (tag == in_.npos || tag + 1 >= in_.size()) {
      push(Data, at_, in_.size() - at_);
      at_ = in_.size();
      return {};
    }
    const char kind = in_[tag + 1];
    const char next = tag + 2 < in_.size() ? in_[tag + 2] : '\0';
    const char sign = next == '-' || next == '+' ? next : '\0';
    const size_t inside = tag + 2 + (sign != '\0');
    data(tag, sign, kind == '{');
    at_ = inside;
    if (kind == '#') return comment();
    if (kind == '%') {
      if (const size_t end = raw_end(inside); end > 0) return raw(end);
    }
    push(kind == '{' ? VariableBegin : BlockBegin, tag, 2);
    return inner(kind == '{');
  }

  // Behind `raw %}` if that is what stands at `at`, else 0.
  size_t raw_end(size_t at) const {
    at = skip_space(in_, at);
    if (in_.substr(at, 3) != "raw") return 0;
    at = skip_space(in_, at + 3);
    if (in_.substr(at, 2) == "%}") return at + 2;
    return in_.substr(at, 3) == "-%}" ? skip_space(in_, at + 3) : 0;
  }

  Status raw(size_t begin) {
    at_ = begin;
    line_starting_ = in_[begin - 1] == '\n';
    for (size_t tag = begin; (tag = in_.find("{%", tag)) != in_.npos; ++tag) {
      const char next = tag + 2 < in_.size() ? in_[tag + 2] : '\0';
      const char sign = next == '-' || next == '+' ? next : '\0';
      size_t at = skip_space(in_, tag + 2 + (sign != '\0'));
      if (in_.substr(at, 6) != "endraw") continue;
      at = skip_space(in_, at + 6);
      const char last = at < in_.size() ? in_[at] : '\0';
      const size_t end = at + (last == '-' || last == '+');
      if (in_.substr(end, 2) != "%}") continue;
      data(tag, sign, false);
      close(end, 2, last, true);
      return {};
    }
    return error("{% raw %} has no {% endraw %}");
  }

  Status comment() {
    const size_t end = in_.find("#}", at_);
    if (end == in_.npos) return error("a comment {# has no end #}");
    close(end, 2, end > at_ ? in_[end - 1] : '\0', true);
    return {};
  }

  // The tokens of one tag.
  Status inner(bool variable) {
    std::vector<char> open;
    while (at_ < in_.size()) {
      if (open.empty()) {
        const std::string_view mark = variable ? "}}" : "%}";
        const bool sign = peek() == '-' || (!variable && peek() == '+');
        if (in_.substr(at_ + sign, 2) == mark) {
          push(variable ? VariableEnd : BlockEnd, at_, 2 + sign);
          close(at_ + sign, 2, sign ? peek() : '\0', !variable);
          return {};
        }
      }
      if (const size_t end = skip_space(in_, at_); end > at_) {
        at_ = end;
        continue;
      }
      if (is_digit(peek())) {
        HUNCH_OK(number());
        continue;
      }
      if (const size_t end = word_end(); end > at_) {
        push(Name, at_, end - at_);
        at_ = end;
        continue;
      }
      if (peek() == '\'' || peek() == '"') {
        HUNCH_OK(string());
        continue;
      }
      HUNCH_OK(symbol(open));
    }
    return error(variable ? "{{ has no end }}" : "{% has no end %}");
  }

  size_t word_end() const {
    size_t end = at_;
    each_character(in_.substr(at_), [&](std::string_view character, uint32_t code) {
      if (!is_word(code)) return false;
      end += character.size();
      return true;
    });
    return end;
  }

  // Digits with single underscores between them, from `from` on.
  size_t digits_end(size_t from) const {
    size_t end = from;
    while (end < in_.size() &&
        (is_digit(in_[end]) || (in_[end] == '_' && end > from && end + 1 < in_.size() && is_digit(in_[end + 1]))))
      ++end;
    return end;
  }

  Status number() {
    const size_t whole = digits_end(at_);
    size_t end = whole;
    bool real = false;
    if (at_ == 0 || in_[at_ - 1] != '.') {
      if (end < in_.size() && in_[end] == '.' && end + 1 < in_.size() && is_digit(in_[end + 1])) {
        end = digits_end(end + 1);
        real = true;
      }
      if (end < in_.size() && (in_[end] == 'e' || in_[end] == 'E')) {
        size_t exponent = end + 1;
        if (exponent < in_.size() && (in_[exponent] == '+' || in_[exponent] == '-')) ++exponent;
        if (exponent < in_.size() && is_digit(in_[exponent])) {
          end = digits_end(exponent);
          real = true;
        }
      }
    }
    if (!real && in_[at_] == '0') {  // bases, and a zero that stands alone
      const char base = char(peek(1) | 0x20);
      const auto digit = [&](char c) {
        const char l = char(c | 0x20);
        return base == 'b' ? c == '0' || c == '1' : base == 'o' ? c >= '0' && c <= '7' : is_digit(c) || (l >= 'a' && l <= 'f');
      };
      if ((base == 'b' || base == 'o' || base == 'x') && digit(peek(2))) {
        end = at_ + 2;
        while (end < in_.size() && (digit(in_[end]) || (in_[end] == '_' && end + 1 < in_.size() && digit(in_[end + 1])))) ++end;
      } else {
        for (size_t i = at_; i < whole; ++i)
          if (in_[i] != '0' && in_[i] != '_') return error("an integer begins with 0");
      }
    }
    push(real ? Float : Integer, at_, end - at_);
    at_ = end;
    return {};
  }

  Status string() {
    const char quote = in_[at_];
    size_t end = at_ + 1;
    bool escapes = false;
    for (; end < in_.size() && in_[end] != quote; ++end)
      if (in_[end] == '\\') ++end, escapes = true;
    if (end >= in_.size()) return error("a string has no end");
    push(String, at_, end + 1 - at_);
    tokens_.back().text = in_.substr(at_ + 1, end - at_ - 1);
    if (escapes) {
      std::string undone;
      if (const std::string wrong = Unescaper(tokens_.back().text).run(undone); !wrong.empty()) return error(wrong);
      tokens_.back().text = heap_.copy(std::string_view(undone));
    }
    at_ = end + 1;
    return {};
  }

  Status symbol(std::vector<char>& open) {
    const auto found = std::ranges::find_if(kOperators, [&](std::string_view o) { return here(o); });
    if (found == std::end(kOperators)) return error(fmt::format("unexpected character {}", excerpt(in_.substr(at_), 1)));
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') {
      open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      if (open.size() > kMaxDepth) return error(fmt::format("template nested deeper than {}", kMaxDepth));
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) return error(fmt::format("unexpected '{}'", c));
      if (open.back() != c) return error(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    push(Sign, at_, found->size());
    at_ += found->size();
    return {};
  }

  std::string_view in_;
  Heap& heap_;
  std::vector<Token> tokens_;
  size_t at_ = 0, counted_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
};

}

Result<std::vector<Token>> tokenize(std::string_view source, Heap& heap) {
  Lexer lexer(heap.copy(std::string_view(normalized(source))), heap);
  HUNCH_OK(lexer.run());
  return lexer.take();
}

Error at_line(int line, std::string_view what) { return failure("chat template line {}: {}", line, what); }

}
