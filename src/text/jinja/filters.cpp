// Filters over one value: text, numbers, JSON. Those over sequences are in filters_lists.cpp, the table is there too.
#include "text/jinja/filters.h"

#include <charconv>
#include <cmath>

#include "text/jinja/python_text.h"

namespace hunch::jinja {
namespace {

// Python's int(text, base) and float(text): white space around, a sign, single underscores between digits.
struct Digits {
  std::string digits;
  bool negative;
};
std::optional<Digits> digits_of(std::string_view text) {
  text = text.substr(0, space_at_end(text));
  text.remove_prefix(skip_space(text, 0));
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') out += text[i];
    else if (i == 0 || i + 1 == text.size() || !std::isalnum(uint8_t(text[i - 1])) || !std::isalnum(uint8_t(text[i + 1])))
      return {};
  }
  const bool negative = out.starts_with('-');
  if (negative || out.starts_with('+')) out.erase(0, 1);
  return Digits{std::move(out), negative};
}

std::optional<double> parse_real(std::string_view text) {
  const auto number = digits_of(text);
  if (!number) return {};
  std::string_view rest = number->digits;
  if (rest.empty() || rest[0] == '-' || rest[0] == '+' || rest.starts_with("nan(")) return {};
  double value = 0;
  const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (read.ptr != rest.data() + rest.size() || read.ec == std::errc::invalid_argument) return {};
  if (read.ec == std::errc::result_out_of_range)
    value = rest.find("e-") != rest.npos || rest.find("E-") != rest.npos ? 0.0 : HUGE_VAL;
  return number->negative ? -value : value;
}

std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  const auto number = digits_of(text);
  if (!number) return {};
  std::string_view rest = number->digits;
  if (rest.size() > 2 && rest[0] == '0') {
    const char letter = char(rest[1] | 0x20);
    const int64_t meant = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (meant && (base == meant || base == 0)) rest.remove_prefix(2), base = meant;
  }
  if (base == 0) base = 10;
  if (rest.empty() || rest[0] == '-' || base < 2 || base > 36) return {};
  int64_t value = 0;
  const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), value, int(base));
  if (read.ec != std::errc() || read.ptr != rest.data() + rest.size()) return {};
  return number->negative ? -value : value;
}

std::optional<Value> truncated(double value) {
  if (!std::isfinite(value) || std::fabs(value) >= 9.2e18) return {};
  return Value::of(int64_t(value));
}

}

namespace filters {

using enum Kind;

Result<Value> to_int(In, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'int'", {"default", "base"}));
  HUNCH_TRY(const int64_t base, params.integer(1, 10));
  const Value otherwise = params[0] ? *params[0] : Value::of(int64_t(0));
  std::optional<Value> out;
  if (value.is(Undefined)) return undefined_error(value);
  if (value.is_int()) out = Value::of(value.as_int());
  if (value.is(Float)) out = truncated(value.real);
  if (value.is(String)) {
    if (const auto whole = parse_integer(value.bytes(), base)) out = Value::of(*whole);
    else if (const auto real = parse_real(value.bytes())) out = truncated(*real);
  }
  return out ? *out : otherwise;
}

Result<Value> to_float(In, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'float'", {"default"}));
  if (value.is(Undefined)) return undefined_error(value);
  if (value.is_number()) return Value::of(value.as_real());
  if (value.is(String))
    if (const auto real = parse_real(value.bytes())) return Value::of(*real);
  return params[0] ? *params[0] : Value::of(0.0);
}

Result<Value> absolute(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the filter 'abs'"));
  if (value.is(Float)) return Value::of(std::fabs(value.real));
  if (!value.is_int()) return type_error("bad operand type for abs(): '{}'", type_name(value));
  return value.as_int() < 0 ? in.arithmetic(Operator::Sub, Value::of(int64_t(0)), value) : Value::of(value.as_int());
}

// Half to even of the exact decimal value, as Python rounds.
Result<Value> round(In, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'round'", {"precision", "method"}));
  HUNCH_TRY(const int64_t precision, params.integer(0, 0));
  const Text common{.bytes = "common"};
  HUNCH_TRY(const Text* method, params.text(1, &common));
  if (!value.is_number()) return type_error("type {} doesn't define __round__ method", type_name(value));
  if (method->bytes == "ceil" || method->bytes == "floor") {
    const double scale = std::pow(10.0, double(precision));
    const double scaled = value.as_real() * scale;
    return Value::of((method->bytes == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (method->bytes != "common") return type_error("method must be common, ceil or floor");
  if (value.is_int() && precision >= 0) return Value::of(value.as_int());
  if (precision < 0) {
    const double scale = std::pow(10.0, double(-precision));
    const double rounded = std::nearbyint(value.as_real() / scale) * scale;
    if (!(std::fabs(rounded) < 9e18)) return type_error("a number is too large to be rounded so");
    return value.is_int() ? Value::of(int64_t(rounded)) : Value::of(rounded);
  }
  if (!std::isfinite(value.real) || precision > 300) return value;
  const auto shown = fmt::format("{:.{}f}", value.real, int(precision));
  double out = 0;
  std::from_chars(shown.data(), shown.data() + shown.size(), out);
  return Value::of(out);
}

Result<Value> string(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the filter 'string'"));
  return in.str(value);
}

// Filters that are a method of str.
Result<Value> by_method(In in, const Value& value, Args args, std::string_view name) {
  HUNCH_TRY(const Value text, in.str(value));
  return find_method(text, name)(in, text, args);
}
Result<Value> lower(In in, const Value& value, Args args) { return by_method(in, value, args, "lower"); }
Result<Value> upper(In in, const Value& value, Args args) { return by_method(in, value, args, "upper"); }
Result<Value> capitalize(In in, const Value& value, Args args) { return by_method(in, value, args, "capitalize"); }
Result<Value> trim(In in, const Value& value, Args args) { return by_method(in, value, args, "strip"); }

Result<Value> replace(In in, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'replace'", {"old", "new", "count"}));
  std::vector<Value> given;
  for (size_t i = 0; i < 2; ++i) {
    if (!params[i]) return type_error("the filter 'replace' needs two arguments");
    HUNCH_TRY(given.emplace_back(), in.str(*params[i]));
  }
  if (params.given(2)) given.push_back(*params[2]);
  return by_method(in, value, {given, {}}, "replace");
}

// A word begins at the start and behind a hyphen, white space or an opening bracket.
Result<Value> title(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the filter 'title'"));
  HUNCH_TRY(const Value text, in.str(value));
  std::string out;
  bool begins = true;
  each_character(text.bytes(), [&](std::string_view character, uint32_t code) {
    out += with_case(character, begins ? Case::Upper : Case::Lower);
    begins = is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
    return true;
  });
  HUNCH_OK(in.spend(1 + int64_t(out.size() / 64)));
  return in.text(out, text.text->runs.empty() && text.text->trusted);
}

Result<Value> indent(In in, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'indent'", {"width", "first", "blank"}));
  if (!value.is(String)) return type_error("the filter 'indent' takes a string, not {}", type_name(value));
  Text indention{.trusted = true};
  std::string spaces;
  if (params[0] && params[0]->is(String)) {
    indention = *params[0]->text;
  } else {
    HUNCH_TRY(const int64_t width, params.integer(0, 4));
    if (width > int64_t(in.text_limit())) return type_error("the filter 'indent' is too wide");
    spaces.assign(std::max<int64_t>(0, width), ' ');
    indention.bytes = spaces;
  }
  TextBuilder with_newline(in.text_limit());
  with_newline.append(*value.text);
  with_newline.append("\n");  // so that a last empty line counts
  HUNCH_TRY(const Value whole, in.finish(with_newline));
  HUNCH_TRY(const Value split, find_method(whole, "splitlines")(in, whole, {}));
  const auto lines = split.sequence->items;
  TextBuilder out(in.text_limit());
  if (params.flag(1)) out.append(indention);
  for (size_t i = 0; i < lines.size() && !out.full(); ++i) {
    if (i > 0) out.append("\n");
    if (i > 0 && (params.flag(2) || !lines[i].bytes().empty())) out.append(indention);
    out.append(*lines[i].text);
  }
  return in.finish(out);
}

Result<Value> format(In in, const Value& value, Args args) {
  HUNCH_TRY(const Value text, in.str(value));
  if (!args.positional.empty() && !args.named.empty())
    return type_error("can't handle positional and keyword arguments at the same time");
  if (args.named.empty()) {
    HUNCH_TRY(const Value all, in.list({args.positional.begin(), args.positional.end()}, Tuple));
    return format_percent(in, *text.text, all);
  }
  DictBuilder names(in.heap());
  for (const auto& [name, given] : args.named) HUNCH_OK(names.set(in.text(name, true), given));
  HUNCH_TRY(const Value all, names.finish());
  return format_percent(in, *text.text, all);
}

Result<Value> marked(In in, const Text& text) {
  Text out = text;
  out.markup = true;
  return make_text(in.heap(), out);
}

Result<Value> safe(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the filter 'safe'"));
  HUNCH_TRY(const Value text, in.str(value));
  return marked(in, *text.text);
}

Result<Value> escape(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the filter 'escape'"));
  HUNCH_TRY(const Value text, in.str(value));
  if (text.text->markup) return text;
  // Joining with a text that is marked already is what escapes.
  HUNCH_TRY(const Value empty, marked(in, Text{.trusted = true}));
  return in.arithmetic(Operator::Add, empty, text);
}

Result<Value> tojson(In in, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'tojson'", {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ascii = params.flag(0);
  style.sort_keys = params.flag(3);
  if (params.given(1)) {
    style.lines = true;
    style.item_separator.assign(1, ',');
    if (params[1]->is(String)) {
      style.indent = params[1]->bytes();
    } else {
      HUNCH_TRY(const int64_t width, params.integer(1, 0));
      if (width > int64_t(in.text_limit())) return type_error("the indent of 'tojson' is too wide");
      style.indent.assign(std::max<int64_t>(0, width), ' ');
    }
  }
  if (params.given(2)) {
    HUNCH_TRY(const auto pair, in.iterate(*params[2]));
    if (pair.size() != 2 || !pair[0].is(String) || !pair[1].is(String))
      return type_error("'separators' of 'tojson' are two strings");
    style.item_separator = pair[0].bytes();
    style.key_separator = pair[1].bytes();
  }
  TextBuilder out(in.text_limit());
  HUNCH_OK(append_json(value, style, 0, out));
  return in.finish(out);
}

Result<Value> otherwise(In in, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'default'", {"default_value", "boolean"}));
  if (!value.is(Undefined) && !(params.flag(1) && !truth(value))) return value;
  return params[0] ? *params[0] : in.text("", true);
}

}
}
