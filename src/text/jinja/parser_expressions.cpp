// See parser.h: expressions, one function for each level of precedence.
#include <fmt/format.h>

#include <charconv>

#include "text/excerpt.h"
#include "text/jinja/parser.h"

namespace hunch::jinja {

using enum Operator;

ExprResult Parser::make(Expr expr) {
  const auto higher = [&](const Expr* part) {
    if (part) expr.height = std::max(expr.height, part->height + 1);
  };
  for (const Expr* part : expr.parts) higher(part);
  for (const Operand& operand : expr.chain) higher(operand.right);
  if (expr.args) {
    for (const Expr* part : expr.args->positional) higher(part);
    for (const Keyword& keyword : expr.args->named) higher(keyword.value);
    higher(expr.args->list);
    higher(expr.args->dict);
  }
  if (expr.height > kMaxDepth) return too_deep();
  return heap_.make<Expr>(expr);
}

ExprResult Parser::make(ExprKind kind, int line, const std::vector<const Expr*>& parts, Expr rest) {
  rest.kind = kind, rest.line = line, rest.parts = heap_.copy(parts);
  return make(rest);
}

const Expr* Parser::literal(const Value& value) {
  return heap_.make<Expr>(Expr{.kind = ExprKind::Literal, .line = current().line, .value = value});
}

ExprResult Parser::expression(bool with_ternary) { return with_ternary ? ternary() : either(); }

// One expression, or a tuple if commas follow. `end`: a name that ends it too.
ExprResult Parser::tuple(bool with_ternary, bool parentheses, std::string_view end) {
  const int line = current().line;
  std::vector<const Expr*> parts;
  bool is_tuple = false;
  while (true) {
    if (!parts.empty()) HUNCH_OK(expect_op(","));
    if (current().kind == VariableEnd || current().kind == BlockEnd || is_op(")") || (!end.empty() && is_name(end))) break;
    HUNCH_TRY(parts.emplace_back(), expression(with_ternary));
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !parts.empty()) return parts[0];
  if (!is_tuple && !parentheses) return unexpected("an expression");
  return make(ExprKind::Tuple, line, parts);
}

ExprResult Parser::ternary() {
  const Deeper deeper(depth_);
  if (depth_ > kMaxDepth) return too_deep();
  const int line = current().line;
  HUNCH_TRY(const Expr* then, either());
  while (skip_name("if")) {
    ++conditions_;
    HUNCH_TRY(const Expr* test, either());
    const Expr* otherwise = nullptr;
    if (skip_name("else")) { HUNCH_TRY(otherwise, ternary()); }
    --conditions_;
    HUNCH_TRY(then, make(ExprKind::Ternary, line, {test, then, otherwise}));
  }
  return then;
}

// Operands of one word or sign side by side, as one node however many.
ExprResult Parser::joined(ExprKind kind, std::string_view by, Rule Parser::*below) {
  const int line = current().line;
  const auto goes_on = [&] { return kind == ExprKind::Concat ? skip_op(by) : skip_name(by); };
  HUNCH_TRY(const Expr* first, (this->*below)());
  std::vector<const Expr*> parts = {first};
  while (goes_on()) { HUNCH_TRY(parts.emplace_back(), (this->*below)()); }
  if (parts.size() == 1) return first;
  return make(kind, line, parts);
}

ExprResult Parser::either() { return joined(ExprKind::Or, "or", &Parser::both); }
ExprResult Parser::both() { return joined(ExprKind::And, "and", &Parser::negation); }
ExprResult Parser::concat() { return joined(ExprKind::Concat, "~", &Parser::product); }

ExprResult Parser::negation() {
  const Deeper deeper(depth_);
  if (depth_ > kMaxDepth) return too_deep();
  if (!is_name("not")) return comparison();
  const int line = current().line;
  next();
  HUNCH_TRY(const Expr* inner, negation());
  return make(ExprKind::Not, line, {inner});
}

ExprResult Parser::comparison() {
  constexpr std::pair<std::string_view, Operator> kOps[] = {{"==", Eq}, {"!=", Ne}, {"<", Lt}, {"<=", Le}, {">", Gt}, {">=", Ge}};
  const int line = current().line;
  HUNCH_TRY(const Expr* first, sum());
  std::vector<Operand> chain;
  while (true) {
    std::optional<Operator> op;
    for (const auto& [text, value] : kOps)
      if (is_op(text)) op = value;
    if (is_name("in")) op = In;
    if (is_name("not") && ahead().kind == Name && ahead().text == "in") {
      op = NotIn;
      next();
    }
    if (!op) break;
    next();
    HUNCH_TRY(const Expr* right, sum());
    chain.push_back({*op, right});
  }
  if (chain.empty()) return first;
  return make(ExprKind::Compare, line, {first}, {.chain = heap_.copy(chain)});
}

// A level of left-associative arithmetic over the level below, as one node however long.
ExprResult Parser::arithmetic(Rule Parser::*below, std::span<const std::pair<std::string_view, Operator>> ops) {
  const int line = current().line;
  HUNCH_TRY(const Expr* first, (this->*below)());
  std::vector<Operand> chain;
  while (current().kind == Sign) {
    const auto op = std::ranges::find_if(ops, [&](const auto& known) { return is_op(known.first); });
    if (op == ops.end()) break;
    next();
    HUNCH_TRY(const Expr* right, (this->*below)());
    chain.push_back({op->second, right});
  }
  if (chain.empty()) return first;
  return make(ExprKind::Arith, line, {first}, {.chain = heap_.copy(chain)});
}

ExprResult Parser::sum() {
  static constexpr std::pair<std::string_view, Operator> kOps[] = {{"+", Add}, {"-", Sub}};
  return arithmetic(&Parser::concat, kOps);
}

ExprResult Parser::product() {
  static constexpr std::pair<std::string_view, Operator> kOps[] = {{"*", Mul}, {"/", Div}, {"//", FloorDiv}, {"%", Mod}};
  return arithmetic(&Parser::power, kOps);
}

// jinja2 has ** from left to right, unlike Python.
ExprResult Parser::power() {
  static constexpr std::pair<std::string_view, Operator> kOps[] = {{"**", Pow}};
  return arithmetic(&Parser::factor, kOps);
}

ExprResult Parser::unary(bool with_filter) {
  const Deeper deeper(depth_);
  if (depth_ > kMaxDepth) return too_deep();
  const int line = current().line;
  const Expr* node = nullptr;
  if (is_op("-") || is_op("+")) {
    const ExprKind kind = is_op("-") ? ExprKind::Negate : ExprKind::Plus;
    next();
    HUNCH_TRY(const Expr* inner, unary(false));
    HUNCH_TRY(node, make(kind, line, {inner}));
  } else {
    HUNCH_TRY(node, primary());
  }
  HUNCH_TRY(node, postfix(node));
  if (with_filter) return filters_and_tests(node);
  return node;
}

ExprResult Parser::primary() {
  const Token token = current();
  if (token.kind == String) return string_literal();
  if (token.kind == Integer || token.kind == Float) return number();
  if (token.kind == Name) {
    const std::string_view name = token.text;
    if (name == "true" || name == "True" || name == "false" || name == "False" || name == "none" || name == "None") {
      const char c = char(name[0] | 0x20);
      const Expr* out = literal(c == 'n' ? Value::none() : Value::of(c == 't'));
      next();
      return out;
    }
    next();
    const uint32_t id = id_of(name);
    for (Macro* macro : macros_) {  // a macro takes what its body asks for
      macro->uses_caller |= id == kCallerName;
      macro->uses_varargs |= id == kVarargsName;
      macro->uses_kwargs |= id == kKwargsName;
    }
    return make(Expr{.kind = ExprKind::Name, .line = token.line, .id = id, .text = name});
  }
  if (skip_op("(")) {
    HUNCH_TRY(const Expr* inner, tuple(true, true));
    HUNCH_OK(expect_op(")"));
    return inner;
  }
  if (is_op("[")) return list();
  if (is_op("{")) return dict();
  return unexpected("an expression");
}

// Strings side by side are one.
ExprResult Parser::string_literal() {
  std::string_view text = current().text;
  std::string joined;
  const int line = current().line;
  for (bool first = true; current().kind == String; first = false, next()) {
    if (first) continue;
    if (joined.empty()) joined = text;
    joined += current().text;
    text = joined;
  }
  if (!joined.empty()) text = heap_.copy(std::string_view(joined));
  return make(Expr{.kind = ExprKind::Literal, .line = line, .value = make_text(heap_, Text{.bytes = text, .trusted = true})});
}

ExprResult Parser::number() {
  std::string digits(current().text);
  std::erase(digits, '_');
  const char *begin = digits.data(), *end = begin + digits.size();
  Value value;
  if (current().kind == Float) {
    double real = 0;
    const auto read = std::from_chars(begin, end, real);
    if (read.ec != std::errc()) return fail(fmt::format("the number {} is out of range", excerpt(digits, 30)));
    value = Value::of(real);
  } else {
    int base = 10;
    if (digits.size() > 2 && digits[0] == '0') {
      const char letter = char(digits[1] | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      if (base != 10) begin += 2;
    }
    int64_t integer = 0;
    const auto read = std::from_chars(begin, end, integer, base);
    if (read.ec != std::errc()) return fail(fmt::format("the integer {} has more than 64 bits", excerpt(digits, 30)));
    value = Value::of(integer);
  }
  const Expr* out = literal(value);
  next();
  return out;
}

ExprResult Parser::list() {
  const int line = current().line;
  next();
  std::vector<const Expr*> parts;
  while (!is_op("]")) {
    if (!parts.empty()) HUNCH_OK(expect_op(","));
    if (is_op("]")) break;
    HUNCH_TRY(parts.emplace_back(), expression());
  }
  next();
  return make(ExprKind::List, line, parts);
}

ExprResult Parser::dict() {
  const int line = current().line;
  next();
  std::vector<const Expr*> parts;  // key, value, key, ...
  while (!is_op("}")) {
    if (!parts.empty()) HUNCH_OK(expect_op(","));
    if (is_op("}")) break;
    HUNCH_TRY(const Expr* key, expression());
    HUNCH_OK(expect_op(":"));
    HUNCH_TRY(const Expr* value, expression());
    parts.push_back(key);
    parts.push_back(value);
  }
  next();
  return make(ExprKind::Dict, line, parts);
}

ExprResult Parser::postfix(const Expr* inner) {
  while (is_op(".") || is_op("[") || is_op("(")) {
    if (is_op("(")) {
      HUNCH_TRY(inner, call(inner));
    } else {
      HUNCH_TRY(inner, subscript(inner));
    }
  }
  return inner;
}

ExprResult Parser::filters_and_tests(const Expr* inner) {
  while (true) {
    if (is_op("|")) {
      HUNCH_TRY(inner, filter(inner, false));
    } else if (is_name("is")) {
      HUNCH_TRY(inner, test(inner));
    } else if (is_op("(")) {
      HUNCH_TRY(inner, call(inner));
    } else {
      return inner;
    }
  }
}

ExprResult Parser::subscript(const Expr* inner) {
  const int line = current().line;
  if (skip_op(".")) {
    const Token token = current();
    if (token.kind == Integer) {
      HUNCH_TRY(const Expr* index, number());
      return make(ExprKind::Item, line, {inner, index});
    }
    HUNCH_TRY(const std::string_view name, expect_any_name());
    return make(ExprKind::Attribute, line, {inner}, {.text = name});
  }
  next();
  std::vector<const Expr*> args;
  while (!is_op("]")) {
    if (!args.empty()) HUNCH_OK(expect_op(","));
    HUNCH_TRY(args.emplace_back(), subscript_part());
  }
  next();
  if (args.empty()) return fail("expected an index between [ and ]");
  const Expr* index = args[0];
  if (args.size() > 1) { HUNCH_TRY(index, make(ExprKind::Tuple, line, args)); }
  return make(ExprKind::Item, line, {inner, index});
}

ExprResult Parser::subscript_part() {
  const int line = current().line;
  std::vector<const Expr*> bounds(3, nullptr);
  if (!is_op(":")) {
    HUNCH_TRY(bounds[0], expression());
    if (!is_op(":")) return bounds[0];
  }
  for (size_t i = 1; i < 3 && skip_op(":"); ++i)
    if (!is_op(":") && !is_op("]") && !is_op(",")) { HUNCH_TRY(bounds[i], expression()); }
  return make(ExprKind::Slice, line, bounds);
}

Result<const CallArgs*> Parser::call_args() {
  HUNCH_OK(expect_op("("));
  std::vector<const Expr*> positional;
  std::vector<Keyword> named;
  CallArgs args;
  for (bool first = true; !is_op(")"); first = false) {
    if (!first) {
      HUNCH_OK(expect_op(","));
      if (is_op(")")) break;
    }
    if (is_op("*") || is_op("**")) {
      const bool list = is_op("*");
      if (args.dict || (list && args.list)) return fail("invalid arguments of a call");
      next();
      HUNCH_TRY((list ? args.list : args.dict), expression());
    } else if (current().kind == Name && ahead().kind == Sign && ahead().text == "=") {
      if (args.dict) return fail("invalid arguments of a call");
      const std::string_view name = current().text;
      for (const Keyword& known : named)
        if (known.name == name) return fail(fmt::format("keyword argument repeated: {}", name));
      next();
      next();
      HUNCH_TRY(const Expr* value, expression());
      named.push_back({name, value});
    } else {
      if (args.list || args.dict || !named.empty()) return fail("invalid arguments of a call");
      HUNCH_TRY(positional.emplace_back(), expression());
    }
  }
  next();
  args.positional = heap_.copy(positional);
  args.named = heap_.copy(named);
  return heap_.make<CallArgs>(args);
}

// One filter or a chain of them. What we lack is refused at once, but behind a condition only if it is reached.
ExprResult Parser::filter(const Expr* inner, bool inline_start) {
  while (inline_start || is_op("|")) {
    if (!inline_start) next();
    inline_start = false;
    const int line = current().line;
    HUNCH_TRY(const std::string_view name, expect_any_name());
    const Function function = find_filter(name);
    if (!function && conditions_ == 0) return at_line(line, fmt::format("the filter '{}' is not supported", name));
    const CallArgs* args = nullptr;
    if (is_op("(")) { HUNCH_TRY(args, call_args()); }
    HUNCH_TRY(inner, make(ExprKind::Filter, line, {inner}, {.text = name, .args = args, .function = function}));
  }
  return inner;
}

ExprResult Parser::test(const Expr* inner) {
  const int line = current().line;
  next();  // "is"
  const bool negated = skip_name("not");
  HUNCH_TRY(const std::string_view name, expect_any_name());
  const Function function = find_test(name);
  if (!function && conditions_ == 0) return at_line(line, fmt::format("the test '{}' is not supported", name));
  const CallArgs* args = nullptr;
  const TokenKind kind = current().kind;
  if (is_op("(")) {
    HUNCH_TRY(args, call_args());
  } else if (((kind == Name && !is_name("else") && !is_name("or") && !is_name("and")) || kind == String || kind == Integer ||
                 kind == Float || is_op("[") || is_op("{"))) {
    if (is_name("is")) return fail("tests cannot be chained with 'is'");
    HUNCH_TRY(const Expr* first, primary());
    HUNCH_TRY(const Expr* arg, postfix(first));
    args = heap_.make<CallArgs>(CallArgs{.positional = heap_.copy(std::vector<const Expr*>{arg})});
  }
  HUNCH_TRY(const Expr* out, make(ExprKind::Test, line, {inner}, {.text = name, .args = args, .function = function}));
  if (!negated) return out;
  return make(ExprKind::Not, line, {out});
}

ExprResult Parser::call(const Expr* callee) {
  const int line = current().line;
  HUNCH_TRY(const CallArgs* args, call_args());
  return make(ExprKind::Call, line, {callee}, {.args = args});
}

}
