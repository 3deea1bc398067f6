// Python's two ways to format: "%d of %s" % values and "{} of {}".format(values).

#include <charconv>
#include <cmath>

#include "text/excerpt.h"
#include "text/jinja/interpreter.h"

namespace hunch::jinja {
namespace {

constexpr int64_t kMaxWidth = 1'000'000;

struct Spec {
  bool minus = false, plus = false, space = false, zero = false, alternate = false;
  int64_t width = 0, precision = -1;
};

// Python's exponents have two digits at least, as C's.
std::string real_text(double value, const Spec& spec, char type) {
  if (std::isnan(value)) return type >= 'E' && type <= 'G' ? "NAN" : "nan";
  const double size = std::fabs(value);
  if (std::isinf(size)) return type >= 'E' && type <= 'G' ? "INF" : "inf";
  const int precision = int(std::min<int64_t>(spec.precision < 0 ? 6 : spec.precision, 400));
  switch (type) {
    case 'e': return fmt::format("{:.{}e}", size, precision);
    case 'E': return fmt::format("{:.{}E}", size, precision);
    case 'g': return fmt::format("{:.{}g}", size, std::max(precision, 1));
    case 'G': return fmt::format("{:.{}G}", size, std::max(precision, 1));
    default: return fmt::format("{:.{}f}", size, precision);
  }
}

std::string integer_text(uint64_t size, const Spec& spec, char type) {
  switch (type) {
    case 'x': return fmt::format("{}{:x}", spec.alternate ? "0x" : "", size);
    case 'X': return fmt::format("{}{:X}", spec.alternate ? "0X" : "", size);
    case 'o': return fmt::format("{}{:o}", spec.alternate ? "0o" : "", size);
    default: return std::to_string(size);
  }
}

// A number with its sign, filled up to the width.
void append_number(bool negative, std::string digits, const Spec& spec, TextBuilder& out) {
  const std::string sign = negative ? "-" : spec.plus ? "+" : spec.space ? " " : "";
  const size_t length = sign.size() + digits.size();
  const size_t missing = spec.width > int64_t(length) ? spec.width - length : 0, before = spec.minus ? 0 : missing;
  const bool zeros = spec.zero && !spec.minus;
  if (zeros) out.append(sign);
  for (size_t i = 0; i < before && !out.full(); ++i) out.append(zeros ? "0" : " ");
  if (!zeros) out.append(sign);
  out.append(digits);
  for (size_t i = before; i < missing && !out.full(); ++i) out.append(" ");
}

void append_padded(const Text& whole, const Spec& spec, TextBuilder& out) {
  int64_t length = whole.length();
  size_t end = whole.bytes.size();
  if (spec.precision >= 0 && spec.precision < length) {
    end = whole.byte_of(spec.precision);
    length = spec.precision;
  }
  const int64_t missing = std::max<int64_t>(0, spec.width - length);
  const int64_t before = spec.minus ? 0 : missing;
  for (int64_t i = 0; i < before && !out.full(); ++i) out.append(" ");
  out.append(whole, 0, end);
  for (int64_t i = before; i < missing && !out.full(); ++i) out.append(" ");
}

Result<int64_t> whole_number(const Value& value, char type) {
  if (value.is_int()) return value.as_int();
  if (value.is(Kind::Float) && std::fabs(value.real) < 9e18 && (type == 'd' || type == 'i' || type == 'u'))
    return int64_t(value.real);
  return type_error("%{} format: a number is required, not {}", type, type_name(value));
}

Status append_integer(int64_t value, const Spec& spec, char type, TextBuilder& out) {
  std::string digits = integer_text(value < 0 ? 0 - uint64_t(value) : uint64_t(value), spec, type);
  if (spec.precision > std::ssize(digits)) digits.insert(0, std::min(spec.precision, kMaxWidth) - digits.size(), '0');
  append_number(value < 0, std::move(digits), spec, out);
  return {};
}

class Percent {
 public:
  Percent(Interpreter& in, const Text& format, const Value& arguments)
      : in_(in), format_(format), bytes_(format.bytes), arguments_(arguments) {
    if (arguments.is(Kind::Sequence) && arguments.sequence->kind == Tuple) values_ = arguments.sequence->items;
    else values_ = {&arguments_, 1};
  }

  Result<Value> run() {
    TextBuilder out(in_.text_limit());
    while (at_ < bytes_.size() && !out.full()) {
      const size_t sign = std::min(bytes_.find('%', at_), bytes_.size());
      out.append(format_, at_, sign);
      at_ = sign + 1;
      if (sign < bytes_.size()) HUNCH_OK(one(out));
    }
    // Whatever has elements counts as a mapping here, and a mapping need not be used.
    const bool mapping = arguments_.is(Kind::Dict) || arguments_.is(Kind::Undefined) ||
        (arguments_.is(Kind::Sequence) && arguments_.sequence->indexable() && arguments_.sequence->kind != Tuple);
    if (next_ < values_.size() && !mapping && !out.full())
      return type_error("not all arguments converted during string formatting");
    return in_.finish(out);
  }

 private:
  char peek() const { return at_ < bytes_.size() ? bytes_[at_] : '\0'; }

  Result<Value> take() {
    if (next_ >= values_.size()) return type_error("not enough arguments for format string");
    return values_[next_++];
  }
  Result<int64_t> count() {
    if (peek() == '*') {
      ++at_;
      HUNCH_TRY(const Value value, take());
      if (!value.is_int()) return type_error("* wants int");
      return std::clamp<int64_t>(value.as_int(), -kMaxWidth, kMaxWidth);
    }
    int64_t n = 0;
    for (; peek() >= '0' && peek() <= '9' && n < kMaxWidth; ++at_) n = n * 10 + (peek() - '0');
    return n;
  }

  Status one(TextBuilder& out) {
    std::optional<Value> named;
    if (peek() == '(') {
      const size_t end = bytes_.find(')', at_);
      if (end == bytes_.npos) return type_error("incomplete format key");
      if (!arguments_.is(Kind::Dict)) return type_error("format requires a mapping");
      const std::string_view key = bytes_.substr(at_ + 1, end - at_ - 1);
      const Value* found = arguments_.dict->find(key);
      if (!found) return type_error("no value for the format key {}", excerpt(key));
      named = *found;
      at_ = end + 1;
    }
    Spec spec;
    for (bool more = true; more; at_ += more) {
      const char c = peek();
      if (c == '-') spec.minus = true;
      else if (c == '+') spec.plus = true;
      else if (c == ' ') spec.space = true;
      else if (c == '0') spec.zero = true;
      else if (c == '#') spec.alternate = true;
      else more = false;
    }
    HUNCH_TRY(spec.width, count());
    if (spec.width < 0) spec.width = -spec.width, spec.minus = true;
    if (peek() == '.') {
      ++at_;
      HUNCH_TRY(spec.precision, count());
      spec.precision = std::max<int64_t>(spec.precision, 0);
    }
    const char type = peek();
    if (at_ >= bytes_.size()) return type_error("incomplete format");
    ++at_;
    if (type == '%') {
      out.append("%", format_.trusted);
      return {};
    }
    if (!named) { HUNCH_TRY(named, take()); }
    switch (type) {
      case 's':
      case 'r': {
        TextBuilder shown(in_.text_limit());
        HUNCH_OK(type == 's' ? append_str(*named, shown) : append_repr(*named, shown));
        append_padded(shown.finish(in_.heap()), spec, out);
        return {};
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        HUNCH_TRY(const int64_t value, whole_number(*named, type));
        return append_integer(value, spec, type, out);
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (!named->is_number()) return type_error("must be real number, not {}", type_name(*named));
        const double value = named->as_real();
        append_number(std::signbit(value) && !std::isnan(value), real_text(value, spec, type), spec, out);
        return {};
      }
      case 'c':
        if (named->is(Kind::String) && named->text->length() == 1) {
          append_padded(*named->text, spec, out);
          return {};
        }
        return type_error("%c requires a character");
      default: return type_error("unsupported format character '{}'", type);
    }
  }

  Interpreter& in_;
  const Text& format_;
  std::string_view bytes_;
  const Value arguments_;
  std::span<const Value> values_;
  size_t at_ = 0, next_ = 0;
};

}

Result<Value> format_percent(Interpreter& in, const Text& format, const Value& arguments) {
  return Percent(in, format, arguments).run();
}

Result<Value> format_braces(Interpreter& in, const Value& format, const Arguments& args) {
  const std::string_view bytes = format.bytes();
  TextBuilder out(in.text_limit());
  size_t automatic = 0;
  bool numbered = false;
  for (size_t at = 0; at < bytes.size() && !out.full();) {
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.append(*format.text, at, brace);
    if (brace == bytes.size()) break;
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.append(*format.text, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    if (bytes[brace] == '}') return type_error("single '}' encountered in format string");
    const size_t end = bytes.find_first_of("{}", brace + 1);
    if (end == bytes.npos || bytes[end] == '{') return type_error("nested or unclosed '{' in a format string is not supported");
    std::string_view field = bytes.substr(brace + 1, end - brace - 1);
    if (field.find(':') != field.npos)
      return type_error("the layout in the format field {} is not supported; use % or a filter", excerpt(field));
    char conversion = 0;
    if (const size_t mark = field.find('!'); mark != field.npos) {
      if (field.size() != mark + 2 || (field[mark + 1] != 'r' && field[mark + 1] != 's'))
        return type_error("this conversion of a format string is not supported");
      conversion = field[mark + 1];
      field = field.substr(0, mark);
    }
    const size_t name_end = std::min(field.find_first_of(".["), field.size());
    const std::string_view name = field.substr(0, name_end);
    std::optional<Value> value;
    size_t index = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), index);
    if (name.empty()) index = automatic++;
    else numbered |= read.ptr == name.data() + name.size();
    if (numbered && automatic > 0) return type_error("cannot mix numbered and unnumbered fields of a format string");
    if (name.empty() || read.ptr == name.data() + name.size()) {
      if (index < args.positional.size()) value = args.positional[index];
    } else {
      for (const auto& [known, given] : args.named)
        if (known == name) value = given;
    }
    if (!value) return type_error("no argument for the format field {}", excerpt(field));
    for (std::string_view rest = field.substr(name_end); !rest.empty();) {
      const bool dotted = rest[0] == '.';
      const size_t stop = dotted ? std::min(rest.find_first_of(".[", 1), rest.size()) : rest.find(']');
      if (stop == rest.npos) return type_error("missing ']' in format string");
      const std::string_view part = rest.substr(1, stop - 1);
      int64_t place = 0;
      const bool number =
          !part.empty() && std::from_chars(part.data(), part.data() + part.size(), place).ptr == part.data() + part.size();
      HUNCH_TRY(value, dotted ? in.attribute(*value, part) : in.item(*value, number ? Value::of(place) : in.text(part)));
      rest = rest.substr(dotted ? stop : stop + 1);
    }
    if (conversion) {
      TextBuilder shown(in.text_limit());
      HUNCH_OK(conversion == 'r' ? append_repr(*value, shown) : append_str(*value, shown));
      HUNCH_TRY(value, in.finish(shown));
    }
    HUNCH_OK(append_str(*value, out));
    at = end + 1;
  }
  return in.finish(out);
}

}
